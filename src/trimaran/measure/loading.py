"""Batches of the job's own data, loaded as the runtime loads them.

Runs inside the ranks; imports torch.
"""

from collections.abc import Iterator
from typing import Any

import torch

from trimaran.job import Job
from trimaran.runtime.loading import Share, Shares, dataset_length
from trimaran.runtime.precision import place_batch

_BATCHES_AHEAD = 64


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

    def load(self) -> Any:
        """The next batch, on the device."""
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
