"""The largest batch of a job on a device: without help, with a plan that is cheap enough, at any price."""

from collections.abc import Callable

from trimaran.errors import InfeasibleError
from trimaran.graph.trace.types import StepTrace
from trimaran.planner.memory import floor, plan_memory
from trimaran.program.memory import KEEP_ALL
from trimaran.report.memory.estimate import LargestBatch
from trimaran.session.memory.batches import most_samples, most_with_plan
from trimaran.session.memory.line import at_any_batch
from trimaran.session.memory.steps import PricedSteps
from trimaran.simulator.memory import live_bytes

# Planning of one of the batches that are tried stops here [s].
_TRIAL_S = 2.0


def largest_batch(
    whole: PricedSteps,
    in_parts: PricedSteps | None,
    budget_bytes: int,
    *,
    slowdown_limit: float,
    known: tuple[int, float],
) -> LargestBatch:
    """The largest batch.

    Args:
        whole: steps of the job on the device
        in_parts: the same with some modules in parts, for batches whose floor is too high without; None: nothing is
        budget_bytes: that they must stay within [bytes]
        slowdown_limit: most that a plan may cost against the whole step with memory without end, 0.1 for 10 %
        known: samples, and what a plan costs with them
    """
    near = known[0]
    whole_of = at_any_batch(whole.tracer.trace, near)
    parts_of = None if in_parts is None else at_any_batch(in_parts.tracer.trace, near)

    def cost(samples: int) -> float | None:
        trace = planned = whole_of(samples)
        if parts_of is not None and floor(trace).nbytes > budget_bytes:
            planned = parts_of(samples)
        try:
            outcome = plan_memory(planned, whole.costs(planned), budget_bytes=budget_bytes, limit_s=_TRIAL_S)
        except InfeasibleError:
            return None
        return outcome.run.step_time_s / whole.costs(trace).compute_s - 1.0

    def most_at_floor(trace_of: Callable[[int], StepTrace]) -> int:
        return most_samples(lambda some: floor(trace_of(some)).nbytes, budget_bytes, near=near)

    kept = most_samples(lambda some: live_bytes(whole_of(some), KEEP_ALL).peak, budget_bytes, near=near)
    at_floor = max(most_at_floor(trace_of) for trace_of in (whole_of, parts_of) if trace_of is not None)
    samples, slowdown = most_with_plan(cost, at_most=slowdown_limit, fits=kept, floor=at_floor, known=known)
    return LargestBatch(
        without_help=kept,
        with_plan=samples,
        at_floor=at_floor,
        slowdown_limit=slowdown_limit,
        slowdown=slowdown,
    )
