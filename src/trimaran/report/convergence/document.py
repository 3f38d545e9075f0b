"""A convergence curve as one JSON object."""

import math
from collections.abc import Sequence

from trimaran.costs.convergence.catalog import DoublingRatio
from trimaran.costs.convergence.curve import Curve
from trimaran.costs.convergence.quality import Quality
from trimaran.costs.convergence.types import Need
from trimaran.errors import InputError
from trimaran.program.files import to_plain
from trimaran.report.convergence.study import CurveStudy


def study_document(study: CurveStudy) -> dict[str, object]:
    """A study as JSON data. Amounts are in `unit`; null is infinite, or not known.

    Args:
        study: of one curve
    """
    curve, table = study.curve, study.curve.table
    needs = curve.needs(tuple(point.global_batch for point in table.points))
    return {
        "name": study.name,
        "task": table.task,
        "unit": table.unit,
        "network": table.network or None,
        "source": table.source,
        "projection": table.projection,
        "samples_per_epoch": table.samples_per_epoch,
        "tokens_per_sample": table.tokens_per_sample,
        "target": table.target,
        "recipe": None if table.recipe is None else to_plain(table.recipe),
        **_fit_document(curve),
        **quality_document(study.quality),
        "range": list(curve.range),
        "points": [
            {
                "global_batch": point.global_batch,
                "amount": point.amount,
                "interval": [need.low, need.high],
                "predicted": need.amount,
                "form": curve.fit.e0 * (1 + point.global_batch / curve.fit.b_crit),
                "runs": point.runs,
                "deviation": point.deviation,
                "values": list(point.values),
                "failed": point.failed,
            }
            for point, need in zip(table.points, needs, strict=True)
        ],
        "left_out": [
            {
                "global_batch": point.global_batch,
                "measured": point.measured,
                "predicted": point.predicted,
                "interval": [point.low, point.high],
                "error": point.error,
                "inside": point.inside,
                "covered": point.covered,
            }
            for point in study.quality.left_out
        ],
        "at": [need_document(curve, asked.global_batch, asked.need) for asked in study.asked],
        "warnings": list(study.warnings),
    }


def need_document(curve: Curve, batch: int, need: Need) -> dict[str, object]:
    """What a batch needs as JSON data, in every unit that the table knows.

    Args:
        curve: it comes from
        batch: samples of one update
        need: in the unit of the table
    """
    found: dict[str, object] = {"global_batch": batch, "amount": need.amount, "interval": [need.low, need.high]}
    for unit in ("epochs", "samples", "steps"):
        try:
            other: Need | None = getattr(curve, unit)(batch)
        except InputError:
            other = None
        found[unit] = None if other is None else other.amount
        found[f"{unit}_interval"] = None if other is None else [other.low, other.high]
    return found | {"source": need.source, "warnings": list(need.warnings)}


def quality_document(quality: Quality) -> dict[str, object]:
    """Figures of one or several curves as JSON data; null where nothing can be left out."""
    return {
        "rms": quality.rms,
        "leave_one_out_mean": quality.mean,
        "leave_one_out_mean_inside": quality.mean_inside,
        "coverage_90": quality.coverage,
        "points_left_out": len(quality.left_out),
    }


def catalog_document(
    studies: Sequence[CurveStudy], quality: Quality, ratios: Sequence[DoublingRatio]
) -> dict[str, object]:
    """The catalog as JSON data.

    Args:
        studies: of every curve
        quality: of the measured ones together
        ratios: projections that are no curves
    """
    return {
        "curves": [
            {
                "name": study.name,
                "task": study.curve.table.task,
                "unit": study.curve.table.unit,
                "network": study.curve.table.network or None,
                "points": len(study.curve.table.points),
                "range": list(study.curve.range),
                "projection": study.curve.table.projection,
                **_fit_document(study.curve),
                **quality_document(study.quality),
                "source": study.curve.table.source,
                "warnings": list(study.warnings),
            }
            for study in studies
        ],
        "ratios": [to_plain(ratio) for ratio in ratios],
        "catalog": quality_document(quality),
    }


def _fit_document(curve: Curve) -> dict[str, object]:
    fit = curve.fit
    return {
        "e0": fit.e0,
        "e0_interval": list(fit.e0_interval),
        "b_crit": _finite(fit.b_crit),
        "b_crit_interval": [_finite(end) for end in fit.b_crit_interval],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
