"""Train a job by its plan on local ranks, and set what happened beside what was predicted.

parent                                    each rank
──────                                    ─────────
run directory, plan, program
launch                            ──▶     the same job, its part of the program
progress, one line an epoch       ◀──     loss of each step, metric of each epoch
timeline, weights                 ◀──     rank 0 gathers both
compare, report, trace
"""

import platform
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimaran.cluster import Cluster
from trimaran.costs.transfers import collectives_at_once
from trimaran.errors import TrimaranError
from trimaran.program import (
    Plan,
    Strategy,
    format_program,
    lower_evaluation,
    parse_program,
    plan_program,
    write_plan,
)
from trimaran.program.files import to_plain
from trimaran.report import Comparison, RunReport, compare, write_report, write_timeline, write_trace
from trimaran.report.files import write_whole
from trimaran.report.gradient_noise import RunNoise, gradient_noise_document, run_noise
from trimaran.session.jobs import JobSource
from trimaran.session.planning import Planned, Progress, ignore_progress
from trimaran.session.runs import RunDirectory, create_run_directory
from trimaran.timeline import Timeline

if TYPE_CHECKING:
    from trimaran.runtime.world import World
    from trimaran.session.virtual.report import MemoryReport
    from trimaran.session.virtual_memory import VirtualMemory

# The first steps fill caches, allocate optimizer state and let DDP find its buckets.
WARM_UP_STEPS = 5
# An observed step takes 2 to 15 % longer: each is in a short run, few are in a long one.
ALL_OBSERVED = 200
OBSERVED_ONE_IN = 5
# A viewer stays quick with these; all recorded steps are in `measured.json`.
TRACED_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Figures of one epoch.

    Attributes:
        number: from 1
        loss: mean over its samples
        accuracy: the job's metric after it; None without evaluation
        seconds: of training, evaluation not counted [s]
        samples: trained on
    """

    number: int
    loss: float
    accuracy: float | None
    seconds: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A finished run.

    Attributes:
        run: its directory
        planned: what was run
        epochs: figures of each
        comparison: predicted against measured; None where no step was run
        report: what `report.json` holds
        memory: what rank 0's memory plan did; None where everything was kept
        gradient_noise: noise scale of the gradients; None where it was not asked for
        notes: what the run had to say of its data
    """

    run: RunDirectory
    planned: Planned
    epochs: tuple[Epoch, ...]
    comparison: Comparison | None
    report: RunReport
    memory: "MemoryReport | None" = None
    gradient_noise: RunNoise | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """What a rank brings home; only rank 0's is full."""

    epochs: tuple[Epoch, ...] = ()
    timeline: Timeline = field(default_factory=lambda: Timeline([]))
    memory: "MemoryReport | None" = None
    gradient_noise: RunNoise | None = None
    notes: tuple[str, ...] = ()


def train_planned(
    planned: Planned,
    *,
    parent: Path | None = None,
    record: bool = True,
    gradient_noise: bool = False,
    progress: Progress = ignore_progress,
) -> Trained:
    """Run a plan on this machine.

    Args:
        planned: from `plan_job` or `load_plan`
        parent: folder of run directories; None: `runs` in the current directory
        record: note what happened when
        gradient_noise: observe the noise scale of the gradients
        progress: told of every step

    Raises:
        ExecutionError: a rank died, or the loss is not a number
        EnvironmentProblem: links cannot be held to a rate here
        TrimaranError: what a rank raised
    """
    from trimaran.runtime.ranks import launch

    run = create_run_directory(planned.job.name, parent=parent)
    run.begin(job=planned.source.reference, strategy=planned.plan.strategy.name)
    try:
        write_plan(run.plan, planned.plan)
        write_whole(run.program, format_program(planned.chosen.program).encode())
        evaluation = lower_evaluation(planned.graph, planned.plan.strategy, batch=planned.job.global_batch_size)
        results = launch(
            train_rank,
            (planned.source, planned.plan, format_program(evaluation), run.path, record, gradient_noise),
            ranks=planned.plan.strategy.devices,
            log_dir=run.logs,
            on_event=_listener(run, progress),
            link=planned.cluster.link,
        )
        trained = _conclude(planned, run, results[0])
    except TrimaranError as error:
        run.fail(error.message)
        error.add_note(f"run directory: {run.path}")
        raise
    except KeyboardInterrupt:
        run.fail("interrupted")
        raise
    run.finish({"final": dict(trained.report.final), "samples_per_s": trained.report.samples_per_s})
    return trained


def train_rank(
    world: "World",
    source: JobSource,
    plan: Plan,
    evaluation: str,
    run: Path,
    record: bool,
    gradient_noise: bool,
) -> _Result:
    """One rank's part of a run; started by `train_planned`.

    Args:
        world: this rank's
        source: where the job comes from
        plan: what is run
        evaluation: text form of the program of an evaluation
        run: run directory
        record: note what happened when
        gradient_noise: observe the noise scale of the gradients
    """
    from trimaran.runtime.executor import Executor

    job = source.make()
    captured = None
    if needs_graph(plan.strategy):
        from trimaran.graph.capture import capture

        captured = capture(job)
    executor = Executor(
        job,
        plan.strategy,
        plan_program(plan),
        parse_program(evaluation),
        world,
        capture=captured,
        record=record,
        gradient_noise=1 if gradient_noise else 0,
    )
    with held_to(plan.strategy) as memory:
        feed = executor.feed()
        epochs = tuple(_train_epochs(executor, feed, job, world))
        notes = feed.notes
    noise = None
    if gradient_noise and epochs:
        noise = run_noise(executor.observations(), executor.steps // len(epochs), optimizer=executor.optimizer)
    timeline = executor.timeline()
    executor.save(RunDirectory(path=run).model)
    executor.close()
    if world.rank != 0:
        return _Result()
    return _Result(
        epochs=epochs,
        timeline=timeline,
        memory=None if memory is None else memory.report(),
        gradient_noise=noise,
        notes=notes,
    )


def held_to(strategy: Strategy) -> AbstractContextManager["VirtualMemory | None"]:
    """Around the training of one rank: holds it to the strategy's memory budget, where it has one.

    Args:
        strategy: what is run
    """
    if strategy.memory_bytes is None:
        return nullcontext()
    from trimaran.session.virtual_memory import virtual_memory

    return virtual_memory(strategy.memory_bytes)


def needs_graph(strategy: Strategy) -> bool:
    """Whether the network is divided, or its parameters told apart; plain replicas run the user's model as it is.

    Args:
        strategy: what is run
    """
    divided = strategy.pp * strategy.tp > 1 or bool(strategy.parts) or bool(strategy.shards)
    return divided or strategy.zero > 0 or strategy.sync == "p2p"


def _train_epochs(executor: Any, feed: Any, job: Any, world: "World") -> list[Epoch]:
    held_out = job.evaluation_dataset() if job.evaluation_dataset is not None and job.metric is not None else None
    epochs: list[Epoch] = []
    total = job.epochs * feed.batches
    if total > ALL_OBSERVED:
        executor.observe_one_in(OBSERVED_ONE_IN)
    for number in range(1, job.epochs + 1):
        losses, samples, started = 0.0, 0, time.perf_counter()
        for share in feed.shares():
            loss = executor.step(share)
            losses += loss * share.samples
            samples += share.samples
            world.report({"step": executor.steps, "of": total, "epoch": number, "loss": loss})
        seconds = time.perf_counter() - started
        accuracy = executor.evaluate(held_out) if held_out is not None else None
        epoch = Epoch(number=number, loss=losses / samples, accuracy=accuracy, seconds=seconds, samples=samples)
        epochs.append(epoch)
        world.report({"finished": number, **_row(epoch)})
        if job.target is not None and accuracy is not None and accuracy >= job.target:
            break
    return epochs


def _row(epoch: Epoch) -> dict[str, object]:
    return {
        "epoch": epoch.number,
        "loss": epoch.loss,
        "accuracy": epoch.accuracy,
        "seconds": epoch.seconds,
        "samples": epoch.samples,
    }


def _listener(run: RunDirectory, progress: Progress) -> Callable[[int, Mapping[str, object]], None]:
    def listen(rank: int, event: Mapping[str, object]) -> None:
        if rank != 0:
            return
        if "finished" in event:
            run.add_metrics({name: event[name] for name in ("epoch", "loss", "accuracy", "seconds", "samples")})
        else:
            progress(
                f"training: epoch {event['epoch']}, loss {event['loss']:.4f}",
                int(str(event["step"])),
                int(str(event["of"])),
            )

    return listen


def _conclude(planned: Planned, run: RunDirectory, result: _Result) -> Trained:
    comparison = None
    if len(result.timeline):
        comparison = _compare(planned, result.timeline)
        write_timeline(run.measured, result.timeline)
        write_trace(
            run.trace,
            planned.chosen.program,
            planned.chosen.timeline,
            result.timeline,
            comparison=comparison,
            steps=result.timeline.steps[comparison.warmup :][:TRACED_STEPS],
        )
    write_timeline(run.predicted, planned.chosen.timeline)
    last = result.epochs[-1] if result.epochs else None
    final = {} if last is None else {"loss": last.loss}
    if last is not None and last.accuracy is not None:
        final["accuracy"] = last.accuracy
    rates = [epoch.samples / epoch.seconds for epoch in result.epochs]
    report = RunReport(
        job=planned.source.reference,
        strategy=planned.plan.strategy,
        prediction=planned.plan.prediction,
        comparison=comparison,
        samples_per_s=statistics.median(rates) if rates else None,
        final=final,
        run_dir=str(run.path),
        environment=environment(planned),
        noise=planned.noise,
        memory=None if result.memory is None else to_plain(result.memory),
        gradient_noise=gradient_noise_document(result.gradient_noise),
        notes=(*planned.warnings, *result.notes),
    )
    write_report(run.report, report)
    return Trained(
        run=run,
        planned=planned,
        epochs=result.epochs,
        comparison=comparison,
        report=report,
        memory=result.memory,
        gradient_noise=result.gradient_noise,
        notes=result.notes,
    )


def _compare(planned: Planned, measured: Timeline) -> Comparison:
    warmup = min(WARM_UP_STEPS, max(0, len(measured.steps) - 1))
    at_once = collectives_at_once(planned.table, planned.cluster)
    return compare(planned.chosen.program, planned.chosen.timeline, measured, warmup=warmup, at_once=at_once)


def environment(planned: Planned) -> dict[str, str]:
    """Versions and devices, to be kept with a result.

    Args:
        planned: says which devices, and what their links are held to
    """
    return cluster_environment(planned.cluster)


def cluster_environment(cluster: Cluster) -> dict[str, str]:
    """Versions and devices, to be kept with what was found on them.

    Args:
        cluster: the devices, and what their links are held to
    """
    import torch

    from trimaran.measure.costs import name_link

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(terse=True),
        "devices": f"{cluster.size} × {cluster.devices[0].name}",
    } | ({} if cluster.link is None else {"link": name_link(cluster.link)})
