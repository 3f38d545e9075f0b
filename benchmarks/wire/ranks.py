"""What each rank of the benchmark does; in a file of its own, so that the ranks can import it."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trimaran.graph.batches import split_batch
from trimaran.graph.capture import capture
from trimaran.job import Job
from trimaran.program import Program, Strategy
from trimaran.runtime.executor import Executor
from trimaran.runtime.seeds import seed_generators
from trimaran.runtime.world import World
from trimaran.session.jobs import JobSource

WARM_UP_STEPS = 6
LEAST_STEPS = 3
BLOCK_S = 0.3

Entry = tuple[Strategy, Program, Program]
"""A strategy, the program of its step, and that of its evaluation."""

_Run = Callable[[int], None]


def take_turns(world: World, source: JobSource, entries: Sequence[Entry], blocks: int) -> list[list[float]]:
    """Seconds a step of torch's own DDP and of some strategies, in blocks of steps that take turns.

    Args:
        world: this rank's
        source: of the job
        entries: what to run beside DDP; what needs fewer ranks runs on the first ones, while the others wait
        blocks: of each

    Returns:
        For DDP and then for each strategy, the mean step of each block, as rank 0 saw it [s].
    """
    runs = [_plain_ddp(source.make(), world), *(_planned(entry, source, world) for entry in entries)]
    counts = [_warm_up(world, run) for run in runs]
    times: list[list[float]] = [[] for _ in runs]
    for block in range(blocks):
        # Another order in every round, so that none always follows the same one.
        for number in sorted(range(len(runs)), key=lambda one: (one * 7 + block * 5) % len(runs)):
            times[number].append(_block(runs[number], counts[number]))
    return times


def _plain_ddp(job: Job, world: World) -> _Run:
    """The loop that people write: DistributedDataParallel as it comes, a sampler that deals the data out."""
    seed_generators(job.seed)
    replica = DistributedDataParallel(job.model().train())
    optimizer = job.optimizer(replica.parameters())
    dataset = job.dataset()
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, num_replicas=world.size, rank=world.rank)
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=job.global_batch_size // world.size,
        sampler=sampler,
        collate_fn=job.collate,
        drop_last=True,
    )

    def batches() -> Iterator[Any]:
        while True:
            yield from loader

    endless = batches()

    def run(steps: int) -> None:
        for _ in range(steps):
            arguments, keywords, target = split_batch(next(endless), own_loss=job.loss is None)
            optimizer.zero_grad()
            output = replica(*arguments, **keywords)
            found = output.loss if job.loss is None else job.loss(output, target)
            loss = found[0] / found[1] if isinstance(found, tuple) else found
            loss.backward()
            if job.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(replica.parameters(), job.clip_norm)
            optimizer.step()

    return run


def _planned(entry: Entry, source: JobSource, world: World) -> _Run:
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


def _warm_up(world: World, run: _Run) -> int:
    run(WARM_UP_STEPS)
    seconds = [0.0] * world.size
    dist.all_gather_object(seconds, _block(run, 2))
    return max(LEAST_STEPS, round(BLOCK_S / max(seconds[0], 1e-6)))


def _block(run: _Run, steps: int) -> float:
    dist.barrier()
    # The first step after others have run finds cold caches.
    run(1)
    start_s = time.perf_counter()
    run(steps)
    seconds = (time.perf_counter() - start_s) / steps
    dist.barrier()
    return seconds
