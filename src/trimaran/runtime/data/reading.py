"""One microbatch from the data set to a batch, in the thread or the worker in which it is called.

    request ─▶ samples, from the cache or the data set ─▶ collate ─▶ answer: the batch, and the time that it took

The random numbers of a sample depend on the epoch and on its number, so that global batches are the same for any split
into microbatches. Those of the job's collate function depend on the first sample of its microbatch, so that two ranks
that load the same microbatch, as the first and the last stage of a pipeline do, see the same; they do depend on the
split.

So a sample is the same in every process, and dropout continues as if nothing had been drawn. This holds for draws from
the global generators of torch, `random` and numpy; a generator that a data set makes for itself is not known here.

Seeding three generators for each sample costs some 20 µs, as much as reading the sample from memory. So `SeededCalls`
finds out from which of them a function draws: the first calls are seeded one by one, and watched. From then on only
those generators are seeded, and none for a function that has not drawn. If another one has moved afterwards, the calls
are repeated with all of them seeded.

A thread's time is work or blocked time. Blocked time is the time on the clock without the thread's work and without its
waits for a core: sleep, storage, network, the interpreter's lock. A wait for a core counts as work, because the work of
others who share the cores causes it.

Source:
    `/proc/thread-self/schedstat`: time on a core, time ready to run and without one, times run (Linux,
    Documentation/scheduler/sched-stats.rst). Its first figure is only renewed now and then, so that the clock of the
    thread's work (`CLOCK_THREAD_CPUTIME_ID`) is asked in its place.
"""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy
import torch
from torch.utils.data import Dataset, Subset, TensorDataset
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from trimaran.base.user_errors import asking, named
from trimaran.runtime.data.cache import SampleCache
from trimaran.user_code.datasets import Faulty, ReadFault, batching_fault, reading_fault
from trimaran.user_code.randomness import derive_seed, find_moved, host_states, restore_host, seed_host

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class SeededCalls:
    """Calls of a user's function that may draw random numbers: they depend on a seed alone.

    Attributes:
        drawn: generators that it has drawn from, numbers in `HOST_GENERATORS`; None: it has not been called yet
    """

    def __init__(self) -> None:
        self.drawn: frozenset[int] | None = None

    def call(
        self,
        items: Sequence[_Item],
        each: Callable[[_Item], _Made],
        together: Callable[[Sequence[_Item]], list[_Made]],
        seed: Callable[[_Item], int],
    ) -> list[_Made]:
        """Call it for some items.

        Args:
            items: for which
            each: calls it for one item
            together: the same for all of them, perhaps quicker
            seed: of an item
        """
        states = host_states()
        if self.drawn is not None:
            try:
                made = self._seeded(items, each, seed) if self.drawn else together(items)
            finally:
                moved = find_moved(states) - self.drawn
                restore_host(states, self.drawn | moved)
            if not moved:
                return made
        try:
            return self._observed(items, each, seed)
        finally:
            restore_host(states)

    def _seeded(
        self, items: Sequence[_Item], each: Callable[[_Item], _Made], seed: Callable[[_Item], int]
    ) -> list[_Made]:
        made = []
        for item in items:
            seed_host(seed(item), self.drawn or ())
            made.append(each(item))
        return made

    def _observed(
        self, items: Sequence[_Item], each: Callable[[_Item], _Made], seed: Callable[[_Item], int]
    ) -> list[_Made]:
        made = []
        drawn = self.drawn or frozenset()
        for item in items:
            seed_host(seed(item))
            before = host_states()
            made.append(each(item))
            drawn |= find_moved(before)
        self.drawn = drawn
        return made


_SCHEDSTAT = "/proc/thread-self/schedstat"


class ThreadMoment(NamedTuple):
    """A moment of one thread.

    Attributes:
        clock_ns: on the host's clock [ns]
        busy_ns: how long the thread has worked or waited for a core so far [ns]
    """

    clock_ns: int
    busy_ns: int


def now() -> ThreadMoment:
    """This moment of this thread."""
    return ThreadMoment(time.perf_counter_ns(), time.thread_time_ns() + _delay_ns())


def since(start: ThreadMoment) -> tuple[float, float]:
    """How a thread has spent its time since a moment.

    Args:
        start: from `now`, in the same thread

    Returns:
        Blocked, and at work [s]; they add up to the time on the clock.
    """
    end = now()
    clock_ns = end.clock_ns - start.clock_ns
    busy_ns = min(clock_ns, end.busy_ns - start.busy_ns)
    return (clock_ns - busy_ns) * 1e-9, busy_ns * 1e-9


class _Schedstat:
    """The open file of one thread; a forked process has other threads, so that it opens its own."""

    def __init__(self, thread: int) -> None:
        self.thread = thread
        try:
            self.descriptor = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.descriptor = -1

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


_files = threading.local()


def _delay_ns() -> int:
    """How long this thread has waited for a core so far [ns]; 0 where the system does not say."""
    thread = threading.get_native_id()
    file: _Schedstat | None = getattr(_files, "schedstat", None)
    if file is None or file.thread != thread:
        file = _files.schedstat = _Schedstat(thread)
    if file.descriptor < 0:
        return 0
    try:
        return int(os.pread(file.descriptor, 64, 0).split()[1])
    except (OSError, IndexError, ValueError):
        return 0


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
        read_s: blocked [s]
        prepared_s: work, and waiting for a core [s]
        fault: what is wrong
    """

    key: Key
    samples: int
    batch: Any
    read_s: float
    prepared_s: float
    fault: ReadFault | None


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
        self._asks = named("the data", dataset, collate)
        self._cache = cache
        self._reads = None if _is_rows(dataset) else SeededCalls()
        self._makes = None if collate is None else SeededCalls()

    def __getitem__(self, request: Request) -> Answer:
        start = now()
        batch, fault = None, None
        try:
            with asking(self._asks):
                batch = self._make(self._read(request), request)
        except Faulty as error:
            fault = error.fault
        read_s, prepared_s = since(start)
        return Answer(request.key, len(request.samples), batch, read_s, prepared_s, fault)

    def digest(self, samples: Sequence[int], seed: int) -> int | None:
        """A digest of some samples as they are read now; None: they cannot be read.

        Args:
            samples: their numbers
            seed: of what is drawn in their epoch
        """
        # That module imports this one.

        try:
            return digest_of(self._fetch(samples, seed))
        except Faulty:
            return None

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
            # Which one it is: read by itself, it raises again.
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
    """As torch does by default, but without shared memory for each batch: batches are handed over in blocks."""
    known = default_collate_fn_map
    plain: dict[Any, Any] = {torch.Tensor: _stack} if known.get(torch.Tensor) is collate_tensor_fn else {}
    return collate(samples, collate_fn_map={**known, **plain})


def _stack(samples: list[torch.Tensor], *, collate_fn_map: Any = None) -> Any:
    if samples[0].layout != torch.strided or samples[0].is_nested:
        return collate_tensor_fn(samples, collate_fn_map=collate_fn_map)  # says what to do
    return torch.stack(samples, 0)


_WHOLE_BYTES, _LOOKED_AT = 1 << 14, 1 << 11
"""Largest array of which all bytes count for its digest, and number of elements, evenly spread, that count of a larger
one [bytes, elements]."""
_DEEPEST = 8


def digest_of(samples: Sequence[Any]) -> int:
    """A digest of some samples, of 63 bits and never 0.

    Args:
        samples: as the data set gave them; of large arrays a part counts
    """
    found = hashlib.blake2b(digest_size=8)
    for sample in samples:
        _add(sample, found.update, 0)
    return (int.from_bytes(found.digest(), "big") >> 1) or 1


def _add(value: Any, update: Callable[[bytes], None], depth: int) -> None:
    update(type(value).__name__.encode())
    if isinstance(value, torch.Tensor):
        _add_tensor(value, update)
    elif isinstance(value, numpy.ndarray | numpy.generic):
        array = numpy.asarray(value)
        update(f"{array.dtype} {array.shape}".encode())
        if array.dtype.kind != "O":
            update(_few(array.reshape(-1), array.nbytes).tobytes())
    elif isinstance(value, str | bytes | int | float | complex | None):
        update(repr(value).encode())
    elif depth == _DEEPEST:
        return
    elif isinstance(value, Mapping):
        for key, part in value.items():
            update(repr(key).encode())
            _add(part, update, depth + 1)
    elif isinstance(value, tuple | list):
        update(str(len(value)).encode())
        for part in value:
            _add(part, update, depth + 1)
    elif hasattr(value, "__array_interface__"):
        # Such as pictures that are still to be converted.
        _add(numpy.asarray(value), update, depth + 1)
    else:
        _add(getattr(value, "__dict__", None), update, depth + 1)


def _add_tensor(tensor: torch.Tensor, update: Callable[[bytes], None]) -> None:
    update(f"{tensor.dtype} {tuple(tensor.shape) if not tensor.is_nested else 'nested'}".encode())
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized or not tensor.numel():
        return
    plain = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    few = _few(plain, plain.nbytes).cpu().contiguous()
    update(few.view(torch.uint8).numpy().tobytes())


def _few(flat: Any, nbytes: int) -> Any:
    return flat if nbytes <= _WHOLE_BYTES else flat[:: max(1, len(flat) // _LOOKED_AT)]
