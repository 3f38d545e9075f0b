"""The order of the samples of an epoch: a permutation under the job's seed, or what the job's sampler gives.

A sampler is the user's code, and its order says which samples are trained on. So it must be a function of the data set
and the epoch alone: then any number of ranks, and a run that continues, visit the same samples. It draws under a seed
of the job and the epoch, as a data set does (`reading`). This is checked: each rank that reads data draws the order,
and the orders must be the same; the first one is drawn twice; and a saved state has a digest of its order, so that a
run continues in that order or fails.
"""

import hashlib
import math
import operator
import sys
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy
import torch
from torch.utils.data import DistributedSampler

from trimaran.base.arguments import checked_classes
from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.base.units import format_bytes
from trimaran.base.user_errors import users
from trimaran.machine.detect import free_memory_bytes
from trimaran.runtime.communication.channels import ALONE, Agreement
from trimaran.user_code.datasets import describe
from trimaran.user_code.randomness import derive_seed, seeded

_MOST_TIMES, _MOST_ANYWAY = 100, 1_000_000
"""Longest order, as a multiple of its data set and as a number of indices; the larger one counts. A longer order is
taken for that of a sampler that never ends."""

_SMALL_BYTES, _SOME = 2**28, 2**18
"""An order of which nobody asks whether it fits; samples of which a measurement needs no more."""


@checked_classes
def sample_order(samples: int, *, seed: int, epoch: int) -> torch.Tensor:
    """The order in which an epoch visits its samples, where the job has no sampler.

    Args:
        samples: of the data set
        seed: of the job
        epoch: number of the epoch, from 0

    Returns:
        Each of the numbers 0 to `samples - 1` once, int64.

    Raises:
        InputError: an argument of a wrong class, or a negative one; or the order does not fit this machine
    """
    for name, value in (("samples", samples), ("epoch", epoch)):
        if value < 0:
            raise InputError(f"sample_order: {name} is at least 0, got {value}", code="order.negative")
    needed, free = 8 * samples, math.inf
    if needed > _SMALL_BYTES and sys.platform.startswith("linux"):
        free = free_memory_bytes()
    if needed > free:
        raise InputError(
            f"the order of {samples} samples takes {format_bytes(needed)}, and {format_bytes(int(free))} of memory are "
            "free: let the data set have as many samples as an epoch is to read, set Job.sampler, or make a stream",
            code="order.no-room",
            samples=samples,
            needed_bytes=needed,
            free_bytes=free,
        )
    generator = torch.Generator().manual_seed(derive_seed(seed, "order", epoch))
    return torch.randperm(samples, generator=generator)


def some_samples(samples: int, *, seed: int) -> torch.Tensor:
    """Numbers of the samples of a data set in a drawn order, each once: all, or of very many some, int64."""
    if samples <= _SOME:
        return torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
    return torch.from_numpy(numpy.random.default_rng(seed).choice(samples, _SOME, replace=False))


def draw_order(job: Job, dataset: Any, samples: int, epoch: int) -> torch.Tensor:
    """The order in which an epoch visits its samples. Random states are afterwards what they were.

    Args:
        job: has the seed, and perhaps a sampler
        dataset: what `Job.dataset` made, for the sampler
        samples: of it
        epoch: number of the epoch, from 0

    Returns:
        Numbers of samples, int64.

    Raises:
        InputError: the sampler raised, or gave something else than such numbers, or none, or too many
    """
    if job.sampler is None:
        return sample_order(samples, seed=job.seed, epoch=epoch)
    where = f"Job.sampler, for epoch {epoch},"
    with seeded(derive_seed(job.seed, "sampler", epoch)):
        with users(
            "Job.sampler",
            job.sampler,
            said=lambda error: InputError(f"{where} failed: {describe(error)}", code="sampler.fails", epoch=epoch),
        ):
            made = job.sampler(dataset, epoch)
        if isinstance(made, DistributedSampler) and made.num_replicas > 1:
            raise InputError(
                f"{where} made a {type(made).__name__}, which gives this rank one of {made.num_replicas} parts of the "
                "order: give the order of the whole epoch, ranks are given their parts of it",
                replicas=made.num_replicas,
            )
        given = made.tolist() if isinstance(made, torch.Tensor | numpy.ndarray) else made
        order = _gathered(given, samples, where)
    if not len(order):
        raise InputError(
            f"{where} gave no index: give at least one, or train fewer epochs", code="sampler.empty", epoch=epoch
        )
    return order


class Orders:
    """The orders of the epochs, on one rank.

    Without a sampler an order is drawn where it is asked for. With one, ranks agree on it when its epoch begins, and
    only the order of that epoch is known: a sampler may look at what training has changed.

    Args:
        job: has the seed, and perhaps a sampler
        dataset: what `Job.dataset` made; None: this rank has none, and needs no more of an order than its length
        samples: of the data set
        agreement: with the other ranks

    Attributes:
        sampled: the job has a sampler
    """

    def __init__(self, job: Job, dataset: Any, samples: int, agreement: Agreement = ALONE) -> None:
        self.sampled = job.sampler is not None
        self._job, self._dataset, self._samples = job, dataset, samples
        self._agreement = agreement
        self._epoch, self._digest = -1, 0
        self._order = torch.empty(0, dtype=torch.int64)
        self._looked = False

    @property
    def known(self) -> int:
        """The last epoch that ranks have agreed on; -1: none, or there is no sampler."""
        return self._epoch

    def digest(self, epoch: int) -> int:
        """Of the order of an epoch; 0: it is not known yet.

        Args:
            epoch: its number
        """
        return self._digest if epoch == self._epoch else 0

    def of(self, epoch: int) -> torch.Tensor:
        """The order of an epoch, int64; of the right length, where this rank has no data.

        Args:
            epoch: its number; with a sampler the one that was begun last

        Raises:
            InputError: it was not begun
        """
        if not self.sampled:
            return sample_order(self._samples, seed=self._job.seed, epoch=epoch)
        if epoch != self._epoch:
            raise InputError(f"the order of epoch {epoch} is not known: its sampler was not asked yet", epoch=epoch)
        return self._order

    def begin(self, epoch: int, *, expected: int = 0) -> bool:
        """Agree on the order of an epoch, if that has not been done; every rank calls it.

        Args:
            epoch: its number
            expected: digest of the order in which a run was that goes on; 0: it begins

        Returns:
            Whether it is new.

        Raises:
            InputError: on every rank: a sampler failed on one of them, or gave them different orders, or another one
                than `expected`
        """
        if not self.sampled or epoch == self._epoch:
            return False
        order, digest, fault = torch.empty(0, dtype=torch.int64), 0, ""
        if self._dataset is not None:
            try:
                order = self._draw(epoch)
                digest = _digest(order)
            except InputError as error:
                fault = error.message
        heard = self._agreement.gather_objects((fault, digest, len(order)), "agreeing on the order of an epoch")
        told = [(rank, *said) for rank, said in enumerate(heard) if said[0] or said[2]]
        for rank, text, _, _ in told:
            if text:
                raise InputError(
                    f"rank {rank}: {text}" if len(heard) > 1 else text,
                    code="sampler.fails-on-rank",
                    rank=rank,
                    epoch=epoch,
                )
        first, _, digest, length = told[0]
        for rank, _, other, size in told:
            if other != digest:
                raise InputError(
                    f"Job.sampler gave rank {first} and rank {rank} different orders for epoch {epoch}, of {length} "
                    f"and {size} indices: it must give every rank the order of the whole epoch, of which each rank "
                    "takes its part. Let it neither split by rank, nor draw from a generator that is not seeded, nor "
                    "iterate over a set, whose order is another in each process",
                    ranks=(first, rank),
                    epoch=epoch,
                )
        if expected and digest != expected:
            raise other_order(epoch)
        # A rank without data needs no more than the length: one value stands for all.
        self._order = order if self._dataset is not None else torch.zeros(1, dtype=torch.int64).expand(length)
        self._epoch, self._digest = epoch, digest
        return True

    def _draw(self, epoch: int) -> torch.Tensor:
        order = draw_order(self._job, self._dataset, self._samples, epoch)
        if self._looked:
            return order
        again = draw_order(self._job, self._dataset, self._samples, epoch)
        if not torch.equal(order, again):
            both = zip(order.tolist(), again.tolist(), strict=False)
            position = next((at for at, (one, other) in enumerate(both) if one != other), min(len(order), len(again)))
            raise InputError(
                f"Job.sampler gave two orders for epoch {epoch}, of {len(order)} and {len(again)} indices; they differ "
                f"from position {position} on. A run could not go on in it, nor be repeated: let it draw from "
                "the global generators, which are seeded by job and epoch, or from one that it makes and seeds with "
                "the number of the epoch, and keep no state between calls",
                epoch=epoch,
                position=position,
            )
        self._looked = True
        return order


def other_order(epoch: int) -> InputError:
    """A run cannot go on, as its order is another one now.

    Args:
        epoch: that was under way
    """
    return InputError(
        f"Job.sampler gives epoch {epoch} another order than when the state was saved, so that samples would be left "
        "out or seen twice: let it depend on the data set and the number of the epoch alone, or begin an epoch anew "
        "without the state",
        code="sampler.other-order",
        epoch=epoch,
    )


def _gathered(made: Any, samples: int, where: str) -> torch.Tensor:
    """The indices of anything that can be gone through."""
    if not isinstance(made, Iterable):
        raise InputError(
            f"{where} made a {type(made).__name__}, which cannot be gone through: give the indices of samples, as a "
            "list or a torch.utils.data.Sampler",
            code="sampler.not-iterable",
        )
    order = array("q")
    most = _most(samples)
    indices: Iterator[Any] = iter(())
    with users(
        "Job.sampler",
        made,
        said=lambda error: InputError(
            f"{where} failed after {len(order)} indices: {describe(error)}",
            code="sampler.fails-midway",
            position=len(order),
        ),
    ):
        indices = iter(made)
        for index in islice(indices, most + 1):
            order.append(_as_index(index, len(order), samples, where))
    _check_length(len(order), samples, where)
    return torch.tensor(order, dtype=torch.int64)


def _as_index(value: Any, position: int, samples: int, where: str) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        index = operator.index(value)
    except Exception:  # noqa: BLE001 whatever a value of the user's raises
        grouped = "; batches are made from single indices: give one index after the other"
        raise InputError(
            f"{where} gave {str(value)[:80]!r} (a {type(value).__name__}) at position {position}: give the indices of "
            f"samples, integers{grouped if isinstance(value, list | tuple) else ''}",
            code="sampler.not-an-integer",
            position=position,
        ) from None
    if not 0 <= index < samples:
        raise _outside(index, position, samples, where)
    return index


def _outside(index: int, position: int, samples: int, where: str) -> InputError:
    return InputError(
        f"{where} gave the index {index} at position {position}, and the data set has {samples} samples: give 0 to "
        f"{samples - 1}",
        code="sampler.index-out-of-range",
        index=index,
        position=position,
        samples=samples,
    )


def _most(samples: int) -> int:
    return max(_MOST_TIMES * samples, _MOST_ANYWAY)


def _check_length(length: int, samples: int, where: str) -> None:
    if length > _most(samples):
        raise InputError(
            f"{where} gave more than {_most(samples)} indices for {samples} samples, as if it never ended: let it end, "
            "and train more epochs",
            code="sampler.endless",
            samples=samples,
        )


def _digest(order: torch.Tensor) -> int:
    # 63 bits, which plain figures and tensors hold; never 0, which stands for none.
    found = hashlib.blake2b(order.numpy().tobytes(), digest_size=8).digest()
    return (int.from_bytes(found, "big") >> 1) or 1
