"""A convergence curve as tables and lines for people, within 80 columns."""

import math
from collections.abc import Sequence

from rich.table import Table

from trimaran.costs.convergence.quality import LeftOut, Quality
from trimaran.report.convergence.study import CurveStudy


def points_table(study: CurveStudy) -> Table:
    """Each measured batch: what it needs, what the form and the other points say of it."""
    curve, unit = study.curve, study.curve.table.unit
    left_out = {point.global_batch: point for point in study.quality.left_out}
    table = Table(box=None, pad_edge=False)
    for title in ("batch", unit, "runs", "spread", "form", "foretold by the others"):
        table.add_column(title, justify="right", no_wrap=True)
    for point in curve.table.points:
        form = curve.fit.e0 * (1 + point.global_batch / curve.fit.b_crit)
        spread = "" if point.deviation is None or point.runs < 2 else f"{point.deviation / point.amount:.1%}"
        table.add_row(
            str(point.global_batch),
            figure(point.amount),
            str(point.runs),
            spread,
            f"{form / point.amount - 1:+.1%}",
            _foretold(left_out.get(point.global_batch)),
        )
    return table


def asked_table(study: CurveStudy) -> Table:
    """What each batch that was asked for needs."""
    table = Table(box=None, pad_edge=False)
    for title in ("batch", study.curve.table.unit, "interval", ""):
        table.add_column(title, justify="left" if not title else "right", no_wrap=bool(title))
    for asked in study.asked:
        need = asked.need
        table.add_row(
            str(asked.global_batch), figure(need.amount), f"{figure(need.low)}–{figure(need.high)}", need.source
        )
    return table


def fit_lines(study: CurveStudy) -> list[str]:
    """E0, Bcrit and the quality of the curve in words."""
    fit, unit = study.curve.fit, study.curve.table.unit
    e0 = f"E0 {figure(fit.e0)} {unit} ({figure(fit.e0_interval[0])}–{figure(fit.e0_interval[1])})"
    critical = f"Bcrit {figure(fit.b_crit)} ({figure(fit.b_crit_interval[0])}–{figure(fit.b_crit_interval[1])})"
    return [f"E(B) = E0 (1 + B / Bcrit): {e0}, {critical}", *quality_lines(study.quality)]


def quality_lines(quality: Quality) -> list[str]:
    """Errors of the form and of points left out."""
    found = [] if quality.rms is None else [f"the form misses the points by {quality.rms:.1%} rms"]
    if quality.mean is not None and quality.coverage is not None:
        inside = "" if quality.mean_inside is None else f", {quality.mean_inside:.1%} where others lie on both sides"
        found.append(
            f"each left out and foretold by the others: off by {quality.mean:.1%}{inside}; "
            f"{quality.coverage:.0%} of {len(quality.left_out)} within 90 % intervals"
        )
    return found


def catalog_table(studies: Sequence[CurveStudy]) -> Table:
    """The curves of the catalog, one a line."""
    table = Table(box=None, pad_edge=False)
    for title in ("name", "batches", "points", "unit", "Bcrit", "rms", "left out"):
        table.add_column(title, justify="left" if title in ("name", "unit") else "right", no_wrap=True)
    for study in studies:
        fit, (low, high) = study.curve.fit, study.curve.range
        mean = study.quality.mean
        table.add_row(
            study.name + ("*" if study.curve.table.projection else ""),
            f"{low}–{high}" if low != high else str(low),
            str(len(study.curve.table.points)),
            study.curve.table.unit,
            figure(fit.b_crit),
            "" if study.quality.rms is None else f"{study.quality.rms:.1%}",
            "" if mean is None else f"{mean:.1%}",
        )
    return table


def figure(value: float) -> str:
    """Four figures, without an exponent up to a million.

    Example:
        >>> figure(35.5594), figure(49486.4), figure(2308590.5), figure(float("inf"))
        ('35.56', '49490', '2.309e+06', 'infinite')
    """
    if math.isinf(value):
        return "infinite"
    if 1000 <= abs(value) < 1e6:
        return f"{float(f'{value:.4g}'):.0f}"
    return f"{value:.4g}"


def _foretold(point: LeftOut | None) -> str:
    if point is None:
        return ""
    mark = "" if point.covered else " !"
    return f"{point.error:+.1%} [{point.low / point.measured - 1:+.0%}, {point.high / point.measured - 1:+.0%}]{mark}"
