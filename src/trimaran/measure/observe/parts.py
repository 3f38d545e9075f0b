"""A step by what it was spent on: parts that do not overlap and sum to it."""

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields
from typing import TypeVar

from trimaran.costs.noise import student_95

_Step = TypeVar("_Step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Time of a step [s], or of the mean of many.

    Attributes:
        load: waiting for the next batch, moving it to the device
        start: making the iterator of a loader, its workers included
        forward: forward and loss
        backward: as far as it computes
        exchange: DDP's exchange of gradients, as far as nothing hides it and all ranks are there
        wait: in DDP's exchange, waiting for slower ranks
        wait_in_collective: in collectives outside of DDP, waiting for slower ranks
        update: the optimizer, zeroing, clipping
        sync: reading values
        collective: blocked in collectives outside of DDP, once all ranks are there
        other: the rest
    """

    load: float
    start: float
    forward: float
    backward: float
    exchange: float
    wait: float
    wait_in_collective: float
    update: float
    sync: float
    collective: float
    other: float

    @property
    def step_s(self) -> float:
        """The whole step [s]."""
        return float(sum(astuple(self)))


def mean_parts(parts: Sequence[Parts]) -> Parts:
    """The mean, part by part; they still sum to the mean step."""
    names = [field.name for field in fields(Parts)]
    return Parts(**{name: sum(getattr(one, name) for one in parts) / len(parts) for name in names})


def figure_interval(
    figure: Callable[[_Step], float], mean: _Step, blocks: Sequence[_Step]
) -> tuple[float, float, float]:
    """A figure of the mean step with its 90 % interval from the spread between blocks of consecutive steps.

    A machine that others use too is slow for seconds at a time, so that neighbouring blocks are alike and their spread
    says too little. So the spread between pairs of blocks is taken where it says more, and the figures of both halves
    of the run are in the interval.

    Args:
        figure: of a step, or of what else sums up steps
        mean: of all steps
        blocks: means of blocks of consecutive steps

    Returns:
        The figure, and the ends of its interval.
    """
    value = figure(mean)
    return value, *interval(value, [figure(block) for block in blocks])


def interval(value: float, each: Sequence[float]) -> tuple[float, float]:
    """The 90 % interval of a mean of blocks that follow each other, wide enough for a drift between them.

    Args:
        value: of the whole
        each: of the blocks, in order

    Example:
        >>> [round(end, 2) for end in interval(2.0, [1, 1, 1, 1, 1, 3, 3, 3, 3, 3])]
        [1.0, 3.0]
        >>> [round(end, 2) for end in interval(2.0, [1, 3, 1, 3, 1, 3, 1, 3, 1, 3])]
        [1.39, 2.61]
    """
    if len(each) < 2:
        return value, value
    pairs = [sum(each[first : first + 2]) / 2 for first in range(0, len(each) - 1, 2)]
    half = max(_half_width(each), _half_width(pairs) if len(pairs) > 2 else 0.0)
    middle = len(each) // 2
    halves = [sum(part) / len(part) for part in (each[:middle], each[len(each) - middle :])]
    return min(value - half, *halves), max(value + half, *halves)


def _half_width(each: Sequence[float]) -> float:
    centre = sum(each) / len(each)
    deviation = (sum((one - centre) ** 2 for one in each) / (len(each) - 1)) ** 0.5
    return float(student_95(len(each) - 1) * deviation / len(each) ** 0.5)
