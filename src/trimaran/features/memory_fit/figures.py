"""From traces, plans and simulated steps to the figures of a report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimaran.base.errors import InfeasibleError
from trimaran.graph.trace.types import Role, StepTrace, TraceOp, TraceStorage
from trimaran.graph.types import Phase
from trimaran.memory.search import MemoryOutcome
from trimaran.memory.vdnn import vdnn_all, vdnn_conv, vdnn_dyn
from trimaran.planning.meta_trace import PricedStep
from trimaran.pricing.offload_costs import MemoryCosts
from trimaran.program.memory import KEEP_ALL, Decision, MemoryPlan
from trimaran.report.memory import Holder, LiveCurve, PolicyFigures, Usage
from trimaran.simulator.memory import MemoryRun, simulate_memory
from trimaran.simulator.storage_lifetimes import LiveBytes, live_bytes

_NOTHING = 0.0005  # a slowdown that is not worth a word

WEIGHTS = frozenset({Role.PARAMETER, Role.BUFFER, Role.GRADIENT, Role.OPTIMIZER})


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A plan with what it makes of the step.

    Attributes:
        plan: what happens to the storages
        live: live bytes under it
        run: the step under it
        note: what else there is to say of it
    """

    plan: MemoryPlan
    live: LiveBytes
    run: MemoryRun
    note: str = ""


def simulated(trace: StepTrace, plan: MemoryPlan, costs: MemoryCosts, *, note: str = "") -> Simulated:
    """Simulate a plan."""
    return Simulated(plan=plan, live=live_bytes(trace, plan), run=simulate_memory(trace, plan, costs), note=note)


def usage(trace: StepTrace, live: LiveBytes, costs: MemoryCosts) -> Usage:
    """Peak and means of live bytes, with and without weights."""
    bare = live.at - role_bytes(trace, WEIGHTS)
    counted = np.zeros(trace.length)
    counted[[op.moment for op in trace.ops if op.phase != Phase.UPDATE]] = 1.0
    return Usage(
        peak_bytes=live.peak,
        mean_bytes=round(_mean(live.at, counted)),
        time_mean_bytes=round(live.mean_over(costs.durations_s)),
        bare_peak_bytes=int(bare.max(initial=0)),
        bare_mean_bytes=round(_mean(bare, counted)),
    )


def _mean(values: NDArray[np.int64], counted: NDArray[np.float64]) -> float:
    return float(values @ counted) / float(counted.sum()) if counted.any() else 0.0


def role_bytes(trace: StepTrace, roles: frozenset[Role]) -> NDArray[np.int64]:
    """Live bytes of the storages of some roles at each moment [bytes]."""
    change = np.zeros(trace.length + 1, dtype=np.int64)
    for storage in trace.storages:
        if storage.role in roles and storage.keep_end > storage.birth:
            change[max(storage.birth, 0)] += storage.nbytes
            change[min(storage.keep_end, trace.length)] -= storage.nbytes
    return np.cumsum(change[:-1])


def weight_bytes(trace: StepTrace) -> tuple[int, int, int]:
    """Parameters with buffers, optimizer state, gradients: each at its most [bytes]."""
    groups = ({Role.PARAMETER, Role.BUFFER}, {Role.OPTIMIZER}, {Role.GRADIENT})
    state, optimizer, gradients = (int(role_bytes(trace, frozenset(one)).max(initial=0)) for one in groups)
    return state, optimizer, gradients


def policy_figures(
    name: str,
    trace: StepTrace,
    found: Simulated,
    costs: MemoryCosts,
    *,
    budget_bytes: int,
    kept_s: float | None = None,
) -> PolicyFigures:
    """The figures of a plan.

    Args:
        name: of the policy
        trace: the step
        found: the plan of it
        costs: of the step
        budget_bytes: that it should hold [bytes]
        kept_s: step that the plan is compared with [s]; None: the same with memory without end
    """
    run = found.run
    against_s = run.compute_s if kept_s is None else kept_s
    again = [number for number in found.plan.moved if found.plan.of(number) == Decision.RECOMPUTE]
    return PolicyFigures(
        name=name,
        fits=found.live.peak <= budget_bytes,
        usage=usage(trace, found.live, costs),
        step_time_s=run.step_time_s,
        slowdown=run.step_time_s / against_s - 1.0 if against_s > 0 else 0.0,
        to_host_bytes=run.to_host_bytes,
        to_device_bytes=run.to_device_bytes,
        recomputed_bytes=sum(trace.storages[number].nbytes for number in again),
        recompute_s=float(run.recompute_s),
        stall_s=float(run.stall_s),
        note=found.note,
    )


def holders(trace: StepTrace, numbers: Sequence[int]) -> tuple[Holder, ...]:
    """Storages by what they are, those of weights taken together, largest first."""
    groups: dict[tuple[str, str], list[TraceStorage]] = {}
    for number in numbers:
        storage = trace.storages[number]
        name = "" if storage.role in WEIGHTS else storage.module
        groups.setdefault((name, str(storage.role)), []).append(storage)
    found = [
        Holder(name=name, role=role, nbytes=sum(one.nbytes for one in storages), count=len(storages))
        for (name, role), storages in groups.items()
    ]
    return tuple(sorted(found, key=lambda holder: -holder.nbytes))


def place(trace: StepTrace, moment: int) -> str:
    """The operation at a moment, or next to it, for people."""
    after = next((event for event in trace.events[moment:] if isinstance(event, TraceOp)), None)
    op = after or (trace.ops[-1] if trace.ops else None)
    if op is None:
        return ""
    name = op.name.removeprefix("aten.").rpartition(".")[0] or op.name
    return f"{name} in {op.module}" if op.module else name


def live_curve(trace: StepTrace, kept: LiveBytes, planned: LiveBytes | None, costs: MemoryCosts) -> LiveCurve:
    """Live bytes at each moment, for drawing."""
    return LiveCurve(
        seconds=tuple(costs.durations_s.tolist()),
        phases=phases(trace),
        kept_bytes=tuple(kept.at.tolist()),
        plan_bytes=() if planned is None else tuple(planned.at.tolist()),
    )


def phases(trace: StepTrace) -> tuple[str, ...]:
    """Phase of each moment; a tick has that of the next operation."""
    found: list[str] = []
    current = str(trace.ops[-1].phase) if trace.ops else "FP"
    for event in reversed(trace.events):
        if isinstance(event, TraceOp):
            current = str(event.phase)
        found.append(current)
    return tuple(reversed(found))


def bottleneck(
    shown: Simulated, offload_lower_bound_s: float, *, budget_bytes: int, kept_peak_bytes: int, again: str = ""
) -> str:
    """The bottleneck of a plan, in a sentence or two.

    Args:
        shown: the plan
        offload_lower_bound_s: below this no plan is that only offloads [s]
        budget_bytes: that it must hold [bytes]
        kept_peak_bytes: without offload or recompute [bytes]
        again: what the forward of modules in parts costs, which runs twice; "": there are none
    """
    run = shown.run
    if again and run.slowdown < _NOTHING:
        return f"{again}. All copies overlap with the operations." if shown.plan.moved else f"{again}."
    if kept_peak_bytes <= budget_bytes and not shown.plan.moved:
        return "the operations: everything fits, and nothing has to move."
    if run.slowdown < _NOTHING:
        return "the operations: all copies overlap with them."
    recompute, wait = (100 * part / run.compute_s for part in (run.recompute_s, run.stall_s))
    first = (
        f"recomputation, {recompute:.1f} % of the step"
        if run.recompute_s >= run.stall_s
        else f"the link to the host, for which operations wait {wait:.1f} % of the step"
    )
    alone = 100 * (offload_lower_bound_s / run.compute_s - 1)
    if again:
        return f"{again}. Then {first}."
    return f"{first}. Offloading alone would cost at least {alone:.1f} %."


# ---------------------------------------------------------------------------------------------------------------------
# The plans that stand side by side for one job: the paper's policies for its whole step, and ours


def papers_policies(whole: PricedStep, budget_bytes: int) -> Mapping[str, Simulated]:
    """No policy and those of the paper, in the order in which they are shown.

    Args:
        whole: the step without a split
        budget_bytes: for the dynamic policy [bytes]
    """
    trace, costs = whole.trace, whole.costs
    found = {
        "none": simulated(trace, KEEP_ALL, costs),
        "all": simulated(trace, vdnn_all(trace), costs),
        "conv": simulated(trace, vdnn_conv(trace), costs),
    }
    try:
        found["dyn"] = simulated(trace, vdnn_dyn(trace, budget_bytes=budget_bytes), costs)
    except InfeasibleError:
        found["dyn"] = replace(found["all"], note="nothing that it tries fits; its first trial, all, is shown")
    return found


def ours(outcome: MemoryOutcome, split: str | None) -> Simulated:
    """Our plan among them.

    Args:
        outcome: the plan
        split: modules that it runs in parts, for people; None: none
    """
    note = "" if split is None else f"{split}; the others have no split, and are of the whole step"
    return Simulated(plan=outcome.plan, live=outcome.live, run=outcome.run, note=note)


def all_figures(
    papers: Mapping[str, Simulated], our: Simulated, *, whole: PricedStep, planned: PricedStep, budget_bytes: int
) -> tuple[PolicyFigures, ...]:
    """Their figures, all against the whole step with memory without end.

    Args:
        papers: none and the paper's policies
        our: plan
        whole: the step that the paper's policies are for
        planned: the step that our plan is for
        budget_bytes: that they should hold [bytes]
    """
    figures = [(name, one, whole) for name, one in papers.items()] + [("ours", our, planned)]
    kept_s = papers["none"].run.step_time_s
    return tuple(
        policy_figures(name, step.trace, one, step.costs, budget_bytes=budget_bytes, kept_s=kept_s)
        for name, one, step in figures
    )
