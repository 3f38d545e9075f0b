"""The feed of a rank, as its strategy says, with what ranks must agree on first."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from trimaran.job import Job
from trimaran.program.feeding import Feeding
from trimaran.program.strategy import Strategy
from trimaran.runtime.channels import in_contact
from trimaran.runtime.feed.data import dataset_length, make_dataset
from trimaran.runtime.feed.feed import Feed
from trimaran.runtime.feed.loader import TIMEOUT_S
from trimaran.runtime.feed.sharing import Shared, share_cache
from trimaran.runtime.world import World


def open_feed(
    job: Job,
    strategy: Strategy,
    feeding: Feeding,
    world: World,
    *,
    replica: int,
    reads: bool,
    from_rank_0: Callable[[int], int],
    group: Any,
) -> tuple[Feed, Shared]:
    """Open the training data of one rank; every rank calls it.

    Args:
        job: what is trained
        strategy: says into how many shares and microbatches a global batch is cut
        feeding: how batches are loaded
        world: this process's
        replica: of this rank
        reads: this rank reads data
        from_rank_0: gives every rank the number that rank 0 has
        group: of all ranks, on the host; None: this process is alone

    Returns:
        The feed, and this rank's end of the cache, to be closed after it.

    Raises:
        InputError: the data set is smaller than a global batch, or has no length
    """
    leads = world.rank == 0
    dataset = make_dataset(job) if reads or leads else None
    samples = from_rank_0(dataset_length(dataset) if leads else 0)
    shared = Shared()
    if feeding.cached:
        own = dataset if reads else None
        shared = share_cache(own, samples, rank=world.rank, exchange=lambda said: _exchange(said, world, group))
    try:
        feed = Feed(
            job,
            replicas=strategy.dp,
            microbatches=strategy.microbatches,
            replica=replica,
            reads=reads,
            samples=samples,
            dataset=dataset if reads else None,
            feeding=feeding,
            device=world.device,
            rank=world.rank,
            cache=shared.cache,
            notes=(shared.note,) if shared.note else (),
            # The others wait for this rank in a collective, and must not be the first to give up.
            timeout_s=min(TIMEOUT_S, world.timeout_s / 2),
        )
    except BaseException:
        shared.close()
        raise
    return feed, shared


def _exchange(said: Any, world: World, group: Any) -> list[Any]:
    if group is None:
        return [said]
    heard: list[Any] = [None] * world.size
    with in_contact(world.rank, "agreeing on a cache of samples"):
        dist.all_gather_object(heard, said, group=group)
    return heard
