"""A process that has imported everything once, and forks itself for whoever asks.

Run as `python -m tests.forks.server <descriptor>`; the descriptor is its end of a socket to the one who
asks. A child begins with torch, the package and the networks that were captured before it: seconds of work that a new
interpreter does again. It shares nothing with its siblings but what was there before the fork. A fork copies one thread
only, so a server that has several refuses.
"""

import atexit
import contextlib
import gc
import importlib
import os
import pickle
import pkgutil
import select
import socket
import sys
import tempfile
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tests.forks.brief import VARIABLE, measure_briefly

LIMIT = 1 << 18
"""The longest message [bytes]."""


AT_FIRST_USE = (
    "scipy.optimize",
    "scipy.sparse",
    "scipy.special",
    "sklearn.datasets",
    "sklearn.model_selection",
    "tests.forks.commands",
    "torch.export._trace",
    "torch.profiler",
    "typer._adapters",
)
"""What the package, its jobs, their libraries and the functions of tests import when they are first used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """What a child is to be.

    Attributes:
        work: the pickled `(function, arguments)`; the function gets first what descriptors came besides its streams
        folder: where it works
        environment: its variables, all of them
        path: what it imports from
    """

    work: bytes
    folder: str
    environment: Mapping[str, str]
    path: Sequence[str]


def main(descriptor: int, *, captures: bool) -> NoReturn:
    """Answer all clients until the first one has gone."""
    first = socket.socket(fileno=descriptor)
    clients = [first]
    answer(first, lambda: prepare(captures=captures))
    while True:
        for client in select.select(clients, [], [])[0]:
            message, received, _, _ = socket.recv_fds(client, LIMIT, 8)
            if message:
                serve(client, *read(message), received, clients)
            elif client is first:
                os._exit(0)
            else:
                clients.remove(client)
                client.close()


def go_on(descriptor: int) -> NoReturn:
    """In a child: be a server, too, one in which networks are captured."""
    main(descriptor, captures=True)


def serve(client: socket.socket, kind: str, value: Any, received: list[int], clients: list[socket.socket]) -> None:
    """Do what a client asks."""
    if kind == "fork":
        answer(client, lambda: fork(value, received, clients))
    elif kind == "exit code":
        answer(client, lambda: os.waitstatus_to_exitcode(os.waitpid(value, 0)[1]))
    elif kind == "client":
        clients.append(socket.socket(fileno=received.pop()))
        answer(client, lambda: None)
    else:
        function, arguments = read(value)
        answer(client, lambda: function(*arguments))
    for one in received:
        os.close(one)


def answer(client: socket.socket, work: Callable[[], Any]) -> None:
    """Do something and send what came of it, or the text of what was raised."""
    try:
        told = (True, work())
    except Exception:  # noqa: BLE001 whatever it is, the one who asked must hear of it
        told = (False, traceback.format_exc())
    client.send(pickle.dumps(told))


def read(message: bytes) -> Any:
    """What the tests' own process wrote, into a socket that nobody else can open."""
    return pickle.loads(message)  # noqa: S301


def prepare(*, captures: bool) -> None:
    """Import all of the package, what it imports at the first use, and what holds the functions that children call."""
    import torch
    import torch.distributed.fsdp

    import trimaran

    for module in pkgutil.walk_packages(trimaran.__path__, "trimaran."):
        # What cannot be imported is told by the tests that need it.
        with contextlib.suppress(Exception):
            if not module.name.endswith(".__main__"):
                importlib.import_module(module.name)
    for name in AT_FIRST_USE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    torch.set_num_threads(1)
    # What ends with this process ends once: hundreds of libraries of operators, else, in each child.
    for one in [*weakref.finalize._registry]:  # type: ignore[attr-defined]
        one.atexit = False
    if captures:
        capture_all(["lstm_fp64"])


def capture_all(jobs: Sequence[str]) -> None:
    """Capture what can be captured; of the others the ranks will tell."""
    from tests.distributed.training import capture_once

    from trimaran.base.errors import TrimaranError

    for job in jobs if may_capture() else ():
        with contextlib.suppress(TrimaranError):
            capture_once(job)


def may_capture() -> bool:
    """Whether a capture leaves this process with one thread.

    With a torch that knows CUDA a backward pass starts threads, one a kind of device: there each child captures for
    itself.
    """
    import torch

    return not torch.backends.cuda.is_built()


def fork(child: Child, received: Sequence[int], clients: Sequence[socket.socket]) -> int:
    """The process id of a new child."""
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        raise RuntimeError(f"a process of {threads} threads is not to be forked: find out who started them")
    # A collection would look at all that is here, and so copy each page of it into the child.
    gc.freeze()
    pid = os.fork()
    if pid == 0:
        for client in clients:
            client.close()
        become(child, received)
    return pid


def become(child: Child, received: Sequence[int]) -> NoReturn:
    """Do the work of a child, and end as an interpreter would."""
    code = 1
    try:
        os.setsid()
        for place, descriptor in enumerate(received[:3]):
            os.dup2(descriptor, place)
            os.close(descriptor)
        os.chdir(child.folder)
        os.environ.clear()
        os.environ.update(child.environment)
        sys.path[:] = child.path
        tempfile.tempdir = None  # looked up again in these variables
        if VARIABLE in os.environ:
            measure_briefly()
        function, arguments = read(child.work)
        code = function(*received[3:], *arguments) or 0
    except SystemExit as leaving:
        if isinstance(leaving.code, str):
            sys.stderr.write(f"{leaving.code}\n")
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:  # noqa: BLE001 as the interpreter does
        traceback.print_exc()
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    # Children find the classes of this module by its name.
    from tests.forks import server

    server.main(int(sys.argv[1]), captures=False)
