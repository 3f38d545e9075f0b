"""Microbatches in their order, loaded in line or by workers.

Worker k modulo their number loads the k-th microbatch. Requests continue through all epochs, so that workers load ahead
across the end of an epoch and are not started again. Each request carries the seed of what is drawn.

How workers start and end is in `workers`, how batches come from them in `worker_transport`.
"""

import time
from collections import deque
from collections.abc import Iterator
from itertools import islice

import torch

from trimaran.base.errors import EnvironmentProblem, ExecutionError, InputError, TrimaranError
from trimaran.base.user_errors import defined_at
from trimaran.launch.failures import describe_exit
from trimaran.program.strategy import Feeding
from trimaran.runtime.data.reading import Answer, Reading, Request
from trimaran.runtime.data.worker_transport import NoBlock
from trimaran.runtime.data.workers import LoaderWorker, WorkerEnded, end_workers, import_advice
from trimaran.user_code.batches import map_tensors
from trimaran.user_code.datasets import ReadFault, describe, name_samples

TIMEOUT_S = 300.0
"""How long the batch of a worker may take before the worker is said to hang [s]."""

_POLL_S = 0.1
"""A wait looks in these intervals whether it is to end [s]."""


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
        EnvironmentProblem: the system starts no workers
        ExecutionError: the server that forks workers has ended
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
        self._reading, self._requests, self._pin = reading, requests, pin
        self._rank, self._timeout_s = rank, timeout_s
        # What was asked for and has not come, first come first.
        self._asked: deque[tuple[LoaderWorker, Request]] = deque()
        self._workers: list[LoaderWorker] = []
        self._closing = self._closed = False
        try:
            for number in range(feeding.workers):
                self._workers.append(LoaderWorker(reading, number=number, count=feeding.workers, seed=seed))
        except BaseException:
            self.close()
            raise
        for _ in range(feeding.ahead):
            for worker in self._workers:
                self._ask(worker)

    def next(self) -> Answer:
        """The next microbatch.

        Raises:
            StopIteration: there is none
            InputError: the data set or the collate function raised, or the batch cannot be handed over
            EnvironmentProblem: the system gives no memory for a batch
            ExecutionError: a worker died, or hangs
        """
        if self._closed:
            raise ExecutionError("the data loader is closed", rank=self._rank)
        answer = self._reading[next(self._requests)] if self.in_line else self._await()
        if answer.fault is not None:
            raise self._to_error(answer.fault)
        return answer._replace(batch=map_tensors(answer.batch, torch.Tensor.pin_memory)) if self._pin else answer

    def stop(self) -> None:
        """End the wait of another thread in `next`."""
        self._closing = True

    def close(self) -> None:
        """End the workers; no thread may be waiting in `next`."""
        self._closing = self._closed = True
        workers, self._workers = self._workers, []
        self._asked.clear()
        end_workers(workers)

    def _ask(self, worker: LoaderWorker) -> None:
        for request in islice(self._requests, 1):
            self._asked.append((worker, request))
            worker.ask(request)

    def _await(self) -> Answer:
        """The next answer of a worker, or the error that says why there is none."""
        if not self._asked:
            raise StopIteration
        worker, request = self._asked[0]
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                answer = worker.answer(min(_POLL_S, self._timeout_s))
            except WorkerEnded:
                raise self._died(worker, request) from None
            except NoBlock as error:
                raise self._no_memory(error, request) from None
            except Exception as error:
                raise self._cannot_take(error, request) from error
            if answer is not None:
                self._asked.popleft()
                self._ask(worker)
                return answer
            if self._closing:
                raise ExecutionError("the data loader was closed while a batch was waited for", rank=self._rank)
            if time.monotonic() >= deadline_s:
                raise self._hangs(worker, request)

    def _to_error(self, fault: ReadFault) -> InputError:
        who = f"rank {self._rank}" if self.in_line else f"a worker of rank {self._rank}"
        return InputError(f"{who}: {fault.text}", code="feed.bad-samples", rank=self._rank, samples=fault.samples)

    def _died(self, worker: LoaderWorker, request: Request) -> TrimaranError:
        process = worker.process
        less = (
            "Fewer workers, or batches ahead, take less memory; without workers the rank itself reads, and shows what "
            "happens"
        )
        todo = import_advice(worker.method) if worker.ended_at_import else less
        place = f", in {defined_at(self._reading.dataset) or 'the data set'}"
        # With 0 it is no failure, which might be another one next time, but code that takes the work for done.
        return (ExecutionError if process.exitcode else InputError)(
            f"a worker of rank {self._rank} that loads data (process {process.pid}) {describe_exit(process.exitcode)}"
            f"{place}, while the batch of {name_samples(request.samples)} was waited for. {todo}",
            code="feed.worker-died",
            rank=self._rank,
            exit_code=process.exitcode,
        )

    def _no_memory(self, error: NoBlock, request: Request) -> EnvironmentProblem:
        who = f"a worker of rank {self._rank}" if error.in_worker else f"rank {self._rank}"
        return EnvironmentProblem(
            f"the system gives {who} no memory for the batch of {name_samples(request.samples)}: {error}. Where files "
            "are too many, let the data set close those that it opens, or raise what a process may have open (ulimit "
            "-n); where memory is short, keep fewer batches, or take fewer workers and fewer batches ahead",
            code="feed.no-memory",
            rank=self._rank,
            samples=tuple(request.samples),
        )

    def _cannot_take(self, error: Exception, request: Request) -> InputError:
        return InputError(
            f"rank {self._rank} could not take the batch of {name_samples(request.samples)} over from its worker: "
            f"{describe(error)}. What Job.collate makes must be the same once it is pickled and unpickled; let it make "
            "tensors in tuples, lists and dicts, or use workers=0",
            code="feed.cannot-take-over",
            rank=self._rank,
            samples=tuple(request.samples),
        )

    def _hangs(self, worker: LoaderWorker, request: Request) -> ExecutionError:
        worker.process.kill()
        return ExecutionError(
            f"the workers of rank {self._rank} have not given the batch of {name_samples(request.samples)} within "
            f"{self._timeout_s:g} s: the data set hangs, or waits for something that workers do not have, such as "
            "a lock that was held when they were forked; read those samples in a separate script",
            code="feed.worker-hangs",
            rank=self._rank,
            timeout_s=self._timeout_s,
        )
