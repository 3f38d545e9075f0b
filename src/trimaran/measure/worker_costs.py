"""What a worker takes that reads microbatches and hands them over, and what the training's thread takes for that.

    worker    ▒▒█▒▒█▒▒█▒▒█ hand over   ▒▒█▒▒█…      work of all its threads, as the system counts it
    thread    compute  take   compute  take         between two of them its caches are filled with other things

A worker does more than the same code in line: it wakes up after each sample that it has waited for, on a core that did
something else, and packs. So what a sample takes in a worker is measured in one, with microbatches of one sample and of
several, while the threads of all ranks compute: on a core that idles, a worker finds its caches as it left them. Runs
inside the ranks; imports torch.
"""

import itertools
import multiprocessing
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from trimaran.job import Job
from trimaran.measure.sampled import Sampled
from trimaran.program.feeding import Feeding
from trimaran.runtime.feed.loader import Loader
from trimaran.runtime.feed.reading import Reading, Request

BOX_S = 1.0
"""Time that the samples of the larger microbatches take together, about [s]."""

MOST_TOGETHER = 16
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
    several = max(2, min(MOST_TOGETHER, int(BOX_S / (_BATCHES * max(sample_s, 1e-6)))))
    # So many are made before they are asked for.
    ahead = feeding.workers * feeding.ahead
    # The first of a size come in new memory, as many as there are blocks: ready, under way, and what is held here.
    new = ahead + 2
    sizes = [1] * (1 + new + _BATCHES + ahead) + [several] * (new + _BATCHES + ahead)
    turns = itertools.cycle(numbers)
    groups = (Request((0, at, 0), 4, list(itertools.islice(turns, size))) for at, size in enumerate(sizes))
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
    """What a sample takes in line, standing still and of a core, about [s]."""
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
    """Fill the caches of a core for so long."""
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
