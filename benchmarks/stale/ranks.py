"""What each rank of the benchmark does; in a file of its own, so that the ranks can import it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from trimaran.graph.capture.capture import capture
from trimaran.jobs.resolve import JobSource
from trimaran.launch.world import World
from trimaran.measure.convergence.runs import Evaluation
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.strategy import Strategy
from trimaran.runtime.executor import Executor


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One training.

    Attributes:
        source: of the job, with its seed and epochs
        strategy: by which it runs
    """

    source: JobSource
    strategy: Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a training came to.

    Attributes:
        evaluations: (epochs, metric) after each epoch
        epoch_s: time of each epoch, its last batches ended and without the evaluation [s]
        losses: mean loss of each epoch
    """

    evaluations: list[Evaluation]
    epoch_s: list[float]
    losses: list[float]


def train_all(world: World, trainings: Sequence[Training]) -> list[Course]:
    """Train one after another, in the order given: what else the machine does changes from one to the next."""
    return [_train(world, training) for training in trainings]


def _train(world: World, training: Training) -> Course:
    job = training.source.make()
    made = capture(job)
    batch = job.global_batch_size
    executor = Executor(
        job,
        training.strategy,
        lower(made.graph, training.strategy, batch=batch, clip=job.clip_norm is not None),
        lower_evaluation(made.graph, training.strategy, batch=batch),
        world,
        capture=made,
        record=False,
    )
    feed = executor.feed()
    held_out = job.evaluation_dataset() if job.evaluation_dataset is not None else None
    course = Course(evaluations=[], epoch_s=[], losses=[])
    for epoch in range(job.epochs):
        stale, start = training.strategy.is_stale, time.perf_counter()
        losses = [(executor.step(share), executor.settled if stale else share.samples) for share in feed.shares()]
        losses += [(loss, executor.settled) for loss in executor.drain()]
        course.epoch_s.append(time.perf_counter() - start)
        counted = [(loss, samples) for loss, samples in losses if samples]
        course.losses.append(sum(loss * samples for loss, samples in counted) / sum(samples for _, samples in counted))
        course.evaluations.append((epoch + 1.0, executor.evaluate(held_out)))
    executor.close()
    return course
