"""From finished runs to a curve, and what the reader should know of it."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from trimaran.costs.convergence import Curve, CurveTable, Point
from trimaran.costs.convergence.checks import oddities
from trimaran.costs.convergence.ways import Way, foretell_b_crit
from trimaran.errors import InfeasibleError
from trimaran.measure.converge.state import Run
from trimaran.report.converging import ConvergedBatch, ConvergedRun, NoiseComparison
from trimaran.session.converging.targets import Target
from trimaran.session.converging.task import Task

_ROUNDS = 20  # of weighing again, most of which change nothing


def gather(
    task: Task, target: Target, runs: Mapping[tuple[int, int], Run], *, repeats: int
) -> tuple[ConvergedBatch, ...]:
    """What each batch needed.

    Args:
        task: what was trained
        target: that was to be reached
        runs: finished, by batch and seed
        repeats: wanted of each batch
    """
    ways = task.ways()
    found = []
    for batch in task.batches:
        mine = tuple(_row(task, target, run, ways) for _, run in sorted(runs.items()) if run.batch == batch)
        found.append(ConvergedBatch(global_batch=batch, runs=mine, missing=repeats - len(mine)))
    return tuple(found)


def _row(task: Task, target: Target, run: Run, ways: Mapping[int, Way]) -> ConvergedRun:
    epochs = run.needed(target.value, most=task.max_epochs)
    noise = run.noise_until(target.value)
    # It may have been trained to a higher target, or further.
    return ConvergedRun(
        global_batch=run.batch,
        seed=run.seed,
        end="reached" if epochs is not None else "epochs" if run.end == "reached" else run.end,
        epochs=epochs,
        trained_epochs=run.epochs,
        samples=run.samples,
        updates=run.updates,
        seconds=run.seconds,
        best=run.best,
        noise=noise,
        noise_b_crit=None if noise is None else _noise_b_crit(noise, run.batch, epochs, ways, most=task.max_epochs),
    )


def _noise_b_crit(
    noise: Mapping[str, Any], batch: int, epochs: float | None, ways: Mapping[int, Way], *, most: float
) -> float | None:
    """Critical batch of E(B) by a run's gradients; None where they do not say one.

    Where the optimizer scales by earlier gradients the size of its steps is the rate: E(B) follows from the recipe.
    Else it is that of theory, for the best rate at each batch.
    """
    if not noise["scaled"]:
        return _or_infinite(noise["b_crit"])
    return None if epochs is None else foretell_b_crit(ways, batch, epochs, _or_infinite(noise["b_simple"]), most=most)


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value


def table_of(task: Task, target: Target, measured: Sequence[ConvergedBatch]) -> CurveTable:
    """The points of the batches that reached the target at least once.

    Raises:
        InfeasibleError: none did; with the best metric
    """
    points = [
        Point(
            global_batch=one.global_batch,
            amount=statistics.mean(one.needed),
            runs=len(one.needed),
            deviation=statistics.stdev(one.needed) if len(one.needed) > 1 else None,
            values=one.needed,
            failed=one.failed,
        )
        for one in measured
        if one.needed
    ]
    if not points:
        raise _never_reached(task, target, measured)
    return CurveTable(
        task=f"{task.source.reference} to {target.value:g}",
        unit="epochs",
        points=tuple(points),
        source=f"measured by trimaran converge, {_how(task)}",
        samples_per_epoch=task.samples,
        network=task.source.reference,
        target=target.value,
        recipe=task.recipe,
    )


def compare_noise(measured: Sequence[ConvergedBatch], curve: Curve) -> NoiseComparison | None:
    """The critical batch of the runs' gradients, over all runs as the fit weighs their batches.

    A run at batch B whose gradients say b has ln (E(B) / E0) = ln (1 + B / b), which is what is fitted; with ln b it
    changes by −B / (B + b). What comes out is the b̄ that makes the sum of absolute errors of these logarithms least:
    the median of the b, each counted by B / (B + b̄). Batches far below the critical one say little of it, here as in
    the fit, and a run without a signal, whose b is infinite, counts for as much as any other.

    Args:
        measured: with their runs
        curve: has the fitted one
    """
    found = sorted(
        (value, run.global_batch) for one in measured for run in one.runs if (value := run.noise_b_crit) is not None
    )
    if not found:
        return None
    pooled = _median(found, [1.0] * len(found))
    for _ in range(_ROUNDS):
        again = _median(found, [1.0 if math.isinf(pooled) else batch / (batch + pooled) for _, batch in found])
        if again == pooled:
            break
        pooled = again
    fitted = curve.fit.b_crit
    return NoiseComparison(
        b_crit=pooled,
        low=found[int(0.05 * (len(found) - 1))][0],
        high=found[math.ceil(0.95 * (len(found) - 1))][0],
        runs=len(found),
        endless=sum(math.isinf(value) for value, _ in found),
        ratio=pooled / fitted if math.isfinite(fitted) and math.isfinite(pooled) else None,
    )


def _median(found: Sequence[tuple[float, int]], weights: Sequence[float]) -> float:
    """The value at which half of the weight is reached; between two at which it is exactly, their geometric mean."""
    half, passed = sum(weights) / 2, 0.0
    for (value, _), weight, (following, _) in zip(found, weights, [*found[1:], found[-1]], strict=True):
        passed += weight
        if math.isclose(passed, half):
            return math.sqrt(value * following) if math.isfinite(following) else value
        if passed > half:
            return value
    return found[-1][0]


def warnings_of(task: Task, target: Target, measured: Sequence[ConvergedBatch], table: CurveTable) -> tuple[str, ...]:
    """What the reader should know of the points."""
    found = list(task.warnings)
    for one in measured:
        if one.missing:
            wanted = one.missing + len(one.runs)
            found.append(
                f"batch {one.global_batch}: {one.missing} of {wanted} runs were not finished in time; the same command "
                "goes on"
            )
        if one.failed:
            best = "none" if one.best is None else f"{one.best:.4g}"
            diverged = sum(run.end == "diverged" for run in one.runs)
            found.append(
                f"batch {one.global_batch}: {one.failed} of {len(one.runs)} runs did not reach {target.value:g} within "
                f"{task.max_epochs:g} epochs, best {best}"
                + (f", {diverged} diverged" if diverged else "")
                + ("; the mean is over the others, and too low" if one.needed else "; it is not in the curve")
            )
    return (*found, *(text for text in oddities(table) if text not in found))


def _never_reached(task: Task, target: Target, measured: Sequence[ConvergedBatch]) -> InfeasibleError:
    runs = [run for one in measured for run in one.runs]
    known = [run for run in runs if run.best is not None]
    if not known:
        return InfeasibleError(
            "no run was finished and evaluated within the limits: give more --time-limit; the same command goes on",
            target=target.value,
        )
    best = max(known, key=lambda run: run.best or 0.0)
    return InfeasibleError(
        f"no run reached {target.value:g}: the best of {len(runs)} came to {best.best:.4g}, with batch "
        f"{best.global_batch} and seed {best.seed}, within {task.max_epochs:g} epochs. Lower --target, or raise "
        f"--max-epochs; finished runs are kept in {task.folder}",
        code="converge.target-not-reached",
        target=target.value,
        best_metric=best.best,
        best_batch=best.global_batch,
        max_epochs=task.max_epochs,
        run_dir=str(task.folder),
    )


def _how(task: Task) -> str:
    recipe = task.recipe
    held = "without its decay" if recipe.schedule == "hold" else "with its decay"
    return (
        f"learning rate {recipe.rule} from batch {recipe.base_batch}, the job's schedule by samples {held}, "
        f"microbatches of at most {task.microbatch} accumulated on one device"
    )
