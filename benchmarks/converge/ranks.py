"""What each rank of the benchmark does; in a file of its own, so that the ranks can import it."""

from trimaran.graph.capture.capture import capture
from trimaran.jobs.resolve import JobSource
from trimaran.launch.world import World
from trimaran.measure.convergence.runs import Limits, TrainingOutcome, train_to_target
from trimaran.program.plan_file import Plan, plan_program
from trimaran.program.text import parse_program
from trimaran.runtime.executor import Executor


def train_rank(world: World, source: JobSource, plan: Plan, evaluation: str, limits: Limits) -> TrainingOutcome:
    """Train by a plan until the target; the clock stands still during evaluations."""
    job = source.make()
    executor = Executor(
        job, plan.strategy, plan_program(plan), parse_program(evaluation), world, capture=capture(job), record=False
    )
    held_out = job.evaluation_dataset() if job.evaluation_dataset is not None else None
    outcome = train_to_target(executor, held_out, limits, batch=job.global_batch_size)
    executor.close()
    return outcome
