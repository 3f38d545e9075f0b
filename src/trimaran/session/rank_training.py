"""What each rank does in a run of `trimaran train`: its part of the program, epoch by epoch."""

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimaran.program import Plan, Strategy, parse_program, plan_program
from trimaran.report.gradient_noise import RunNoise, run_noise
from trimaran.session.jobs import JobSource
from trimaran.session.runs import RunDirectory
from trimaran.timeline import Timeline

if TYPE_CHECKING:
    from trimaran.runtime.verification import Verified, Verifier
    from trimaran.runtime.world import World
    from trimaran.session.virtual.report import MemoryReport
    from trimaran.session.virtual_memory import VirtualMemory

# An observed step takes 2 to 15 % longer: each is in a short run, few are in a long one.
ALL_OBSERVED = 200
OBSERVED_ONE_IN = 5


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
class RankResult:
    """What a rank brings home; only rank 0's is full.

    Attributes:
        epochs: figures of each
        timeline: what happened when, on all ranks
        memory: what the memory plan did; None where everything was kept
        gradient_noise: noise scale of the gradients; None where it was not asked for
        verified: how far the first steps were from those of one process; None where it was not asked for
        notes: what the run had to say of its data
    """

    epochs: tuple[Epoch, ...] = ()
    timeline: Timeline = field(default_factory=lambda: Timeline([]))
    memory: "MemoryReport | None" = None
    gradient_noise: RunNoise | None = None
    verified: "Verified | None" = None
    notes: tuple[str, ...] = ()


def train_rank(
    world: "World",
    source: JobSource,
    plan: Plan,
    evaluation: str,
    run: Path,
    record: bool,
    gradient_noise: bool,
    verify: int = 0,
) -> RankResult:
    """One rank's part of a run; started by `train_planned`.

    Args:
        world: this rank's
        source: where the job comes from
        plan: what is run
        evaluation: text form of the program of an evaluation
        run: run directory
        record: note what happened when
        gradient_noise: observe the noise scale of the gradients
        verify: compare so many of the first steps with one process
    """
    from trimaran.runtime.executor import Executor
    from trimaran.runtime.verification import Verifier

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
        verifier = Verifier(executor, job, plan.strategy, world) if verify else None
        epochs = tuple(_train_epochs(executor, feed, job, world, verifier, verify))
        notes = feed.notes
    noise = None
    if gradient_noise and epochs:
        noise = run_noise(executor.observations(), executor.steps // len(epochs), optimizer=executor.optimizer)
    timeline = executor.timeline()
    executor.save(RunDirectory(path=run).model)
    executor.close()
    if world.rank != 0:
        return RankResult()
    return RankResult(
        epochs=epochs,
        timeline=timeline,
        memory=None if memory is None else memory.report(),
        gradient_noise=noise,
        verified=None if verifier is None else verifier.verified,
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


def _train_epochs(
    executor: Any, feed: Any, job: Any, world: "World", verifier: "Verifier | None", verify: int
) -> list[Epoch]:
    held_out = job.evaluation_dataset() if job.evaluation_dataset is not None and job.metric is not None else None
    epochs: list[Epoch] = []
    total, verified_s = job.epochs * feed.batches, 0.0
    if total > ALL_OBSERVED:
        executor.observe_one_in(OBSERVED_ONE_IN)
    for number in range(1, job.epochs + 1):
        losses, samples, started = 0.0, 0, time.perf_counter()
        for share in feed.shares():
            if verifier is None or executor.steps >= verify:
                loss = executor.step(share)
            else:
                # The batch that is under way counts as done.
                loss = verifier.step(share, epoch=feed.epoch, index=feed.index - 1)
                if executor.steps == verify:
                    verifier.close()
                    world.report({"verified": str(verifier.verified)})
            losses += loss * share.samples
            samples += share.samples
            world.report({"step": executor.steps, "of": total, "epoch": number, "loss": loss})
        seconds = time.perf_counter() - started
        if verifier is not None:
            seconds, verified_s = seconds - (verifier.seconds - verified_s), verifier.seconds
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
