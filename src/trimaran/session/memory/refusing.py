"""A budget below the floor of a job's step: refused, with what holds the floor and the ways out."""

from trimaran.errors import InfeasibleError
from trimaran.planner.memory import floor
from trimaran.session.memory.batches import most_samples
from trimaran.session.memory.choosing import find_job_split
from trimaran.session.memory.line import at_any_batch
from trimaran.session.memory.split import written
from trimaran.session.memory.steps import PricedSteps
from trimaran.units import format_bytes

_NEAR = 4  # samples from which to look for the largest batch below a floor


def below_floor(steps: PricedSteps, budget_bytes: int, *, samples: int, whole: PricedSteps | None) -> InfeasibleError:
    """The refusal.

    Args:
        steps: of the job, as they were to run
        budget_bytes: that they must stay within [bytes]
        samples: of the step
        whole: steps of which a split is sought; None: it was sought, and none helps
    """
    least = floor(steps.tracer.trace(samples))
    trace_of = at_any_batch(steps.tracer.trace, _NEAR)
    fewer = most_samples(lambda some: floor(trace_of(some)).nbytes, budget_bytes, near=_NEAR)
    card = least.nbytes + steps.device.memory.context_bytes
    ways = [f"a card of {format_bytes(card)} or more"]
    found = None if whole is None else find_job_split(whole, budget_bytes=budget_bytes, samples=samples)
    named = None if found is None else written(found.split)
    if found is not None:
        least_split = format_bytes(found.floor.nbytes)
        ways.insert(0, f"--split {named}, with which the floor is {least_split}")
    if fewer:
        ways.insert(0, f"a batch of at most {fewer}, and several of them before each update")
    return InfeasibleError(
        f"no plan fits {format_bytes(budget_bytes)}: one operation alone needs {least.describe()}. "
        f"What would help: {'; '.join(ways)}",
        code="memory.nothing-fits",
        budget_bytes=budget_bytes,
        floor_bytes=least.nbytes,
        largest_batch=fewer,
        split=named,
    )
