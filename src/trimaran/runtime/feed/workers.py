"""Processes that load: how they start, how they are asked, how they end. What they do is in `serving`.

**How workers start.** They are forked, as torch's loader does by default on Linux, unless `multiprocessing`
has been told another way (`set_start_method`). A rank has threads of gloo, and a fork copies none of them; a lock that
one held would stay locked. What a worker uses is not theirs: the data set, numpy, torch's operations on the CPU, and
the C library's own locks, which are made good at a fork. In exchange, what `Job.dataset` made need not be pickled (a
job's lambdas and the classes of its file could not be), memory is shared, and a worker is there in milliseconds; a
new interpreter takes seconds of a core until it has imported torch, for each worker. What must be kept away from a
fork is CUDA: a data set that puts samples on a GPU cannot be read by workers. With InfiniBand and an old kernel or
library (memory that a card has registered was not copied at a fork before Linux 5.12), choose "forkserver" or "spawn".

**How they are asked.** Each has a pipe to its rank, and batches come back in memory (`passing`). Neither side has
threads that only carry things, so that a batch wakes each side once.

**How they end.** With their rank, however that ends: the system kills them when its main thread is gone. A worker that
dies is noticed when its batch is missing, not in the middle of a collective.

Source:
    torch.nn.parallel.DistributedDataParallel, warning on forked workers and InfiniBand; prctl(2), PR_SET_PDEATHSIG.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import socket
import threading
import time
from collections import deque
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

from trimaran.runtime.feed.descriptors import socket_of
from trimaran.runtime.feed.parcel import Parcel
from trimaran.runtime.feed.passing import Receiver
from trimaran.runtime.feed.reading import Answer, Reading, Request
from trimaran.runtime.feed.serving import serve
from trimaran.runtime.feed.starting import open_pipe, start_process

_ENDING_S = 1.0
"""A worker that was told to end may finish what it is at for so long [s]."""

_MOST_SENT, _MOST_SENT_BYTES = 32, 2**16
"""Requests that a worker has not answered, and their bytes: less than a pipe holds. So a rank never waits for a worker
to read, nor does a worker, whose answers are as many, for its rank [bytes]."""

_RAISED = (1, 255)
"""Exit codes of a Python program that raised: its own, and that for one which a server forked and could not tell."""


class WorkerEnded(Exception):
    """A worker is gone, and what it was asked for will not come."""


class Worker:
    """One process that loads.

    Args:
        reading: makes a batch of a request
        number: of this worker
        count: workers of its rank
        seed: of the job

    Attributes:
        process: it
        method: by which it was started
        has_answered: a batch has come from it, or why there is none

    Raises:
        InputError: it is not forked, and the data set cannot be sent to it
        EnvironmentProblem: the system starts no process
        ExecutionError: the server that forks workers has ended
    """

    def __init__(self, reading: Reading, *, number: int, count: int, seed: int) -> None:
        method = multiprocessing.get_start_method(allow_none=True) or "fork"
        context: Any = multiprocessing.get_context(method)
        # The signal comes when the thread that started a worker ends, and only the main one lives as long as its rank.
        main = threading.current_thread() is threading.main_thread()
        parent = os.getpid() if main else None
        here, there = open_pipe(number)
        parcel = Parcel(reading)
        self.process: BaseProcess = context.Process(
            target=serve,
            args=(parcel, there),
            kwargs={
                "inherited": here if method == "fork" else None,
                "number": number,
                "count": count,
                "seed": seed,
                "method": method,
                "parent": parent,
            },
            daemon=True,
        )
        self._connection, self._receiver = here, Receiver(here)
        # Requests in their order: not sent yet, and the sizes of those that were sent and are not answered [bytes].
        self._waiting: deque[bytes] = deque()
        self._sent: deque[int] = deque()
        self.method, self.has_answered = method, False
        try:
            start_process(self.process, number, method)
        except BaseException:
            here.close()
            raise
        finally:
            # With its only other end in the worker, the pipe tells when that is gone.
            there.close()
            parcel.close()

    def ask(self, request: Request) -> None:
        """Have a microbatch loaded, after those that were asked for before.

        Args:
            request: says which
        """
        self._waiting.append(pickle.dumps((request, self._receiver.reserve())))
        self._send()

    def answer(self, timeout_s: float) -> Answer | None:
        """The next answer; None: it has not come in time.

        Args:
            timeout_s: how long it may take [s]

        Raises:
            WorkerEnded: it will not come
            NoBlock: the system gives no memory for it
            Exception: whatever an object in it raises that is unpickled
        """
        ready = wait([self._connection, self.process.sentinel], timeout_s)
        if not ready:
            return None
        try:
            if self._connection not in ready and not self._connection.poll():
                raise EOFError
            arrived = self._receiver.receive()
        except (EOFError, OSError):
            self.process.join(_ENDING_S)
            raise WorkerEnded from None
        answer: Answer = arrived.unpack()
        self._go_on()
        return answer

    def describe_end(self) -> str:
        """How it has ended, for people."""
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"ended with exit code {code}"
        text = f"was killed by {signal.Signals(-code).name}"
        return f"{text} (by hand, or by the system when memory ran out)" if code == -signal.SIGKILL else text

    @property
    def ended_at_import(self) -> bool:
        """It is a new interpreter that was importing when it ended, for all that can be seen from here."""
        return self.method != "fork" and not self.has_answered and self.process.exitcode in _RAISED

    def hang_up(self) -> None:
        """Tell it to end, once it has done what it is at."""
        # Workers that were forked later have this end too, so that closing it is not enough.
        with contextlib.suppress(OSError), socket_of(self._connection) as line:
            line.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _go_on(self) -> None:
        self.has_answered = True
        self._sent.popleft()
        self._send()

    def _send(self) -> None:
        """Send requests, as many as surely find room where nobody reads."""
        while self._waiting:
            size = len(self._waiting[0])
            if self._sent and (len(self._sent) >= _MOST_SENT or sum(self._sent) + size > _MOST_SENT_BYTES):
                return
            self._sent.append(size)
            # Where it is gone, that is told when the answer is waited for.
            with contextlib.suppress(OSError):
                self._connection.send_bytes(self._waiting.popleft())


def end_workers(workers: list[Worker]) -> None:
    """End them, all at the same time.

    Args:
        workers: that nobody waits for any more
    """
    deadline_s = time.monotonic() + _ENDING_S
    for worker in workers:
        worker.hang_up()
    processes = [worker.process for worker in workers]
    for process in processes:
        process.join(max(0.0, deadline_s - time.monotonic()))
    # What is still at something is in the user's code, or waits for the system.
    for process in processes:
        process.kill()
    for process in processes:
        process.join()
