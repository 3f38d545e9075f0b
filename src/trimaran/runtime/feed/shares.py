"""A rank's parts of global batches, loaded when they are asked for.

A share knows how many samples each microbatch of its rank has. What is in them is loaded one microbatch at a time.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

from trimaran.errors import InputError
from trimaran.job import Job
from trimaran.program.feeding import IN_LINE
from trimaran.runtime.feed.loader import Loader
from trimaran.runtime.feed.placing import Arrivals, OnDemand, Place, Taken
from trimaran.runtime.feed.reading import Key, Reading, Request
from trimaran.runtime.feed.types import Loading
from trimaran.runtime.shares import microbatch_sizes


class Share:
    """A rank's part of one global batch.

    Args:
        samples: of the global batch
        sizes: samples of each microbatch of this rank's replica
        take: loads a microbatch, by number; None: this rank reads nothing
        take_whole: loads all of them as one batch
    """

    def __init__(
        self,
        *,
        samples: int,
        sizes: tuple[int, ...],
        take: Callable[[int], Taken] | None,
        take_whole: Callable[[], Taken] | None = None,
    ) -> None:
        self.samples = samples
        self.sizes = sizes
        self._take, self._take_whole = take, take_whole
        self._is_whole = False
        self._kept: dict[int, Any] = {}
        self._loadings: dict[int, Loading] = {}

    def microbatch(self, number: int) -> Any:
        """One microbatch. It is let go, so that it can be had once.

        Args:
            number: of the microbatch

        Raises:
            InputError: it has been had, or is empty
        """
        if self._take is None:
            return None
        had = self._is_whole or (number in self._loadings and number not in self._kept)
        if had or not self.sizes[number]:
            why = "has been taken: a share is had once" if had else "is empty"
            code = "share.microbatch-taken" if had else "share.microbatch-empty"
            raise InputError(f"microbatch {number} of this share {why}", code=code, number=number)
        # They are loaded in order; those before it are kept.
        for one in range(len(self._loadings), number + 1):
            taken = self._take(one)
            self._kept[one], self._loadings[one] = taken.batch, taken.loading
        return self._kept.pop(number)

    def loading(self, number: int) -> Loading:
        """What it took to get a microbatch.

        Args:
            number: of one that was taken

        Raises:
            InputError: it was not
        """
        if number not in self._loadings:
            raise InputError(
                f"microbatch {number} has not been loaded on this rank", code="share.not-loaded", number=number
            )
        return self._loadings[number]

    def whole(self) -> Any:
        """All samples of the share as one batch, as collate makes it; an empty tuple where this rank reads nothing.

        Raises:
            InputError: a microbatch of it has been had
        """
        if self._take is None:
            return ()
        if self._take_whole is None or sum(size > 0 for size in self.sizes) == 1:
            return self.microbatch(0)
        if self._loadings:
            raise InputError("a microbatch of this share has been taken: a share is had once", code="share.taken")
        taken = self._take_whole()
        self._is_whole, self._loadings[0] = True, taken.loading
        return taken.batch


class Shares:
    """One replica's shares of the global batches of an epoch, of an evaluation, or of a part of a stream.

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

    def sizes(self, number: int) -> tuple[int, tuple[int, ...]]:
        """Samples of a global batch, and of each microbatch of this replica.

        Args:
            number: of the global batch
        """
        samples, sizes = self._cut(number)
        return samples, sizes[self._replica]

    def requests(self, numbers: Iterable[int], *, seed: int, epoch: int = 0, whole: bool = False) -> Iterator[Request]:
        """What this replica asks for, microbatch by microbatch.

        Args:
            numbers: of the global batches
            seed: of what is drawn
            epoch: number of the epoch
            whole: each share as one batch
        """
        for number in numbers:
            _, sizes = self._cut(number)
            start = number * self._batch + sum(sum(share) for share in sizes[: self._replica])
            mine = sizes[self._replica]
            for microbatch, size in enumerate((sum(mine),) if whole else mine):
                if size:
                    yield Request((epoch, number, microbatch), seed, self._order[start : start + size].tolist())
                start += size

    def load(
        self,
        numbers: range,
        dataset: Any,
        job: Job,
        *,
        seed: int,
        pin_memory: bool = False,
        place: Place = lambda batch: batch,
        observe: Callable[[Taken], Taken] = lambda taken: taken,
    ) -> Iterator[Share]:
        """The shares of some global batches, loaded in line.

        Args:
            numbers: of the global batches
            dataset: samples by the numbers of the order; None: this rank reads nothing
            job: has the collate function
            seed: of what the data set draws
            pin_memory: copy batches to memory from which a GPU can fetch them
            place: brings a batch to the device; by default it stays where it is
            observe: told of each batch that is taken, and gives it on
        """
        if dataset is None:
            for number in numbers:
                samples, sizes = self.sizes(number)
                yield Share(samples=samples, sizes=sizes, take=None)
            return
        reading = Reading(dataset, job.collate)

        def load(numbers: Iterable[int], *, whole: bool = False) -> Arrivals:
            requests = self.requests(numbers, seed=seed, whole=whole)
            return OnDemand(Loader(reading, requests, IN_LINE, pin=pin_memory, seed=seed), place)

        def take_whole(number: int) -> Taken:
            return observe(load([number], whole=True).take())

        parts = load(numbers)
        for number in numbers:
            samples, sizes = self.sizes(number)
            take = partial(_take, parts, number, observe)
            yield Share(samples=samples, sizes=sizes, take=take, take_whole=partial(take_whole, number))

    def _cut(self, number: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
        samples = min(self._batch, len(self._order) - number * self._batch)
        return samples, microbatch_sizes(samples, replicas=self._replicas, microbatches=self._microbatches)


def skip_to(arrivals: Arrivals, key: Key) -> Taken:
    """A microbatch that comes later, or next.

    Args:
        arrivals: in the order of their keys
        key: of that microbatch
    """
    while True:
        taken = arrivals.take()
        if taken.key >= key:
            return taken


def _take(arrivals: Arrivals, number: int, observe: Callable[[Taken], Taken], microbatch: int) -> Taken:
    return observe(skip_to(arrivals, (0, number, microbatch)))
