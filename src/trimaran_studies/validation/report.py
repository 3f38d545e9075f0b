"""Tables of a validation: one for each family, readable at 80 columns and without colour."""

from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table

from trimaran.report.tables import add_figures, frame_table
from trimaran_studies.validation.scores import CONSTANT_HALF_WIDTH, Score, Scored, by_group, score

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
        "baselines": _baselines(found.baselines),
    }


def _baselines(found: Mapping[str, tuple[float, float]]) -> dict[str, object]:
    return {name: {"median": middle, "p80": upper} for name, (middle, upper) in found.items()}


_COLUMNS = ("rows", "med", "p80", "p90", "≤10", "≤20", "in", "score", "±25%", "rank")
_NAME = 24


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
    table = frame_table("largest errors")
    for name in ("row", "network", "machine"):
        table.add_column(name, overflow="ellipsis", no_wrap=True, max_width=18)
    add_figures(table, "measured", "predicted", "error")
    for _, row in sorted(known, key=lambda pair: -pair[0])[:most]:
        places = (row.row_id, row.groups.get("network", ""), row.groups.get("machine", ""))
        table.add_row(*places, f"{row.measured:.4g}", f"{row.predicted:.4g}", f"{row.error:+.0%}")
    return table


def rows_table(rows: Iterable[Scored]) -> Table:
    """Every row: measured, predicted with its interval, error or the reason why there is none."""
    table = frame_table()
    for name in ("row", "network", "machine"):
        table.add_column(name, overflow="ellipsis", no_wrap=True, max_width=16)
    add_figures(table, "measured", "predicted", "90 %", "error", no_wrap=False)
    for row in rows:
        places = (row.row_id, row.groups.get("network", ""), row.groups.get("machine", ""))
        if row.predicted is None:
            table.add_row(*places, f"{row.measured:.4g}", "skipped", "", general(row))
            continue
        ends = "" if row.low is None or row.high is None else f"{row.low:.4g} to {row.high:.4g}"
        table.add_row(*places, f"{row.measured:.4g}", f"{row.predicted:.4g}", ends, f"{row.error:+.1%}")
    return table


def skipped_lines(rows: Sequence[Scored], *, most: int = 8) -> list[str]:
    """Numbers of rows without a prediction, by reason."""
    reasons = skipped(rows)
    lines = [f"{count:5} skipped: {reason}" for reason, count in list(reasons.items())[:most]]
    if len(reasons) > most:
        lines.append(f"{sum(list(reasons.values())[most:]):5} skipped for {len(reasons) - most} other reasons (--json)")
    return lines


def reading_lines() -> list[str]:
    """How to read the columns."""
    return [
        "Errors are |predicted / measured - 1|, in %: median, 80th and 90th percentile, and the share of errors of at "
        "most 10 and 20 %. in: share of measured figures within our 90 % intervals, in %. score: mean interval score "
        "as a share of the measured figure, less is better; "
        f"±{CONSTANT_HALF_WIDTH:.0%}: the same with a constant interval. rank: Spearman's correlation.",
    ]


def _table(title: str) -> Table:
    table = frame_table(title)
    table.add_column("", no_wrap=True, overflow="ellipsis", max_width=_NAME)
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
