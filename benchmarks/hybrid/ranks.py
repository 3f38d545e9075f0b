"""What each rank of the benchmark does; in a file of its own, so that the ranks can import it."""

import time
from collections.abc import Sequence

from benchmarks.converge.ranks import train_rank

from trimaran.jobs.resolve import JobSource
from trimaran.launch.world import World
from trimaran.measure.convergence.runs import Limits, TrainingOutcome
from trimaran.program.plan_file import Plan

Training = tuple[JobSource, Plan, str, Limits]
"""Job with its seed, plan, program of its evaluation, and when to end."""


def train_in_turns(world: World, trainings: Sequence[Training]) -> list[tuple[TrainingOutcome, float]]:
    """One after another, in the order given: what else the machine does changes from one to the next.

    Returns:
        Each with the share of its wall time in which this rank had a core [0..1]: below 1 a slow step is one of waits,
        at 1 it is one of slow cores.
    """
    found = []
    for training in trainings:
        wall_s, core_s = time.perf_counter(), time.process_time()
        outcome = train_rank(world, *training)
        found.append((outcome, (time.process_time() - core_s) / (time.perf_counter() - wall_s)))
    return found
