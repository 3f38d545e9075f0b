"""The state of a training step before it is run: where its microbatches come from, and how many samples they have."""

from collections.abc import Callable
from typing import Any

from trimaran.errors import InputError
from trimaran.job import Job
from trimaran.program.types import Strategy
from trimaran.runtime.feed import Share
from trimaran.runtime.precision import place_batch
from trimaran.runtime.shares import cut_batch, microbatch_sizes
from trimaran.runtime.state import State


def step_state(
    job: Job,
    strategy: Strategy,
    batch: Any,
    *,
    number: int,
    samples: int | None,
    replica: int,
    reads: bool,
    device: str,
) -> State:
    """The state of a training step, before it is run.

    Args:
        job: says how large a global batch is
        strategy: says into how many shares and microbatches it is cut
        batch: a `Share`, or this rank's share of the global batch as a batch
        number: of the step
        samples: of the global batch, where `batch` is no `Share`; None: `Job.global_batch_size`
        replica: of this rank
        reads: this rank reads data
        device: of this rank

    Raises:
        InputError: fewer samples than replicas, or a batch that is no such share
    """
    if isinstance(batch, Share):
        return State(number=number, samples=batch.samples, sizes=batch.sizes, source=batch.microbatch)
    # Whoever says how many samples the global batch has knows that this is a share of it.
    known = samples is not None
    samples = samples or job.global_batch_size
    if samples < strategy.dp:
        raise InputError(
            f"a global batch of {samples} samples is too small for {strategy.dp} replicas: leave it out",
            samples=samples,
        )
    sizes = microbatch_sizes(samples, replicas=strategy.dp, microbatches=strategy.microbatches)[replica]
    source = _cut(job, batch, sizes, known=known, device=device) if reads else _nothing
    return State(number=number, samples=samples, sizes=sizes, source=source)


def _cut(job: Job, batch: Any, sizes: tuple[int, ...], *, known: bool, device: str) -> Callable[[int], Any]:
    cut = cut_batch(batch, sizes, known=known)
    return lambda number: place_batch(cut[number], precision=job.precision, device=device)


def _nothing(number: int) -> None:
    """The microbatches of a rank that reads no data."""
