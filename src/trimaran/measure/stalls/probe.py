"""What a data set is like, seen from a second one of its kind, before the training reads a sample.

The samples of a rank are read once in advance, to learn which files hold them: only then can the host be asked to
forget these before they are read in earnest.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trimaran.errors import InputError
from trimaran.graph.data_faults import reading_fault
from trimaran.job import Job
from trimaran.measure.stalls.page_cache import Forgotten, OpenedFiles, forget, held_files
from trimaran.program.layout import strategy_layout
from trimaran.program.types import Strategy
from trimaran.runtime.feed import draw_order, make_dataset
from trimaran.runtime.shares import microbatch_sizes


class Probe:
    """A data set of the job's, for looking at.

    Args:
        job: makes the data set
        strategy: says which samples are this rank's
        rank: this one
        samples: of the data set

    Attributes:
        dataset: that it looks at
        read_s: to read the rank's samples of a step [s]

    Raises:
        InputError: the data set raised
    """

    def __init__(self, job: Job, strategy: Strategy, rank: int, samples: int) -> None:
        self._job, self._strategy = job, strategy
        self._replica = strategy_layout(strategy).place_of(rank)[0]
        self._files = OpenedFiles()
        before = held_files()
        self.dataset = make_dataset(job)
        self._order = draw_order(job, self.dataset, samples, 0)
        # What was read and closed meanwhile is not read again.
        self._reads: set[Path] = held_files() - before
        self.read_s = self._look()

    @property
    def reads_files(self) -> bool:
        """Whether reading samples opens files, or goes to files that the data set holds open."""
        return bool(self._reads)

    def forget(self, numbers: range) -> Forgotten:
        """Make the host forget what this rank reads for some global batches of the first epoch.

        Args:
            numbers: of the batches
        """
        if not self._reads:
            return Forgotten()
        with self._files.watching() as opened:
            for number in numbers:
                for indices in self._indices(number):
                    self._read(indices)
        self._reads |= opened
        return forget(self._reads)

    def _look(self) -> float:
        """Read the first batch; how long that takes [s]."""
        with self._files.watching() as opened:
            started = time.perf_counter()
            for indices in self._indices(0):
                self._read(indices)
            read_s = time.perf_counter() - started
        self._reads |= opened
        return read_s

    def _indices(self, number: int) -> Iterator[list[int]]:
        """Samples of this rank's microbatches of a global batch."""
        batch, strategy = self._job.global_batch_size, self._strategy
        sizes = microbatch_sizes(batch, replicas=strategy.dp, microbatches=strategy.microbatches)
        start = number * batch + sum(sum(share) for share in sizes[: self._replica])
        for size in sizes[self._replica]:
            if size:
                yield self._order[start : start + size].tolist()
            start += size

    def _read(self, indices: Sequence[int]) -> list[Any]:
        fetch = getattr(self.dataset, "__getitems__", None)
        try:
            return list(fetch(list(indices))) if fetch is not None else [self.dataset[index] for index in indices]
        except Exception as error:
            fault = reading_fault(error, indices)
            raise InputError(fault.text, samples=fault.samples) from error
