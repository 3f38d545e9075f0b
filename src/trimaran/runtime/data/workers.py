"""Worker processes that load data: how they start, how they are asked, what they do, how they end.

**How workers start.** They are forked, as torch's loader does by default on Linux, unless `multiprocessing` has another
start method (`set_start_method`). A rank has threads of gloo, and a fork copies none of them; a lock that one of them
held would stay locked. A worker uses none of their locks: it uses the data set, numpy, torch's operations on the CPU,
and the C library's own locks, which are reset at a fork. In exchange, the data set need not be pickled (a job's lambdas
and the classes of its file could not be), memory is shared, and a worker starts in milliseconds; a new interpreter
takes seconds of a core until it has imported torch, for each worker. CUDA does not work after a fork: a data set that
puts samples on a GPU cannot be read by workers. With InfiniBand and an old kernel or library (memory that a card has
registered was not copied at a fork before Linux 5.12), choose "forkserver" or "spawn".

A worker that is not forked gets the data set in memory. `multiprocessing` writes the arguments of a new process into a
pipe of which its parent holds both ends, so that a parent whose child dies before it has read waits for ever, where the
arguments are larger than the pipe. So only a descriptor goes that way, and the value is in an anonymous file in memory.
It is pickled while the process is started, because locks and shared values of `multiprocessing` can be pickled at no
other time.

**How they are asked.** Each has a pipe to its rank, and batches come back in memory (`worker_transport`). Neither side
has threads that only carry data, so that a batch wakes each side once.

**How they end.** With their rank, however that ends: the system kills them when its main thread is gone. A worker that
dies is noticed when its batch is missing, not in the middle of a collective.

Source:
    torch.nn.parallel.DistributedDataParallel, warning on forked workers and InfiniBand; prctl(2), PR_SET_PDEATHSIG.
"""

import atexit
import contextlib
import errno
import multiprocessing
import os
import pickle
import signal
import socket
import threading
import time
import warnings
import weakref
from collections import deque
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils.data._utils import worker as torch_worker

from trimaran.base.errors import EnvironmentProblem, ExecutionError, InputError
from trimaran.base.outcome import note_on
from trimaran.base.system import at_parents_death
from trimaran.base.user_errors import ends_process, left
from trimaran.runtime.data.reading import Answer, Reading, Request
from trimaran.runtime.data.worker_transport import BatchReceiver, BatchSender, Packed, socket_of
from trimaran.user_code.datasets import ReadFault, arriving_fault, describe, sending_fault
from trimaran.user_code.randomness import derive_seed, seed_host

_SYSTEM = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EFBIG}
"""Errors of a system that lacks something, not of the value."""


class Unsendable(Exception):
    """A value cannot be pickled; its cause says why."""


class Parcel:
    """A value for one process that is about to start.

    Args:
        value: that it gets
    """

    def __init__(self, value: Any) -> None:
        self._value = value
        self._file = -1

    def __reduce__(self) -> tuple[Any, ...]:
        self._file = os.memfd_create("trimaran-parcel", os.MFD_CLOEXEC)
        with open(self._file, "wb", closefd=False) as file:
            try:
                reduction.ForkingPickler(file, pickle.HIGHEST_PROTOCOL).dump(self._value)
            except MemoryError as error:
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from error
            except Exception as error:
                if isinstance(error, OSError) and error.errno in _SYSTEM:
                    raise
                raise Unsendable from error
        return Sent, (reduction.DupFd(self._file),)

    def open(self) -> Any:
        """The value, in a process that was forked."""
        return self._value

    def close(self) -> None:
        """The process has been started, and has what it needs."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Sent:
    """A parcel, in a process that was not forked.

    Args:
        file: its descriptor, as `multiprocessing` hands it to a new process
    """

    def __init__(self, file: Any) -> None:
        self._file = file

    def open(self) -> Any:
        """The value.

        Raises:
            Exception: whatever an object raises that is unpickled, or a module that is imported for it
        """
        with os.fdopen(self._file.detach(), "rb") as file:
            # The parent's end has been written to.
            file.seek(0)
            return pickle.load(file)  # noqa: S301 from the process that started this one


# ---------------------------------------------------------------------------------------------------------------------
# Starting a worker, and errors where that fails


def open_pipe(number: int) -> tuple[Connection, Connection]:
    """A pipe to a worker: the rank's end, and the worker's.

    Args:
        number: of the worker

    Raises:
        EnvironmentProblem: the process may open no more files
    """
    try:
        return multiprocessing.Pipe()
    except OSError as error:
        raise _no_worker(error, number) from error


def start_process(process: BaseProcess, number: int, method: str) -> None:
    """Start a worker.

    Args:
        process: it
        number: its own
        method: by which it starts

    Raises:
        InputError: what it gets cannot be sent to it
        EnvironmentProblem: the system starts no process
        ExecutionError: the server that forks workers has ended
    """
    try:
        with warnings.catch_warnings():
            # A fork next to threads is intended; the module says why.
            warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
            process.start()
    except (EOFError, ConnectionError) as error:
        if method != "forkserver":
            raise  # the standard output of the program is gone
        raise ExecutionError(
            f"the process that forks worker {number} of this rank has ended ({describe(error)}), as it does where the "
            f"system lets it start no more or gives it no memory (ulimit -u, -n). Else: {import_advice(method)}",
            worker=number,
        ) from error
    except OSError as error:
        raise _no_worker(error, number) from error
    except (Unsendable, ValueError) as error:  # the latter: of more open files than a server takes
        raise _cannot_send(error.__cause__ or error, method) from error


def import_advice(method: str) -> str:
    """Advice for a program of which a process has ended while it imported.

    Args:
        method: by which the process was started
    """
    return (
        f'It had loaded nothing: started by "{method}", it is a new interpreter that imports the main module of the '
        "program first. What that raised is on the standard error; what it runs belongs under "
        '`if __name__ == "__main__":`'
    )


def _no_worker(error: OSError, number: int) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"the system starts no process for worker {number} of this rank: {describe(error)}. Take fewer workers, or "
        "raise what limits processes, open files or memory (ulimit -u, ulimit -n, the container's pids and memory)",
        code="feed.no-process",
        worker=number,
        errno=error.errno,
    )


def _cannot_send(error: BaseException, method: str) -> InputError:
    return InputError(
        f'the data set cannot be sent to workers, which start by "{method}" here: {describe(error)}. Let Job.dataset '
        "and Job.collate be of functions and classes at the top level of a module, without open files or locks; or use "
        'multiprocessing.set_start_method("fork"), or workers=0',
        code="feed.cannot-send-data-set",
        method=method,
    )


# ---------------------------------------------------------------------------------------------------------------------
# What a worker does: it reads a request, loads, and hands the batch over, with no thread but its own


def serve(
    parcel: Parcel | Sent,
    connection: Connection,
    *,
    inherited: Connection | None,
    number: int,
    count: int,
    seed: int,
    method: str,
    parent: int | None,
) -> None:
    """Answer requests until the rank hangs up.

    Args:
        parcel: has the reading, which makes a batch of a request
        connection: to the rank
        inherited: the rank's end, which a fork has too; only without it does the pipe tell of the rank's end
        number: of this worker
        count: workers of its rank
        seed: of the job
        method: by which it was started
        parent: the rank's process, whose main thread started this one; None: another thread did
    """
    # Ctrl-C is told to a rank, which ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Slurm tells all processes of a job, and the rank still needs its workers, to end after a step.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_TERMINATED_S))
    if inherited is not None:
        inherited.close()
    if parent is not None:
        _end_with(method, parent)
    torch.set_num_threads(1)
    note_on()  # the page is its rank's
    own_seed = derive_seed(seed, "worker", number)
    seed_host(own_seed)
    reading = _open(parcel)
    # What `torch.utils.data.get_worker_info` tells a data set; it is not to be set by others, but read by all.
    info = torch_worker.WorkerInfo(id=number, num_workers=count, seed=own_seed, dataset=reading.dataset)
    torch_worker._worker_info = info
    sender = BatchSender(connection)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            request, block = pickle.loads(connection.recv_bytes())  # noqa: S301 from the rank that made this process
            try:
                answer = reading[request]
            except BaseException as error:
                if not ends_process(error):
                    raise
                fault = ReadFault(left(error).message, tuple(request.samples))
                answer = Answer(request.key, len(request.samples), None, 0.0, 0.0, fault)
            sender.send(_packed(answer, request), block)


class _LostReading:
    """In the place of a reading that did not arrive: its answers say so."""

    dataset: Any = None

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getitem__(self, request: Request) -> Answer:
        fault = arriving_fault(self._error, request.samples)
        return Answer(request.key, len(request.samples), None, 0.0, 0.0, fault)


def _open(parcel: Parcel | Sent) -> Reading | _LostReading:
    try:
        reading: Reading = parcel.open()
    except Exception as error:  # noqa: BLE001 whatever an object of the user's raises, or a module of his
        return _LostReading(error)
    return reading


def _packed(answer: Answer, request: Request) -> Packed:
    try:
        return Packed(answer)
    except Exception as error:  # noqa: BLE001 whatever an object of the user's raises
        fault = sending_fault(error, answer.batch, request.samples)
        return Packed(answer._replace(batch=None, fault=fault))


def _end_with(method: str, parent: int) -> None:
    """Have the system kill this worker when the main thread of its parent is gone."""
    at_parents_death("SIGKILL")()
    # Where a server forks, it and not the rank is the parent, and ends with the rank.
    if method != "forkserver" and os.getppid() != parent:
        os._exit(1)


_TERMINATED_S = 30
"""Time from SIGTERM to the end of a worker, where its rank does not end it before [s]."""

_ENDING_S = 1.0
"""Time that a worker has to finish its batch after it was told to end [s]."""

_MOST_SENT, _MOST_SENT_BYTES = 32, 2**16
"""Most requests that a worker has not answered, and most bytes of these: less than a pipe holds. So a rank never waits
for a worker to read, nor a worker, which sends one message for each request, for its rank [bytes]."""

_RAISED = (1, 255)
"""Exit codes of a Python program that raised: its own, and that for one which a server forked and could not tell."""


_HERE: "weakref.WeakKeyDictionary[LoaderWorker, int]" = weakref.WeakKeyDictionary()
"""Workers that may be there still, and the process that started each."""


@atexit.register
def _end_all() -> None:
    """End what is left of workers before `multiprocessing`, which is called later, waits for them.

    A process that the user's code forked leaves them alone.
    """
    end_workers([worker for worker, started_by in list(_HERE.items()) if started_by == os.getpid()])


class WorkerEnded(Exception):
    """A worker is gone, and what it was asked for will not come."""


class LoaderWorker:
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
        self._connection, self._receiver = here, BatchReceiver(here)
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
        _HERE[self] = os.getpid()

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

    @property
    def ended_at_import(self) -> bool:
        """Whether it is a new interpreter that ended while it imported, as far as this process can see."""
        return self.method != "fork" and not self.has_answered and self.process.exitcode in _RAISED

    def hang_up(self) -> None:
        """Tell it to end, once it has finished its batch."""
        # Workers that were forked later have this end too, so that closing it is not enough.
        with contextlib.suppress(OSError), socket_of(self._connection) as line:
            line.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _go_on(self) -> None:
        self.has_answered = True
        self._sent.popleft()
        self._send()

    def _send(self) -> None:
        """Send requests, while they surely fit into the pipe although the worker does not read."""
        while self._waiting:
            size = len(self._waiting[0])
            if self._sent and (len(self._sent) >= _MOST_SENT or sum(self._sent) + size > _MOST_SENT_BYTES):
                return
            self._sent.append(size)
            # Where it is gone, that is told when the answer is waited for.
            with contextlib.suppress(OSError):
                self._connection.send_bytes(self._waiting.popleft())


def end_workers(workers: list[LoaderWorker]) -> None:
    """End them, all at the same time.

    Args:
        workers: that no thread waits for
    """
    deadline_s = time.monotonic() + _ENDING_S
    for worker in workers:
        worker.hang_up()
    processes = [worker.process for worker in workers]
    for process in processes:
        process.join(max(0.0, deadline_s - time.monotonic()))
    # One that has not ended is in the user's code, or waits for the system.
    for process in processes:
        process.kill()
    for process in processes:
        process.join()
