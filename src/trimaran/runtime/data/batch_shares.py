"""A rank's shares of global batches, loaded when they are asked for.

A global batch of N samples is split into contiguous shares, one for each replica, as even as possible, and each share
into contiguous microbatches, as even as possible. So any plan trains on the same global batches in the same order.

Every replica uses the same number of microbatches, `min(microbatches, N // replicas)`, also in a small last batch:
collectives are issued in the same order everywhere, and the microbatches that are empty are empty on all ranks.

Where a last batch has fewer samples than there are replicas, each of the others runs its last sample too, so that it
takes part in the collectives, and adds nothing: its loss and its gradients count with the weight 0.

A share knows how many samples each microbatch of its rank has. Their samples are loaded one microbatch at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.program.strategy import IN_LINE
from trimaran.runtime.data.loader import Loader
from trimaran.runtime.data.prefetch import Arrivals, InLine, LoadingTimes, Place, Taken
from trimaran.runtime.data.reading import Key, Reading, Request
from trimaran.runtime.streams import Lane
from trimaran.user_code.batches import count_samples, is_sliceable, join_batches, slice_batch


def split_evenly(count: int, parts: int) -> tuple[int, ...]:
    """Sizes of parts that differ by at most one, the larger ones first.

    Example:
        >>> split_evenly(7, 3)
        (3, 2, 2)
    """
    size, left = divmod(count, parts)
    return tuple(size + (part < left) for part in range(parts))


def microbatch_sizes(samples: int, *, replicas: int, microbatches: int) -> tuple[tuple[int, ...], ...]:
    """Samples of each microbatch of each replica.

    Args:
        samples: of the global batch
        replicas: data-parallel replicas
        microbatches: of each replica; the last ones are empty where there are not enough samples

    Returns:
        For each replica, one size a microbatch. A replica for which there is no sample has one that does not count.

    Example:
        >>> microbatch_sizes(10, replicas=2, microbatches=4)
        ((2, 1, 1, 1), (2, 1, 1, 1))
        >>> microbatch_sizes(5, replicas=2, microbatches=4)
        ((2, 1, 0, 0), (1, 1, 0, 0))
        >>> microbatch_sizes(1, replicas=2, microbatches=2)
        ((1, 0), (1, 0))
    """
    used = max(1, min(microbatches, samples // replicas))
    empty = (0,) * (microbatches - used)
    return tuple(split_evenly(max(1, share), used) + empty for share in split_evenly(samples, replicas))


def first_sample(samples: int, *, replicas: int, microbatches: int, replica: int) -> int:
    """Place of a replica's first sample in its global batch.

    Args:
        samples: of the global batch
        replicas: data-parallel replicas
        microbatches: of each replica
        replica: whose

    Example:
        >>> [first_sample(2, replicas=4, microbatches=1, replica=replica) for replica in range(4)]
        [0, 1, 1, 1]
    """
    sizes = microbatch_sizes(samples, replicas=replicas, microbatches=microbatches)
    return min(sum(map(sum, sizes[:replica])), samples - 1)


def partition_batch(batch: Any, sizes: Sequence[int], *, known: bool = False, counts: bool = True) -> list[Any]:
    """Split a rank's share of a global batch into microbatches.

    Args:
        batch: the share
        sizes: samples of each microbatch
        known: the batch has this number of samples, also where the batch does not show it
        counts: False: the first dims of the job's batches do not count samples, even if they are as long by chance

    Returns:
        One batch a microbatch; None in the place of an empty one, where there is only one that is not.

    Raises:
        InputError: the batch has another number of samples than the sizes add up to, or does not show it; or it holds
            something that cannot be split
    """
    samples = sum(sizes)
    used = [number for number, size in enumerate(sizes) if size]
    sliceable = counts and is_sliceable(batch, samples)
    if not sliceable and not known:
        _check_visible(batch, samples)
    if len(used) == 1:
        return [batch if number in used else None for number in range(len(sizes))]
    if not sliceable:
        raise InputError(
            f"this batch cannot be split into {len(used)} microbatches: it holds something else than tensors whose "
            f"first dim is that of the {samples} samples of this rank's share. Load each microbatch by itself, with "
            "`for share in session.feed.shares(): session.step(share)`; or take a plan with one microbatch",
            code="share.cannot-split",
            microbatches=len(used),
        )
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    return [slice_batch(batch, end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _check_visible(batch: Any, expected: int) -> None:
    """Refuse a batch of the caller that shows another number of samples, or none."""
    advice = (
        "pass what session.batches() gave, or split your own batches, of Job.global_batch_size samples in all, evenly "
        "over the replicas; Job.drop_last leaves out a smaller one at the end of an epoch"
    )
    try:
        samples = count_samples(batch)
    except InputError as error:
        raise InputError(
            f"this rank's share of the global batch must have {expected} samples, and the number of samples in the "
            f"batch is not known ({error.message}): {advice}",
            code="share.size-unknown",
            expected=expected,
        ) from error
    if samples != expected:
        raise InputError(
            f"this rank's share of the global batch must have {expected} samples, the batch has {samples}: {advice}",
            code="share.wrong-size",
            samples=samples,
            expected=expected,
        )


class Share:
    """A rank's part of one global batch.

    Args:
        samples: of the global batch
        sizes: samples of each microbatch of this rank's replica
        counts: False: its one sample is another replica's, and adds nothing
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
        counts: bool = True,
    ) -> None:
        self.samples = samples
        self.sizes = sizes
        self.counts = counts
        self._take, self._take_whole = take, take_whole
        self._is_whole = False
        self._kept: dict[int, Any] = {}
        self._loadings: dict[int, LoadingTimes] = {}

    def microbatch(self, number: int) -> Any:
        """One microbatch. The share does not keep it, so it can be taken once.

        Args:
            number: of the microbatch

        Raises:
            InputError: it was taken before, or is empty
        """
        if self._take is None:
            return None
        had = self._is_whole or (number in self._loadings and number not in self._kept)
        if had or not self.sizes[number]:
            why = "was taken before: each can be taken once" if had else "is empty"
            code = "share.microbatch-taken" if had else "share.microbatch-empty"
            raise InputError(f"microbatch {number} of this share {why}", code=code, number=number)
        # They are loaded in order; those before it are kept.
        for one in range(len(self._loadings), number + 1):
            taken = self._take(one)
            self._kept[one], self._loadings[one] = taken.batch, taken.loading
        return self._kept.pop(number)

    def loading(self, number: int) -> LoadingTimes:
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
            InputError: a microbatch of it was taken before
        """
        if self._take is None:
            return ()
        if self._take_whole is None or sum(size > 0 for size in self.sizes) == 1:
            return self.microbatch(0)
        if self._loadings:
            raise InputError(
                "a microbatch of this share was taken before: take the microbatches or the whole share, once",
                code="share.taken",
            )
        taken = self._take_whole()
        self._is_whole, self._loadings[0] = True, taken.loading
        return taken.batch

    def peek(self) -> list[Any]:
        """Its microbatches, which can still be taken."""
        parts = [self.microbatch(number) for number in range(sum(size > 0 for size in self.sizes))]
        self._kept.update(enumerate(parts))
        return parts

    def joined(self, *, counts: bool = True) -> Any:
        """All samples of the share as one batch whose slices are its microbatches; the share, where there is none.

        There is none of lists, strings or graphs, nor where a value that is no tensor differs between microbatches.

        Args:
            counts: False: the first dims of the job's batches do not count samples, even if they are as long by chance

        Raises:
            InputError: a microbatch of it was taken before
        """
        used = [size for size in self.sizes if size]
        if self._take is None or len(used) == 1:
            return self.whole()
        if not counts:
            return self
        batch = join_batches(self.peek(), used)
        if batch is None:
            return self
        self._kept, self._is_whole = {}, True
        return batch

    def __iter__(self) -> Iterator[Any]:
        raise InputError(
            "the microbatches of this share do not fit together, so that session.batches() gives it in the place of a "
            "batch: pass it to session.step as it is, or take a plan with one microbatch",
            code="share.not-a-batch",
        )


class BatchShares:
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
        samples = min(self._batch, len(self._order) - number * self._batch)
        sizes = microbatch_sizes(samples, replicas=self._replicas, microbatches=self._microbatches)
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
            samples, mine = self.sizes(number)
            start = number * self._batch + first_sample(
                samples, replicas=self._replicas, microbatches=self._microbatches, replica=self._replica
            )
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
                yield Share(samples=samples, sizes=sizes, take=None, counts=self._replica < samples)
            return
        reading = Reading(dataset, job.collate)

        def load(numbers: Iterable[int], *, whole: bool = False) -> Arrivals:
            requests = self.requests(numbers, seed=seed, whole=whole)
            loader = Loader(reading, requests, IN_LINE, pin=pin_memory, seed=seed)
            return InLine(loader, place, Lane("cpu"), 0)

        def take_whole(number: int) -> Taken:
            return observe(load([number], whole=True).take())

        parts = load(numbers)
        for number in numbers:
            samples, sizes = self.sizes(number)
            take = partial(_take, parts, number, observe)
            counts = self._replica < samples
            whole = partial(take_whole, number)
            yield Share(samples=samples, sizes=sizes, take=take, take_whole=whole, counts=counts)


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
