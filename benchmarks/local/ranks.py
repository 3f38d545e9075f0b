"""What each rank of the benchmark does; in a file of its own, so that the ranks can import it."""

import time
from itertools import cycle, islice

from trimaran.graph.capture import capture
from trimaran.program import Program, Strategy
from trimaran.runtime.executor import Executor
from trimaran.runtime.world import World
from trimaran.session.jobs import JobSource
from trimaran.timeline import Timeline

WARM_UP_STEPS = 20
BLOCK_STEPS = 20


def run_rank(
    world: World, source: JobSource, strategy: Strategy, program: Program, evaluation: Program, blocks: int
) -> tuple[Timeline, tuple[float, ...]]:
    """Steps of one rank: warm-up, then blocks with and without recording in turn."""
    job = source.make()
    executor = Executor(job, strategy, program, evaluation, world, capture=capture(job))
    feed = executor.feed()
    shares = (share for _ in cycle([0]) for share in feed.shares())
    executor.recording = False
    for share in islice(shares, WARM_UP_STEPS):
        executor.step(share)
    overheads = []
    for _ in range(blocks):
        seconds = {}
        for recording in (True, False):
            executor.recording = recording
            start = time.perf_counter()
            for share in islice(shares, BLOCK_STEPS):
                executor.step(share)
            seconds[recording] = time.perf_counter() - start
        overheads.append(seconds[True] / seconds[False] - 1)
    timeline = executor.timeline()
    executor.close()
    return timeline, tuple(overheads)
