"""Train a job by its plan on local ranks, and compare the run with its prediction.

parent                                    each rank
──────                                    ─────────
run directory, plan, program
launch                            ──▶     the same job, its part of the program
progress, one line an epoch       ◀──     loss of each step, metric of each epoch
timeline, weights                 ◀──     rank 0 gathers both
compare, report, trace
"""

import shlex
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimaran.base.errors import InputError, TrimaranError
from trimaran.base.files import write_whole
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.timeline import Timeline
from trimaran.features.training.rank import (
    RankResult,
    RunDirectory,
    Saving,
    create_run_directory,
    train_rank,
)
from trimaran.graph.types import parameter_use
from trimaran.jobs.resolve import JobSource
from trimaran.planning.preparation import cluster_environment
from trimaran.planning.results import Planned, Simulated
from trimaran.pricing.transfers import collectives_at_once
from trimaran.program import format_program, lower_evaluation, write_plan
from trimaran.program.json_files import to_plain
from trimaran.report import Comparison, RunReport, compare, write_report, write_timeline, write_trace
from trimaran.report.gradient_noise import gradient_noise_document
from trimaran.runtime.checkpoint import FOLDER, STATE
from trimaran.runtime.checkpoint.store import MARKER, Store

# The first steps fill caches, allocate optimizer state and let DDP find its buckets.
WARM_UP_STEPS = 5
# A viewer stays quick with these; all recorded steps are in `measured.json`.
TRACED_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A finished run.

    Attributes:
        run: its directory
        planned: what was run
        result: of rank 0
        report: what `report.json` holds, with predicted against measured
    """

    run: RunDirectory
    planned: Planned
    result: RankResult
    report: RunReport


def train_planned(
    planned: Planned,
    *,
    parent: Path | None = None,
    record: bool = True,
    gradient_noise: bool = False,
    verify: int = 0,
    saving: Saving | None = None,
    resume: Path | None = None,
    progress: Progress = ignore_progress,
) -> Trained:
    """Run a plan on this machine.

    Args:
        planned: from `make_plan` or `load_plan`
        parent: folder of run directories; None: `runs` in the current directory
        record: note what happened when
        gradient_noise: observe the noise scale of the gradients
        verify: number of first steps to run as one process too, and compare
        saving: when the state of the training is saved in the run directory; None: never
        resume: run directory or checkpoint to go on from; None: begin anew
        progress: told of every step

    Raises:
        InputError: there is no such checkpoint, or it is of another job; or a state could not be saved exactly
        CorruptDataError: the checkpoint is damaged
        ExecutionError: a rank died, the loss is not a number, or a step is not that of one process
        EnvironmentProblem: links cannot be rate-limited here
        TrimaranError: what a rank raised
    """
    from trimaran.runtime.launch.ranks import launch

    simulated = planned.simulated
    run = create_run_directory(simulated.job.name, parent=parent)
    resume = None if resume is None else resume.resolve()
    run.begin(job=planned.reference, strategy=simulated.plan.strategy.name, resumed=resume)
    try:
        write_plan(run.plan, simulated.plan)
        write_whole(run.program, format_program(simulated.chosen.program).encode())
        evaluation = lower_evaluation(simulated.graph, simulated.plan.strategy, batch=simulated.job.global_batch_size)
        results = launch(
            train_rank,
            (
                planned.source,
                simulated.plan,
                simulated.graph.behaviour,
                format_program(evaluation),
                run.path,
                record,
                gradient_noise,
                verify,
                parameter_use(simulated.graph),
                saving,
                resume,
            ),
            ranks=simulated.plan.strategy.devices,
            log_dir=run.logs,
            on_event=_listener(run, progress),
            link=simulated.link,
        )
        trained = _conclude(planned, run, results[0])
    except TrimaranError as error:
        run.fail(error.message, code=error.code)
        error.add_note(f"run directory: {run.path}")
        if has_checkpoint(run.path):
            error.add_note(f"it goes on from its last checkpoint with {how_to_resume(planned.reference, run)}")
        raise
    except KeyboardInterrupt:
        run.fail("interrupted")
        raise
    run.finish({"final": dict(trained.report.final), "samples_per_s": trained.report.samples_per_s})
    return trained


def how_to_resume(reference: str, run: RunDirectory) -> str:
    """The command that goes on from the last checkpoint of a run.

    Args:
        reference: of its job
        run: its directory
    """
    return f"trimaran train {shlex.quote(reference)} --resume {shlex.quote(str(run.path))}"


def has_checkpoint(path: Path) -> bool:
    """Whether a run directory has a checkpoint; it is not verified.

    Args:
        path: of the run
    """
    folder = RunDirectory(path=path).checkpoints
    try:
        return folder.is_dir() and bool(Store(folder).committed())
    except TrimaranError:
        return False


def check_resumable(path: Path, source: JobSource) -> Path | None:
    """Refuse what cannot be gone on from, before a plan is made; what the ranks find out later is not looked at.

    Args:
        path: run directory, folder of checkpoints, or one checkpoint
        source: of the job that goes on

    Returns:
        The plan of the run; None: there is none.

    Raises:
        InputError: there is no checkpoint, or it is of a job with another seed or global batch
        CorruptDataError: all are damaged
    """
    folders = [path / FOLDER, path] if not (path / MARKER).exists() else [path.parent]
    folder = next((one for one in folders if one.is_dir()), None)
    if folder is None:
        raise InputError(
            f"there is no run {path}: give a run directory (runs/NAME), its folder {FOLDER}, or one checkpoint in it",
            code="checkpoint.no-folder",
            path=str(path),
        )
    store = Store(folder)
    found = store.open(path.resolve().name) if folder == path.parent and len(folders) == 1 else None
    if found is None:
        found = next(iter(store.committed()), None)
    if found is None:
        raise InputError(
            f"{folder} has no checkpoint that can be read: none was saved (--save-every), or no save has ended",
            code="checkpoint.none",
            path=str(folder),
        )
    job, saved = source.make(), found.document(STATE).get("job", {})
    for option, now in (("seed", job.seed), ("global_batch_size", job.global_batch_size)):
        then = saved.get(option)
        if then != now:
            flag = "--seed" if option == "seed" else "--batch"
            raise InputError(
                f"{found.path} was saved with {option} {then}, and this job has {now}: a training goes on with the "
                f"same ({flag} {then})",
                code="checkpoint.other-job",
                what=option,
                saved=then,
                now=now,
            )
    plans = [one / "plan.json" for one in (path, path.resolve().parent, path.resolve().parent.parent)]
    return next((plan for plan in plans if plan.is_file()), None)


def _listener(run: RunDirectory, progress: Progress) -> Callable[[int, Mapping[str, Any]], None]:
    def listen(rank: int, event: Mapping[str, Any]) -> None:
        if rank != 0:
            return
        if "verified" in event:
            progress(str(event["verified"]), 1, 1)
        elif "finished" in event:
            run.add_metrics(event["finished"])
        else:
            progress(
                f"training: epoch {event['epoch']}, loss {event['loss']:.4f}",
                int(event["step"]),
                int(event["of"]),
            )

    return listen


def _conclude(planned: Planned, run: RunDirectory, result: RankResult) -> Trained:
    comparison, simulated = None, planned.simulated
    if len(result.timeline):
        comparison = _compare(simulated, result.timeline)
        write_timeline(run.measured, result.timeline)
        write_trace(
            run.trace,
            simulated.chosen.program,
            simulated.chosen.timeline,
            result.timeline,
            comparison=comparison,
            steps=result.timeline.steps[comparison.warmup :][:TRACED_STEPS],
        )
    write_timeline(run.predicted, simulated.chosen.timeline)
    last = result.epochs[-1] if result.epochs else None
    final = {} if last is None else {"loss": last.loss}
    if last is not None and last.accuracy is not None:
        final["accuracy"] = last.accuracy
    rates = [epoch.samples / epoch.seconds for epoch in result.epochs if epoch.seconds]
    report = RunReport(
        job=planned.reference,
        strategy=simulated.plan.strategy,
        prediction=simulated.plan.prediction,
        comparison=comparison,
        samples_per_s=statistics.median(rates) if rates else None,
        final=final,
        run_dir=str(run.path),
        environment=cluster_environment(simulated.cluster),
        noise=simulated.noise,
        memory=None if result.memory is None else to_plain(result.memory),
        gradient_noise=gradient_noise_document(result.gradient_noise),
        verified=None if result.verified is None else to_plain(result.verified),
        notes=(*planned.notes, *result.notes),
    )
    write_report(run.report, report)
    return Trained(run=run, planned=planned, result=result, report=report)


def _compare(simulated: Simulated, measured: Timeline) -> Comparison:
    warmup = min(WARM_UP_STEPS, max(0, len(measured.steps) - 1))
    at_once = collectives_at_once(simulated.table, simulated.cluster)
    return compare(simulated.chosen.program, simulated.chosen.timeline, measured, warmup=warmup, at_once=at_once)
