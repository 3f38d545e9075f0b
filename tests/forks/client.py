"""Ranks that are forked from a server, in the place of new interpreters, for tests that are not about starting.

`launch` is the runtime's own, of which only the start of the process is another. Tests about starting, dying, signals,
environments and networks use the runtime's.
"""

import functools
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO
from unittest.mock import patch

import pytest
from tests.distributed.training import Run
from tests.forks.brief import VARIABLE as BRIEF
from tests.forks.server import LIMIT, Child, capture_all, go_on, read

from trimaran.base.files import folder_of_command
from trimaran.launch import supervise as runtime
from trimaran.rehearsal import launch as rehearsal

ROOT = Path(__file__).parents[2]


class Server:
    """The server, as one of its clients sees it; threads may share it.

    Args:
        control: socket to it
        process: of the server, for the one who started it
    """

    def __init__(self, control: socket.socket, process: "subprocess.Popen[bytes] | Forked | None" = None) -> None:
        self._control = control
        self._process = process
        # Two threads that ask at once would take each other's answers.
        self._lock = threading.RLock()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the server: what it keeps, later children have."""
        return self._ask("call", pickle.dumps((function, arguments)))

    def fork(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        streams: Sequence[int],
        descriptors: Sequence[int] = (),
        environment: Mapping[str, str],
        folder: str | Path = ".",
    ) -> "Forked":
        """Call a function in a new child, which ends with its exit code.

        Args:
            function: gets the descriptors, then the arguments
            arguments: of the function
            streams: standard input, output and error
            descriptors: more that the child gets
            environment: its variables, all of them
            folder: where it works
        """
        child = Child(
            work=pickle.dumps((function, arguments)),
            folder=str(Path(folder).resolve()),
            environment=dict(environment),
            path=[str(Path(entry).resolve()) for entry in sys.path],
        )
        return Forked(self._ask("fork", child, [*streams, *descriptors]), self)

    def exit_code(self, pid: int) -> int:
        """The exit code of a child, as soon as it has ended; once."""
        code: int = self._ask("exit code", pid)
        return code

    def admit(self) -> int:
        """Descriptor of a socket for one more client."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._ask("client", None, [theirs.fileno()])
        return ours.detach()

    def close(self) -> None:
        self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _ask(self, kind: str, value: object, descriptors: Sequence[int] = ()) -> Any:
        try:
            with self._lock:
                socket.send_fds(self._control, [pickle.dumps((kind, value))], list(descriptors))
                return self.answer()
        except (TimeoutError, KeyboardInterrupt, OSError, pytest.fail.Exception):
            # An answer that was not waited for would be taken for that to the next question.
            stop_server()
            raise

    def answer(self) -> Any:
        """What the server says to what it was asked, or that it is ready."""
        message = self._control.recv(LIMIT)
        assert message, "the server of forks has ended"
        well, told = read(message)
        assert well, told
        return told


class Forked:
    """A child of the server: what `subprocess.Popen` says of its own."""

    def __init__(self, pid: int, server: Server) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return self.returncode if self.returncode is not None else self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self.returncode if self.returncode is not None else self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._end, number)

    def kill(self) -> None:
        """Kill it with all that it started, where it still runs."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.wait()

    end = kill

    def _look(self, timeout_s: float | None) -> int | None:
        if select.select([self._end], [], [], timeout_s)[0]:
            self.returncode = self._server.exit_code(self.pid)
            os.close(self._end)
        return self.returncode


@functools.cache
def server(*, captures: bool = True) -> Server:
    """A server of this process, started when it is first asked for.

    Args:
        captures: networks, so that a backward has run in it: after that autograd takes no further kind of device
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    variables = {**runtime._DEFAULTS, **os.environ, **runtime._ENVIRONMENT}
    # Whether it measures briefly is for each child to say.
    variables = {name: value for name, value in variables.items() if name != BRIEF}
    process: subprocess.Popen[bytes] | Forked
    with theirs:
        if captures:
            # Seconds of imports are those of the other one.
            with Path(os.devnull).open("rb") as nothing:
                process = server(captures=False).fork(
                    go_on,
                    streams=(nothing.fileno(), 1, 2),
                    descriptors=[theirs.fileno()],
                    environment=variables,
                    folder=ROOT,
                )
        else:
            process = subprocess.Popen(
                [sys.executable, "-u", "-P", "-m", "tests.forks.server", str(theirs.fileno())],
                cwd=ROOT,
                # Data sets of torchtitan bring pyarrow, whose allocator starts a thread when it is imported.
                env=variables
                | {
                    "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
                    "JE_ARROW_MALLOC_CONF": "background_thread:false",
                },
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
    started = Server(ours, process)
    _started.append(started)
    started.answer()
    return started


_started: list[Server] = []


def stop_server() -> None:
    """End the servers, where there are any."""
    while _started:
        _started.pop().close()
    server.cache_clear()


def launch(
    function: Callable[..., Any], arguments: Sequence[Any] = (), *, captured: Sequence[str] = (), **options: Any
) -> list[Any]:
    """As `trimaran.launch.supervise.launch`, on forked ranks.

    Args:
        function: as there
        arguments: as there
        captured: jobs whose networks are captured before the ranks start; none: those of all runs
        options: as there
    """
    server().call(capture_all, sorted(set(captured or _jobs(arguments))))
    with forked_ranks(server()):
        return runtime.launch(function, arguments, **options)


@contextmanager
def forked_ranks(by: Server) -> Iterator[None]:
    """Meanwhile each rank that this process launches is forked, also by what it calls.

    Those that need a network or variables of their own are started as ever.
    """
    begin = runtime._start

    def start(
        number: int, folder: str, log: Path, environment: Mapping[str, str], seat: runtime.Seat | None
    ) -> runtime._StartedRank:
        if seat is not None or environment:
            return begin(number, folder, log, environment, seat)
        return _start(by, number, folder, log)

    with patch.object(runtime, "_start", start):
        yield


@contextmanager
def forked_rehearsals() -> Iterator[None]:
    """Meanwhile each rank that this process rehearses is forked, which is not seen in the variables of its process."""

    def start(
        command: Sequence[str], *, cwd: str | None, env: Mapping[str, str], stdout: BinaryIO, **_: object
    ) -> Forked:
        module, *arguments = command[command.index("-c") + 3 :]
        with Path(os.devnull).open("rb") as nothing:
            streams = nothing.fileno(), stdout.fileno(), stdout.fileno()
            by = server(captures=False)
            return by.fork(run_module, module, *arguments, streams=streams, environment=env, folder=cwd or ".")

    with patch.object(rehearsal, "Process", start):
        yield


def run_module(module: str, *arguments: str) -> None:
    """What the command of a rank that is rehearsed does, in the process that is to be it."""
    given = [str(Path(entry).resolve()) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*given, *(entry for entry in sys.path if entry not in (*given, str(ROOT)))]
    sys.argv = [module, *arguments]
    del sys.modules[module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def run_rank(descriptor: int, folder: str) -> None:
    from trimaran.launch.worker import main

    main(descriptor, folder)


def _jobs(arguments: Any) -> Iterator[str]:
    for one in arguments:
        if isinstance(one, Run):
            yield one.job
        elif isinstance(one, (list, tuple)):
            yield from _jobs(one)


def _start(by: Server, number: int, folder: str, log: Path) -> runtime._StartedRank:
    """What `launch.supervise` does, with a fork."""
    ours, theirs = socket.socketpair()
    variables = {name: value for name, value in os.environ.items() if name not in runtime._NOT_INHERITED}
    with theirs, log.open("wb") as output, Path(os.devnull).open("rb") as nothing:
        process: Any = by.fork(
            run_rank,
            folder,
            streams=(nothing.fileno(), output.fileno(), output.fileno()),
            descriptors=[theirs.fileno()],
            environment={**runtime._DEFAULTS, **variables, **runtime._ENVIRONMENT},
            folder=folder_of_command() or ".",
        )
    return runtime._StartedRank(number=number, process=process, connection=Connection(ours.detach()), log=log)
