"""The batches of an evaluation: a whole data set in its order, in global batches that are cut as those of training."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from trimaran.errors import InputError
from trimaran.graph.datasets import is_stream, stream_length
from trimaran.job import Job
from trimaran.program.types import Strategy
from trimaran.runtime.feed import ALONE, Agreement, Shares, StreamReader, dataset_length
from trimaran.runtime.feed.placing import Place
from trimaran.runtime.precision import place_batch
from trimaran.runtime.seeds import derive_seed
from trimaran.runtime.state import State


def evaluation_states(
    job: Job,
    strategy: Strategy,
    dataset: Any,
    *,
    replica: int,
    reads: bool,
    device: str,
    agreement: Agreement = ALONE,
) -> Iterator[State]:
    """The state of each batch of an evaluation, before it is run; every rank goes through them at the same time.

    Args:
        job: says how large a global batch is
        strategy: says into how many shares and microbatches it is cut
        dataset: map-style, or a stream, which each rank that reads goes through
        replica: of this rank
        reads: this rank reads data
        device: of this rank
        agreement: with the other ranks

    Raises:
        InputError: the last batch has fewer samples than replicas that share layers; or a stream is empty, fails, or is
            not the same on every rank
    """
    size = job.global_batch_size
    seed = derive_seed(job.seed, "evaluation")
    load = partial(
        _load,
        job,
        strategy,
        replica=replica,
        seed=seed,
        place=partial(place_batch, precision=job.precision, device=device),
    )
    if not is_stream(dataset):
        samples = dataset_length(dataset)
        _check_last(strategy, samples % size)
        yield from load(torch.arange(samples), range(-(-samples // size)), dataset if reads else None)
        return
    stream_length(dataset)
    stream = StreamReader(
        dataset if reads else None, batch=size, seed=seed, agreement=agreement, name="Job.evaluation_dataset"
    )
    stream.begin(0)
    while samples := stream.read():
        _check_last(strategy, samples % size)
        positions = torch.arange(stream.total - samples, stream.total)
        yield from load(positions, range(1), stream.samples if reads else None)
    if not stream.total:
        raise InputError("the evaluation data are a stream that gave no sample: its __iter__ must begin anew each time")


def _load(
    job: Job,
    strategy: Strategy,
    order: torch.Tensor,
    numbers: range,
    dataset: Any,
    *,
    replica: int,
    seed: int,
    place: Place,
) -> Iterator[State]:
    shares = Shares(
        order,
        batch=job.global_batch_size,
        replicas=strategy.dp,
        microbatches=strategy.microbatches,
        replica=replica,
    )
    for share in shares.load(numbers, dataset, job, seed=seed, place=place):
        yield State(number=-1, samples=share.samples, sizes=share.sizes, source=share.microbatch)


def _check_last(strategy: Strategy, left: int) -> None:
    if strategy.shards and strategy.tp == 1 and 0 < left < strategy.dp:
        raise InputError(
            f"the last batch of the evaluation has {left} samples, and {strategy.dp} replicas that share "
            "layers need one each: leave them out of the data set, or take another global batch size",
            samples=left,
            replicas=strategy.dp,
        )
