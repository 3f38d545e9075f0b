"""What each rank of the benchmark does; in a file of its own, so that the ranks can import it."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from trimaran.base.job import Job
from trimaran.graph.capture.capture import capture
from trimaran.jobs.resolve import JobSource
from trimaran.launch.world import World
from trimaran.program.strategy import IN_LINE, Feeding, Strategy
from trimaran.program.types import Program
from trimaran.runtime.data.pipeline import Feed
from trimaran.runtime.executor import Executor
from trimaran.user_code.model import make_model

LEAST_STEPS = 4

Step = Callable[[], object]


def time_feeds(
    world: World,
    source: JobSource,
    strategy: Strategy,
    program: Program,
    evaluation: Program,
    rounds: int,
    block_s: float,
) -> dict[str, Any]:
    """Seconds a step by each way to feed it, block by block, the ways in turns.

    Args:
        world: this rank's
        source: of the job
        strategy: with the feeding that was planned
        program: of its step
        evaluation: of an evaluation
        rounds: blocks of each way
        block_s: about how long a block takes [s]

    Returns:
        By way, the mean step of each block, as rank 0 saw it [s]: "planned"; "in line"; "synthetic", the same batch
        again, nothing loaded; "default", DDP with torch's DataLoader as it is by default. And "decode_s": work of a
        core for the data of a step on this rank [s].
    """
    job = source.make()
    executor = Executor(job, strategy, program, evaluation, world, capture=capture(job), record=False)
    feeds = {"planned": executor.feed(), "in line": executor.feed(IN_LINE)}
    ways: dict[str, Step] = {name: _fed(executor, job, feed) for name, feed in feeds.items()}
    batch, samples, work_s = _one_batch(executor, executor.feed(IN_LINE), world)
    ways["synthetic"] = lambda: executor.step(batch, samples=samples)
    ways["default"] = _by_hand(job, world)
    steps = {name: _steps(world, step, block_s) for name, step in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(rounds):
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            ahead = _ahead(strategy.feeding) if name == "planned" else 1
            if name == "planned" and strategy.feeding.cached and number == 0:
                # Every sample has been read.
                ahead += feeds[name].batches
            times[name].append(_block(ways[name], steps[name], before=ahead))
    for feed in feeds.values():
        feed.close()
    executor.close()
    return {"times": times, "decode_s": work_s}


def _fed(executor: Executor, job: Job, feed: Feed) -> Step:
    def endless() -> Iterator[Any]:
        while True:
            yield from (share for share in feed.shares() if share.samples == job.global_batch_size)

    shares = endless()
    return lambda: executor.step(next(shares))


def _one_batch(executor: Executor, feed: Feed, world: World) -> tuple[Any, int, float]:
    """A batch, the samples of its global batch, and the work of a core that it takes to load one [s]."""
    work: list[float] = []
    share = next(feed.shares())
    batch = executor.fetch(share)
    for _ in range(5):
        began = time.thread_time()
        executor.fetch(next(feed.shares()))
        work.append(time.thread_time() - began)
    feed.close()
    if world.size > 1:
        dist.barrier()
    return batch, share.samples, sorted(work)[len(work) // 2]


def _by_hand(job: Job, world: World) -> Step:
    """What a tutorial has: DistributedSampler, DataLoader, DDP, and the loss of each step on the host."""
    model = make_model(job)
    trained = DistributedDataParallel(model, process_group=dist.new_group()) if world.size > 1 else model
    optimizer = job.optimizer(trained.parameters())
    dataset = job.dataset()
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, world.size, world.rank, seed=job.seed)
    loader = DataLoader(
        dataset, batch_size=job.global_batch_size // world.size, sampler=sampler, collate_fn=job.collate, drop_last=True
    )

    def endless() -> Iterator[Any]:
        while True:
            yield from loader

    batches = endless()

    def step() -> float:
        inputs, target = next(batches)
        loss = job.loss(trained(inputs), target) if job.loss is not None else torch.zeros(())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    return step


def _ahead(feeding: Feeding) -> int:
    """Steps after which what was made before the block is used up."""
    return feeding.workers * feeding.ahead + 2 if feeding.workers else 1


def _steps(world: World, step: Step, block_s: float) -> int:
    """Steps of a block, the same on every rank."""
    for _ in range(3):
        step()
    began = time.perf_counter()
    for _ in range(3):
        step()
    count = torch.tensor(max(LEAST_STEPS, int(block_s / ((time.perf_counter() - began) / 3))))
    if world.size > 1:
        dist.all_reduce(count, op=dist.ReduceOp.MIN)
    return int(count)


def _block(step: Step, steps: int, *, before: int) -> float:
    for _ in range(before):
        step()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - began) / steps
