"""Measure how many epochs a job needs at each batch, and write the curve.

job ──▶ checked ──▶ target ──▶ runs: batches × seeds, side by side ──▶ points ──▶ curve file
                    asked, the job's,       resumed where they stopped
                    or by own runs
"""

import time
from pathlib import Path

from trimaran.costs.convergence import fit_curve, write_curve
from trimaran.errors import InfeasibleError, InputError, TrimaranError
from trimaran.measure.converge.state import Run, opened
from trimaran.measure.converge.training import Limits
from trimaran.report.converging import Convergence
from trimaran.session.converging.request import ConvergeRequest
from trimaran.session.converging.result import compare_noise, gather, table_of, warnings_of
from trimaran.session.converging.running import finish_runs
from trimaran.session.converging.targets import Target, read_target, rule_of_thumb, write_target
from trimaran.session.converging.task import Task, prepare_task
from trimaran.session.jobs import JobSource
from trimaran.session.planning import Progress, ignore_progress


def converge_job(
    source: JobSource, request: ConvergeRequest, *, output: Path | None = None, progress: Progress = ignore_progress
) -> Convergence:
    """Train a job at several batches until it has learned enough.

    Finished runs are kept as they end: whatever breaks the command off, the same one goes on.

    Args:
        source: where the job comes from
        request: what is measured, and within which limits
        output: of the curve file; None: `curve.json` beside the runs
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
    target = _target(task, request, deadline, progress)
    limits = Limits(target=target.value, epochs=task.max_epochs, deadline=deadline, per_epoch=request.evaluations)
    wanted = [(batch, task.seed(batch, number)) for batch in task.batches for number in range(request.repeats)]
    runs, kept = finish_runs(task, wanted, limits, progress=progress)
    measured = gather(task, target, runs, repeats=request.repeats)
    table = table_of(task, target, measured)
    curve = fit_curve(table)
    path = output or task.folder / "curve.json"
    write_curve(path, table)
    return Convergence(
        job=task.source.reference,
        target=target.value,
        target_source=target.source,
        rule_source=task.rule_source,
        max_epochs=task.max_epochs,
        microbatch=task.microbatch,
        devices=task.devices,
        batches=measured,
        curve=curve,
        noise=compare_noise(measured, curve),
        kept=kept,
        seconds=time.time() - started,
        run_dir=str(task.folder),
        curve_file=str(path),
        warnings=warnings_of(task, target, measured, table),
    )


def _target(task: Task, request: ConvergeRequest, deadline: float | None, progress: Progress) -> Target:
    if request.target is not None:
        return Target(value=request.target, source="asked for")
    if task.job.target is not None:
        return Target(value=task.job.target, source="the job's own")
    kept = task.folder / "target.json"
    if kept.exists():
        return read_target(kept)
    progress("finding the target", 0, 0)
    limits = Limits(target=None, epochs=max(1, task.job.epochs), deadline=deadline, per_epoch=request.evaluations)
    base = task.recipe.base_batch
    seeds = [task.seed(base, number) for number in range(min(task.devices, request.repeats))]
    runs, _ = finish_runs(task, [(base, seed) for seed in seeds], limits, progress=progress)
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
    if not path.parent.is_dir():
        raise InputError(f"--output {path}: there is no folder {path.parent}: make it first", path=str(path))
    if path.is_dir():
        raise InputError(f"--output {path}: this is a folder: name a file in it", path=str(path))


def _in_order(runs: dict[tuple[int, int], Run]) -> list[Run]:
    return [run for _, run in sorted(runs.items())]
