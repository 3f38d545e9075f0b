"""`trimaran profile --stalls`: a job is run cold, cached and on synthetic data, and its step split by its waits.

parent                                          each rank
──────                                          ─────────
the job's graph; plain replicas, or a plan
launch                                    ──▶   the same job; blocks of the three ways, in turns
timelines, loadings, times                ◀──   rank 0 gathers what was recorded
split, limiter, remedies, report
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trimaran.errors import InputError
from trimaran.graph.use import ParameterUse, parameter_use
from trimaran.job import Job
from trimaran.planner.pin_options import MOST_WORKERS
from trimaran.program import Program, Strategy
from trimaran.report.stalls import StallReport
from trimaran.session.jobs import JobSource
from trimaran.session.planning import Progress, ignore_progress
from trimaran.session.rank_training import held_to, needs_graph
from trimaran.session.request import EVERYTHING, PlanRequest
from trimaran.session.stalls.reporting import report_stalls
from trimaran.session.stalls.task import prepare_task, summed_bytes

if TYPE_CHECKING:
    from trimaran.measure.stalls.rank import RankRun
    from trimaran.runtime.world import World


def profile_stalls(
    source: JobSource,
    request: PlanRequest = EVERYTHING,
    *,
    plan: Path | None = None,
    steps: int | None = None,
    workers: int | None = None,
    progress: Progress = ignore_progress,
) -> StallReport:
    """Run a job and say what its steps wait for.

    Args:
        source: where the job comes from
        request: how many devices, with which links
        plan: file of the plan that is run; None: plain replicas on all devices
        steps: of each way; None: a few seconds of them
        workers: of each rank that load; None: as the plan says, without one none
        progress: told what is being done

    Raises:
        InputError: the job, its data or the plan is wrong, or more devices than there are
        EnvironmentProblem: links cannot be held to a rate here
        ExecutionError: a rank died, or the loss is not a number
    """
    from trimaran.runtime.ranks import launch

    if steps is not None and steps < 1:
        raise InputError(f"steps must be at least 1, got {steps}", code="stalls.bad-steps", steps=steps)
    if workers is not None and not 0 <= workers <= MOST_WORKERS:
        raise InputError(
            f"workers must be 0 to {MOST_WORKERS}, got {workers}", code="stalls.bad-workers", workers=workers
        )
    task = prepare_task(source, request, plan=plan, workers=workers, progress=progress)
    gradient_bytes = summed_bytes(task.strategy, task.program)
    runs = launch(
        stalls_rank,
        (
            task.source,
            task.strategy,
            task.program,
            task.evaluation,
            steps,
            gradient_bytes,
            parameter_use(task.graph),
        ),
        ranks=task.strategy.devices,
        on_event=_listener(progress),
        link=task.cluster.link,
    )
    return report_stalls(task, runs)


def stalls_rank(
    world: "World",
    source: JobSource,
    strategy: Strategy,
    program: Program,
    evaluation: Program,
    steps: int | None,
    gradient_bytes: int,
    use: ParameterUse | None = None,
) -> "RankRun":
    """One rank's part; started by `profile_stalls`.

    Args:
        world: this rank's
        source: where the job comes from
        strategy: what is run
        program: of a step
        evaluation: of the evaluation of a batch
        steps: as for `profile_stalls`
        gradient_bytes: as for `run_ways`
        use: which parameters get a gradient; None: as the executor finds
    """
    return run_job(world, source.make(), strategy, program, evaluation, steps, gradient_bytes, use=use)


def run_job(
    world: "World",
    job: Job,
    strategy: Strategy,
    program: Program,
    evaluation: Program,
    steps: int | None,
    gradient_bytes: int,
    *,
    samples: bool = True,
    use: ParameterUse | None = None,
) -> "RankRun":
    """The same for a job that is there; see `stalls_rank`."""
    from trimaran.graph.capture import capture
    from trimaran.measure.stalls.rank import run_ways
    from trimaran.runtime.executor import Executor

    captured = capture(job) if needs_graph(strategy) else None
    executor = Executor(job, strategy, program, evaluation, world, capture=captured, use=use)
    with held_to(strategy):
        found = run_ways(
            executor,
            job,
            strategy,
            world,
            feeding=strategy.feeding,
            steps=steps,
            gradient_bytes=gradient_bytes,
            samples=samples,
        )
    executor.close()
    return found


def _listener(progress: Progress) -> Callable[[int, Mapping[str, object]], None]:
    def listen(rank: int, event: Mapping[str, object]) -> None:
        if "way" in event:
            done, total = int(str(event["round"])), int(str(event["rounds"]))
            progress(f"running: {event['way']}", done, total)

    return listen
