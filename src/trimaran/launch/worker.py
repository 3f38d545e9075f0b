"""The other end of `launch.supervise.launch`: one rank.

Run as `python -m trimaran.launch.worker <descriptor> <folder>`, where the descriptor is the rank's end of a pipe to
its parent, and the ranks meet in the folder. The parent sends one `LaunchRequest`, then commands, pairs of a kind and a
value, which one thread of the rank reads and hands to whoever listens for their kind. The last command is
"all-answered", so that the end of the pipe without it means that the parent is gone.

The last rank that leaves removes the folder, as its parent does where that is still there: each has a shared lock on
it, and can have it alone when the others have left.
"""

import contextlib
import faulthandler
import fcntl
import io
import os
import pickle
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from trimaran.base.files import given_from_here
from trimaran.base.system import reason_of
from trimaran.launch.activity import ACTIVITY, PAGE, memory_bytes
from trimaran.launch.failures import to_failure
from trimaran.launch.stop_requests import REQUESTS
from trimaran.launch.supervise import ALL_ANSWERED, LaunchRequest
from trimaran.launch.world import Place, World, choose_device, ignore_event, leave_world, open_world


class _Parent:
    """The pipe to the parent; any thread may send, one reads commands."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._listeners: dict[str, Callable[[Any], None]] = {}
        self.all_answered = threading.Event()

    def report(self, event: Mapping[str, object]) -> None:
        self.send("event", dict(event))

    def send(self, kind: str, value: object) -> None:
        message = pickle.dumps((kind, value))
        with self._lock:
            self._connection.send_bytes(message)

    def listen(self, kind: str, listener: Callable[[Any], None]) -> None:
        """Have something called with the value of each command of a kind; before commands are read (`watch`).

        Args:
            kind: of the commands
            listener: called in the thread that reads commands, which waits for it
        """
        self._listeners[kind] = listener

    def watch(self, folder: str) -> None:
        """Read commands until the parent says that all have answered. If it is gone, end this rank and its children."""
        while not self.all_answered.is_set():
            try:
                # Written by the parent of this process, into a pipe that no other process can open.
                kind, value = pickle.loads(self._connection.recv_bytes())  # noqa: S301
            except (EOFError, OSError):
                shutil.rmtree(folder, ignore_errors=True)
                os.killpg(os.getpgid(0), signal.SIGKILL)
            if kind == ALL_ANSWERED:
                self.all_answered.set()
                continue
            try:
                self._listeners.get(kind, _ignore)(value)
            except ConnectionError:  # the answer to a parent that is gone: what is read next says so
                continue
            except Exception:  # noqa: BLE001 the end of the pipe must be seen whatever a listener does
                traceback.print_exc()


def _ignore(_: Any) -> None:
    """A command of which nobody has to hear."""


class _Log(io.FileIO):
    """What a rank prints into its log; where the disk is full, or the file gone, the training goes on without.

    Args:
        descriptor: of the log, which stays open
        lost: called at the first text that cannot be written, with the reason
    """

    def __init__(self, descriptor: int, lost: Callable[[str], None]) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._lost: Callable[[str], None] | None = lost

    def write(self, text: Any) -> int:
        try:
            return super().write(text)
        except OSError as error:
            lost, self._lost = self._lost, None
            if lost is not None:
                lost(reason_of(error))
            return len(text)


def _print_on(parent: _Parent) -> None:
    """Have what is printed no longer end the rank where it cannot be written."""

    def lost(reason: str) -> None:
        with contextlib.suppress(OSError):
            parent.report({"lost_log": f"what the rank printed from then on is lost: {reason}"})

    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        log = io.TextIOWrapper(
            _Log(descriptor, lost),
            encoding="utf-8",
            errors="backslashreplace",
            write_through=True,
        )
        setattr(sys, name, log)


def main(descriptor: int, folder: str) -> NoReturn:
    """Do what the parent asks.

    Args:
        descriptor: number of the open file that is this rank's end of the pipe
        folder: in which the ranks meet
    """
    faulthandler.enable()
    connection = Connection(descriptor)
    try:
        # Written by the parent of this process, into a pipe that no other process can open.
        request: LaunchRequest = pickle.loads(connection.recv_bytes())  # noqa: S301
    except (EOFError, OSError):
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)
    _restore_python_path(request)
    inside = _share(folder)
    parent = _Parent(connection)
    _print_on(parent)
    # Also those that come before there is a session: a launcher may signal all processes of a job.
    REQUESTS.told = partial(_pass_on, parent)
    REQUESTS.open()
    parent.listen("stop", REQUESTS.ask_to_stop)
    threading.Thread(target=parent.watch, args=(folder,), daemon=True).start()
    parent.send(PAGE, ACTIVITY.share())
    try:
        result = _work(request, folder, parent)
        parent.send("result", result)
    except BaseException as error:  # noqa: BLE001 whatever it is, the parent must hear of it
        traceback.print_exc()
        with contextlib.suppress(OSError):
            _send_failure(parent, request.rank, error)
    # The others may still need what this rank holds open. Where a rank has failed, the parent ends all.
    parent.all_answered.wait()
    leave_world()
    sys.stdout.flush()
    sys.stderr.flush()
    if inside is not None:
        with contextlib.suppress(OSError):  # another rank is still there
            fcntl.flock(inside, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    # Threads that libraries left behind can make the usual exit hang or abort, and nothing is left to do.
    os._exit(0)


def _pass_on(parent: _Parent, number: int) -> None:
    """Tell the parent of a signal that has come here; one that is gone is noticed elsewhere."""
    with contextlib.suppress(OSError):
        parent.report({"asked_to_stop": number})


def _share(folder: str) -> int | None:
    """A shared lock on the folder, by its descriptor; None: the system gives none, and others remove the folder."""
    with contextlib.suppress(OSError):
        inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(inside, fcntl.LOCK_SH)
        return inside
    return None


def _restore_python_path(request: LaunchRequest) -> None:
    os.environ.pop("PYTHONPATH", None)
    if request.python_path is not None:
        os.environ["PYTHONPATH"] = request.python_path


def _work(request: LaunchRequest, folder: str, parent: _Parent) -> Any:
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    function, arguments, beforehand = pickle.loads(request.work)  # noqa: S301
    with given_from_here():
        if beforehand is not None:
            arguments = *arguments, beforehand(request.rank, partial(_join, request, folder), *arguments)
        world = _join(request, folder, "store", parent.report)
        ACTIVITY.before_bytes = memory_bytes()
        return function(world, *arguments)


def _join(
    request: LaunchRequest, folder: str, name: str, report: Callable[[Mapping[str, object]], None] = ignore_event
) -> World:
    """The world of the ranks that meet in a file of this name."""
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    if request.ranks == 1:
        return World(device=choose_device(request.device), report=report)
    place = Place(
        rank=request.rank,
        size=request.ranks,
        local_rank=request.rank,
        local_size=request.ranks,
        started_by="trimaran",
    )
    store = FileStore(str(Path(folder) / name), request.ranks)
    return open_world(place, store=store, device=request.device, timeout_s=request.timeout_s, report=report)


def _send_failure(parent: _Parent, rank: int, error: BaseException) -> None:
    failure = to_failure(rank, error)
    try:
        parent.send("failure", failure)
    except (pickle.PicklingError, AttributeError, TypeError):
        # A figure of the error cannot be sent; its message can.
        plain = None if failure.error is None else type(failure.error)(failure.error.message, code=failure.error.code)
        parent.send("failure", replace(failure, error=plain))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
