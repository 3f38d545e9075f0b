"""The training data: in which order, and who loads what.

The order of the samples of an epoch is a permutation drawn from the job's seed and the number of the epoch. Global
batch k is the k-th run of `global_batch_size` of them. Which of its samples go to which replica and microbatch is in
`shares`. So every plan trains on the same global batches, and a run can go on at any batch of any epoch, with any
number of ranks.

Only ranks whose stage reads the data load it: the first stage of a pipeline, the last one, and what lies between
where it reads a part of the batch.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from trimaran.errors import InputError
from trimaran.job import Job
from trimaran.program.feeding import IN_LINE, Feeding
from trimaran.runtime.feed.cache import SampleCache
from trimaran.runtime.feed.data import check_length, check_replicas, dataset_length, make_dataset
from trimaran.runtime.feed.loader import TIMEOUT_S, Loader
from trimaran.runtime.feed.placing import Ahead, AheadInLine, Arrivals, OnDemand, Taken
from trimaran.runtime.feed.position import Position
from trimaran.runtime.feed.reading import Reading, Request
from trimaran.runtime.feed.shares import Share, Shares, skip_to
from trimaran.runtime.feed.types import Loading
from trimaran.runtime.precision import place_batch
from trimaran.runtime.seeds import derive_seed
from trimaran.runtime.streams import open_lane

_BEFORE_ALL = (-1, 0, 0)
_AFTER_ALL = (sys.maxsize, 0, 0)


def sample_order(samples: int, *, seed: int, epoch: int) -> torch.Tensor:
    """The order in which an epoch visits its samples.

    Args:
        samples: of the data set
        seed: of the job
        epoch: number of the epoch, from 0

    Returns:
        Each of the numbers 0 to `samples - 1` once, int64.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "order", epoch))
    return torch.randperm(samples, generator=generator)


class Feed:
    """The training data of one rank.

    Args:
        job: makes the data set and the batches
        replicas: data-parallel replicas
        microbatches: of each replica
        replica: this rank's
        reads: this rank's stage reads the data
        samples: of the data set; None: look
        dataset: what `Job.dataset` made, where it has been made; None: make it, where it is needed
        feeding: how batches are loaded
        device: where batches go
        rank: number of this rank, for messages
        cache: samples that ranks of this host have read; None: nothing is kept
        notes: what a person should know of how it was opened
        timeout_s: how long a worker may take for a batch [s]

    Attributes:
        samples: of the data set
        epoch: number of the epoch that is under way, or comes next
        index: number of the global batch in it that comes next
        observe: told what it took to get each microbatch, by the thread that trains; None: nobody

    Raises:
        InputError: the data set is smaller than a batch, or has no length; or a batch has fewer samples than replicas
    """

    def __init__(
        self,
        job: Job,
        *,
        replicas: int,
        microbatches: int,
        replica: int,
        reads: bool,
        samples: int | None = None,
        dataset: Any = None,
        feeding: Feeding = IN_LINE,
        device: str = "cpu",
        rank: int = 0,
        cache: SampleCache | None = None,
        notes: tuple[str, ...] = (),
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        if dataset is None and (reads or samples is None):
            dataset = make_dataset(job)
        self.samples = dataset_length(dataset) if samples is None else samples
        check_length(self.samples, job)
        check_replicas(job, replicas)
        self._job = job
        self._replicas, self._microbatches, self._replica = replicas, microbatches, replica
        self._reading = Reading(dataset, job.collate, cache=cache) if reads else None
        self._feeding, self._device, self._rank = feeding, device, rank
        self._cache, self._notes, self._timeout_s = cache, notes, timeout_s
        self._arrivals: Arrivals | None = None
        self._last = _BEFORE_ALL
        self._epochs: dict[int, Shares] = {}
        self.epoch = 0
        self.index = 0
        self.observe: Callable[[Loading], None] | None = None

    @property
    def batches(self) -> int:
        """Global batches of an epoch."""
        full, left = divmod(self.samples, self._job.global_batch_size)
        return full + (0 if self._job.drop_last or left < self._replicas else 1)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know: samples that are left out, or that are not kept although they should be."""
        notes = list(self._notes)
        left = self.samples % self._job.global_batch_size
        if not self._job.drop_last and 0 < left < self._replicas:
            notes.append(
                f"the last {left} samples of each epoch are left out: they are fewer than the {self._replicas} replicas"
            )
        misfits = 0 if self._cache is None else self._cache.misfits
        if misfits:
            notes.append(f"{misfits} samples are not like the others: they are not cached, but read each time")
        return tuple(notes)

    def state_dict(self) -> dict[str, int]:
        """Where it is, and in which data: as plain figures, the same on every rank and for any number of them.

        A batch that is under way counts as done.
        """
        return self._position().to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another feed of the same job was, perhaps with another number of ranks.

        Args:
            state: from `state_dict`

        Raises:
            InputError: it is no such state, or that of other data, another global batch or another seed
        """
        position = Position.from_dict(state)
        position.check_against(self._position())
        self.go_to(position.epoch, position.index)

    def go_to(self, epoch: int, index: int = 0) -> None:
        """Go on at a batch.

        Args:
            epoch: number of the epoch, from 0
            index: number of the global batch in it, from 0
        """
        self.close()
        self.epoch, self.index = epoch, index

    def shares(self) -> Iterator[Share]:
        """This rank's shares of the global batches that are left of the epoch; then the epoch is over."""
        epoch = self.epoch
        while self.epoch == epoch and self.index < self.batches:
            number = self.index
            # The batch that is under way counts as done, should somebody ask in the middle of its step.
            self.index = number + 1
            samples, sizes = self._shares(epoch).sizes(number)
            take = None if self._reading is None else partial(self._take, epoch, number)
            yield Share(samples=samples, sizes=sizes, take=take)
        if self.epoch == epoch:
            self.epoch, self.index = epoch + 1, 0

    def close(self) -> None:
        """End the workers; the next batch starts new ones."""
        if self._arrivals is not None:
            self._arrivals.close()
        self._arrivals, self._last = None, _BEFORE_ALL

    def _take(self, epoch: int, number: int, microbatch: int) -> Taken:
        key = (epoch, number, microbatch)
        start_ns = time.perf_counter_ns()
        if self._arrivals is None or key <= self._last:
            self.close()
            self._arrivals = self._open(epoch, number)
        opened_s = (time.perf_counter_ns() - start_ns) * 1e-9
        # Where it fails, what comes after is another microbatch: whoever asks again begins anew.
        self._last = _AFTER_ALL
        taken = skip_to(self._arrivals, key)
        self._last = taken.key
        if not taken.loading.in_line:
            taken = taken._replace(loading=replace(taken.loading, taken_s=taken.loading.taken_s + opened_s))
        if self.observe is not None:
            self.observe(taken.loading)
        return taken

    def _open(self, epoch: int, number: int) -> Arrivals:
        """Load from a batch on, epoch after epoch."""
        if self._reading is None:
            raise InputError("this rank reads no data", rank=self._rank)
        loader = Loader(
            self._reading,
            self._requests(epoch, number),
            self._feeding,
            pin=self._feeding.pinned and self._device != "cpu",
            seed=self._job.seed,
            rank=self._rank,
            timeout_s=self._timeout_s,
        )
        place = partial(place_batch, precision=self._job.precision, device=self._device)
        if not self._feeding.copies_ahead:
            return OnDemand(loader, place)
        lane = open_lane(self._device)
        if loader.in_line:
            return AheadInLine(loader, place, lane, self._feeding.copies_ahead)
        return Ahead(loader, place, lane, self._feeding.copies_ahead)

    def _requests(self, epoch: int, number: int) -> Iterator[Request]:
        while True:
            seed = derive_seed(self._job.seed, "samples", epoch)
            yield from self._shares(epoch).requests(range(number, self.batches), seed=seed, epoch=epoch)
            epoch, number = epoch + 1, 0

    def _shares(self, epoch: int) -> Shares:
        # Workers are an epoch ahead at most, where an epoch has more batches than they have ready.
        shares = self._epochs.get(epoch)
        if shares is None:
            shares = Shares(
                sample_order(self.samples, seed=self._job.seed, epoch=epoch),
                batch=self._job.global_batch_size,
                replicas=self._replicas,
                microbatches=self._microbatches,
                replica=self._replica,
            )
            # A thread that loads ahead asks too: what it may be reading is replaced and not changed.
            near = {one: kept for one, kept in self._epochs.items() if one in (epoch - 1, epoch + 1)}
            self._epochs = {**near, epoch: shares}
        return shares

    def _position(self) -> Position:
        batch, seed = self._job.global_batch_size, self._job.seed
        return Position(epoch=self.epoch, index=self.index, samples=self.samples, global_batch_size=batch, seed=seed)
