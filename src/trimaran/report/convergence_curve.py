"""A convergence curve with what was asked of it: how much training each batch needs, and its page."""

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from trimaran.base.decoding import Count, Positive, Real
from trimaran.base.errors import InputError
from trimaran.base.html import DataTable
from trimaran.base.units import format_span
from trimaran.convergence.curve import Curve, LeftOut, Quality, leave_one_out, pooled
from trimaran.convergence.curve_fit import noise_of_single_runs
from trimaran.convergence.files import DoublingRatio, catalog_names, doubling_ratios, find_curve
from trimaran.convergence.types import Need, Unit, oddities, same_data
from trimaran.jobs.learning_rate import Recipe
from trimaran.networks.names import parse_network
from trimaran.program.json_files import finite
from trimaran.report.page.charts import SERIES_COLOURS, ChartAxis, LimitLine, Series, curve_chart, plain_number
from trimaran.report.page.layout import Chart, Page, Section, Words, those_known

_FAR_BELOW = 90.0
"""Bcrit is sought down to a hundredth of the smallest batch."""

Ends = tuple[Positive | None, Positive | None]
"""A 90 % interval; None: infinite, or not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Training that a measured batch needed, in the unit of the curve.

    Attributes:
        global_batch_size: samples of an update
        amount: mean over the runs
        interval: 90 % of what the curve predicts there
        predicted: by the curve
        form: by E0 (1 + B / Bcrit)
        runs: that reached the target
        deviation: standard deviation over them; None where it is not known
        values: of each, where they are known
        failed: runs that did not reach it
    """

    global_batch_size: Count
    amount: Positive
    interval: Ends
    predicted: Positive
    form: Positive
    runs: Count = 1
    deviation: Positive | None = None
    values: tuple[Positive, ...] = ()
    failed: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedBatch:
    """Training that a batch needs, in the unit of the curve and in each other that its table knows.

    Attributes:
        global_batch_size: samples of an update
        amount: in the unit of the curve
        interval: 90 %
        epochs: None where the table does not say how many samples an epoch has
        epochs_interval: 90 %
        samples: None where they are not known
        samples_interval: 90 %
        steps: updates; None where they are not known
        steps_interval: 90 %
        source: "measured: …", "interpolated: …" or "extrapolated: …"
        warnings: such as a batch beyond the data
    """

    global_batch_size: Count
    amount: Positive
    interval: Ends
    epochs: Positive | None = None
    epochs_interval: Ends | None = None
    samples: Positive | None = None
    samples_interval: Ends | None = None
    steps: Positive | None = None
    steps_interval: Ends | None = None
    source: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveStudy(Quality):
    """A curve, how well it predicts, and what was asked.

    Attributes:
        name: in the catalog, or of the file
        task: network, data and target
        unit: of the amounts
        network: reference of the network or job that it holds for; None: any
        source: of the points
        projection: a study's projections rather than measurements
        samples_per_epoch: of the training data; None where it is not known
        tokens_per_sample: length of a sample [tokens]; None where it is not known
        target: value of the metric that was reached; None where it is not known
        recipe: how the learning rate followed the batch; None where it is not known
        e0: that small batches need
        e0_interval: 90 %
        b_crit: batch that needs twice as much [samples]; None: infinite
        b_crit_interval: 90 %
        points: by rising batch, at least one
        at: batches that were asked for
        warnings: about the points and about the batches that were asked for
    """

    derived: ClassVar[tuple[str, ...]] = (*Quality.derived, "range")
    name: str
    task: str
    unit: Unit
    network: str | None = None
    source: str
    projection: bool = False
    samples_per_epoch: Count | None = None
    tokens_per_sample: Count | None = None
    target: Real | None = None
    recipe: Recipe | None = None
    e0: Positive
    e0_interval: Ends = (None, None)
    b_crit: Positive | None
    b_crit_interval: Ends = (None, None)
    points: tuple[CurvePoint, ...]
    at: tuple[AskedBatch, ...] = ()
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("a curve has at least one point")

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest measured batch [samples]."""
        return self.points[0].global_batch_size, self.points[-1].global_batch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveCatalog:
    """Every curve of the catalog, and how well the measured ones predict together.

    Attributes:
        curves: by name
        ratios: projections that are no curves
    """

    derived: ClassVar = ("catalog",)
    curves: tuple[CurveStudy, ...]
    ratios: tuple[DoublingRatio, ...]

    @property
    def together(self) -> Quality:
        """Of all measured curves; the form passes through one or two points, which would flatter it."""
        measured = [study for study in self.curves if study.left_out and not study.projection]
        return pooled([(study, len(study.points)) for study in measured])

    @property
    def catalog(self) -> dict[str, float | None]:
        """The figures of that."""
        quality = self.together
        return {name: getattr(quality, name) for name in ("rms", *Quality.derived)}


def curve_named(name_or_path: str, *, network: str | None = None, samples_per_epoch: int | None = None) -> Curve:
    """A curve with what is known of its data.

    Args:
        name_or_path: of the catalog, or a curve file or a table of runs
        network: that the curve holds for; None: as its table says
        samples_per_epoch: of its data; None: as its table says. Rows of the table are not made comparable by it

    Raises:
        InputError: it is not there or no curve, or an epoch holds another number of samples
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
    return replace(curve, table=known)


def study_curve(name_or_path: str, curve: Curve, at: Sequence[int] = ()) -> CurveStudy:
    """Study one curve.

    Args:
        name_or_path: where it is from
        curve: to study
        at: batches that are asked for

    Raises:
        InputError: a batch is none
    """
    table, fit = curve.table, curve.fit
    asked = [_asked(curve, batch, need) for batch, need in zip(at, curve.needs(tuple(at)), strict=True)]
    needs = curve.needs(tuple(point.global_batch for point in table.points))
    said = [*(["a study's projection, not measured"] if table.projection else []), *oddities(table), *_of_fit(curve)]
    said += table.notes
    return CurveStudy(
        name=name_or_path if name_or_path in catalog_names() else Path(name_or_path).stem,
        task=table.task,
        unit=table.unit,
        network=table.network or None,
        source=table.source,
        projection=table.projection,
        samples_per_epoch=table.samples_per_epoch,
        tokens_per_sample=table.tokens_per_sample,
        target=table.target,
        recipe=table.recipe,
        e0=fit.e0,
        e0_interval=fit.e0_interval,
        b_crit=finite(fit.b_crit),
        b_crit_interval=(finite(fit.b_crit_interval[0]), finite(fit.b_crit_interval[1])),
        # The form passes through a single point whatever it is.
        rms=fit.rms if len(table.points) > 1 else None,
        left_out=leave_one_out(table),
        points=tuple(
            CurvePoint(
                global_batch_size=point.global_batch,
                amount=point.amount,
                interval=(need.low, need.high),
                predicted=need.amount,
                form=fit.e0 * (1 + point.global_batch / fit.b_crit),
                runs=point.runs,
                deviation=point.deviation,
                values=point.values,
                failed=point.failed,
            )
            for point, need in zip(table.points, needs, strict=True)
        ),
        at=tuple(asked),
        warnings=tuple(dict.fromkeys([*said, *(warning for entry in asked for warning in entry.warnings)])),
    )


def _of_fit(curve: Curve) -> list[str]:
    fit, points, said = curve.fit, curve.table.points, []
    if len(points) > 1 and math.isinf(fit.b_crit):
        said.append("the amounts do not rise with the batch: Bcrit lies beyond what was measured")
    if fit.b_crit < points[0].global_batch / _FAR_BELOW:
        said.append("the amounts rise as fast as the batch: E0 and Bcrit lie below what was measured, not known")
    noise = 0.0 if curve.table.projection else noise_of_single_runs(points)
    if noise:
        said.append(f"single runs jump by more than is usual, as if they strayed by {noise:.0%}: taken as noisy")
    return said


def _asked(curve: Curve, batch: int, need: Need) -> AskedBatch:
    known: dict[str, Any] = {}
    counts: dict[str, Callable[[int], Need]] = {"epochs": curve.epochs, "samples": curve.samples, "steps": curve.steps}
    for unit, count in counts.items():
        try:
            converted = count(batch)
        except InputError:
            continue
        known |= {unit: converted.amount, f"{unit}_interval": (converted.low, converted.high)}
    return AskedBatch(
        global_batch_size=batch,
        amount=need.amount,
        interval=(need.low, need.high),
        source=need.source,
        warnings=need.warnings,
        **known,
    )


def study_catalog() -> CurveCatalog:
    """Every curve of the catalog."""
    return CurveCatalog(
        curves=tuple(study_curve(name, find_curve(name)) for name in catalog_names()), ratios=doubling_ratios()
    )


def job_of(study: CurveStudy) -> str | None:
    """The job that a curve is of, as commands take it; None where it is not known by name.

    Args:
        study: of a curve
    """
    return _job_of(study.name) if study.name in catalog_names() else study.network or _job_of(study.name)


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


# ---------------------------------------------------------------------------------------------------------------------
# The pages of a curve and of the catalog


def curve_page(study: CurveStudy, _: Sequence[object] = (), asked: str = "") -> Page:
    """Each measured batch, what the form and the other points say of it, and what was asked.

    Args:
        study: the answer
        asked: command that asked; "": not known
    """
    low, high = study.points[0], study.points[-1]
    facts, grows = quality_facts(study), ""
    if low is not high:
        facts = [
            ("E0", f"{figure(study.e0)} {study.unit}{within(study.e0_interval)}"),
            ("critical batch Bcrit", f"{critical(study.b_crit)}{within(study.b_crit_interval)}"),
            *facts,
        ]
    if low is not high and low.amount:
        grows = (
            f" Batch {high.global_batch_size:,} needs {high.amount / low.amount:.3g} times the {study.unit} of batch "
            f"{low.global_batch_size:,}."
        )
    return Page(
        kind="Convergence curve",
        title=study.name,
        verdict=f"{study.task}: {critical_words(study.b_crit, *study.range)}{grows}",
        facts=facts,
        sections=those_known(
            need_section(
                study.unit,
                [(point.global_batch_size, point.amount, point.interval, point.values) for point in study.points],
                study.e0,
                study.b_crit,
                _points_table(study),
                asked=study.at,
            ),
            _asked_section(study),
        ),
        notes=study.warnings,
        command=f"{asked or f'trimaran catalog curve {shlex.quote(study.name)}'} --json",
        environment={"source": study.source},
    )


def critical_words(b_crit: float | None, low: int, high: int) -> str:
    """From which batch on more samples a step need more training, as far as it was measured, in a sentence.

    Args:
        b_crit: batch at which twice the training is needed [samples]; None: infinite
        low: smallest batch that was measured [samples]
        high: largest one [samples]
    """
    measured = f"measured at {low:,} to {high:,}"
    if low == high:
        return f"what batches other than {low:,} need is not known: no other one was measured."
    if b_crit is None:
        return f"no batch is seen to need more training than another ({measured})."
    return f"batch {figure(b_crit)} needs twice the training of a small one ({measured})."


def quality_facts(quality: Quality) -> list[tuple[str, str]]:
    """Errors of the form and of points left out; nothing where they are not known."""
    facts = [] if quality.rms is None else [("error of E0 (1 + B / Bcrit)", f"{100 * quality.rms:.1f} % rms")]
    mean, inside, coverage = quality.leave_one_out_mean, quality.leave_one_out_mean_inside, quality.coverage_90
    if mean is not None and coverage is not None:
        between = "" if inside is None else f", {100 * inside:.1f} % where others lie on both sides"
        facts.append(
            (
                "leave-one-out error",
                f"{100 * mean:.1f} % in the mean{between}; {100 * coverage:.0f} % of {quality.points_left_out} within "
                "90 % intervals",
            )
        )
    return facts


def _points_table(study: CurveStudy) -> DataTable:
    left_out = {point.global_batch_size: point for point in study.left_out}
    return DataTable(
        columns=("batch", study.unit, "runs", "spread", "form", "leave-one-out error"),
        rows=[
            (
                f"{point.global_batch_size:,}",
                figure(point.amount),
                str(point.runs),
                "" if point.deviation is None or point.runs < 2 else f"{point.deviation / point.amount:.1%}",
                f"{point.form / point.amount - 1:+.1%}",
                _leave_one_out(left_out.get(point.global_batch_size)),
            )
            for point in study.points
        ],
        words=frozenset(),
        caption=f"{study.unit}: to the target; runs: that reached it; spread: standard deviation of the runs; form: "
        "error of E0 (1 + B / Bcrit); leave-one-out error: of the curve through the other points, with its 90 % "
        "interval; !: the measurement is outside",
    )


def _leave_one_out(point: LeftOut | None) -> str:
    if point is None:
        return ""
    ends = (f"{end / point.measured - 1:+.0%}" for end in point.interval)
    return f"{point.error:+.1%} [{', '.join(ends)}]{'' if point.covered else ' !'}"


def _asked_section(study: CurveStudy) -> Section | None:
    if not study.at:
        return None
    table = DataTable(
        columns=("batch", study.unit, "interval", ""),
        rows=[
            (f"{entry.global_batch_size:,}", figure(entry.amount), format_ends(entry.interval), entry.source)
            for entry in study.at
        ],
        words=frozenset({3}),
        caption=f"{study.unit}: to the target; interval: 90 %",
    )
    return Section(id="asked", title="Batches that you asked for", content=[table])


def catalog_page(catalog: CurveCatalog, _: Sequence[object] = (), asked: str = "") -> Page:
    """The curves of the catalog, one a line.

    Args:
        catalog: the answer
        asked: command that asked; "": not known
    """
    rows = []
    for study in catalog.curves:
        mean, rms = study.leave_one_out_mean, study.rms
        rows.append(
            (
                study.name + ("*" if study.projection else ""),
                format_span(*(f"{end:,}" for end in study.range), to="–"),
                str(len(study.points)),
                study.unit,
                "–" if len(study.points) < 2 else critical(study.b_crit),
                "" if rms is None else f"{rms:.1%}",
                "" if mean is None else f"{mean:.1%}",
            )
        )
    table = DataTable(
        columns=("name", "batches", "points", "unit", "Bcrit", "rms", "left out"),
        rows=rows,
        words=frozenset({0, 3}),
        caption="points: batches that were measured; unit: what is counted to the target; Bcrit: batch at which twice "
        "the training is needed; rms: error of the form E0 (1 + B / Bcrit); left out: mean leave-one-out error; –: one "
        "batch does not say it; *: a study's projection",
    )
    others = [
        *(
            f"{ratio.name}: no curve, twice the batch needs {ratio.ratio:g} times the epochs."
            for ratio in catalog.ratios
        ),
        "Your own: trimaran catalog curve TABLE.csv.",
    ]
    return Page(
        kind="Convergence curves",
        title="All measured curves together",
        verdict=f"{len(rows)} curves are known: how much training each batch needs to reach a target.",
        facts=quality_facts(catalog.together),
        sections=[
            Section(id="curves", title="Curves", content=[table], is_wide=True),
            Section(id="others", title="Others", content=[Words(lines=others)]),
        ],
        command=asked or "trimaran catalog curve --list --json",
    )


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


def within(ends: Ends) -> str:
    """A 90 % interval behind a figure, which may have no upper end; nothing where it is not known."""
    return "" if ends[0] is None else f" ({format_span(*map(critical, ends), to='–')})"


def format_ends(ends: Ends) -> str:
    """A 90 % interval, four figures each; –: not known."""
    return format_span(*("–" if end is None else figure(end) for end in ends), to="–")


def few_ticks(batches: Sequence[int]) -> list[float]:
    """Batches as ticks of an axis; none where they are many, or 0 is one of them."""
    kept = sorted({float(batch) for batch in batches})
    return kept if len(kept) <= 8 and kept and kept[0] > 0 else []


def need_section(
    unit: str,
    points: Sequence[tuple[int, float, Ends, Sequence[float]]],
    e0: float,
    b_crit: float | None,
    table: DataTable,
    *,
    asked: Sequence[AskedBatch] = (),
) -> Section:
    """Training to the target by batch, with the fitted form.

    Args:
        unit: of the amounts
        points: batch, amount, its 90 % interval, and single runs of each
        e0: amount of a small batch
        b_crit: that needs twice as much; None: infinite
        table: of the points
        asked: other batches that are shown
    """
    title = "Training that each batch needs"
    if not points:
        return Section(id="need", title=title, content=[table])
    ordered = sorted(points)
    batches = [*(batch for batch, *_ in ordered), *(entry.global_batch_size for entry in asked)]
    first, last = max(min(batches), 1), max(*batches, 1)
    smooth = [first * (last / first) ** (n / 60) for n in range(61)]
    banded = [
        *((batch, amount, ends) for batch, amount, ends, _ in ordered),
        *((entry.global_batch_size, entry.amount, entry.interval) for entry in asked),
    ]
    whole = [(float(batch), amount, ends) for batch, amount, ends in banded if None not in ends]
    svg = curve_chart(
        "Training to the target by batch",
        [
            Series(
                name="E0 (1 + B / Bcrit)",
                points=[(batch, e0 * (1 + (batch / b_crit if b_crit else 0.0))) for batch in smooth],
                colour=SERIES_COLOURS[5],
                dashed=True,
                dots=False,
            ),
            Series(
                name="90 % interval",
                points=[(batch, amount) for batch, amount, _ in whole],
                ends=[(ends[0] or 0.0, ends[1] or 0.0) for *_, ends in whole],
                line=False,
                dots=False,
                whiskers=True,
                colour=SERIES_COLOURS[0],
            ),
            Series(
                name="single runs",
                points=[(float(batch), value) for batch, _, _, values in ordered for value in values],
                colour=SERIES_COLOURS[3],
                hollow=True,
                line=False,
                size=3.0,
            ),
            Series(
                name="asked for",
                points=[(float(entry.global_batch_size), entry.amount) for entry in asked],
                says=[f"batch {entry.global_batch_size:,}: {figure(entry.amount)} {unit}" for entry in asked],
                colour=SERIES_COLOURS[1],
                hollow=True,
                line=False,
                size=4.5,
            ),
            Series(
                name="measured",
                points=[(float(batch), amount) for batch, amount, *_ in ordered],
                says=[f"batch {batch:,}: {plain_number(amount)} {unit}" for batch, amount, *_ in ordered],
                colour=SERIES_COLOURS[0],
                line=False,
                size=4.5,
            ),
        ],
        ChartAxis(title="global batch [samples]", log=True, ticks=few_ticks([batch for batch, *_ in ordered])),
        ChartAxis(title=f"training to the target [{unit}]", log=True),
        limits=[LimitLine(name=f"critical batch {plain_number(b_crit)}", at=b_crit, upright=True)]
        if b_crit and first / 2 < b_crit < 2 * last
        else [],
    )
    return Section(id="need", title=title, content=[Chart(svg=svg, table=table)])
