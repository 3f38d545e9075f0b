"""What each rank of the grid does; in a file of its own, so that the ranks can import it."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from trimaran.graph.capture.capture import capture
from trimaran.jobs.resolve import JobSource
from trimaran.launch.world import World
from trimaran.memory_budget import planned_memory
from trimaran.program.strategy import Strategy
from trimaran.program.types import Program
from trimaran.runtime.executor import Executor

WARM_UP_STEPS = 4
LEAST_STEPS = 3
PLANNING_STEPS = 8
BLOCK_S = 0.25

Entry = tuple[Strategy, Program, Program]
"""A strategy, the program of its step, and that of its evaluation."""

Runner = Callable[[int], None]
"""Runs so many steps."""


def time_strategies(world: World, source: JobSource, entries: Sequence[Entry], blocks: int) -> list[list[float]]:
    """Seconds a step of each strategy, block by block; strategies take turns, each in a block of steps.

    Args:
        world: this rank's
        source: of the job
        entries: what to run; a strategy for one device runs on rank 0, while the others wait
        blocks: of each strategy

    Returns:
        For each strategy, the mean step time of each of its blocks, as rank 0 saw it [s].
    """
    return take_turns(world, [make_runner(world, source, entry) for entry in entries], blocks)


def take_turns(world: World, runners: Sequence[Runner], blocks: int) -> list[list[float]]:
    """Seconds a step of each runner, in blocks of steps that take turns.

    Args:
        world: this rank's
        runners: each runs so many steps
        blocks: of each

    Returns:
        For each runner, the mean step time of each of its blocks, as rank 0 saw it [s].
    """
    counts = [_warm_up(world, run) for run in runners]
    times: list[list[float]] = [[] for _ in runners]
    for block in range(blocks):
        # Another order in every round, so that none always follows the same one.
        for number in sorted(range(len(runners)), key=lambda one: (one * 7 + block * 5) % len(runners)):
            times[number].append(_block(runners[number], counts[number]))
    return times


def time_apart(world: World, source: JobSource, entry: Entry, blocks: int) -> list[float]:
    """Seconds a step of one strategy in processes of its own, within its memory budget where it has one.

    Args:
        world: this rank's, as large as the strategy
        source: of the job
        entry: what to run
        blocks: how often

    Returns:
        The mean step time of each block, as rank 0 saw it [s].
    """
    with planned_memory(entry[0], local_ranks=world.local_size):
        run = make_runner(world, source, entry)
        # The first steps are those in which a memory plan is made.
        run(PLANNING_STEPS if entry[0].memory_bytes is not None else 1)
        count = _warm_up(world, run)
        return [_block(run, count) for _ in range(blocks)]


def make_runner(world: World, source: JobSource, entry: Entry) -> Runner:
    """What runs steps of a strategy; nothing on ranks that it does not need.

    Args:
        world: this rank's
        source: of the job
        entry: what to run
    """
    strategy, program, evaluation = entry
    if world.rank >= strategy.devices:
        return lambda steps: None
    job = source.make()
    own = world if strategy.devices == world.size else replace(world, size=1, local_size=1, backend="none")
    # What recording costs is no part of what is compared.
    executor = Executor(job, strategy, program, evaluation, own, capture=capture(job), record=False)
    shares = _endless(executor)

    def run(steps: int) -> None:
        for _ in range(steps):
            executor.step(next(shares))

    return run


def _endless(executor: Executor) -> Iterator[Any]:
    feed = executor.feed()
    full = feed.batches - 1 if feed.batches > 1 else 1
    while True:
        # Not the last batch of an epoch, which may be a small one.
        for number, share in enumerate(feed.shares()):
            if number < full:
                yield share


def _warm_up(world: World, run: Runner) -> int:
    run(WARM_UP_STEPS)
    seconds = _block(run, 2)
    counts = [seconds] * world.size
    if world.size > 1:
        dist.all_gather_object(counts, seconds)
    return max(LEAST_STEPS, round(BLOCK_S / max(counts[0], 1e-6)))


def _block(run: Runner, steps: int) -> float:
    _together()
    # The first step after others have run finds cold caches.
    run(1)
    start_s = time.perf_counter()
    run(steps)
    seconds = (time.perf_counter() - start_s) / steps
    _together()
    return seconds


def _together() -> None:
    if dist.is_initialized():
        dist.barrier()
