"""Results of a measurement of convergence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from trimaran.base.units import format_count, format_seconds, format_span
from trimaran.convergence.curve import Curve
from trimaran.program.json_files import finite, to_plain
from trimaran.report.convergence_curve import figure
from trimaran.report.tables import add_figures, frame_table


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergedRun:
    """One training.

    Attributes:
        global_batch: samples of an update
        seed: of weights, order and dropout
        end: why it ended: "reached", "epochs", "diverged"
        epochs: to the target; None where it was not reached
        trained_epochs: until it ended
        samples: that it trained on
        updates: of the weights
        seconds: of training, evaluations not counted [s]
        best: largest metric; None where there was no evaluation
        noise: of its gradients, plain; None where it was not seen
        noise_b_crit: critical batch by them, infinite where they say of none [samples]; None where they were not seen,
            or where the target, from which it follows, was not reached
    """

    global_batch: int
    seed: int
    end: str
    epochs: float | None
    trained_epochs: float
    samples: int
    updates: int
    seconds: float
    best: float | None
    noise: Mapping[str, Any] | None = None
    noise_b_crit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergedBatch:
    """One batch.

    Attributes:
        global_batch: samples of an update
        runs: that ended
        missing: that were wanted and did not end in time
    """

    global_batch: int
    runs: tuple[ConvergedRun, ...]
    missing: int = 0

    @property
    def needed(self) -> tuple[float, ...]:
        """Epochs to the target of the runs that reached it."""
        return tuple(run.epochs for run in self.runs if run.epochs is not None)

    @property
    def failed(self) -> int:
        """Runs that ended without reaching it."""
        return len(self.runs) - len(self.needed)

    @property
    def best(self) -> float | None:
        """The largest metric of all runs; None where none was evaluated."""
        return max((run.best for run in self.runs if run.best is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseComparison:
    """The critical batch by gradient noise, compared with the fitted one.

    Attributes:
        b_crit: median over all runs, as the fit weighs their batches; infinite where most show no signal [samples]
        low: 5 % of the runs are below
        high: 5 % of the runs are above
        runs: that were observed
        endless: those of them whose gradients show no signal: their critical batch is counted as infinite
        ratio: over the fitted one; None where either is infinite
    """

    b_crit: float
    low: float
    high: float
    runs: int
    ratio: float | None
    endless: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    """A finished measurement.

    Attributes:
        job: reference of the job
        target: value of the metric
        target_source: who says so
        rule_source: why that rule of the learning rate
        max_epochs: limit of a run
        microbatch: most samples that a device took at once
        devices: that took part
        batches: by rising batch
        curve: through what was reached; its table has the recipe
        noise: None where no run says one
        kept: runs that had ended before
        seconds: of this command [s]
        run_dir: where the runs are kept
        curve_file: that plans take
        warnings: what the reader should know
    """

    job: str
    target: float
    target_source: str
    rule_source: str
    max_epochs: float
    microbatch: int
    devices: int
    batches: tuple[ConvergedBatch, ...]
    curve: Curve
    noise: NoiseComparison | None
    kept: int
    seconds: float
    run_dir: str
    curve_file: str
    warnings: tuple[str, ...] = ()


# ---------------------------------------------------------------------------------------------------------------------
# A measurement of convergence as JSON data


def convergence_document(found: Convergence) -> dict[str, object]:
    """A measurement as JSON data; null is infinite, not known, or not reached. Amounts of `curve` are epochs."""
    table, fit = found.curve.table, found.curve.fit
    recipe = table.recipe
    return {
        "job": found.job,
        "target": found.target,
        "target_source": found.target_source,
        "samples_per_epoch": table.samples_per_epoch,
        "recipe": None if recipe is None else to_plain(recipe),
        "rule_source": found.rule_source,
        "max_epochs": found.max_epochs,
        "microbatch": found.microbatch,
        "devices": found.devices,
        "curve": {
            "unit": table.unit,
            "e0": fit.e0,
            "e0_interval": list(fit.e0_interval),
            "b_crit": finite(fit.b_crit),
            "b_crit_interval": [finite(end) for end in fit.b_crit_interval],
            "rms": fit.rms,
            "points": [_batch_document(found.curve, one) for one in found.batches],
        },
        "gradient_noise": None if found.noise is None else _noise_document(found.noise),
        "runs": [_run_document(run) for one in found.batches for run in one.runs],
        "runs_kept": found.kept,
        "training_s": sum(run.seconds for one in found.batches for run in one.runs),
        "time_s": found.seconds,
        "run_dir": found.run_dir,
        "curve_file": found.curve_file,
        "warnings": list(found.warnings),
    }


def _batch_document(curve: Curve, one: ConvergedBatch) -> dict[str, object]:
    samples = curve.table.samples_per_epoch or 0
    point = next((point for point in curve.table.points if point.global_batch == one.global_batch), None)
    epochs = None if point is None else point.amount
    return {
        "global_batch_size": one.global_batch,
        "epochs": epochs,
        "samples": None if epochs is None else epochs * samples,
        "deviation": None if point is None else point.deviation,
        "fitted_epochs": curve.fit.e0 * (1 + one.global_batch / curve.fit.b_crit),
        "values": list(one.needed),
        "runs": len(one.runs),
        "failed": one.failed,
        "missing": one.missing,
        "best_metric": one.best,
    }


def _run_document(run: ConvergedRun) -> dict[str, object]:
    return {
        "global_batch_size": run.global_batch,
        "seed": run.seed,
        "reached": run.epochs is not None,
        "end": run.end,
        "epochs": run.epochs,
        "trained_epochs": run.trained_epochs,
        "samples": run.samples,
        "updates": run.updates,
        "seconds": run.seconds,
        "best_metric": run.best,
        "gradient_noise": None if run.noise is None else dict(run.noise),
        "noise_b_crit": None if run.noise_b_crit is None else finite(run.noise_b_crit),
    }


def _noise_document(noise: NoiseComparison) -> dict[str, object]:
    return {
        "b_crit": finite(noise.b_crit),
        "runs_interval": [finite(noise.low), finite(noise.high)],
        "runs": noise.runs,
        "runs_without_signal": noise.endless,
        "ratio_to_fitted": noise.ratio,
    }


# ---------------------------------------------------------------------------------------------------------------------
# A measurement of convergence for people


def convergence_view(found: Convergence) -> RenderableType:
    """A measurement for people, complete at 80 columns."""
    table, fit = found.curve.table, found.curve.fit
    shown = frame_table(
        "Epochs to the target",
        "±: standard deviation of the runs; fitted: by E(B) below; runs: that reached the target\n"
        "best: value of the metric; noise Bcrit: critical batch by the noise of the gradients",
    )
    add_figures(shown, "batch", "epochs", "±", "fitted", "runs", "best", "noise Bcrit")
    for one in found.batches:
        shown.add_row(*_cells(found.curve, one))
    lines = [_verdict(found), _rate_line(found), ""]
    fitted = [
        f"E(B) = {fit.e0:.3g} · (1 + B / {figure(fit.b_crit)}) epochs of {table.samples_per_epoch} samples, "
        f"rms {fit.rms:.1%}",
        f"Bcrit {figure(fit.b_crit)}, 90 %: {format_span(*map(figure, fit.b_crit_interval))}",
    ]
    # A form through one point says nothing of other batches.
    after = fitted if len(table.points) > 1 else []
    if found.noise is not None:
        noise = found.noise
        ratio = "" if noise.ratio is None else f", {noise.ratio:.2f} × the fitted one"
        after.append(
            f"Bcrit by gradient noise {figure(noise.b_crit)}{ratio}; single runs {figure(noise.low)} to "
            f"{figure(noise.high)}" + (f"; {noise.endless} of {noise.runs} show no signal" if noise.endless else "")
        )
    kept = f", {found.kept} kept from before" if found.kept else ""
    ended = sum(len(one.runs) for one in found.batches)
    after.append(f"{format_count(ended, 'run')}{kept}; {format_seconds(found.seconds)} on {_devices(found.devices)}")
    notes = [Text(f"note: {text}") for text in found.warnings]
    files = [
        Text(f"curve  {found.curve_file}", overflow="fold"),
        Text(f"runs   {found.run_dir}", overflow="fold"),
    ]
    return Group(*map(Text, lines), shown, *map(Text, after), *notes, *files)


def _verdict(found: Convergence) -> str:
    needed = [(point.global_batch, point.amount) for point in found.curve.table.points if point.amount]
    return converged_words(found.job, found.target, found.target_source, needed, finite(found.curve.fit.b_crit))


def converged_words(
    job: str, target: float, source: str, needed: Sequence[tuple[int, float]], b_crit: float | None
) -> str:
    """The batch that reached the target in the fewest epochs, and from which batch on they double.

    Args:
        job: reference of the job
        target: value of the metric
        source: who says so
        needed: batches that reached it [samples] and their epochs
        b_crit: of the fit [samples]; None: infinite
    """
    said = f"{target:g} ({source})"
    if not needed:
        return f"{job}: no run reached {said}."
    batch, fewest = min(needed, key=lambda one: one[1])
    if len(needed) < 2:
        return f"{job}: {fewest:.2f} epochs to {said} at batch {batch:,}; no other was measured."
    more = "no batch needs more" if b_crit is None else f"batch {figure(b_crit)} needs twice those of a small one"
    return f"{job}: {fewest:.2f} epochs to {said} at batch {batch:,}; {more}."


def _cells(curve: Curve, one: ConvergedBatch) -> list[str]:
    point = next((point for point in curve.table.points if point.global_batch == one.global_batch), None)
    found = sorted(value for run in one.runs if (value := run.noise_b_crit) is not None)
    return [
        f"{one.global_batch:,}",
        "–" if point is None else f"{point.amount:.2f}",
        "–" if point is None or point.deviation is None else f"{point.deviation:.2f}",
        f"{curve.fit.e0 * (1 + one.global_batch / curve.fit.b_crit):.2f}",
        f"{len(one.needed)} of {len(one.runs) + one.missing}",
        "–" if one.best is None else f"{one.best:.4g}",
        figure(found[len(found) // 2]) if found else "–",
    ]


def _rate_line(found: Convergence) -> str:
    recipe = found.curve.table.recipe
    if recipe is None:
        return ""
    held = ", held where it would fall" if recipe.schedule == "hold" else ""
    return (
        f"Learning rate: {recipe.rule} from batch {recipe.base_batch} ({found.rule_source}), schedule by samples{held}"
    )


def _devices(count: int) -> str:
    return "one device" if count == 1 else f"{count} devices"
