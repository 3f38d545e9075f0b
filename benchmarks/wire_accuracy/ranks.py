"""What each rank of the benchmark does; in a file of its own, so that the ranks can import it."""

from collections.abc import Sequence
from dataclasses import dataclass

from trimaran.graph.capture.capture import capture
from trimaran.jobs.resolve import JobSource
from trimaran.launch.world import World
from trimaran.measure.convergence.runs import Limits, TrainingOutcome, train_to_target
from trimaran.program.gradients import parse_compression
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.strategy import Strategy
from trimaran.runtime.executor import Executor


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One training.

    Attributes:
        source: of the job, with its seed
        method: of compression, as on the command line
        epochs: how long
    """

    source: JobSource
    method: str
    epochs: float


def train_all(world: World, trainings: Sequence[Training]) -> list[TrainingOutcome]:
    """Train one after another, on replicas."""
    return [_train(world, training) for training in trainings]


def _train(world: World, training: Training) -> TrainingOutcome:
    job = training.source.make()
    made = capture(job)
    strategy = Strategy(dp=world.size, compression=parse_compression(training.method))
    batch = job.global_batch_size
    executor = Executor(
        job,
        strategy,
        lower(made.graph, strategy, batch=batch, clip=job.clip_norm is not None),
        lower_evaluation(made.graph, strategy, batch=batch),
        world,
        capture=made,
        record=False,
    )
    held_out = job.evaluation_dataset() if job.evaluation_dataset is not None else None
    outcome = train_to_target(executor, held_out, Limits(target=None, epochs=training.epochs), batch=batch)
    executor.close()
    return outcome
