"""Starting a worker, and what a person should know where that fails."""

import multiprocessing
import warnings
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from trimaran.errors import EnvironmentProblem, ExecutionError, InputError
from trimaran.graph.data_faults import describe
from trimaran.runtime.feed.parcel import Unsendable


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
            # That it is forked beside threads has been decided.
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
    """What a program should look at, one of whose processes has ended while it imported.

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
