"""A measurement of convergence as JSON data."""

import math

from trimaran.costs.convergence import Curve
from trimaran.program.files import to_plain
from trimaran.report.converging.types import ConvergedBatch, ConvergedRun, Convergence, NoiseComparison


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
            "b_crit": _finite(fit.b_crit),
            "b_crit_interval": [_finite(end) for end in fit.b_crit_interval],
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
        "global_batch": one.global_batch,
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
        "global_batch": run.global_batch,
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
        "noise_b_crit": None if run.noise_b_crit is None else _finite(run.noise_b_crit),
    }


def _noise_document(noise: NoiseComparison) -> dict[str, object]:
    return {
        "b_crit": _finite(noise.b_crit),
        "runs_interval": [_finite(noise.low), _finite(noise.high)],
        "runs": noise.runs,
        "runs_without_signal": noise.endless,
        "ratio_to_fitted": noise.ratio,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
