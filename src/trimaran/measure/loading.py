"""Batches of the job's own data, loaded as the runtime loads them.

A data set that is slow would make everything else wait that is measured on its batches. So of such a one only a few
batches are read; after them, what wants a batch gets the last one once more.

Runs inside the ranks; imports torch.
"""

import time
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from trimaran.job import Job
from trimaran.runtime.feed import Share, Shares, dataset_length
from trimaran.runtime.precision import place_batch

SLOW_S = 0.02
"""A batch that takes longer than this is not read again and again [s]."""

MOST_SLOW = 8
"""Batches of a slow data set that are read: the first ones while all warms up, the others count."""

_BATCHES_AHEAD = 64


class Batches(Protocol):
    """Gives batches of one size."""

    @property
    def is_fresh(self) -> bool:
        """Whether the last one came from the data set."""

    def load(self) -> Any:
        """The next batch, on the device."""

    def again(self) -> Any:
        """A batch that need not be a new one, on the device."""


class Loader:
    """An endless supply of batches of one size; a small data set is gone through again and again.

    Args:
        job: has the collate function and the precision
        dataset: its training data
        size: samples of a batch
        device: where batches go
    """

    def __init__(self, job: Job, dataset: Any, size: int, device: str) -> None:
        self._job = job
        self._dataset = dataset
        self._device = device
        order = torch.randperm(dataset_length(dataset), generator=torch.Generator().manual_seed(job.seed))
        visits = _BATCHES_AHEAD * size
        self._batches = Shares(
            order.repeat(-(-visits // len(order)))[:visits], batch=size, replicas=1, microbatches=1, replica=0
        )
        self._loaded: Iterator[Share] = iter(())
        self._slow = 0
        self._last: Any = None
        self._fresh = False

    @property
    def is_fresh(self) -> bool:
        """Whether the last batch came from the data set."""
        return self._fresh

    def load(self) -> Any:
        """The next batch, on the device."""
        if self._slow >= MOST_SLOW:
            self._fresh = False
            return self._last
        started = time.perf_counter()
        batch = self._read()
        self._fresh = True
        if time.perf_counter() - started > SLOW_S:
            self._slow, self._last = self._slow + 1, batch
        return batch

    def again(self) -> Any:
        """A batch that need not be a new one: of a slow data set the last one, on the device."""
        if self._last is None:
            return self.load()
        self._fresh = False
        return self._last

    def _read(self) -> Any:
        share = next(self._loaded, None)
        if share is None:
            self._loaded = self._batches.load(
                range(_BATCHES_AHEAD),
                self._dataset,
                self._job,
                seed=self._job.seed,
                pin_memory=self._device != "cpu",
            )
            share = next(self._loaded)
        return place_batch(share.microbatch(0), precision=self._job.precision, device=self._device)


class Repeated:
    """The batches of a loader for what is not there to time loading: slow ones are not read for it.

    Args:
        loader: of batches of one size
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    @property
    def is_fresh(self) -> bool:
        """Whether the last batch came from the data set."""
        return self._loader.is_fresh

    def load(self) -> Any:
        """A batch, on the device."""
        return self._loader.again()

    def again(self) -> Any:
        """A batch, on the device."""
        return self._loader.again()
