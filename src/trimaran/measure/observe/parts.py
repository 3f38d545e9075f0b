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

    Args:
        figure: of a step, or of what else sums up steps
        mean: of all steps
        blocks: means of blocks of consecutive steps

    Returns:
        The figure, and the ends of its interval.
    """
    value = figure(mean)
    if len(blocks) < 2:
        return value, value, value
    each = [figure(block) for block in blocks]
    centre = sum(each) / len(each)
    deviation = (sum((one - centre) ** 2 for one in each) / (len(each) - 1)) ** 0.5
    half = student_95(len(each) - 1) * deviation / len(each) ** 0.5
    return value, value - half, value + half
