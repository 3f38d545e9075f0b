"""Results of a measurement of convergence."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.console import Group, RenderableType
from rich.text import Text

from trimaran.base.decoding import Count, Positive, Real
from trimaran.base.units import format_count, format_seconds, format_span
from trimaran.jobs.learning_rate import Recipe
from trimaran.report.convergence_curve import critical, figure
from trimaran.report.tables import add_figures, frame_table


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
# A measurement of convergence for people


def convergence_view(found: Convergence) -> RenderableType:
    """A measurement for people, complete at 80 columns."""
    fit, noise = found.curve, found.gradient_noise
    shown = frame_table(
        "Epochs to the target",
        "±: standard deviation of the runs; fitted: by E(B) below; runs: that reached the target\n"
        "best: value of the metric; noise Bcrit: critical batch by the noise of the gradients",
    )
    add_figures(shown, "batch", "epochs", "±", "fitted", "runs", "best", "noise Bcrit")
    for one in fit.points:
        shown.add_row(*_cells(found, one))
    after = []
    # A form through one point says nothing of other batches.
    if len([one for one in fit.points if one.epochs]) > 1:
        after += [
            f"E(B) = {fit.e0:.3g} · (1 + B / {critical(fit.b_crit)}) epochs of {found.samples_per_epoch} samples, "
            f"rms {fit.rms or 0.0:.1%}",
            f"Bcrit {critical(fit.b_crit)}, 90 %: {format_span(*map(critical, fit.b_crit_interval))}",
        ]
    if noise is not None:
        ratio = "" if noise.ratio_to_fitted is None else f", {noise.ratio_to_fitted:.2f} × the fitted one"
        endless = noise.runs_without_signal
        after.append(
            f"Bcrit by gradient noise {critical(noise.b_crit)}{ratio}; single runs "
            f"{' to '.join(map(critical, noise.runs_interval))}"
            + (f"; {endless} of {noise.runs} show no signal" if endless else "")
        )
    kept = f", {found.runs_kept} kept from before" if found.runs_kept else ""
    on = format_count(found.devices, "device")
    after.append(f"{format_count(len(found.runs), 'run')}{kept}; {format_seconds(found.time_s)} on {on}")
    notes = [Text(f"note: {text}") for text in found.warnings]
    files = [
        Text(f"curve  {found.curve_file}", overflow="fold"),
        Text(f"runs   {found.run_dir}", overflow="fold"),
    ]
    lines = [converged_verdict(found), _rate_line(found), ""]
    return Group(*map(Text, lines), shown, *map(Text, after), *notes, *files)


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


def _cells(found: Convergence, one: MeasuredBatch) -> list[str]:
    mine = [run.noise_b_crit for run in found.runs if run.global_batch_size == one.global_batch_size]
    by_noise = sorted(value for value in mine if value is not None)
    return [
        f"{one.global_batch_size:,}",
        "–" if one.epochs is None else f"{one.epochs:.2f}",
        "–" if one.deviation is None else f"{one.deviation:.2f}",
        f"{one.fitted_epochs:.2f}",
        f"{len(one.values)} of {one.runs + one.missing}",
        "–" if one.best_metric is None else f"{one.best_metric:.4g}",
        figure(by_noise[len(by_noise) // 2]) if by_noise else "–",
    ]


def _rate_line(found: Convergence) -> str:
    recipe = found.recipe
    if recipe is None:
        return ""
    held = ", held where it would fall" if recipe.schedule == "hold" else ""
    return (
        f"Learning rate: {recipe.rule} from batch {recipe.base_batch} ({found.rule_source}), schedule by samples{held}"
    )
