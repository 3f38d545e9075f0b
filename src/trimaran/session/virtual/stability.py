"""Whether a step ended with what it began with, so that the next one will be like it.

The first step makes the optimizer's state. Where gradients are set to zero at the beginning of a step, those of the
step before are still there when it begins, but for the first one.
"""

from trimaran.graph.trace.liveness import WEIGHTS
from trimaran.graph.trace.types import StepTrace


def bytes_at_start(trace: StepTrace) -> int:
    """Parameters, gradients and state that are there before a flight [bytes]."""
    return sum(one.nbytes for one in trace.storages if one.role in WEIGHTS and one.birth < 0)


def bytes_at_end(trace: StepTrace) -> int:
    """Parameters, gradients and state that are there after a flight [bytes]."""
    return sum(one.nbytes for one in trace.storages if one.role in WEIGHTS and one.outside_end >= trace.length)


def is_steady(first: StepTrace, last: StepTrace) -> bool:
    """Whether a step ended with as much as it began with.

    Args:
        first: flight of the step
        last: flight of the step
    """
    return bytes_at_start(first) == bytes_at_end(last)
