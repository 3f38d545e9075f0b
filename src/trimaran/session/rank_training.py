"""What each rank does in a run of `trimaran train`: its part of the program, epoch by epoch."""

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trimaran.graph.behaviour import Behaviour, weighed
from trimaran.graph.use import ParameterUse
from trimaran.program import Plan, Strategy, parse_program, plan_program
from trimaran.report.gradient_noise import RunNoise, run_noise
from trimaran.session.jobs import JobSource
from trimaran.session.runs import RunDirectory
from trimaran.timeline import Timeline

if TYPE_CHECKING:
    from trimaran.runtime.verification import Verified
    from trimaran.runtime.world import World
    from trimaran.session.session import Session
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
    behaviour: Behaviour | None,
    evaluation: str,
    run: Path,
    record: bool,
    gradient_noise: bool,
    verify: int = 0,
    use: ParameterUse | None = None,
) -> RankResult:
    """One rank's part of a run; started by `train_planned`.

    Args:
        world: this rank's
        source: where the job comes from
        plan: what is run
        behaviour: what was seen of the job
        evaluation: text form of the program of an evaluation
        run: run directory
        record: note what happened when
        gradient_noise: observe the noise scale of the gradients
        verify: compare so many of the first steps with one process
        use: which parameters get a gradient; None: as the executor finds
    """
    from trimaran.session.session import Session

    job = weighed(source.make(), behaviour, splits=splits_batches(plan.strategy))
    captured = None
    if needs_graph(plan.strategy):
        from trimaran.graph.capture import capture

        captured = capture(job)
    session = Session(
        job,
        plan.strategy,
        plan_program(plan),
        captured,
        world,
        owns_world=False,
        evaluation=parse_program(evaluation),
        record=record,
        gradient_noise=1 if gradient_noise else 0,
        use=use,
        verify=verify,
    )
    epochs = tuple(_train_epochs(session, world, verify))
    executor, notes, memory = session.executor, session.feed.notes, session.memory
    noise = None
    if gradient_noise and epochs:
        noise = run_noise(executor.observations(), executor.steps // len(epochs), optimizer=executor.optimizer)
    timeline = session.timeline()
    session.save(RunDirectory(path=run).model)
    session.close()
    if world.rank != 0:
        return RankResult()
    return RankResult(
        epochs=epochs,
        timeline=timeline,
        memory=memory,
        gradient_noise=noise,
        verified=session.verified,
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


def splits_batches(strategy: Strategy) -> bool:
    """Whether the loss of a global batch is put together from those of parts.

    Args:
        strategy: what is run
    """
    return strategy.dp * strategy.microbatches > 1


def needs_graph(strategy: Strategy) -> bool:
    """Whether the network is divided, or its parameters told apart; plain replicas run the user's model as it is.

    Args:
        strategy: what is run
    """
    divided = strategy.pp * strategy.tp > 1 or bool(strategy.parts) or bool(strategy.shards)
    return divided or strategy.zero > 0 or strategy.sync == "p2p"


def _train_epochs(session: "Session", world: "World", verify: int) -> list[Epoch]:
    epochs: list[Epoch] = []
    # 0 where it is not known, as of a stream that does not say; then it may be long.
    total, verifying_s = session.job.epochs * (session.feed.batches or 0), 0.0
    if not total or total > ALL_OBSERVED:
        session.executor.observe_one_in(OBSERVED_ONE_IN)
    while len(epochs) < session.job.epochs and not session.stopped:
        number, samples, started = len(epochs), 0, time.perf_counter()
        for share in session.shares():
            loss = session.step(share)
            if session.steps == verify:
                world.report({"verified": str(session.verified)})
            samples += share.samples
            world.report({"step": session.steps, "of": total, "epoch": number + 1, "loss": loss})
        seconds = time.perf_counter() - started
        seconds, verifying_s = seconds - (session.verifying_s - verifying_s), session.verifying_s
        metrics = session.end_epoch(number)
        epoch = Epoch(
            number=number + 1, loss=metrics["loss"], accuracy=metrics.get("metric"), seconds=seconds, samples=samples
        )
        epochs.append(epoch)
        world.report({"finished": number + 1, **_row(epoch)})
    return epochs


def _row(epoch: Epoch) -> dict[str, object]:
    return {
        "epoch": epoch.number,
        "loss": epoch.loss,
        "accuracy": epoch.accuracy,
        "seconds": epoch.seconds,
        "samples": epoch.samples,
    }
