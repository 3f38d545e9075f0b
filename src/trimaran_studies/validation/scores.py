"""Scores of predictions of published figures, and of simple rules: errors, intervals, ranks.

An error is `predicted / measured - 1`. The interval score (Gneiting & Raftery, 2007) of a 90 % interval is its width
plus 20 times the distance of the figure from it, here as a share of the measured figure; less is better. Skipped rows
and known errors of a source are left out.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

_ALPHA = 0.1
CONSTANT_HALF_WIDTH = 0.25
"""Half the width of the constant interval that is compared with ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A row with its prediction.

    Attributes:
        row_id: of the row
        family: of the row
        groups: its key in each group: "use" (calibrate, dev), "setting", "machine", "network", "source"
        several_nodes: whether it used devices of several nodes
        measured: the published figure
        predicted: ours; None where the row was skipped
        low: lower end of the 90 % interval
        high: upper end
        baselines: predictions of simple rules, by name
        skipped: why there is no prediction
        flag: a known error of the source
        fits: whether the step fits the device's memory; None where that does not apply
        anchors: other rows that it was predicted from
    """

    row_id: str
    family: str
    groups: Mapping[str, str]
    several_nodes: bool
    measured: float
    predicted: float | None
    low: float | None = None
    high: float | None = None
    baselines: Mapping[str, float] = field(default_factory=dict)
    skipped: str = ""
    flag: str = ""
    fits: bool | None = None
    anchors: tuple[str, ...] = ()

    @property
    def error(self) -> float | None:
        """`predicted / measured - 1`."""
        return None if self.predicted is None else self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Scores of the predictions of several rows.

    Attributes:
        rows: in all
        answered: number of rows with a prediction
        median: of the absolute errors
        p80: 80th percentile of the absolute errors
        p90: 90th percentile
        within_10: share of errors of at most 10 %
        within_20: share of errors of at most 20 %
        bias: median of the errors with their sign
        coverage: share of measured figures inside the 90 % interval; None without intervals
        interval_score: mean, as a share of the measured figure; None without intervals
        constant_score: the same for our figures with an interval of a quarter to each side
        rank_correlation: Spearman's; None with fewer than three rows
        baselines: median and 80th percentile of the errors of each simple rule, on the rows that it predicts
    """

    rows: int
    answered: int
    median: float
    p80: float
    p90: float
    within_10: float
    within_20: float
    bias: float
    coverage: float | None
    interval_score: float | None
    constant_score: float
    rank_correlation: float | None
    baselines: Mapping[str, tuple[float, float]]


def score(rows: Iterable[Scored]) -> Score | None:
    """Scores of the rows with a prediction; None where there is none."""
    every = [row for row in rows if not row.flag]
    known = [row for row in every if row.predicted is not None]
    errors = [error for row in known if (error := row.error) is not None]
    if not errors:
        return None
    sizes = sorted(abs(error) for error in errors)
    intervals = [row for row in known if row.low is not None and row.high is not None]
    return Score(
        rows=len(every),
        answered=len(known),
        median=median(sizes),
        p80=quantile(sizes, 0.8),
        p90=quantile(sizes, 0.9),
        within_10=_share(sizes, 0.10),
        within_20=_share(sizes, 0.20),
        bias=median(errors),
        coverage=_coverage(intervals),
        interval_score=_mean([_interval_score(row, row.low, row.high) for row in intervals]),
        constant_score=_mean([_constant_score(row) for row in known]) or 0.0,
        rank_correlation=rank_correlation([(row.predicted or 0.0, row.measured) for row in known]),
        baselines=_baselines(known),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which a share of ascending values is, interpolated.

    Example:
        >>> quantile([1.0, 2.0, 3.0, 4.0, 5.0], 0.8)
        4.2
    """
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def interval_score(measured: float, low: float, high: float) -> float:
    """Width of a 90 % interval plus 20 times the distance of the figure from it, as a share of the measured figure.

    Example:
        >>> interval_score(10.0, 9.0, 11.0), interval_score(10.0, 11.0, 12.0)
        (0.2, 2.1)
    """
    missed = max(low - measured, 0.0) + max(measured - high, 0.0)
    return (high - low + 2 / _ALPHA * missed) / measured


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation of pairs; None where there are fewer than three, or all are equal.

    Example:
        >>> round(rank_correlation([(1.0, 10.0), (2.0, 20.0), (3.0, 30.0)]), 6)
        1.0
    """
    if len(pairs) < 3:
        return None
    first, second = (_ranks([pair[side] for pair in pairs]) for side in (0, 1))
    mean = (len(pairs) + 1) / 2
    spreads = [math.sqrt(sum((rank - mean) ** 2 for rank in ranks)) for ranks in (first, second)]
    if not all(spreads):
        return None
    return sum((a - mean) * (b - mean) for a, b in zip(first, second, strict=True)) / (spreads[0] * spreads[1])


def by_group(rows: Iterable[Scored], name: str) -> dict[str, list[Scored]]:
    """Rows by one of their groups, the largest group first."""
    groups: dict[str, list[Scored]] = {}
    for row in rows:
        groups.setdefault(row.groups.get(name, ""), []).append(row)
    return dict(sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])))


def _interval_score(row: Scored, low: float | None, high: float | None) -> float:
    return interval_score(row.measured, low or 0.0, high or 0.0)


def _constant_score(row: Scored) -> float:
    middle = row.predicted or 0.0
    return interval_score(row.measured, middle * (1 - CONSTANT_HALF_WIDTH), middle * (1 + CONSTANT_HALF_WIDTH))


def _coverage(rows: Sequence[Scored]) -> float | None:
    return _mean([float((row.low or 0.0) <= row.measured <= (row.high or 0.0)) for row in rows])


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _share(sizes: Sequence[float], bound: float) -> float:
    return sum(size <= bound + 1e-9 for size in sizes) / len(sizes)


def _baselines(rows: Sequence[Scored]) -> dict[str, tuple[float, float]]:
    names = dict.fromkeys(name for row in rows for name in row.baselines)
    found = {}
    for name in names:
        sizes = sorted(abs(row.baselines[name] / row.measured - 1) for row in rows if name in row.baselines)
        found[name] = (median(sizes), quantile(sizes, 0.8))
    return found


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in range(start, end + 1):
            ranks[order[place]] = (start + end) / 2 + 1
        start = end + 1
    return ranks
