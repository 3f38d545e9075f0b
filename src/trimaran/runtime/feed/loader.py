"""Microbatches in their order, from torch's `DataLoader`, loaded in line or by workers.

One iterator goes on through all epochs: its requests do, so that workers load ahead across the border of an epoch and
nothing starts again there. The seed of what is drawn goes with each request.

How workers start and end is in `workers`.
"""

import time
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from trimaran.errors import ExecutionError, InputError
from trimaran.graph.data_faults import Fault, describe, name_samples
from trimaran.program.feeding import Feeding
from trimaran.runtime.feed.reading import Answer, Reading, Request
from trimaran.runtime.feed.workers import Workers, describe_end

TIMEOUT_S = 300.0
"""How long the batch of a worker may take before the worker is said to hang [s]."""

_POLL_S = 1.0


class Loader:
    """Loads what is asked for, in order.

    Args:
        reading: makes a batch of a request
        requests: in the order of their keys
        feeding: how many workers, how far ahead
        pin: batches are put where a GPU can fetch them
        seed: of the job
        rank: number of this rank
        timeout_s: how long a worker may take [s]

    Attributes:
        in_line: the thread that asks loads

    Raises:
        InputError: workers are not forked, and the data set cannot be sent to them
    """

    def __init__(
        self,
        reading: Reading,
        requests: Iterator[Request],
        feeding: Feeding,
        *,
        pin: bool = False,
        seed: int = 0,
        rank: int = 0,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.in_line = feeding.workers == 0
        self._rank = rank
        self._timeout_s = timeout_s
        self._asked: deque[Request] = deque()
        self._closing = False
        self._workers: Workers | None = None
        # Workers end with the last reference to the iterator, which is this one.
        self._iterator: Iterator[Answer] | None
        if self.in_line and not pin:
            # What torch's loader would do here, without its own time.
            self._iterator = map(reading.__getitem__, requests)
            return
        make = partial(
            _make_loader,
            reading,
            _noted(requests, self._asked) if feeding.workers else requests,
            feeding,
            pin=pin,
            generator=_generator(seed),
        )
        if self.in_line:
            self._iterator = iter(make({}))
        else:
            self._workers = Workers(make)
            self._iterator = self._workers.start()

    def next(self) -> Answer:
        """The next microbatch.

        Raises:
            StopIteration: there is none
            InputError: the data set or the collate function raised
            ExecutionError: a worker died, or hangs
        """
        if self._iterator is None:
            raise ExecutionError("the feed is closed", rank=self._rank)
        if self._workers is None:
            answer = next(self._iterator)
        else:
            answer = self._await(self._workers, self._iterator)
            self._asked.popleft()
        if answer.fault is not None:
            raise self._to_error(answer.fault)
        return answer

    def stop(self) -> None:
        """Another thread that waits in `next` is to give up."""
        self._closing = True

    def close(self) -> None:
        """End the workers; nobody waits in `next` any more."""
        self._closing = True
        self._iterator = None
        if self._workers is not None:
            self._workers.close()

    def _await(self, workers: Workers, iterator: Iterator[Answer]) -> Answer:
        """What a worker sends, or why nobody will."""
        began_s = time.monotonic()
        while True:
            try:
                return next(iterator)
            except (RuntimeError, OSError, EOFError) as error:
                self._explain(error, workers, time.monotonic() - began_s)

    def _to_error(self, fault: Fault) -> InputError:
        who = f"rank {self._rank}" if self.in_line else f"a worker of rank {self._rank}"
        return InputError(f"{who}: {fault.text}", rank=self._rank, samples=fault.samples)

    def _explain(self, error: Exception, workers: Workers, waited_s: float) -> None:
        """Raise what is wrong; nothing is, where a worker has only not answered yet."""
        timed_out = isinstance(error, RuntimeError) and "timed out" in str(error)
        dead = workers.find_dead(suspected=not timed_out)
        waiting = name_samples(self._asked[0].samples) if self._asked else "no samples"
        if dead is not None:
            raise ExecutionError(
                f"a worker of rank {self._rank} that loads data (process {dead.pid}) {describe_end(dead)}, while the "
                f"batch of {waiting} was waited for. Fewer workers, or batches ahead, take less memory; "
                "without workers the rank itself reads, and shows what happens",
                rank=self._rank,
                exit_code=dead.exitcode,
            ) from None
        if not timed_out:
            raise ExecutionError(
                f"rank {self._rank} could not take the batch of {waiting} over from its workers: {describe(error)}",
                rank=self._rank,
            ) from None
        if self._closing:
            raise ExecutionError("the feed was closed while a batch was waited for", rank=self._rank) from None
        if waited_s >= self._timeout_s:
            workers.kill()
            raise ExecutionError(
                f"the workers of rank {self._rank} have not given the batch of {waiting} within "
                f"{self._timeout_s:g} s: the data set hangs, or waits for something that workers do not have, such as "
                "a lock that was held when they were forked; read those samples in a script of your own",
                rank=self._rank,
                timeout_s=self._timeout_s,
            ) from None


def _noted(requests: Iterator[Request], asked: deque[Request]) -> Iterator[Request]:
    """The requests, which are put down as they are asked."""
    for request in requests:
        asked.append(request)
        yield request


def _generator(seed: int) -> torch.Generator:
    """Without one of its own, the loader would draw from the generator that dropout draws from."""
    return torch.Generator().manual_seed(seed)


def _make_loader(
    reading: Reading,
    requests: Iterator[Request],
    feeding: Feeding,
    more: Mapping[str, Any],
    *,
    pin: bool,
    generator: torch.Generator,
) -> "DataLoader[Answer]":
    if feeding.workers:
        more = {**more, "prefetch_factor": feeding.ahead, "timeout": _POLL_S}
    return DataLoader(
        reading,
        batch_size=None,
        sampler=requests,
        collate_fn=_as_it_is,
        num_workers=feeding.workers,
        pin_memory=pin,
        generator=generator,
        **more,
    )


def _as_it_is(answer: Any) -> Any:
    return answer
