"""What each rank of the benchmark does; in a file of its own, so that the ranks can import it."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from benchmarks.grid.ranks import Entry, Runner, make_runner, take_turns
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trimaran.base.job import Job
from trimaran.jobs.resolve import JobSource
from trimaran.launch.world import World
from trimaran.user_code.batches import split_batch
from trimaran.user_code.randomness import seed_generators


def time_beside_ddp(world: World, source: JobSource, entries: Sequence[Entry], blocks: int) -> list[list[float]]:
    """Seconds a step of torch's own DDP and of some strategies, in blocks of steps that take turns.

    Args:
        world: this rank's
        source: of the job
        entries: what to run beside DDP; what needs fewer ranks runs on the first ones, while the others wait
        blocks: of each

    Returns:
        For DDP and then for each strategy, the mean step of each block, as rank 0 saw it [s].
    """
    runners = [_plain_ddp(source.make(), world), *(make_runner(world, source, entry) for entry in entries)]
    return take_turns(world, runners, blocks)


def _plain_ddp(job: Job, world: World) -> Runner:
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
