"""Running one small program again and again, each time with fresh processes.

    run 1    start processes    one device: 20 steps, then 120 that count    all ranks: the same
    run 2    start processes    one device: 20 steps, then 120 that count    all ranks: the same
    ...

The program is LeNet on random images, run by the runtime as a job of a user's is. What differs between two runs is what
differs between any two: where memory lies, on which cores the ranks are, what else the machine does. A larger network
is disturbed less; for a pipeline, nothing else is known.
"""

import functools
import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from statistics import median
from typing import TYPE_CHECKING, Any

from trimaran.costs.noise import Noise, noise_between
from trimaran.job import Job
from trimaran.program import format_program, lower, lower_evaluation, parse_program
from trimaran.program.types import Strategy
from trimaran.runtime.ranks import launch
from trimaran.runtime.world import World

if TYPE_CHECKING:
    from torch.utils.data import Dataset

REPEATS = 5
"""Runs by default."""

_ABOUT = 64
WARM_UP_STEPS = 20
STEPS = 120
_SAMPLES = 1024

Progress = Callable[[str, int, int], None]


def measure_noise(*, ranks: int, repeats: int, steps: int = STEPS, date: str, progress: Progress) -> tuple[Noise, ...]:
    """The noise of runs on one rank, and of runs on all.

    Args:
        ranks: that there are
        repeats: runs, at least two
        steps: of each run that count
        date: of today, such as "2026-11-20"
        progress: told of every run

    Raises:
        ExecutionError: a rank failed
    """
    programs = _programs(ranks)
    runs: list[Sequence[float]] = []
    for number in range(repeats):
        progress("repeating a run", number, repeats)
        runs.append(launch(run_on_rank, (programs, steps), ranks=ranks)[0])
    progress("repeating a run", repeats, repeats)
    return tuple(
        noise_between(
            medians,
            ranks=strategy.devices,
            date=date,
            source=f"measured: {repeats} runs of LeNet at batch {batch_for(ranks)}, {steps} steps each",
        )
        for (strategy, _, _), medians in zip(programs, zip(*runs, strict=True), strict=True)
    )


def run_on_rank(world: World, programs: Sequence[tuple[Strategy, str, str]], steps: int) -> list[float]:
    """Run the programs on one rank, one after the other.

    Args:
        world: this rank; programs for one device run on rank 0 alone, while the others wait
        programs: strategy, program and evaluation of each
        steps: that count

    Returns:
        The median step time of each, on rank 0 [s]; what the others return means nothing.
    """
    import torch.distributed as dist

    medians = []
    for strategy, program, evaluation in programs:
        if world.size > 1:
            dist.barrier()
        if strategy.devices == world.size:
            medians.append(_median_step(world, make_job(world.size), strategy, program, evaluation, steps))
        elif world.rank == 0:
            alone = World(device=world.device)
            medians.append(_median_step(alone, make_job(world.size), strategy, program, evaluation, steps))
    return medians


def batch_for(ranks: int) -> int:
    """Samples of a step over all ranks: the largest number up to 64 that they share evenly, one each at least.

    Example:
        >>> batch_for(2), batch_for(3), batch_for(100)
        (64, 63, 100)
    """
    return ranks * max(1, _ABOUT // ranks)


def make_job(ranks: int) -> Job:
    """The small job that is run on so many ranks."""
    import torch
    from torch.nn.functional import cross_entropy

    from trimaran.networks.lenet import LeNet

    return Job(
        name="noise",
        model=LeNet,
        loss=cross_entropy,
        optimizer=functools.partial(torch.optim.AdamW, lr=1e-4),
        dataset=_images,
        global_batch_size=batch_for(ranks),
    )


def _programs(ranks: int) -> list[tuple[Strategy, str, str]]:
    """One device and plain data parallelism, as text: the ranks need no graph."""
    from trimaran.graph.capture import capture

    graph, batch = capture(make_job(ranks)).graph, batch_for(ranks)
    return [
        (
            strategy,
            format_program(lower(graph, strategy, batch=batch)),
            format_program(lower_evaluation(graph, strategy, batch=batch)),
        )
        for strategy in dict.fromkeys((Strategy(), Strategy(dp=ranks)))
    ]


def _median_step(world: World, job: Job, strategy: Strategy, program: str, evaluation: str, steps: int) -> float:
    from trimaran.runtime.executor import Executor

    executor = Executor(job, strategy, parse_program(program), parse_program(evaluation), world, record=False)
    feed = executor.feed()
    shares = (share for _ in cycle([0]) for share in feed.shares())
    seconds = [_seconds(executor, share) for share in islice(shares, WARM_UP_STEPS + steps)]
    executor.close()
    return median(seconds[WARM_UP_STEPS:])


def _seconds(executor: Any, share: Any) -> float:
    start_s = time.perf_counter()
    executor.step(share)
    return time.perf_counter() - start_s


def _images() -> "Dataset[Any]":
    import torch
    from torch.utils.data import TensorDataset

    generator = torch.Generator().manual_seed(0)
    images = torch.randn(_SAMPLES, 1, 32, 32, generator=generator)
    return TensorDataset(images, torch.randint(10, (_SAMPLES,), generator=generator))
