"""Results of a measurement of convergence."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from trimaran.base.decoding import Count, Positive, Real
from trimaran.base.html import DataTable
from trimaran.base.units import format_count, format_figure, format_seconds
from trimaran.jobs.learning_rate import Recipe
from trimaran.report.convergence_curve import critical, few_ticks, figure, need_section, within
from trimaran.report.page.charts import ChartAxis, Series, curve_chart
from trimaran.report.page.layout import Chart, Page, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergedRun:
    """One training.

    Attributes:
        global_batch_size: samples of an update
        seed: of weights, order and dropout
        end: why it ended: "reached", "epochs", "diverged"
        epochs: to the target; None where it was not reached
        trained_epochs: until it ended
        samples: that it trained on
        updates: of the weights
        seconds: of training, evaluations not counted [s]
        best_metric: largest one; None where there was no evaluation
        gradient_noise: of its gradients, plain; None where it was not seen
        noise_b_crit: critical batch by them, infinite where they say of none [samples]; None where they were not seen,
            or where the target, from which it follows, was not reached
    """

    derived: ClassVar = ("reached",)
    global_batch_size: Count
    seed: int
    end: str
    epochs: Positive | None
    trained_epochs: Positive
    samples: Count
    updates: Count
    seconds: Positive
    best_metric: Real | None
    gradient_noise: Mapping[str, Any] | None = None
    noise_b_crit: Positive | None = None

    @property
    def reached(self) -> bool:
        """Whether it reached the target."""
        return self.epochs is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBatch:
    """One batch.

    Attributes:
        global_batch_size: samples of an update
        epochs: to the target, mean of the runs; None: none reached it
        samples: the same in samples
        deviation: standard deviation of the epochs over the runs; None where it is not known
        fitted_epochs: by the form
        values: epochs of each run that reached it
        runs: that ended
        failed: that ended without reaching it
        missing: that were wanted and did not end in time
        best_metric: largest one of all runs; None where none was evaluated
    """

    global_batch_size: Count
    epochs: Positive | None
    samples: Positive | None
    deviation: Positive | None
    fitted_epochs: Positive
    values: tuple[Positive, ...]
    runs: Count
    failed: Count
    missing: Count
    best_metric: Real | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCurve:
    """E(B) = E0 (1 + B / Bcrit) through what was reached, with 90 % intervals.

    Attributes:
        unit: of the amounts
        e0: of a small batch
        e0_interval: of it
        b_crit: batch that needs twice as much [samples]; None: infinite
        b_crit_interval: of it
        rms: by which the form misses the points, as a share
        points: by rising batch
    """

    unit: str
    e0: Positive
    e0_interval: tuple[Positive | None, Positive | None]
    b_crit: Positive | None
    b_crit_interval: tuple[Positive | None, Positive | None]
    rms: Positive | None
    points: tuple[MeasuredBatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseComparison:
    """The critical batch by gradient noise, compared with the fitted one.

    Attributes:
        b_crit: median over all runs, as the fit weighs their batches; None: infinite, most show no signal [samples]
        runs_interval: 5 % of the runs are below the first, 5 % above the second; None: infinite
        runs: that were observed
        runs_without_signal: those whose gradients show none: their critical batch is counted as infinite
        ratio_to_fitted: over the fitted one; None where either is infinite
    """

    b_crit: Positive | None
    runs_interval: tuple[Positive | None, Positive | None]
    runs: Count
    ratio_to_fitted: Positive | None
    runs_without_signal: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    """A finished measurement.

    Attributes:
        job: reference of the job
        target: value of the metric
        target_source: who says so
        samples_per_epoch: of the training data
        recipe: how the learning rate followed the batch
        rule_source: why that rule of the learning rate
        max_epochs: limit of a run
        microbatch: most samples that a device took at once
        devices: that took part
        curve: through what was reached
        gradient_noise: None where no run says one
        runs: that ended, by rising batch
        runs_kept: those that had ended before
        time_s: of this command [s]
        run_dir: where the runs are kept
        curve_file: that plans take
        warnings: what the reader should know
    """

    derived: ClassVar = ("training_s",)
    job: str
    target: Real
    target_source: str
    samples_per_epoch: Count | None
    recipe: Recipe | None
    rule_source: str
    max_epochs: Positive
    microbatch: Count
    devices: Count
    curve: FittedCurve
    gradient_noise: NoiseComparison | None
    runs: tuple[ConvergedRun, ...]
    runs_kept: Count
    time_s: Positive
    run_dir: str
    curve_file: str
    warnings: tuple[str, ...] = ()

    @property
    def training_s(self) -> float:
        """Time of all runs [s]."""
        return sum(run.seconds for run in self.runs)


# ---------------------------------------------------------------------------------------------------------------------
# The page of a measurement of convergence

_MOST_RUNS = 300


def converge_page(found: Convergence, _: Sequence[object] = (), asked: str = "") -> Page:
    """Epochs that each batch needed, and the runs.

    Args:
        found: the answer
        asked: command that asked; "": not known
    """
    fit, noise, recipe = found.curve, found.gradient_noise, found.recipe
    reached = [point for point in fit.points if point.epochs is not None]
    facts = [("target", f"{found.target:g} ({found.target_source})")]
    if recipe is not None:
        held = ", held where it would fall" if recipe.schedule == "hold" else ""
        rule = f"{recipe.rule} from batch {recipe.base_batch} ({found.rule_source}), schedule by samples{held}"
        facts.append(("learning rate", rule))
    # A form through one point says nothing of other batches.
    if len(reached) > 1:
        form = f"{fit.e0:.3g} (1 + B / {critical(fit.b_crit)}) epochs of {found.samples_per_epoch} samples"
        facts.append(("E(B)", f"{form}, rms {fit.rms or 0.0:.1%}"))
        facts.append(("critical batch Bcrit", f"{critical(fit.b_crit)}{within(fit.b_crit_interval)}"))
    if noise is not None:
        ratio = "" if noise.ratio_to_fitted is None else f", {noise.ratio_to_fitted:.2f} × the fitted one"
        endless = noise.runs_without_signal
        facts.append(
            (
                "the same by gradient noise",
                f"{critical(noise.b_crit)}{ratio}; single runs {' to '.join(map(critical, noise.runs_interval))}"
                + (f"; {endless} of {noise.runs} show no signal" if endless else ""),
            )
        )
    kept = f", {found.runs_kept} kept from before" if found.runs_kept else ""
    on = format_count(found.devices, "device")
    facts.append((format_count(len(found.runs), "run"), f"{format_seconds(found.time_s)} on {on}{kept}"))
    return Page(
        kind="Measured convergence",
        title=found.job,
        verdict=converged_verdict(found),
        facts=facts,
        sections=[
            need_section(
                fit.unit,
                [(point.global_batch_size, point.epochs or 0.0, (None, None), point.values) for point in reached],
                fit.e0,
                fit.b_crit,
                _batches_table(found),
            ),
            _runs_section(found),
        ],
        notes=found.warnings,
        command=f"{asked or f'trimaran crossover --measure {shlex.quote(found.job)}'} --json",
        environment={"curve file": found.curve_file, "runs": found.run_dir},
    )


def converged_verdict(found: Convergence) -> str:
    """The batch that reached the target in the fewest epochs, and from which batch on they double."""
    said = f"{found.target:g} ({found.target_source})"
    needed = [(one.epochs, one.global_batch_size) for one in found.curve.points if one.epochs]
    if not needed:
        return f"{found.job}: no run reached {said}."
    fewest, batch = min(needed)
    if len(needed) < 2:
        return f"{found.job}: {fewest:.2f} epochs to {said} at batch {batch:,}; no other was measured."
    b_crit = found.curve.b_crit
    more = "no batch needs more" if b_crit is None else f"batch {figure(b_crit)} needs twice those of a small one"
    return f"{found.job}: {fewest:.2f} epochs to {said} at batch {batch:,}; {more}."


def _batches_table(found: Convergence) -> DataTable:
    rows = []
    for point in found.curve.points:
        mine = [run.noise_b_crit for run in found.runs if run.global_batch_size == point.global_batch_size]
        by_noise = sorted(value for value in mine if value is not None)
        rows.append(
            (
                f"{point.global_batch_size:,}",
                "–" if point.epochs is None else f"{point.epochs:.2f}",
                "–" if point.deviation is None else f"{point.deviation:.2f}",
                f"{point.fitted_epochs:.2f}",
                f"{len(point.values)} of {point.runs + point.missing}",
                "–" if point.best_metric is None else f"{point.best_metric:.4g}",
                figure(by_noise[len(by_noise) // 2]) if by_noise else "–",
            )
        )
    return DataTable(
        columns=("batch", "epochs", "±", "fitted", "runs", "best", "noise Bcrit"),
        rows=rows,
        words=frozenset(),
        caption="epochs: to the target; ±: standard deviation of the runs; fitted: by E(B); runs: that reached the "
        "target; best: value of the metric; noise Bcrit: critical batch by the noise of the gradients",
    )


def _runs_section(found: Convergence) -> Section:
    reached = [(float(run.global_batch_size), run.seconds) for run in found.runs if run.epochs is not None]
    ticks = few_ticks([run.global_batch_size for run in found.runs])
    svg = curve_chart(
        "Time of each run to the target",
        [Series(name="runs that reached the target", points=reached, line=False)],
        ChartAxis(title="global batch [samples]", log=True, ticks=ticks),
        ChartAxis(title="training time [s]", zero=True),
    )
    table = DataTable(
        columns=("batch", "seed", "ended by", "epochs to the target", "time", "best metric"),
        rows=[
            (
                f"{run.global_batch_size:,}",
                str(run.seed),
                run.end,
                "–" if run.epochs is None else format_figure(run.epochs),
                format_seconds(run.seconds),
                "–" if run.best_metric is None else f"{run.best_metric:.4g}",
            )
            for run in found.runs[:_MOST_RUNS]
        ],
        words=frozenset({2}),
        left_out=f"{len(found.runs) - _MOST_RUNS} more runs" if len(found.runs) > _MOST_RUNS else "",
    )
    return Section(
        id="training",
        title="Time to accuracy of each run",
        content=[Chart(svg=svg, table=table)],
        is_detail=True,
    )
