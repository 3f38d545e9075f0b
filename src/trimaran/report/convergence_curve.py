"""A convergence curve with what was asked of it."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from trimaran.base.errors import InputError
from trimaran.base.html import DataTable
from trimaran.base.units import format_span
from trimaran.convergence.curve import Curve, LeftOut, Quality, leave_one_out, pooled
from trimaran.convergence.curve_fit import noise_of_single_runs
from trimaran.convergence.files import DoublingRatio, catalog_names, find_curve
from trimaran.convergence.types import LARGEST_BATCH, Need, oddities, same_data
from trimaran.networks.names import parse_network
from trimaran.program.json_files import finite, to_plain
from trimaran.report.page.charts import SERIES_COLOURS, ChartAxis, Series, chart_file, curve_chart, plain_number
from trimaran.report.tables import frame_table, print_next, table_view

_FAR_BELOW = 90.0
"""Bcrit is sought down to a hundredth of the smallest batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Training that one batch needs.

    Attributes:
        global_batch: samples of one update
        need: in the unit of the table
    """

    global_batch: int
    need: Need


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveStudy:
    """A curve, how well it predicts, and what was asked.

    Attributes:
        name: in the catalog, or of the file
        curve: with its table
        quality: leave-one-out figures
        asked: batches that were asked for
    """

    name: str
    curve: Curve
    quality: Quality
    asked: tuple[Asked, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the points, notes of their source, and warnings about the batches asked for."""
        table = self.curve.table
        projection = ("a study's projection, not measured",) if table.projection else ()
        found = [*projection, *oddities(table), *self._of_fit(), *table.notes]
        for asked in self.asked:
            found += [warning for warning in asked.need.warnings if warning not in found]
        return tuple(found)

    def _of_fit(self) -> tuple[str, ...]:
        fit, points, found = self.curve.fit, self.curve.table.points, []
        if len(points) > 1 and math.isinf(fit.b_crit):
            found.append("the amounts do not rise with the batch: Bcrit lies beyond what was measured")
        if fit.b_crit < points[0].global_batch / _FAR_BELOW:
            found.append("the amounts rise as fast as the batch: E0 and Bcrit lie below what was measured, not known")
        noise = 0.0 if self.curve.table.projection else noise_of_single_runs(points)
        if noise:
            found.append(f"single runs jump by more than is usual, as if they strayed by {noise:.0%}: taken as noisy")
        return tuple(found)


def study_curve(
    name_or_path: str, at: tuple[int, ...] = (), *, network: str | None = None, samples_per_epoch: int | None = None
) -> CurveStudy:
    """Study one curve.

    Args:
        name_or_path: of the catalog, or a curve file or a table of runs
        at: batches that are asked for
        network: that the curve holds for; None: as its table says
        samples_per_epoch: of its data; None: as its table says. Rows of the table are not made comparable by it

    Raises:
        InputError: it is not there or no curve, a batch is none, or an epoch holds another number of samples
    """
    curve = find_curve(name_or_path)
    own = curve.table.samples_per_epoch
    if samples_per_epoch is not None and own is not None and not same_data(own, samples_per_epoch):
        raise InputError(
            f"{name_or_path} has {own} samples an epoch, not {samples_per_epoch}: leave --samples-per-epoch out",
            samples_per_epoch=samples_per_epoch,
        )
    known = replace(
        curve.table,
        network=curve.table.network if network is None else network,
        samples_per_epoch=samples_per_epoch or own,
    )
    curve = replace(curve, table=known)
    name = name_or_path if name_or_path in catalog_names() else Path(name_or_path).stem
    asked = tuple(Asked(global_batch=batch, need=need) for batch, need in zip(at, curve.needs(at), strict=True))
    return CurveStudy(name=name, curve=curve, quality=_quality(curve), asked=asked)


def study_catalog() -> tuple[tuple[CurveStudy, ...], Quality]:
    """Every curve of the catalog, and how well measured ones predict together."""
    found = tuple(study_curve(name) for name in catalog_names())
    # The form passes through one or two points: they would flatter it.
    measured = [study for study in found if study.quality.left_out and not study.curve.table.projection]
    return found, pooled([(study.quality, len(study.curve.table.points)) for study in measured])


def _quality(curve: Curve) -> Quality:
    # The form passes through a single point whatever it is.
    rms = curve.fit.rms if len(curve.table.points) > 1 else None
    return Quality(rms=rms, left_out=leave_one_out(curve.table))


# ---------------------------------------------------------------------------------------------------------------------
# A convergence curve as one JSON object


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
                "global_batch_size": point.global_batch,
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
                "global_batch_size": point.global_batch,
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
    """Training that a batch needs as JSON data, in every unit that the table knows.

    Args:
        curve: it comes from
        batch: samples of one update
        need: in the unit of the table
    """
    found: dict[str, object] = {"global_batch_size": batch, "amount": need.amount, "interval": [need.low, need.high]}
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
        "b_crit": finite(fit.b_crit),
        "b_crit_interval": [finite(end) for end in fit.b_crit_interval],
    }


# ---------------------------------------------------------------------------------------------------------------------
# A convergence curve as tables and lines for people, within 80 columns


def points_table(study: CurveStudy) -> Table:
    """Each measured batch: what it needs, what the form and the other points say of it."""
    curve, unit = study.curve, study.curve.table.unit
    left_out = {point.global_batch: point for point in study.quality.left_out}
    rows = []
    for point in curve.table.points:
        form = curve.fit.e0 * (1 + point.global_batch / curve.fit.b_crit)
        spread = "" if point.deviation is None or point.runs < 2 else f"{point.deviation / point.amount:.1%}"
        rows.append(
            (
                f"{point.global_batch:,}",
                figure(point.amount),
                str(point.runs),
                spread,
                f"{form / point.amount - 1:+.1%}",
                _leave_one_out(left_out.get(point.global_batch)),
            )
        )
    columns = ("batch", unit, "runs", "spread", "form", "leave-one-out error")
    return table_view(
        DataTable(columns=columns, rows=rows, words=frozenset()),
        "Measured batches",
        f"{unit}: to the target; spread: standard deviation of the runs\n"
        "form: error of E(B) = E0 (1 + B / Bcrit)\n"
        "leave-one-out error: of the curve through the other points, with its 90 % interval; !: the measurement is "
        "outside",
    )


def asked_table(study: CurveStudy) -> Table:
    """Training that each batch that was asked for needs."""
    unit = study.curve.table.unit
    rows = [
        (
            f"{asked.global_batch:,}",
            figure(asked.need.amount),
            format_span(figure(asked.need.low), figure(asked.need.high), to="–"),
            asked.need.source,
        )
        for asked in study.asked
    ]
    table = DataTable(columns=("batch", unit, "interval", ""), rows=rows, words=frozenset({3}))
    return table_view(table, "Batches that you asked for", f"{unit}: to the target; interval: 90 %")


def fit_lines(study: CurveStudy) -> list[str]:
    """E0, Bcrit and the quality of the curve in words; nothing of one batch, which does not say them."""
    if len(study.curve.table.points) < 2:
        return []
    fit, unit = study.curve.fit, study.curve.table.unit
    e0 = f"E0 {figure(fit.e0)} {unit} ({format_span(*map(figure, fit.e0_interval), to='–')})"
    critical = f"Bcrit {figure(fit.b_crit)} ({format_span(*map(figure, fit.b_crit_interval), to='–')})"
    return [f"E(B) = E0 (1 + B / Bcrit): {e0}, {critical}", *quality_lines(study.quality)]


def quality_lines(quality: Quality) -> list[str]:
    """Errors of the form and of points left out."""
    found = [] if quality.rms is None else [f"the form misses the points by {quality.rms:.1%} rms"]
    if quality.mean is not None and quality.coverage is not None:
        inside = "" if quality.mean_inside is None else f", {quality.mean_inside:.1%} where others lie on both sides"
        found.append(
            f"leave-one-out error: {quality.mean:.1%} in the mean{inside}; "
            f"{quality.coverage:.0%} of {len(quality.left_out)} within 90 % intervals"
        )
    return found


def catalog_table(studies: Sequence[CurveStudy]) -> Table:
    """The curves of the catalog, one a line."""
    table = frame_table(
        "",
        "points: batches that were measured; unit: what is counted to the target\n"
        "Bcrit: batch at which twice the training is needed; rms: error of the form E0 (1 + B / Bcrit)\n"
        "left out: mean leave-one-out error; –: one batch does not say it; *: a study's projection",
    )
    for title in ("name", "batches", "points", "unit", "Bcrit", "rms", "left out"):
        table.add_column(title, justify="left" if title in ("name", "unit") else "right", no_wrap=True)
    for study in studies:
        fit, (low, high) = study.curve.fit, study.curve.range
        mean = study.quality.mean
        table.add_row(
            study.name + ("*" if study.curve.table.projection else ""),
            format_span(f"{low:,}", f"{high:,}", to="–"),
            str(len(study.curve.table.points)),
            study.curve.table.unit,
            "–" if len(study.curve.table.points) < 2 else figure(fit.b_crit),
            "" if study.quality.rms is None else f"{study.quality.rms:.1%}",
            "" if mean is None else f"{mean:.1%}",
        )
    return table


def figure(value: float) -> str:
    """Four figures, without an exponent.

    Example:
        >>> figure(35.5594), figure(49486.4), figure(2308590.5), figure(float("inf"))
        ('35.56', '49,490', '2.309 M', 'infinite')
    """
    return "infinite" if math.isinf(value) else plain_number(float(f"{value:.4g}"))


def critical(b_crit: float | None) -> str:
    """A critical batch; None: it is infinite."""
    return "infinite" if b_crit is None else figure(b_crit)


def _leave_one_out(point: LeftOut | None) -> str:
    if point is None:
        return ""
    mark = "" if point.covered else " !"
    return f"{point.error:+.1%} [{point.low / point.measured - 1:+.0%}, {point.high / point.measured - 1:+.0%}]{mark}"


_PLACES = 121
_BEYOND = 2.0


def plot(study: CurveStudy) -> str:
    """The drawing as text of an SVG file, from half the smallest to twice the largest batch."""
    curve, table = study.curve, study.curve.table
    asked = [entry.global_batch for entry in study.asked]
    first = min([curve.range[0] / _BEYOND, *asked])
    last = max([min(curve.range[1] * _BEYOND, LARGEST_BATCH), *asked])
    batches = sorted(
        {min(max(1, round(first * (last / first) ** (n / (_PLACES - 1)))), LARGEST_BATCH) for n in range(_PLACES)}
    )
    needs = curve.needs(tuple(batches))
    form = [(float(batch), curve.fit.e0 * (1 + batch / curve.fit.b_crit)) for batch in batches]
    chart = curve_chart(
        "Training to the target by batch",
        [
            Series(
                name="predicted, 90 %",
                points=[(float(batch), need.amount) for batch, need in zip(batches, needs, strict=True)],
                ends=[(need.low, need.high) for need in needs],
                dots=False,
            ),
            Series(name="E0 (1 + B / Bcrit)", points=form, colour=SERIES_COLOURS[5], dashed=True, dots=False),
            Series(
                name="single runs",
                points=[(float(point.global_batch), value) for point in table.points for value in point.values],
                colour=SERIES_COLOURS[3],
                hollow=True,
                line=False,
                size=3.0,
            ),
            Series(
                name="points",
                points=[(float(point.global_batch), point.amount) for point in table.points],
                colour=SERIES_COLOURS[1],
                line=False,
            ),
        ],
        ChartAxis(title="global batch [samples]", log=True),
        ChartAxis(title=f"{table.unit} to the target", log=True),
    )
    return chart_file(table.task, f"{table.unit} to the target by global batch{_projected(study)}", [chart])


def _projected(study: CurveStudy) -> str:
    return " (a study's projection)" if study.curve.table.projection else ""


# ---------------------------------------------------------------------------------------------------------------------
# How convergence curves look to people


def print_curve(out: Console, study: CurveStudy) -> None:
    """Print points, fit, what was asked, warnings, source."""
    table = study.curve.table
    out.print(f"[bold]{escape(study.name)}[/]: {escape(curve_verdict(study))}")
    out.print(f"[dim]{escape(table.task)}[/]\n")
    out.print(points_table(study))
    for number, line in enumerate(fit_lines(study)):
        out.print(f"{'' if number else chr(10)}{escape(line)}")
    if study.asked:
        out.print()
        out.print(asked_table(study))
    if study.warnings:
        out.print()
    for warning in study.warnings:
        out.print(f"[yellow]note:[/] {escape(warning)}")
    source = textwrap.wrap(f"source: {table.source}", 80, break_long_words=False, break_on_hyphens=False)
    out.print("", Text("\n".join(source), style="dim"), sep="\n", soft_wrap=True)


def job_of(study: CurveStudy) -> str | None:
    """The job that a curve is of, as commands take it; None where it is not known by name.

    Args:
        study: of a curve
    """
    return _job_of(study.name) if study.name in catalog_names() else study.curve.table.network or _job_of(study.name)


def _job_of(name: str) -> str | None:
    """The network that a curve of the catalog is of, where it is known by name.

    Example:
        >>> _job_of("resnet50-1.0"), _job_of("inception-v3-hybrid"), _job_of("dlrm")
        ('resnet50', 'inception-v3', None)
    """
    words = name.split("-")
    for count in range(len(words), 0, -1):
        job = "-".join(words[:count])
        if parse_network(job) is not None:
            return job
    return None


def curve_verdict(study: CurveStudy) -> str:
    """From which batch on more samples a step need more training, as far as it was measured."""
    return critical_words(finite(study.curve.fit.b_crit), *study.curve.range)


def critical_words(b_crit: float | None, low: int, high: int) -> str:
    """The batch at which twice the training is needed, in a sentence.

    Args:
        b_crit: of the fit [samples]; None: infinite
        low: smallest batch that was measured [samples]
        high: largest one [samples]
    """
    measured = f"measured at {low:,} to {high:,}"
    if low == high:
        return f"what batches other than {low:,} need is not known: no other one was measured."
    if b_crit is None:
        return f"no batch is seen to need more training than another ({measured})."
    return f"batch {figure(b_crit)} needs twice the training of a small one ({measured})."


def print_catalog(
    out: Console, studies: Sequence[CurveStudy], quality: Quality, ratios: Sequence[DoublingRatio]
) -> None:
    """Print the catalog."""
    out.print(f"{len(studies)} curves are known: how much training each batch needs to reach a target.\n")
    out.print(catalog_table(studies))
    out.print("\nAll measured curves together:")
    for line in quality_lines(quality):
        out.print(f"  {escape(line)}")
    for ratio in ratios:
        out.print(f"\n{escape(ratio.name)} is no curve: twice the batch needs {ratio.ratio:g} times the epochs.")
    out.print("\nYour own: trimaran curve TABLE.csv.")
    print_next(out, ["trimaran", "curve", studies[0].name], "to show one, such as")
