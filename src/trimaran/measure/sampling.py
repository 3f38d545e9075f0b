"""What the samples of a job take on a rank: reading, preparing, handing over.

    read     microbatches of samples that no run before has read, of one sample and of several in turn, for about a
             second; some of them once more
    recall   microbatches of what was read, from a cache
    worker   one worker reads microbatches and hands them over (`worker_costs`); only where loading takes a part of the
             step that matters

All of it as the feed of the runtime does it, and on all ranks at the same time, as they read at the same time in a
training. Runs inside the ranks; imports torch.
"""

import os
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from trimaran.graph.batches import move_batch
from trimaran.job import Job
from trimaran.measure.sampled import Points, Sampled
from trimaran.measure.worker_costs import batch_bytes, measure_worker
from trimaran.program.feeding import IN_LINE
from trimaran.runtime.feed import dataset_length
from trimaran.runtime.feed.cache import SampleCache, cache_bytes, make_memory
from trimaran.runtime.feed.layouts import Layout, Uncachable, layout_of
from trimaran.runtime.feed.loader import Loader
from trimaran.runtime.feed.reading import Answer, Reading, Request
from trimaran.runtime.feed.sharing import LOOKED_AT, look_at

BOX_S = 1.0
"""Time for first reads [s]; what takes longer has `LEAST_READS` of them."""

LEAST_READS, MOST_READS = 6, 40
"""Microbatches that are read, half of them of one sample."""

READ_TWICE = 4
SHORTEST_S, MOST_TOGETHER = 2e-2, 16
"""So many samples are read at a time that they take about this long, at least two: their time is set against that of
one [s]."""

_PROBES = 2
_REPEATS = 8


def measure_samples(job: Job, dataset: Any, *, rank: int, ranks: int, device: str = "cpu", workers: bool) -> Sampled:
    """Measure what samples take, on one rank.

    Args:
        job: has the collate function
        dataset: its training data
        rank: which of the ranks; each reads samples of its own
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
    layout = _look(dataset, found)
    found.sample_bytes = max(1, batch_bytes(largest) // max(len(group) for group in read))
    numbers = max(read, key=len)
    kept: list[Any] = next(_timed_answers(Reading(dataset, list), iter([numbers]), seed=3))[1].batch
    if layout is not None:
        found.recalls = _recall(job, kept, layout)
    if device != "cpu":
        found.copies = [_copied(job, kept, size, device) for size in (1, len(kept)) for _ in range(_REPEATS)]
    if workers:
        measure_worker(job, dataset, sorted({number for group in read for number in group}), found)
    return found


def _groups(job: Job, length: int, *, rank: int, ranks: int) -> Iterator[list[int]]:
    """Samples of this rank, one and several in turn, until the time is over; before them some that do not count.

    Other measurements read the front of this order first, so this goes from its end.
    """
    order = torch.randperm(length, generator=torch.Generator().manual_seed(job.seed)).flip(0)
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


def _look(dataset: Any, found: Sampled) -> Layout | None:
    """What samples are made of; None: they cannot be kept."""
    try:
        layout = look_at(dataset, found.samples)
        found.repeats = True
    except Uncachable:
        # Alike, but not the same twice; or not alike; or one cannot be read, which is told here.
        try:
            layout, *others = [_layout_of(dataset, number) for number in range(min(LOOKED_AT, found.samples))]
        except Uncachable:
            found.repeats = True
            return None
        found.repeats = any(other != layout for other in others)
        found.stored_bytes = 0 if found.repeats else sum(leaf.nbytes for leaf in layout.leaves)
        return None
    found.stored_bytes = sum(leaf.nbytes for leaf in layout.leaves)
    return layout


def _layout_of(dataset: Any, number: int) -> Layout:
    answers = _timed_answers(Reading(dataset, list), iter([[number]]), seed=number)
    return layout_of(next(answers)[1].batch[0])


def _recall(job: Job, kept: Sequence[Any], layout: Layout) -> Points:
    """Microbatches out of a cache of a few samples."""
    descriptor, path = make_memory(cache_bytes(layout, len(kept)))
    try:
        cache = SampleCache(layout, len(kept), path)
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
