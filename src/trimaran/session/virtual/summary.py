"""From what was counted and planned to the report."""

from collections.abc import Iterable

from trimaran.program.memory import Decision
from trimaran.session.virtual.plans import Planned, Plans
from trimaran.session.virtual.report import MemoryReport, StorageDecision
from trimaran.session.virtual.tally import Tally


def summarize(phase: str, tally: Tally, plans: Plans, state_bytes: int) -> MemoryReport:
    """The report of a loop so far.

    Args:
        phase: what the next step is for
        tally: what happened
        plans: what was planned
        state_bytes: of optimizers, on the host [bytes]
    """
    flights = tally.last_planned or tally.last
    stalls_s = [flight.stall_s for flight in flights if flight.stall_s is not None]
    largest = plans.largest
    outcome = None if largest is None else largest.flyer.outcome
    return MemoryReport(
        phase=phase,
        device=plans.device,
        budget_bytes=plans.budget_bytes,
        keep_peak_bytes=None if largest is None else largest.keep_peak_bytes,
        floor_bytes=None if largest is None else largest.floor_bytes,
        predicted_peak_bytes=plans.predicted_peak_bytes,
        measured_peak_bytes=tally.peak_bytes,
        steps=tally.steps,
        recorded_steps=tally.recorded,
        fallback_steps=tally.fell_back,
        plans=len(plans),
        state_host_bytes=state_bytes,
        step_time_s=tally.step_time_s,
        keep_time_s=None if largest is None else largest.compute_s,
        planned_time_s=None if outcome is None else outcome.run.step_time_s,
        limit_time_s=None if outcome is None else outcome.bound.step_time_s,
        ratio_to_limit=None if outcome is None else outcome.ratio_to_limit,
        stall_s=None if len(stalls_s) < len(flights) else sum(stalls_s),
        to_host_bytes=sum(flight.to_host_bytes for flight in flights),
        to_device_bytes=sum(flight.to_device_bytes for flight in flights),
        decisions=tuple(_decisions(largest)),
        notes=tuple(tally.notes),
    )


def _decisions(planned: Planned | None) -> Iterable[StorageDecision]:
    if planned is None or planned.flyer.outcome is None:
        return []
    plan, storages = planned.flyer.outcome.plan, planned.trace.storages
    moved = (
        StorageDecision(
            module=storages[number].module,
            nbytes=storages[number].nbytes,
            decision=str(decision),
            reason=plan.reasons.get(number, ""),
        )
        for number, decision in plan.decisions.items()
        if decision is not Decision.KEEP
    )
    return sorted(moved, key=lambda one: -one.nbytes)
