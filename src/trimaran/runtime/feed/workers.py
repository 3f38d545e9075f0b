"""Processes that load: how they start, how they end.

**How workers start.** They are forked, as torch's loader does by default on Linux, unless `multiprocessing`
has been told another way (`set_start_method`). A rank has threads of gloo, and a fork copies none of them; a lock that
one held would stay locked. What a worker uses is not theirs: the data set, numpy, torch's operations on the CPU, and
the C library's own locks, which are made good at a fork. In exchange, what `Job.dataset` made need not be pickled (a
job's lambdas and the classes of its file could not be), memory is shared, and a worker is there in milliseconds; a
new interpreter takes seconds of a core until it has imported torch, for each worker. What must be kept away from a
fork is CUDA: a data set that puts samples on a GPU cannot be read by workers. With InfiniBand and an old kernel or
library (memory that a card has registered was not copied at a fork before Linux 5.12), choose "forkserver" or "spawn".

**How they end.** With their rank, however that ends: the system kills them when its main thread is gone. A worker that
dies is noticed when its batch is missing, not in the middle of a collective: torch's handler of SIGCHLD, which raises
wherever the main thread is, is taken back.

Source:
    torch.nn.parallel.DistributedDataParallel, warning on forked workers and InfiniBand; prctl(2), PR_SET_PDEATHSIG.
"""

import copy
import ctypes
import functools
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

from torch.utils.data import DataLoader

from trimaran.errors import InputError
from trimaran.graph.data_faults import describe

_PR_SET_PDEATHSIG = 1
_SETTLING_S = 1.0


class Workers:
    """The processes of one loader.

    Args:
        make: makes the loader, with more options
    """

    def __init__(self, make: Callable[[Mapping[str, Any]], "DataLoader[Any]"]) -> None:
        self._processes: list[BaseProcess] = []
        self._method = multiprocessing.get_start_method(allow_none=True) or "fork"
        self._make = make

    def start(self) -> Iterator[Any]:
        """Start them.

        Returns:
            What they load; they end with its last reference.

        Raises:
            InputError: they are not forked, and the data set cannot be sent to them
        """
        context = self._context()
        main = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGCHLD)
        # The signal comes when the thread that started a worker ends, and only the main one lives as long as its rank.
        first = functools.partial(_end_with, self._method, os.getpid()) if main else None
        try:
            with _unwarned():
                loaded = iter(self._make({"multiprocessing_context": context, "worker_init_fn": first}))
        except Exception as error:
            if isinstance(error, TypeError | AttributeError) or "pickle" in f"{type(error).__name__} {error}".lower():
                raise _cannot_send(error, self._method) from error
            raise
        finally:
            if main and handler is not None:
                signal.signal(signal.SIGCHLD, handler)
        return loaded

    def _context(self) -> Any:
        """What starts processes; they are known here even if they end at once."""
        context: Any = copy.copy(multiprocessing.get_context(self._method))
        make = context.Process

        def start(*arguments: Any, **options: Any) -> BaseProcess:
            process: BaseProcess = make(*arguments, **options)
            self._processes.append(process)
            return process

        context.Process = start
        return context

    def find_dead(self, *, suspected: bool) -> BaseProcess | None:
        """One that has ended; None: all are there.

        Args:
            suspected: one has closed its connection, and will soon be seen as dead
        """
        deadline_s = time.monotonic() + (_SETTLING_S if suspected else 0.0)
        while True:
            for process in self._processes:
                if not process.is_alive():
                    return process
            if time.monotonic() >= deadline_s:
                return None
            time.sleep(0.01)

    def close(self) -> None:
        """End those that are still there, as something else, such as a traceback, refers to what they load."""
        for process in self._processes:
            if process.is_alive():
                process.terminate()

    def kill(self) -> None:
        """End them at once."""
        for process in self._processes:
            process.kill()


def describe_end(process: BaseProcess) -> str:
    """How a process has ended, for people.

    Args:
        process: that has
    """
    code = process.exitcode
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    text = f"was killed by {signal.Signals(-code).name}"
    return f"{text} (by hand, or by the system when memory ran out)" if code == -signal.SIGKILL else text


def _end_with(method: str, parent: int, worker: int) -> None:
    """Have the system kill this worker when the main thread of its parent is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Where a server forks, it and not the rank is the parent, and ends with the rank.
    if method != "forkserver" and os.getppid() != parent:
        os._exit(1)


@contextmanager
def _unwarned() -> Iterator[None]:
    """Without torch's and Python's warnings of what has been decided: how many workers, and that they are forked."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message="Got pickle error", category=UserWarning)
        yield


def _cannot_send(error: Exception, method: str) -> InputError:
    return InputError(
        f'the data set cannot be sent to workers, which start by "{method}" here: {describe(error)}. Let Job.dataset '
        "and Job.collate be of functions and classes at the top level of a module, without open files or locks; or use "
        'multiprocessing.set_start_method("fork"), or workers=0',
        method=method,
    )
