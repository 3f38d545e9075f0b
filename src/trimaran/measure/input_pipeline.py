"""Times of a job's samples on a rank: reading, preparing, handing over.

    read     microbatches of samples that no run before has read, of one sample and of several in turn, for about a
             second; some of them once more
    recall   microbatches of what was read, from a cache
    worker   one worker reads microbatches and hands them over (`worker_costs`); only where loading takes a part of the
             step that matters

All of it as the runtime's input pipeline does it, and on all ranks at the same time, as they read at the same time in a
training. Runs inside the ranks; imports torch.

The time of a worker that reads microbatches and hands them over, and the training thread's time for taking them.

    worker    ▒▒█▒▒█▒▒█▒▒█ hand over   ▒▒█▒▒█…      work of all its threads, as the system counts it
    thread    compute  take   compute  take         between two of them its caches are filled with other things

A worker does more than the same code in line: it wakes up after each sample that it has waited for, on a core that did
something else, and packs. So what a sample takes in a worker is measured in one, with microbatches of one sample and of
several, while the threads of all ranks compute: on a core that idles, a worker finds its caches as it left them. Runs
inside the ranks; imports torch.
"""

import itertools
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from trimaran.base.job import Job
from trimaran.measure.findings import Points, Sampled
from trimaran.program.strategy import IN_LINE, Feeding
from trimaran.runtime.data.cache import (
    LOOKED_AT,
    SampleCache,
    Uncachable,
    cache_bytes,
    look_at,
    make_memory,
    packed,
    slot_of,
)
from trimaran.runtime.data.datasets import dataset_length
from trimaran.runtime.data.loader import Loader
from trimaran.runtime.data.orders import some_samples
from trimaran.runtime.data.reading import Answer, Reading, Request
from trimaran.runtime.data.worker_transport import Packed
from trimaran.user_code.batches import move_batch

BOX_S = 1.0
"""Time that the samples of the larger microbatches take together, about [s]."""

MOST_READ_TOGETHER = 16
_BATCHES = 6
_TIMEOUT_S = 120.0
_SETTLED_S, _LONGEST_S = 0.02, 10.0
_CACHE_NUMBERS = 1 << 20


def measure_worker(job: Job, dataset: Any, numbers: Sequence[int], found: Sampled) -> None:
    """Measure a worker.

    Args:
        job: has the collate function
        dataset: its training data
        numbers: samples that have been read before
        found: what is known of them; gets the figures of the worker

    Raises:
        InputError: the data set raises
        ExecutionError: the worker died
    """
    feeding = Feeding(workers=1)
    sample_s = _sample_s(found)
    several = max(2, min(MOST_READ_TOGETHER, int(BOX_S / (_BATCHES * max(sample_s, 1e-6)))))
    # The worker makes this number in advance.
    ahead = feeding.workers * feeding.ahead
    # The first of a size are in new memory, one for each block: ready, in progress, and held here.
    new = ahead + 2
    sizes = [1] * (1 + new + _BATCHES + ahead) + [several] * (new + _BATCHES + ahead)
    repeated = itertools.cycle(numbers)
    groups = (Request((0, at, 0), 4, list(itertools.islice(repeated, size))) for at, size in enumerate(sizes))
    before = multiprocessing.active_children()
    started = time.perf_counter()
    loader = Loader(Reading(dataset, job.collate), groups, feeding, seed=job.seed, timeout_s=_TIMEOUT_S)
    try:
        loader.next()
        found.starts.append(time.perf_counter() - started - sample_s)
        worker = next(one for one in multiprocessing.active_children() if one not in before)
        filler = torch.zeros(_CACHE_NUMBERS)
        for size, others in ((1, new), (several, ahead + new)):
            for _ in range(others):
                answer = loader.next()
            before_s = _settled_work_s(worker.pid, size * sample_s, filler)
            for _ in range(_BATCHES):
                filler.add_(1.0)
                began = time.thread_time()
                answer = loader.next()
                found.takes.append((batch_bytes(answer.batch), time.thread_time() - began))
            after_s = _settled_work_s(worker.pid, size * sample_s, filler)
            found.worker_makes.append((size, (after_s - before_s) / _BATCHES))
    finally:
        loader.close()


def _sample_s(found: Sampled) -> float:
    """Time of a sample in line, blocked and of a core, about [s]."""
    still = sorted(seconds for group in found.reads for seconds in group)
    work = sorted(seconds / size for size, seconds in found.makes)
    return still[len(still) // 2] + work[len(work) // 2]


def _settled_work_s(pid: int | None, unit_s: float, filler: torch.Tensor) -> float:
    """Work of a process so far, once it does nothing more for a while, in which this thread computes [s]."""
    pause_s = _SETTLED_S + 2.0 * unit_s
    deadline = time.monotonic() + _LONGEST_S
    known = _work_s(pid)
    while time.monotonic() < deadline:
        _compute(filler, pause_s)
        now = _work_s(pid)
        if now - known < 1e-4:
            return now
        known = now
    return known


def _compute(filler: torch.Tensor, seconds: float) -> None:
    """Fill the caches of a core for some time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        filler.add_(1.0)


def _work_s(pid: int | None) -> float:
    """Work of all threads of a process so far [s].

    Source:
        Linux, Documentation/scheduler/sched-stats.rst: the first field of /proc/<pid>/task/<tid>/schedstat.
    """
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total += int(task.read_bytes().split()[0])
        except (OSError, IndexError, ValueError):
            continue
    return total * 1e-9


def batch_bytes(batch: Any) -> int:
    """Bytes of the tensors of a batch.

    Example:
        >>> batch_bytes({"a": torch.zeros(2), "b": [torch.zeros(1)]})
        12
    """
    return sum(leaf.nbytes for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor))


LEAST_READS, MOST_READS = 6, 40
"""Microbatches that are read, half of them of one sample."""

READ_TWICE = 4
SHORTEST_S, MOST_TOGETHER = 2e-2, 16
"""Samples are read together so that they take about this long, at least two: their time is compared with that of
one [s]."""

_PROBES = 2
_REPEATS = 8


def measure_samples(job: Job, dataset: Any, *, rank: int, ranks: int, device: str = "cpu", workers: bool) -> Sampled:
    """Measure what samples take, on one rank.

    Args:
        job: has the collate function
        dataset: its training data
        rank: which of the ranks; each reads other samples
        ranks: that measure at the same time
        device: where batches go
        workers: measure a worker too

    Raises:
        InputError: the data set raises, or has no length
        ExecutionError: a worker died
    """
    found = Sampled(samples=dataset_length(dataset))
    groups = _groups(job, found.samples, rank=rank, ranks=ranks)
    read: list[list[int]] = []
    largest: Any = None
    answers = _timed_answers(Reading(dataset, job.collate), groups, seed=1)
    for group, answer, seconds in islice(answers, _PROBES, None):
        found.reads.append([answer.read_s / answer.samples])
        found.makes.append((answer.samples, seconds))
        read.append(group)
        largest = answer.batch if largest is None or answer.samples > 1 else largest
    for _, answer, _ in _timed_answers(Reading(dataset, job.collate), iter(read[:READ_TWICE]), seed=2):
        found.again.append([answer.read_s / answer.samples])
    slot_bytes = _look(dataset, found)
    found.sample_bytes = max(1, batch_bytes(largest) // max(len(group) for group in read))
    numbers = max(read, key=len)
    kept: list[Any] = next(_timed_answers(Reading(dataset, list), iter([numbers]), seed=3))[1].batch
    if slot_bytes:
        found.recalls = _recall(job, kept, slot_bytes)
    if device != "cpu":
        found.copies = [_copied(job, kept, size, device) for size in (1, len(kept)) for _ in range(_REPEATS)]
    if workers:
        measure_worker(job, dataset, sorted({number for group in read for number in group}), found)
    return found


def _groups(job: Job, length: int, *, rank: int, ranks: int) -> Iterator[list[int]]:
    """Samples of this rank, one and several in turn, until the time is over; before them some that do not count.

    Other measurements read the front of this order first, so this goes from its end.
    """
    order = some_samples(length, seed=job.seed).flip(0)
    mine: list[int] = order[rank::ranks].tolist() or order.tolist()
    # The first ones open files and fill caches of the data set.
    probe_s = 0.0
    for number in range(_PROBES):
        began = time.perf_counter()
        yield [mine[-1 - number % len(mine)]]
        probe_s = time.perf_counter() - began
    several = max(2, min(MOST_TOGETHER, round(SHORTEST_S / max(probe_s, 1e-6))))
    started, at = time.perf_counter(), 0
    for count in range(MOST_READS):
        size = several if count % 2 else 1
        if count >= LEAST_READS and (at + size > len(mine) or time.perf_counter() - started > BOX_S):
            return
        yield [mine[(at + offset) % len(mine)] for offset in range(size)]
        at += size


def _timed_answers(
    reading: Reading, groups: Iterator[list[int]], *, seed: int
) -> Iterator[tuple[list[int], Answer, float]]:
    """Microbatches, loaded in line, each with the work of a core that it took [s]."""
    asked: list[list[int]] = []

    def requests() -> Iterator[Request]:
        for number, group in enumerate(groups):
            asked.append(group)
            yield Request((0, number, 0), seed, group)

    loader = Loader(reading, requests(), IN_LINE)
    while True:
        began = time.thread_time()
        try:
            answer = loader.next()
        except StopIteration:
            return
        yield asked[-1], answer, time.thread_time() - began


def _look(dataset: Any, found: Sampled) -> int:
    """Room for a sample in a cache [bytes]; 0: they cannot be kept."""
    found.repeats = True
    try:
        found.stored_bytes = look_at(dataset, found.samples)
    except Uncachable:
        # Alike, but not the same twice; or not alike; or one cannot be read, which raises here.
        with suppress(Uncachable):
            first, *others = [_packed(dataset, number) for number in range(min(LOOKED_AT, found.samples))]
            found.repeats = any(other.sizes[1:] != first.sizes[1:] for other in others)
            found.stored_bytes = 0 if found.repeats else slot_of([first, *others])
        return 0
    return found.stored_bytes


def _packed(dataset: Any, number: int) -> Packed:
    answers = _timed_answers(Reading(dataset, list), iter([[number]]), seed=number)
    return packed(next(answers)[1].batch[0])


def _recall(job: Job, kept: Sequence[Any], slot_bytes: int) -> Points:
    """Microbatches out of a cache of a few samples."""
    descriptor, path = make_memory(cache_bytes(slot_bytes, len(kept)))
    try:
        cache = SampleCache(slot_bytes, len(kept), path)
    finally:
        os.close(descriptor)
    for number, sample in enumerate(kept):
        cache.put(number, sample)
    groups = [list(range(size)) for _ in range(_REPEATS) for size in (1, len(kept))]
    answers = list(_timed_answers(Reading(list(kept), job.collate, cache=cache), iter(groups), seed=0))
    return [(answer.samples, seconds) for _, answer, seconds in answers[2:]]


def _batch(job: Job, kept: Sequence[Any], size: int) -> Any:
    return Reading(list(kept), job.collate)[Request((0, 0, 0), 0, list(range(size)))].batch


def _copied(job: Job, kept: Sequence[Any], size: int, device: str) -> tuple[float, float]:
    """Bytes of a microbatch, and the time to bring it from pinned memory to the device [s]."""
    pinned = tree_map_only(torch.Tensor, torch.Tensor.pin_memory, _batch(job, kept, size))
    torch.cuda.synchronize(device)
    started = time.perf_counter()
    move_batch(pinned, device)
    torch.cuda.synchronize(device)
    return batch_bytes(pinned), time.perf_counter() - started
