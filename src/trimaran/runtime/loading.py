"""A rank's parts of global batches, loaded when they are asked for.

Microbatches are loaded one at a time. A data set that draws random numbers (crops, flips) draws the same ones for the
same microbatch in every process: they are seeded by its samples. So the first stage of a pipeline, which reads the
inputs, and the last one, which reads the targets, see the same samples.
"""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from trimaran.errors import InputError
from trimaran.job import Job
from trimaran.runtime.seeds import derive_seed, seeded
from trimaran.runtime.shares import join_batches, microbatch_sizes


class Share:
    """A rank's part of one global batch.

    Args:
        samples: of the global batch
        sizes: samples of each microbatch of this rank's replica
        loaded: gives the microbatches that are not empty, in order; None: this rank reads nothing
    """

    def __init__(self, *, samples: int, sizes: tuple[int, ...], loaded: Iterator[Any] | None) -> None:
        self.samples = samples
        self.sizes = sizes
        self._loaded = loaded
        self._kept: dict[int, Any] = {}
        self._next = 0

    def microbatch(self, number: int) -> Any:
        """One microbatch. It is let go, so that it can be had once.

        Args:
            number: of the microbatch
        """
        if self._loaded is None:
            return None
        while number not in self._kept:
            self._kept[self._next] = next(self._loaded)
            self._next += 1
        return self._kept.pop(number)

    def whole(self) -> Any:
        """All microbatches as one batch; an empty tuple where this rank reads nothing.

        Raises:
            InputError: each microbatch was padded on its own
        """
        if self._loaded is None:
            return ()
        return join_batches([self.microbatch(number) for number, size in enumerate(self.sizes) if size])


class Shares:
    """One replica's shares of the global batches of an epoch, or of an evaluation.

    Args:
        order: samples, in the order in which they are visited, int64
        batch: samples of a global batch
        replicas: data-parallel replicas
        microbatches: of each replica
        replica: whose
    """

    def __init__(self, order: torch.Tensor, *, batch: int, replicas: int, microbatches: int, replica: int) -> None:
        self._order = order
        self._batch = batch
        self._replicas, self._microbatches, self._replica = replicas, microbatches, replica

    def load(
        self,
        numbers: range,
        dataset: Any,
        job: Job,
        *,
        seed: int,
        workers: int = 0,
        pin_memory: bool = False,
    ) -> Iterator[Share]:
        """The shares of some global batches.

        Args:
            numbers: of the global batches
            dataset: map-style; None: this rank reads nothing
            job: has the collate function
            seed: of what the data set draws
            workers: processes that load beside the training
            pin_memory: copy batches to memory from which a GPU can fetch them
        """
        loaded: Iterator[Any] | None = None
        if dataset is not None:
            loader: DataLoader[Any] = DataLoader(
                _Seeded(dataset, seed),
                batch_sampler=self._indices(numbers),
                collate_fn=job.collate,
                num_workers=workers,
                pin_memory=pin_memory,
                # Without one of its own, the loader would draw from the generator that dropout draws from.
                generator=torch.Generator().manual_seed(seed),
            )
            loaded = iter(loader)
        for number in numbers:
            samples, sizes = self._sizes(number)
            yield Share(samples=samples, sizes=sizes[self._replica], loaded=loaded)

    def _sizes(self, number: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
        samples = min(self._batch, len(self._order) - number * self._batch)
        return samples, microbatch_sizes(samples, replicas=self._replicas, microbatches=self._microbatches)

    def _indices(self, numbers: Iterable[int]) -> Iterator[list[int]]:
        for number in numbers:
            _, sizes = self._sizes(number)
            start = number * self._batch + sum(sum(share) for share in sizes[: self._replica])
            for size in sizes[self._replica]:
                if size:
                    yield self._order[start : start + size].tolist()
                start += size


class _Seeded(Dataset[Any]):
    """A data set that draws the same random numbers for the same microbatch, in any process."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed
        self._draws = _may_draw(dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        with seeded(derive_seed(self._seed, *indices)) if self._draws else nullcontext():
            fetch = getattr(self._dataset, "__getitems__", None)
            return list(fetch(indices)) if fetch is not None else [self._dataset[index] for index in indices]


def _may_draw(dataset: Any) -> bool:
    """Whether a data set may draw random numbers; rows of tensors, and choices of them, do not."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) is not TensorDataset


def dataset_length(dataset: Any) -> int:
    """Samples of a data set.

    Raises:
        InputError: it has no length, or one of 0
    """
    try:
        length = len(dataset)
    except TypeError:
        raise InputError(
            "Job.dataset must make a map-style data set, with a length and an index; "
            f"{type(dataset).__name__} has no length"
        ) from None
    if length < 1:
        raise InputError("the data set is empty")
    return length
