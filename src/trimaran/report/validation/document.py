"""The JSON form of a validation: every row, and scores by family and group."""

from collections.abc import Mapping, Sequence

from trimaran.report.validation.scores import Score, Scored, by_group, score

GROUPS = ("use", "setting", "machine", "network", "source")
"""What rows of a family are sorted by, beside the number of nodes."""

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
        rows: with what was said of them
        anchor: whether figures of one device were used: "single" or "none"
    """
    families = by_family(rows)
    return {
        "anchor": anchor,
        "rows": [_row(row) for row in rows],
        "summary": {family: _family(found) for family, found in families.items()},
    }


def by_family(rows: Sequence[Scored]) -> dict[str, list[Scored]]:
    """Rows by family: steps first, then what they consist of; families that are not known come last."""
    families: dict[str, list[Scored]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(row)
    order = {name: place for place, name in enumerate(ORDER)}
    return dict(sorted(families.items(), key=lambda item: order.get(item[0], len(ORDER))))


def by_nodes(rows: Sequence[Scored]) -> dict[str, list[Scored]]:
    """Rows on one node and on several; what is empty is left out."""
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
    """How many rows were skipped, by reason."""
    reasons: dict[str, int] = {}
    for row in rows:
        if row.predicted is None:
            reason = general(row)
            reasons[reason] = reasons.get(reason, 0) + 1
    return dict(sorted(reasons.items(), key=lambda item: -item[1]))


def general(row: Scored) -> str:
    """A reason without the row's own name, so that equal reasons are counted together."""
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
