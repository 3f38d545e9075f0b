"""From samples to a cost.

Samples are taken in rounds, spread over the measuring time and over the ranks, because what differs between two runs (a
busy neighbour, a warm cache) is constant for milliseconds and would hide in samples taken one after the other. The cost
is the median of all samples. Its interval says where the median of another run may lie: it is the range of the medians
of the rounds, without the outermost 5 % on either side where there are that many.

What waits for the scheduler (a transfer, whose threads need a core) takes one of several typical times, and a step
holds many of them: there the mean takes the place of the median, without the longest 5 % (of 20 samples or more), which
are other programs'.
"""

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from trimaran.costs.types import Cost
from trimaran.errors import ExecutionError

_Key = TypeVar("_Key", bound=Hashable)

Rounds = list[list[float]]
"""Durations, in groups that were taken together [s]."""


def summarize(rounds: Iterable[Sequence[float]], *, how: str, waits: bool = False) -> Cost:
    """The median of samples, and where another run's median may lie.

    Args:
        rounds: durations, in groups that were taken together [s]; empty groups are passed over
        how: a word on how they were taken
        waits: what is measured waits for the scheduler; the mean without the longest 5 % takes the place of the median

    Returns:
        The median (the mean where `waits`), with a 90 % interval that contains it.

    Raises:
        ExecutionError: no sample

    Example:
        >>> summarize([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]], how="by hand")
        Cost(seconds=2.5, low=2.0, high=4.0, source='measured: by hand')
    """
    groups = [group for group in rounds if group]
    if not groups:
        raise ExecutionError(f"nothing was measured ({how}): no sample came back", code="measure.no-samples")
    typical = _trimmed_mean if waits else statistics.median
    middle = typical([sample for group in groups for sample in group])
    medians = sorted(typical(group) for group in groups)
    outside = math.floor(0.05 * len(medians))
    low, high = medians[outside], medians[-1 - outside]
    return Cost(middle, min(low, middle), max(high, middle), f"measured: {how}")


def _trimmed_mean(samples: Sequence[float]) -> float:
    return statistics.fmean(sorted(samples)[: math.ceil(0.95 * len(samples))])


def pool(ranks: Iterable[Mapping[_Key, Rounds]]) -> dict[_Key, Rounds]:
    """The rounds of all ranks together.

    Args:
        ranks: of each rank, its rounds by what was measured

    Example:
        >>> pool([{"a": [[1.0], [2.0]]}, {"a": [[3.0]], "b": [[4.0]]}])
        {'a': [[1.0], [2.0], [3.0]], 'b': [[4.0]]}
    """
    together: dict[_Key, Rounds] = {}
    for rank in ranks:
        for key, rounds in rank.items():
            together.setdefault(key, []).extend(rounds)
    return together
