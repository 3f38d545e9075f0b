"""One microbatch from the data set to a batch, in the thread or the worker in which it is called.

    request ─▶ samples, from the cache or the data set ─▶ collate ─▶ answer: the batch, and what it took

What a sample draws depends on the epoch and on its number, so that global batches are the same however they are cut.
What the job's collate function draws depends on the first sample of its microbatch, so that two ranks that load the
same microbatch, as the first and the last stage of a pipeline do, see the same; how a global batch is cut does matter
there.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, Subset, TensorDataset
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from trimaran.graph.data_faults import Fault, Faulty, batching_fault, reading_fault
from trimaran.runtime.feed.cache import SampleCache
from trimaran.runtime.feed.drawing import Drawing
from trimaran.runtime.feed.stopwatch import now, since
from trimaran.runtime.seeds import derive_seed

Key = tuple[int, int, int]
"""Epoch, number of the global batch in it, number of the microbatch: they rise."""


class Request(NamedTuple):
    """A microbatch that is asked for.

    Attributes:
        key: which one
        seed: of what is drawn in its epoch
        samples: their numbers in the data set
    """

    key: Key
    seed: int
    samples: list[int]


class Answer(NamedTuple):
    """A microbatch that was loaded.

    Attributes:
        key: which one
        samples: how many
        batch: as collate made it; None where something is wrong
        read_s: standing still [s]
        prepared_s: work, and waiting for a core [s]
        fault: what is wrong
    """

    key: Key
    samples: int
    batch: Any
    read_s: float
    prepared_s: float
    fault: Fault | None


class Reading(Dataset[Answer]):
    """A data set of which requests are the index.

    Args:
        dataset: the job's, map-style
        collate: the job's; None: torch's default
        cache: samples that were read before; None: nothing is kept

    Attributes:
        dataset: the job's
    """

    def __init__(
        self, dataset: Any, collate: Callable[[list[Any]], Any] | None, *, cache: SampleCache | None = None
    ) -> None:
        self.dataset = dataset
        self._collate = collate
        self._cache = cache
        self._reads = None if _is_rows(dataset) else Drawing()
        self._makes = None if collate is None else Drawing()

    def __getitem__(self, request: Request) -> Answer:
        start = now()
        batch, fault = None, None
        try:
            batch = self._make(self._read(request), request)
        except Faulty as error:
            fault = error.fault
        read_s, prepared_s = since(start)
        return Answer(request.key, len(request.samples), batch, read_s, prepared_s, fault)

    def _read(self, request: Request) -> list[Any]:
        cache = self._cache
        if cache is None:
            return self._fetch(request.samples, request.seed)
        # A batch of the job's own making may share memory with its samples, and is the training's to change.
        kept = {number: cache.get(number, copy=self._collate is not None) for number in request.samples}
        missing = [number for number, sample in kept.items() if sample is None]
        if missing:
            for number, sample in zip(missing, self._fetch(missing, request.seed), strict=True):
                kept[number] = sample
                if self._reads is None or not self._reads.drawn:
                    cache.put(number, sample)
        return [kept[number] for number in request.samples]

    def _fetch(self, samples: Sequence[int], seed: int) -> list[Any]:
        if self._reads is None:
            return self._all(samples)
        return self._reads.call(samples, self._one, self._all, lambda number: derive_seed(seed, number))

    def _one(self, number: int) -> Any:
        try:
            return self.dataset[number]
        except Exception as error:
            raise Faulty(reading_fault(error, [number])) from error

    def _all(self, samples: Sequence[int]) -> list[Any]:
        fetch = getattr(self.dataset, "__getitems__", None)
        try:
            found = [self.dataset[number] for number in samples] if fetch is None else list(fetch(list(samples)))
        except Exception as error:
            # Which one is it? By itself it raises again.
            for number in samples:
                self._one(number)
            raise Faulty(reading_fault(error, samples)) from error
        if len(found) != len(samples):
            wrong = ValueError(f"__getitems__ gave {len(found)} samples for {len(samples)} numbers")
            raise Faulty(reading_fault(wrong, samples))
        return found

    def _make(self, samples: list[Any], request: Request) -> Any:
        def make(numbers: Sequence[int]) -> Any:
            try:
                return (self._collate or _default_collate)(samples)
            except Exception as error:
                raise Faulty(batching_fault(error, samples, numbers, own=self._collate is not None)) from error

        if self._makes is None:
            return make(request.samples)
        seed = derive_seed(request.seed, "collate", request.samples[0])
        (batch,) = self._makes.call([request.samples], make, lambda one: [make(one[0])], lambda _: seed)
        return batch


def _is_rows(dataset: Any) -> bool:
    """Whether a data set is rows of tensors, or a choice of them, which draw nothing."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) is TensorDataset


def _default_collate(samples: list[Any]) -> Any:
    """As torch does by default, but without memory that workers share of each batch's own: batches have blocks."""
    known = default_collate_fn_map
    plain: dict[Any, Any] = {torch.Tensor: _stack} if known.get(torch.Tensor) is collate_tensor_fn else {}
    return collate(samples, collate_fn_map={**known, **plain})


def _stack(samples: list[torch.Tensor], *, collate_fn_map: Any = None) -> Any:
    if samples[0].layout != torch.strided or samples[0].is_nested:
        return collate_tensor_fn(samples, collate_fn_map=collate_fn_map)  # says what to do
    return torch.stack(samples, 0)
