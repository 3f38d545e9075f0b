"""What each rank of the benchmark does; in a file of its own, so that the ranks can import it."""

from collections.abc import Sequence

from benchmarks.converge.ranks import train_rank

from trimaran.jobs.resolve import JobSource
from trimaran.launch.world import World
from trimaran.measure.convergence.runs import Limits, Outcome
from trimaran.program import Plan

Training = tuple[JobSource, Plan, str, Limits]
"""Job with its seed, plan, program of its evaluation, and when to end."""


def train_in_turns(world: World, trainings: Sequence[Training]) -> list[Outcome]:
    """One after another, in the order given: what else the machine does changes from one to the next."""
    return [train_rank(world, *training) for training in trainings]
