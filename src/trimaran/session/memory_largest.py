"""The largest batch of a job on a device: without help, with a plan that is cheap enough, at any price."""

from trimaran.errors import InfeasibleError
from trimaran.planner.memory import floor, plan_memory
from trimaran.program.memory import KEEP_ALL
from trimaran.report.memory import LargestBatch
from trimaran.session.memory_batches import most_samples, most_with_plan
from trimaran.session.memory_line import at_any_batch
from trimaran.session.memory_policies import PricedSteps
from trimaran.simulator.memory import live_bytes

# Planning of one of the batches that are tried stops here [s].
_TRIAL_S = 2.0


def largest_batch(
    priced: PricedSteps, budget_bytes: int, *, slowdown_limit: float, known: tuple[int, float]
) -> LargestBatch:
    """The largest batch.

    Args:
        priced: steps of the job on the device
        budget_bytes: that they must stay within [bytes]
        slowdown_limit: most that a plan may cost, 0.1 for 10 %
        known: samples, and what a plan costs with them
    """
    trace_of = at_any_batch(priced.tracer.trace, known[0])

    def cost(samples: int) -> float | None:
        trace = trace_of(samples)
        try:
            outcome = plan_memory(trace, priced.costs(trace), budget_bytes=budget_bytes, limit_s=_TRIAL_S)
        except InfeasibleError:
            return None
        return outcome.run.slowdown

    kept = most_samples(lambda some: live_bytes(trace_of(some), KEEP_ALL).peak, budget_bytes, near=known[0])
    at_floor = most_samples(lambda some: floor(trace_of(some)).nbytes, budget_bytes, near=known[0])
    samples, slowdown = most_with_plan(cost, at_most=slowdown_limit, fits=kept, floor=at_floor, known=known)
    return LargestBatch(
        without_help=kept,
        with_plan=samples,
        at_floor=at_floor,
        slowdown_limit=slowdown_limit,
        slowdown=slowdown,
    )
