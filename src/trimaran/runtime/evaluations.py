"""The batches of an evaluation: a whole data set in its order, in global batches that are cut as those of training."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from trimaran.errors import InputError
from trimaran.job import Job
from trimaran.program.types import Strategy
from trimaran.runtime.feed import Shares, dataset_length
from trimaran.runtime.precision import place_batch
from trimaran.runtime.seeds import derive_seed
from trimaran.runtime.state import State


def evaluation_states(
    job: Job, strategy: Strategy, dataset: Any, *, replica: int, reads: bool, device: str
) -> Iterator[State]:
    """The state of each batch of an evaluation, before it is run.

    Args:
        job: says how large a global batch is
        strategy: says into how many shares and microbatches it is cut
        dataset: map-style
        replica: of this rank
        reads: this rank reads data
        device: of this rank

    Raises:
        InputError: the last batch has fewer samples than replicas that share layers
    """
    samples, batch = dataset_length(dataset), job.global_batch_size
    left = samples % batch
    if strategy.shards and strategy.tp == 1 and 0 < left < strategy.dp:
        raise InputError(
            f"the last batch of the evaluation has {left} samples, and {strategy.dp} replicas that share "
            "layers need one each: leave them out of the data set, or take another global batch size",
            samples=samples,
            replicas=strategy.dp,
        )
    shares = Shares(
        torch.arange(samples),
        batch=batch,
        replicas=strategy.dp,
        microbatches=strategy.microbatches,
        replica=replica,
    )
    for share in shares.load(
        range(-(-samples // batch)),
        dataset if reads else None,
        job,
        seed=derive_seed(job.seed, "evaluation"),
        place=partial(place_batch, precision=job.precision, device=device),
    ):
        yield State(number=-1, samples=share.samples, sizes=share.sizes, source=share.microbatch)
