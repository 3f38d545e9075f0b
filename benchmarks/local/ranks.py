"""What each rank of the benchmark does; in a file of its own, so that the ranks can import it."""

import time
from dataclasses import dataclass, field
from itertools import cycle, islice

from trimaran.base.timeline import Timeline
from trimaran.graph.capture.capture import capture
from trimaran.jobs.resolve import JobSource
from trimaran.launch.world import World
from trimaran.program.strategy import Strategy
from trimaran.program.types import Program
from trimaran.runtime.data.batch_shares import Share
from trimaran.runtime.executor import Executor

WARM_UP_STEPS = 20
BLOCK_STEPS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Durations of steps, block by block.

    Attributes:
        wall: on the wall [s]
        work: that the process computed, all its threads together [s]
    """

    wall: list[list[float]] = field(default_factory=list)
    work: list[list[float]] = field(default_factory=list)


def run_rank(
    world: World, source: JobSource, strategy: Strategy, program: Program, evaluation: Program, blocks: int
) -> tuple[Timeline, dict[bool, StepTimes]]:
    """Steps of one rank: warm-up, then blocks with and without recording in turn, each first as often as second."""
    job = source.make()
    executor = Executor(job, strategy, program, evaluation, world, capture=capture(job))
    feed = executor.feed()
    shares = (share for _ in cycle([0]) for share in feed.shares())
    executor.recording = False
    for share in islice(shares, WARM_UP_STEPS):
        executor.step(share)
    times = {True: StepTimes(), False: StepTimes()}
    for block in range(blocks):
        for recording in (True, False) if block % 2 else (False, True):
            executor.recording = recording
            steps = [_timed(executor, share) for share in islice(shares, BLOCK_STEPS)]
            times[recording].wall.append([wall for wall, _ in steps])
            times[recording].work.append([work for _, work in steps])
    timeline = executor.timeline()
    executor.close()
    return timeline, times


def _timed(executor: Executor, share: Share) -> tuple[float, float]:
    wall, work = time.perf_counter(), time.process_time()
    executor.step(share)
    return time.perf_counter() - wall, time.process_time() - work
