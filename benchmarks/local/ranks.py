"""What each rank of the benchmark does; in a file of its own, so that the ranks can import it."""

import time
from itertools import cycle, islice

from trimaran.graph.capture import capture
from trimaran.program import Program, Strategy
from trimaran.runtime.executor import Executor
from trimaran.runtime.loading import Share
from trimaran.runtime.world import World
from trimaran.session.jobs import JobSource
from trimaran.timeline import Timeline

WARM_UP_STEPS = 20
BLOCK_STEPS = 10

StepTimes = dict[bool, list[list[float]]]
"""Durations of steps by block, with recording and without [s]."""


def run_rank(
    world: World, source: JobSource, strategy: Strategy, program: Program, evaluation: Program, blocks: int
) -> tuple[Timeline, StepTimes]:
    """Steps of one rank: warm-up, then blocks with and without recording in turn, each first as often as second."""
    job = source.make()
    executor = Executor(job, strategy, program, evaluation, world, capture=capture(job))
    feed = executor.feed()
    shares = (share for _ in cycle([0]) for share in feed.shares())
    executor.recording = False
    for share in islice(shares, WARM_UP_STEPS):
        executor.step(share)
    times: StepTimes = {True: [], False: []}
    for block in range(blocks):
        for recording in (True, False) if block % 2 else (False, True):
            executor.recording = recording
            times[recording].append([_timed(executor, share) for share in islice(shares, BLOCK_STEPS)])
    timeline = executor.timeline()
    executor.close()
    return timeline, times


def _timed(executor: Executor, share: Share) -> float:
    start = time.perf_counter()
    executor.step(share)
    return time.perf_counter() - start
