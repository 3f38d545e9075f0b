"""The feed of a rank, as its strategy says, with what ranks must agree on first."""

from functools import partial
from typing import Any

from trimaran.errors import InputError
from trimaran.graph.datasets import is_stream
from trimaran.job import Job
from trimaran.program.feeding import Feeding
from trimaran.program.strategy import Strategy
from trimaran.runtime.feed.agreeing import Agreement
from trimaran.runtime.feed.data import data_length, make_dataset
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
        group: of all ranks, on the host; None: this process is alone

    Returns:
        The feed, and this rank's end of the cache, to be closed after it.

    Raises:
        InputError: the data or the sampler will not do, or are not the same on every rank
    """
    agreement = Agreement(world.rank, world.size, group)
    # A sampler is asked on rank 0 too, should it read nothing: somebody must know the data.
    dataset, fault = None, None
    said: tuple[bool, int | None] | None = None
    if reads or world.rank == 0:
        try:
            dataset = make_dataset(job)
            said = is_stream(dataset), data_length(dataset)
        except InputError as error:
            fault = error
    streams, samples = _agreed(agreement, said, fault)
    shared, notes = Shared(), []
    if feeding.cached and streams:
        notes.append("samples of a stream are not cached: they have no numbers by which they would be found")
    elif feeding.cached:
        own = dataset if reads else None
        share = partial(agreement.words, what="agreeing on a cache of samples")
        shared = share_cache(own, samples or 0, rank=world.rank, exchange=share)
        notes += [shared.note] if shared.note else []
    if feeding.copies_ahead and streams:
        notes.append("copies of batches of a stream do not go ahead: the next one is read when it is asked for")
    try:
        feed = Feed(
            job,
            replicas=strategy.dp,
            microbatches=strategy.microbatches,
            replica=replica,
            reads=reads,
            samples=samples,
            streams=streams,
            dataset=dataset,
            feeding=feeding,
            device=world.device,
            rank=world.rank,
            cache=shared.cache,
            notes=tuple(notes),
            # The others wait for this rank in a collective, and must not be the first to give up.
            timeout_s=min(TIMEOUT_S, world.timeout_s / 2),
            agreement=agreement,
        )
    except BaseException:
        shared.close()
        raise
    return feed, shared


def _agreed(
    agreement: Agreement, said: tuple[bool, int | None] | None, fault: InputError | None
) -> tuple[bool, int | None]:
    """Whether the data are a stream, and their length, on which all ranks that have some must agree."""
    heard = agreement.words((said, "" if fault is None else fault.message), "agreeing on the data")
    if fault is not None:
        raise fault
    for rank, (_, text) in enumerate(heard):
        if text:
            raise InputError(f"rank {rank}: {text}", rank=rank)
    told: list[tuple[int, tuple[bool, int | None]]] = [
        (rank, one) for rank, (one, _) in enumerate(heard) if one is not None
    ]
    first, agreed = told[0]
    for rank, one in told:
        if one != agreed:
            raise InputError(
                f"Job.dataset makes {_named(*agreed)} on rank {first}, and {_named(*one)} on rank {rank}: let it "
                "make all data on every rank, ranks are given their shares",
                ranks=(first, rank),
            )
    return agreed


def _named(streams: bool, samples: int | None) -> str:
    kind = "a stream" if streams else "a data set"
    return f"{kind} of unknown length" if samples is None else f"{kind} of {samples} samples"
