"""Measure how many epochs a job needs at each batch, and write the curve.

job ──▶ checked ──▶ target ──▶ runs: batches × seeds, side by side ──▶ points ──▶ curve file
                    asked, the job's,       resumed where they stopped
                    or by own runs

The runs of a measurement: which are left, in which order, on as many devices as there are.

runs.jsonl ──▶ what is finished stays ──▶ the rest, long runs first ──▶ a process a device ──▶ a line in runs.jsonl
                                                                                              as each one ends
"""

import math
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trimaran.base.decoding import from_plain
from trimaran.base.errors import InfeasibleError, InputError, TrimaranError
from trimaran.base.files import check_writable, temporary_folder
from trimaran.base.progress import Progress, ignore_progress
from trimaran.convergence.curve import Curve, fit_curve
from trimaran.convergence.files import write_curve
from trimaran.convergence.single_run import RateSchedule, predict_b_crit
from trimaran.convergence.types import CurveTable, Point, oddities
from trimaran.features.convergence.request import ConvergeRequest
from trimaran.features.convergence.task import (
    MetricTarget,
    PendingRun,
    Task,
    converge_rank,
    prepare_task,
    read_target,
    rule_of_thumb,
    write_target,
)
from trimaran.jobs.resolve import JobSource
from trimaran.measure.convergence.runs import Limits, TrainingRun, add_run, find_run, opened, read_runs
from trimaran.program.json_files import finite
from trimaran.report.convergence_runs import ConvergedRun, Convergence, FittedCurve, MeasuredBatch, NoiseComparison

_TAKEN = "taken-"
# A step costs about as much as this share of the job's batch, however small its own batch is.
_STEP_COST = 0.25
# Where nothing is known yet: the batch, in batches of the job, at which twice the epochs are needed.
_LIKELY_CRITICAL = 8.0


def finish_runs(
    task: Task, wanted: Sequence[tuple[int, int]], limits: Limits, *, progress: Progress
) -> dict[tuple[int, int], TrainingRun]:
    """Do what is left of some runs.

    Args:
        task: what is trained
        wanted: batch and seed of each run
        limits: of each; runs that the deadline breaks off are not kept
        progress: told of every evaluation

    Returns:
        Finished runs by batch and seed.

    Raises:
        TrimaranError: what a process raised; finished runs stay
    """
    known = read_runs(task.folder)

    def finished() -> dict[tuple[int, int], TrainingRun]:
        found = {
            key: find_run(known, batch=key[0], seed=key[1], target=limits.target, most=limits.epochs) for key in wanted
        }
        return {key: run for key, run in found.items() if run is not None}

    before = finished()
    left = order_runs([key for key in wanted if key not in before], known, task)
    if left and not (limits.deadline is not None and time.time() >= limits.deadline):
        _launch(task, [task.work(*key) for key in left], limits, known, progress, len(before))
    return finished()


def order_runs(keys: Iterable[tuple[int, int]], known: Sequence[TrainingRun], task: Task) -> list[tuple[int, int]]:
    """Long runs first, so that no device is left with one at the end.

    Args:
        keys: batch and seed of each
        known: finished runs, which say how many epochs a batch takes
        task: what is trained
    """
    base = task.recipe.base_batch

    def seconds(batch: int) -> float:
        near = [run for run in known if run.batch == batch]
        epochs = sum(run.epochs for run in near) / len(near) if near else 1 + batch / (_LIKELY_CRITICAL * base)
        return epochs * (task.samples + _STEP_COST * base * -(-task.samples // batch))

    return sorted(keys, key=lambda key: (-seconds(key[0]), key[1]))


def _launch(
    task: Task, works: Sequence[PendingRun], limits: Limits, known: list[TrainingRun], progress: Progress, done: int
) -> None:
    from trimaran.launch.supervise import launch

    total = done + len(works)
    listen = _listener(task.folder, works, known, progress, done, total)
    progress("runs", done, total)
    for left in task.folder.glob(f"{_TAKEN}*"):
        shutil.rmtree(left, ignore_errors=True)  # of a command that was killed: only one at a time is at work here
    with temporary_folder(_TAKEN, task.folder) as taken:
        launch(
            converge_rank,
            (task.source, tuple(works), task.recipe, limits, taken),
            ranks=min(task.devices, len(works)),
            log_dir=task.folder / "logs",
            on_event=listen,
        )


def _listener(
    folder: Path, works: Sequence[PendingRun], known: list[TrainingRun], progress: Progress, done: int, total: int
) -> Callable[[int, Mapping[str, Any]], None]:
    ended = done

    def listen(rank: int, event: Mapping[str, Any]) -> None:
        nonlocal ended
        work = works[int(event["run"])]
        where = f"batch {work.batch}, seed {work.seed}"
        if "ended" in event:
            run: TrainingRun = from_plain(event["ended"], TrainingRun, source="a run")
            if run.end != "time":
                add_run(folder, run)
                known.append(run)
                ended += 1
            progress(f"runs: {where} ended after {run.epochs:.3g} epochs", ended, total)
        elif "metric" in event:
            progress(f"runs: {where}, epoch {event['epochs']:.3g}, metric {event['metric']:.4g}", ended, total)

    return listen


# ---------------------------------------------------------------------------------------------------------------------
# From finished runs to a curve, and what the reader should know of it


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
        return max((run.best_metric for run in self.runs if run.best_metric is not None), default=None)


_ROUNDS = 20  # of weighing again, most of which change nothing


def gather(
    task: Task, target: MetricTarget, runs: Mapping[tuple[int, int], TrainingRun], *, repeats: int
) -> tuple[ConvergedBatch, ...]:
    """Epochs that each batch needed.

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


def _row(task: Task, target: MetricTarget, run: TrainingRun, ways: Mapping[int, RateSchedule]) -> ConvergedRun:
    epochs = run.needed(target.value, most=task.max_epochs)
    noise = run.noise_until(target.value)
    # It may have been trained to a higher target, or further.
    return ConvergedRun(
        global_batch_size=run.batch,
        seed=run.seed,
        end="reached" if epochs is not None else "epochs" if run.end == "reached" else run.end,
        epochs=epochs,
        trained_epochs=run.epochs,
        samples=run.samples,
        updates=run.updates,
        seconds=run.seconds,
        best_metric=run.best,
        gradient_noise=noise,
        noise_b_crit=None if noise is None else _noise_b_crit(noise, run.batch, epochs, ways, most=task.max_epochs),
    )


def _noise_b_crit(
    noise: Mapping[str, Any], batch: int, epochs: float | None, ways: Mapping[int, RateSchedule], *, most: float
) -> float | None:
    """Critical batch of E(B) by a run's gradients; None where they do not say one.

    Where the optimizer scales by earlier gradients the size of its steps is the rate: E(B) follows from the recipe.
    Else it is that of theory, for the best rate at each batch.
    """
    if not noise["scaled"]:
        return _or_infinite(noise["b_crit"])
    return None if epochs is None else predict_b_crit(ways, batch, epochs, _or_infinite(noise["b_simple"]), most=most)


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value


def table_of(task: Task, target: MetricTarget, measured: Sequence[ConvergedBatch]) -> CurveTable:
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
        source=f"measured by trimaran crossover --measure, {_how(task)}",
        samples_per_epoch=task.samples,
        network=task.source.reference,
        target=target.value,
        recipe=task.recipe,
    )


def fitted_curve(curve: Curve, measured: Sequence[ConvergedBatch]) -> FittedCurve:
    """The curve through what was reached, with every batch that was tried.

    Args:
        curve: fitted
        measured: by rising batch
    """
    fit, table = curve.fit, curve.table
    reached = {point.global_batch: point for point in table.points}
    points = []
    for one in measured:
        point = reached.get(one.global_batch)
        points.append(
            MeasuredBatch(
                global_batch_size=one.global_batch,
                epochs=None if point is None else point.amount,
                samples=None if point is None else point.amount * (table.samples_per_epoch or 0),
                deviation=None if point is None else point.deviation,
                fitted_epochs=fit.e0 * (1 + one.global_batch / fit.b_crit),
                values=one.needed,
                runs=len(one.runs),
                failed=one.failed,
                missing=one.missing,
                best_metric=one.best,
            )
        )
    low, high = fit.b_crit_interval
    return FittedCurve(
        unit=table.unit,
        e0=fit.e0,
        e0_interval=fit.e0_interval,
        b_crit=finite(fit.b_crit),
        b_crit_interval=(finite(low), finite(high)),
        rms=fit.rms,
        points=tuple(points),
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
        (value, run.global_batch_size)
        for one in measured
        for run in one.runs
        if (value := run.noise_b_crit) is not None
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
        b_crit=finite(pooled),
        runs_interval=(
            finite(found[int(0.05 * (len(found) - 1))][0]),
            finite(found[math.ceil(0.95 * (len(found) - 1))][0]),
        ),
        runs=len(found),
        runs_without_signal=sum(math.isinf(value) for value, _ in found),
        ratio_to_fitted=pooled / fitted if math.isfinite(fitted) and math.isfinite(pooled) else None,
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


def warnings_of(
    task: Task, target: MetricTarget, measured: Sequence[ConvergedBatch], table: CurveTable
) -> tuple[str, ...]:
    """Warnings about the points."""
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


def _never_reached(task: Task, target: MetricTarget, measured: Sequence[ConvergedBatch]) -> InfeasibleError:
    runs = [run for one in measured for run in one.runs]
    known = [run for run in runs if run.best_metric is not None]
    if not known:
        return InfeasibleError(
            "no run was finished and evaluated within the limits: give more --time-limit; the same command goes on",
            target=target.value,
        )
    best = max(known, key=lambda run: run.best_metric or 0.0)
    return InfeasibleError(
        f"no run reached {target.value:g}: the best of {len(runs)} came to {best.best_metric:.4g}, with batch "
        f"{best.global_batch_size} and seed {best.seed}, within {task.max_epochs:g} epochs. Lower --target, or raise "
        f"--max-epochs; finished runs are kept in {task.folder}",
        code="converge.target-not-reached",
        target=target.value,
        best_metric=best.best_metric,
        best_batch=best.global_batch_size,
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


def converge_job(
    source: JobSource, request: ConvergeRequest, *, output: Path | None = None, progress: Progress = ignore_progress
) -> Convergence:
    """Train a job at several batches until it has learned enough.

    Finished runs are kept as they end: whatever breaks the command off, the same one goes on.

    Args:
        source: where the job comes from
        request: what is measured, and within which limits
        output: of the curve file; None: `curve.json` next to the runs
        progress: told what is being done

    Raises:
        InputError: the job or the request is wrong
        InfeasibleError: no run reached the target; with the best metric
        EnvironmentProblem: a file cannot be written
    """
    if output is not None:
        _check_output(output)
    started = time.time()
    progress("reading the job", 0, 0)
    task = prepare_task(source, request)
    deadline = None if request.time_limit_s is None else started + request.time_limit_s
    with opened(task.folder):
        try:
            return _measure(task, request, output, started, deadline, progress)
        except (TrimaranError, KeyboardInterrupt) as error:
            error.add_note(f"finished runs are in {task.folder}; the same command goes on")
            raise


def _measure(
    task: Task,
    request: ConvergeRequest,
    output: Path | None,
    started: float,
    deadline: float | None,
    progress: Progress,
) -> Convergence:
    before = read_runs(task.folder)
    target = _target(task, request, deadline, progress)
    limits = Limits(target=target.value, epochs=task.max_epochs, deadline=deadline, per_epoch=request.evaluations)
    wanted = [(batch, task.seed(batch, number)) for batch in task.batches for number in range(request.repeats)]
    runs = finish_runs(task, wanted, limits, progress=progress)
    measured = gather(task, target, runs, repeats=request.repeats)
    table = table_of(task, target, measured)
    curve = fit_curve(table)
    path = output or task.folder / "curve.json"
    write_curve(path, table)
    return Convergence(
        job=task.source.reference,
        target=target.value,
        target_source=target.source,
        samples_per_epoch=table.samples_per_epoch,
        recipe=table.recipe,
        rule_source=task.rule_source,
        max_epochs=task.max_epochs,
        microbatch=task.microbatch,
        devices=task.devices,
        curve=fitted_curve(curve, measured),
        gradient_noise=compare_noise(measured, curve),
        runs=tuple(
            replace(run, noise_b_crit=None if run.noise_b_crit is None else finite(run.noise_b_crit))
            for one in measured
            for run in one.runs
        ),
        runs_kept=sum(run in before for run in runs.values()),
        time_s=time.time() - started,
        run_dir=str(task.folder),
        curve_file=str(path),
        warnings=warnings_of(task, target, measured, table),
    )


def _target(task: Task, request: ConvergeRequest, deadline: float | None, progress: Progress) -> MetricTarget:
    if request.target is not None:
        return MetricTarget(value=request.target, source="asked for")
    if task.job.target is not None:
        return MetricTarget(value=task.job.target, source="the job's own")
    kept = task.folder / "target.json"
    if kept.exists():
        return read_target(kept)
    progress("finding the target", 0, 0)
    limits = Limits(target=None, epochs=max(1, task.job.epochs), deadline=deadline, per_epoch=request.evaluations)
    base = task.recipe.base_batch
    seeds = [task.seed(base, number) for number in range(min(task.devices, request.repeats))]
    runs = finish_runs(task, [(base, seed) for seed in seeds], limits, progress=progress)
    if not runs:
        raise InfeasibleError(
            f"the job's own {task.job.epochs} epochs, by which the target is found, did not end within the time limit: "
            "give more --time-limit, or say --target"
        )
    target = rule_of_thumb(_in_order(runs))
    write_target(kept, target)
    return target


def _check_output(path: Path) -> None:
    """Refuse what could not be written in the end, before hours of training."""
    if path.suffix.lower() not in (".json", ".toml"):
        raise InputError(f"--output {path}: a curve file ends in .json or .toml", path=str(path))
    check_writable(path)


def _in_order(runs: dict[tuple[int, int], TrainingRun]) -> list[TrainingRun]:
    return [run for _, run in sorted(runs.items())]
