"""Scores of predictions of published figures, and of simple rules: errors, intervals, ranks; and their tables.

An error is `predicted / measured - 1`. The interval score (Gneiting & Raftery, 2007) of a 90 % interval is its width
plus 20 times the distance of the figure from it, here as a share of the measured figure; less is better. Skipped rows
and known errors of a source are left out.

A validation has tables: one for each family, readable at 80 columns and without colour.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from rich.table import Table

from trimaran.base.units import format_span
from trimaran.report.tables import add_figures, frame_table

# ---------------------------------------------------------------------------------------------------------------------
# Scores


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


# ---------------------------------------------------------------------------------------------------------------------
# The JSON form of a validation: every row, and scores by family and group


GROUPS = ("use", "setting", "machine", "network", "source")
"""Groups of the rows of a family, in addition to the number of nodes."""

ORDER = (
    "single_gpu_time",
    "dp_throughput",
    "dp_step_time",
    "mp_throughput",
    "mp_step_time",
    "collectives",
    "peak_memory",
    "activation_memory",
    "time_to_train",
    "feeding",
    "feeding_measured",
    "field",
)
"""Families as they are shown."""


def validation_document(rows: Sequence[Scored], *, anchor: str) -> dict[str, object]:
    """A validation as one object.

    Args:
        rows: with their predictions
        anchor: whether figures of one device were used: "single" or "none"
    """
    families = by_family(rows)
    return {
        "anchor": anchor,
        "rows": [_row(row) for row in rows],
        "summary": {family: _family(found) for family, found in families.items()},
    }


def by_family(rows: Sequence[Scored]) -> dict[str, list[Scored]]:
    """Rows by family, in the order of `ORDER`; unknown families are last."""
    families: dict[str, list[Scored]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    order = {name: place for place, name in enumerate(ORDER)}
    return dict(sorted(families.items(), key=lambda item: order.get(item[0], len(ORDER))))


def by_nodes(rows: Sequence[Scored]) -> dict[str, list[Scored]]:
    """Rows on one node and on several; empty groups are left out."""
    split = {
        "one node": [row for row in rows if not row.several_nodes],
        "several nodes": [row for row in rows if row.several_nodes],
    }
    return {name: found for name, found in split.items() if found}


def _row(row: Scored) -> dict[str, object]:
    document: dict[str, object] = {"row_id": row.row_id, "family": row.family, "measured": row.measured}
    if row.predicted is None:
        return document | {"predicted": None, "interval": None, "error": None, "skipped": row.skipped}
    document |= {"predicted": row.predicted, "interval": [row.low, row.high], "error": row.error}
    if row.baselines:
        document["baselines"] = dict(row.baselines)
    if row.fits is not None:
        document["fits"] = row.fits
    if row.anchors:
        document["anchors"] = list(row.anchors)
    if row.flag:
        document["flag"] = row.flag
    return document


def _family(rows: Sequence[Scored]) -> dict[str, object]:
    groups = {name: {key: _score(score(found)) for key, found in by_group(rows, name).items()} for name in GROUPS}
    return {
        "all": _score(score(rows)),
        "nodes": {name: _score(score(found)) for name, found in by_nodes(rows).items()},
        "skipped": skipped(rows),
        **groups,
    }


def skipped(rows: Sequence[Scored]) -> dict[str, int]:
    """Number of skipped rows, by reason."""
    reasons: dict[str, int] = {}
    for row in rows:
        if row.predicted is None:
            reason = general(row)
            reasons[reason] = reasons.get(reason, 0) + 1
    return dict(sorted(reasons.items(), key=lambda item: -item[1]))


def general(row: Scored) -> str:
    """A reason without the row's name, so that equal reasons are counted together."""
    return row.skipped.removeprefix(f"row {row.row_id}: ")


def _score(found: Score | None) -> dict[str, object] | None:
    if found is None:
        return None
    return {
        "rows": found.rows,
        "answered": found.answered,
        "median": found.median,
        "p80": found.p80,
        "p90": found.p90,
        "within_10": found.within_10,
        "within_20": found.within_20,
        "bias": found.bias,
        "coverage": found.coverage,
        "interval_score": found.interval_score,
        "constant_interval_score": found.constant_score,
        "rank_correlation": found.rank_correlation,
        "baselines": _baseline_scores(found.baselines),
    }


def _baseline_scores(found: Mapping[str, tuple[float, float]]) -> dict[str, object]:
    return {name: {"median": middle, "p80": upper} for name, (middle, upper) in found.items()}


_COLUMNS = ("rows", "med", "p80", "p90", "≤10", "≤20", "in", "score", "±25%", "rank")
_NAME = 24
_LEGEND = (
    "rows: predicted, of all; med, p80, p90: of errors |predicted / measured - 1| [%]\n"
    "≤10, ≤20: rows with an error of at most 10 and 20 % [%]; in: rows within our 90 % intervals [%]\n"
    f"score: mean interval score over the measured figure, less is better; ±{CONSTANT_HALF_WIDTH:.0%}: that of a "
    "constant interval; rank: Spearman's correlation"
)


def verdict(rows: Sequence[Scored]) -> str:
    """How well the rows are predicted, in a sentence."""
    found = score(rows)
    if found is None:
        reasons = skipped(rows)
        return f"None of {len(rows):,} published figures is predicted: {next(iter(reasons), 'there is none')}."
    inside = "" if found.coverage is None else f"; {found.coverage:.0%} are within our 90 % intervals"
    return (
        f"{found.answered:,} of {found.rows:,} published figures are predicted, with a median error of "
        f"{100 * found.median:.1f} %, 90 % of them below {100 * found.p90:.0f} %{inside}."
    )


def least_certain(rows: Sequence[Scored]) -> str | None:
    """The family with the largest median error; None where nothing is predicted."""
    known = {name: found for name, part in by_family(rows).items() if (found := score(part)) is not None}
    return max(known, key=lambda name: known[name].median, default=None)


def family_table(family: str, rows: Sequence[Scored], *, groups: Sequence[str] = GROUPS, most: int = 12) -> Table:
    """Scores of a family: all, by nodes, simple rules, then by each group.

    Args:
        family: the title
        rows: of that family
        groups: of rows
        most: lines of a group
    """
    table = _table(family)
    _line(table, "all", score(rows))
    split = by_nodes(rows)
    if len(split) > 1:
        for name, found in split.items():
            _line(table, f"  {name}", score(found))
    _baseline_lines(table, score(rows))
    for group in groups:
        found_groups = by_group(rows, group)
        if len(found_groups) < 2:
            continue
        table.add_row(f"[dim]by {group}[/]")
        for name, found in list(found_groups.items())[:most]:
            _line(table, f"  {name}", score(found))
        left = len(found_groups) - most
        if left > 0:
            table.add_row(f"[dim]  {left} more (--json)[/]")
    return table


def worst_table(rows: Iterable[Scored], *, most: int = 8) -> Table:
    """Rows with the largest errors."""
    known = [(abs(row.error), row) for row in rows if row.error is not None and not row.flag]
    table = frame_table("Largest errors", "error: predicted / measured - 1; figures in the unit of their row")
    for name in ("row", "network", "machine"):
        table.add_column(name, max_width=18)
    add_figures(table, "measured", "predicted", "error")
    for _, row in sorted(known, key=lambda pair: -pair[0])[:most]:
        places = (row.row_id, row.groups.get("network", ""), row.groups.get("machine", ""))
        table.add_row(*places, f"{row.measured:.4g}", f"{row.predicted:.4g}", f"{row.error:+.0%}")
    return table


def rows_table(rows: Iterable[Scored]) -> Table:
    """Every row: measured, predicted with its interval, error or the reason why there is none."""
    table = frame_table("", "90 %: interval; error: predicted / measured - 1; figures in the unit of their row")
    for name in ("row", "network", "machine"):
        table.add_column(name, max_width=16)
    add_figures(table, "measured", "predicted", "90 %", "error", no_wrap=False)
    for row in rows:
        places = (row.row_id, row.groups.get("network", ""), row.groups.get("machine", ""))
        if row.predicted is None:
            table.add_row(*places, f"{row.measured:.4g}", "skipped", "", general(row))
            continue
        ends = "" if row.low is None or row.high is None else format_span(f"{row.low:.4g}", f"{row.high:.4g}")
        table.add_row(*places, f"{row.measured:.4g}", f"{row.predicted:.4g}", ends, f"{row.error:+.1%}")
    return table


def skipped_lines(rows: Sequence[Scored], *, most: int = 8) -> list[str]:
    """Numbers of rows without a prediction, by reason."""
    reasons = skipped(rows)
    lines = [f"{count:5} skipped: {reason}" for reason, count in list(reasons.items())[:most]]
    if len(reasons) > most:
        lines.append(f"{sum(list(reasons.values())[most:]):5} skipped for {len(reasons) - most} other reasons (--json)")
    return lines


def _table(title: str) -> Table:
    table = frame_table(title, _LEGEND)
    table.add_column("", max_width=_NAME)
    add_figures(table, *_COLUMNS)
    return table


def _line(table: Table, name: str, found: Score | None) -> None:
    if found is None:
        table.add_row(name, "none")
        return
    count = f"{found.answered}" if found.answered == found.rows else f"{found.answered}/{found.rows}"
    table.add_row(
        name,
        count,
        *(_percent(value) for value in (found.median, found.p80, found.p90, found.within_10, found.within_20)),
        _percent(found.coverage),
        *(_number(value) for value in (found.interval_score, found.constant_score, found.rank_correlation)),
    )


def _baseline_lines(table: Table, found: Score | None) -> None:
    if found is None:
        return
    for name, (middle, upper) in found.baselines.items():
        table.add_row(f"[dim]  rule: {name}[/]", "", _percent(middle), _percent(upper))


def _percent(value: float | None) -> str:
    """Two digits of a percentage, without the sign."""
    if value is None:
        return ""
    return f"{100 * value:.1f}" if value < 0.0995 else f"{100 * value:.0f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
