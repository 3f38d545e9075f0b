"""Which of two exchanges is faster, as far as their constants are known.

    step of either method at the ends of what nobody has measured of it ─▶ ratio between two ends ─▶ winner, or not sure

Compute is the same for both, at its value and at both ends of its interval. The unknowns of the two methods are taken
apart from each other: one may be at its fast ends while the other is at its slow ones.
"""

from dataclasses import dataclass
from typing import get_args

from trimaran.pricing.types import IntervalEnd
from trimaran.simulator.data_parallel import DataParallelSetup, at_ends, step_seconds

COMPUTE_ENDS: tuple[IntervalEnd, ...] = get_args(IntervalEnd)
"""Fast, usual and slow compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnds:
    """A step with all that nobody has measured of its exchange at its ends.

    Attributes:
        seconds: with every constant at its value [s]
        pairs: with the unknowns at their fast and at their slow ends, for fast, usual and slow compute [s, s]
    """

    seconds: float
    pairs: tuple[tuple[float, float], ...]

    @property
    def interval(self) -> tuple[float, float]:
        """The step with usual compute, at both ends of the exchange [s, s]."""
        return self.pairs[COMPUTE_ENDS.index("seconds")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Speed of a method by that of another.

    Attributes:
        value: with every constant at its value
        low: where the other has the better ends
        high: where it has the better ends itself
    """

    value: float
    low: float
    high: float

    @property
    def faster(self) -> bool | None:
        """Whether it is faster than the other; None: not sure, as it depends on constants that nobody has measured."""
        return None if self.low <= 1.0 <= self.high else self.low > 1.0

    def covers(self, measured: float) -> bool:
        """Whether a measured ratio is between the ends."""
        return self.low <= measured <= self.high


def step_ends(setup: DataParallelSetup) -> StepEnds:
    """The step of a set-up at the ends of what nobody has measured of its exchange.

    Args:
        setup: as for `data_parallel_step`

    Raises:
        InputError: as `data_parallel_step`
    """
    pairs = []
    for compute in COMPUTE_ENDS:
        low_s, high_s = (step_seconds(at_ends(setup, compute=compute, exchange=end)) for end in ("fast", "slow"))
        pairs.append((min(low_s, high_s), max(low_s, high_s)))
    return StepEnds(seconds=step_seconds(setup), pairs=tuple(pairs))


def speed_ratio(one: StepEnds, other: StepEnds) -> Ratio:
    """Speed of a method by that of another, for the same job on the same devices.

    Args:
        one: the method's step
        other: the other method's

    Example:
        >>> one = StepEnds(seconds=2.0, pairs=((1.0, 4.0),) * 3)
        >>> speed_ratio(one, StepEnds(seconds=3.0, pairs=((3.0, 3.0),) * 3))
        Ratio(value=1.5, low=0.75, high=3.0)
    """
    value = other.seconds / one.seconds
    lows = [theirs[0] / ours[1] for ours, theirs in zip(one.pairs, other.pairs, strict=True)]
    highs = [theirs[1] / ours[0] for ours, theirs in zip(one.pairs, other.pairs, strict=True)]
    return Ratio(value=value, low=min(value, *lows), high=max(value, *highs))
