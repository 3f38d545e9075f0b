"""Train a job by its plan on local ranks, and compare the run with its prediction.

parent                                    each rank
──────                                    ─────────
run directory, plan, program
launch                            ──▶     the same job, its part of the program
progress, one line an epoch       ◀──     loss of each step, metric of each epoch
timeline, weights                 ◀──     rank 0 gathers both
compare, report, trace
"""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimaran.base.errors import TrimaranError
from trimaran.base.files import write_whole
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.timeline import Timeline
from trimaran.features.training.memory import with_memory_plan
from trimaran.features.training.rank import RankResult, RunDirectory, create_run_directory, skipped_note, train_rank
from trimaran.graph.types import parameter_use
from trimaran.planning.preparation import cluster_environment
from trimaran.planning.results import Planned, Simulated
from trimaran.pricing.transfers import collectives_at_once
from trimaran.program import format_program, lower_evaluation, write_plan
from trimaran.program.json_files import to_plain
from trimaran.report import Comparison, RunReport, compare, write_report, write_timeline, write_trace
from trimaran.report.gradient_noise import gradient_noise_document
from trimaran.report.slow_rank import SlowRank, find_slow_ranks

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
        notes: what the run has shown: of its data, of skipped steps, of a rank that is slow
    """

    run: RunDirectory
    planned: Planned
    result: RankResult
    report: RunReport
    notes: tuple[str, ...] = ()


def train_planned(
    planned: Planned,
    *,
    parent: Path | None = None,
    record: bool = True,
    gradient_noise: bool = False,
    verify: int = 0,
    on_nan: str = "stop",
    hang_timeout: float | None = None,
    progress: Progress = ignore_progress,
) -> Trained:
    """Run a plan on this machine.

    Args:
        planned: from `make_plan` or `load_plan`
        parent: folder of run directories; None: `runs` in the current directory
        record: note what happened when
        gradient_noise: observe the noise scale of the gradients
        verify: number of first steps to run as one process too, and compare
        on_nan: what to do where the loss of a step is not a finite number: "stop" with an error, or "skip" its update
        hang_timeout: how long a training step may go without progress [s]; None: derived from the steps so far
            (`runtime.launch.watch`); infinite: nobody watches, and collectives end after 600 s
        progress: told of every step

    Raises:
        InputError: a step cannot be skipped under the plan
        ExecutionError: a rank died or hangs, the loss is not a number, or a step is not that of one process
        EnvironmentProblem: links cannot be rate-limited here
        TrimaranError: what a rank raised
    """
    from trimaran.runtime.launch.ranks import launch
    from trimaran.runtime.launch.watch import HangLimits, collective_timeout
    from trimaran.runtime.step.on_nan import check_on_nan

    simulated = planned.simulated
    observed = "gradient_noise" if gradient_noise else "verify" if verify else ""
    check_on_nan(on_nan, simulated.plan.strategy, observes=observed)
    limits = HangLimits(step_s=hang_timeout) if hang_timeout != math.inf else None
    run = create_run_directory(simulated.job.name, parent=parent)
    run.begin(job=planned.reference, strategy=simulated.plan.strategy.name)
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
                on_nan,
            ),
            ranks=simulated.plan.strategy.devices,
            log_dir=run.logs,
            on_event=_listener(run, progress),
            link=simulated.link,
            hang=limits,
            timeout_s=collective_timeout(limits),
        )
        trained = _conclude(planned, run, results[0])
    except TrimaranError as raised:
        error = with_memory_plan(raised, planned) if raised.code == "memory.exhausted" else raised
        run.fail(error.message, code=error.code)
        error.add_note(f"run directory: {run.path}")
        raise error from raised.__cause__
    except KeyboardInterrupt:
        run.fail("interrupted")
        raise
    run.finish({"final": dict(trained.report.final), "samples_per_s": trained.report.samples_per_s})
    return trained


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
    notes = [*result.notes, *skipped_note(result.skipped)]
    slow: tuple[SlowRank, ...] = ()
    if len(result.timeline):
        comparison = _compare(simulated, result.timeline)
        slow = find_slow_ranks(result.timeline, simulated.chosen.timeline, warmup=comparison.warmup)
        notes += map(str, slow)
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
    rates = [epoch.samples / epoch.seconds for epoch in result.epochs]
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
        slow_ranks=slow,
        skipped_steps=result.skipped,
        notes=(*planned.notes, *notes),
    )
    write_report(run.report, report)
    return Trained(run=run, planned=planned, result=result, report=report, notes=tuple(notes))


def _compare(simulated: Simulated, measured: Timeline) -> Comparison:
    warmup = min(WARM_UP_STEPS, max(0, len(measured.steps) - 1))
    at_once = collectives_at_once(simulated.table, simulated.cluster)
    return compare(simulated.chosen.program, simulated.chosen.timeline, measured, warmup=warmup, at_once=at_once)
