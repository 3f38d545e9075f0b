"""A rank that computes slower than it should: which one, and by how much.

A slow rank makes the others wait, so that all steps take equally long, and the length of a step does not show it. What
shows it is what a rank computes: the time of its forwards, backwards and updates, without loads and without waits in
them. It is compared with the other ranks that run the same instructions (replicas of the same stage); where there is
none, the ratio of measured to predicted compute is compared with that of the other ranks.

Rule: the recorded steps after the warm-up are divided into eight runs of consecutive steps, of at least 25 each. In
each run the compute of a rank is divided by the median of what it is compared with. A rank is slow if that is at least
`ALIKE` (against the same instructions), or `PREDICTED` (against a prediction, which is off by itself), in at least
seven of the eight. So a pause, however long, falls into one run of steps and does not make a rank slow; being stopped
and continued all the time does.

Not seen: ranks that share the tensors of a row (tensor parallelism) wait for each other inside their compute, so that
one of them slows all of them down alike. A rank that is alone, and a run without a record, are not judged.
"""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trimaran.base.timeline import COMPUTE, WAIT, Timeline
from trimaran.base.units import format_seconds
from trimaran.report.breakdown import Interval, length, subtract, unite

ALIKE = 1.5
"""Of ranks that run the same instructions; 30 undisturbed runs had at most 1.014 (`docs/runtime.md`)."""

PREDICTED = 2.0
"""Of ranks that are compared by their predictions."""

_RUNS = 8
_NEEDED = 7
_LEAST_STEPS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """A rank that computes slower than the others.

    Attributes:
        rank: which
        ratio: of its compute to what it is compared with, over all steps that were looked at
        compute_s: its compute in a step, on average [s]
        lost_s: of that, more than the comparison says [s]
        compared_with: ranks that run the same instructions; empty: compared by predictions
        steps: number of steps that were looked at
    """

    rank: int
    ratio: float
    compute_s: float
    lost_s: float
    compared_with: tuple[int, ...]
    steps: int

    def __str__(self) -> str:
        others = (
            f"rank{'s' if len(self.compared_with) > 1 else ''} {', '.join(map(str, self.compared_with))} with the same "
            "work"
            if self.compared_with
            else "its prediction, against those of the other ranks"
        )
        return (
            f"rank {self.rank} is slow: its computation takes {self.ratio:.2f} times that of {others}, "
            f"{format_seconds(self.lost_s)} more a step, for which the others wait. Look at what else runs on its "
            "core or device, and at its temperature"
        )


def find_slow_ranks(measured: Timeline, predicted: Timeline, *, warmup: int = 0) -> tuple[SlowRank, ...]:
    """The ranks that are slow by the rule above.

    Args:
        measured: recorded, all ranks, several steps
        predicted: one step, simulated
        warmup: number of first steps to leave out
    """
    computed, tokens = _compute(measured)
    expected, _ = _compute(predicted)
    steps = measured.steps[warmup:]
    ranks = [rank for rank in measured.ranks if all((rank, step) in computed for step in steps)]
    if len(ranks) < 2 or len(steps) < _RUNS * _LEAST_STEPS:
        return ()
    runs = _divide(steps)
    found = []
    for rank in ranks:
        alike = tuple(other for other in ranks if other != rank and tokens[other] == tokens[rank])
        by_prediction = {one: sum(s for (of, _), s in expected.items() if of == one) for one in ranks}
        if not alike and not all(by_prediction.values()):
            continue
        scale: Mapping[int, float] = dict.fromkeys(ranks, 1.0) if alike else by_prediction
        others = alike or tuple(other for other in ranks if other != rank)
        ratios = [_ratio(rank, others, scale, computed, run) for run in runs]
        if sum(ratio >= (ALIKE if alike else PREDICTED) for ratio in ratios) < _NEEDED:
            continue
        ratio = _ratio(rank, others, scale, computed, steps)
        compute_s = statistics.fmean(computed[rank, step] for step in steps)
        found.append(
            SlowRank(
                rank=rank,
                ratio=ratio,
                compute_s=compute_s,
                lost_s=compute_s * (1.0 - 1.0 / ratio),
                compared_with=alike,
                steps=len(steps),
            )
        )
    return tuple(found)


def _compute(timeline: Timeline) -> tuple[dict[tuple[int, int], float], dict[int, frozenset[str]]]:
    """The compute of each rank in each step [s], and the tokens of its instructions of compute."""
    spans: dict[tuple[int, int], list[Interval]] = defaultdict(list)
    waits: dict[tuple[int, int], list[Interval]] = defaultdict(list)
    tokens: dict[int, set[str]] = defaultdict(set)
    columns = timeline.columns
    for rank, stream, start_s, end_s, name, _, step in zip(*columns, strict=True):
        if stream == COMPUTE:
            spans[rank, step].append((start_s, end_s))
            tokens[rank].add(name.partition("/")[2])
        elif stream == WAIT:
            waits[rank, step].append((start_s, end_s))
    computed = {key: length(subtract(unite(spans[key]), unite(waits[key]))) for key in list(spans)}
    return computed, {rank: frozenset(found) for rank, found in tokens.items()}


def _divide(steps: Sequence[int]) -> list[Sequence[int]]:
    bounds = [len(steps) * number // _RUNS for number in range(_RUNS + 1)]
    return [steps[low:high] for low, high in pairwise(bounds)]


def _ratio(
    rank: int,
    others: Sequence[int],
    scale: Mapping[int, float],
    computed: Mapping[tuple[int, int], float],
    steps: Sequence[int],
) -> float:
    """The compute of a rank in some steps, over the median of that of others, each over its scale."""
    totals = {one: sum(computed[one, step] for step in steps) / scale[one] for one in (rank, *others)}
    usual = statistics.median(totals[other] for other in others)
    return totals[rank] / usual if usual else 1.0
