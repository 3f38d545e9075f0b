"""Start the ranks of one machine, and never leave one behind.

    parent                                        rank k (a process in a new session)
    ──────                                        ──────
    private folder for the ranks to meet in, and for
    their logs, where nobody wants these afterwards
    start all, send each its request     ──▶      join the others through a file, gloo or NCCL on the loopback interface
                                         ◀──      events, and what it does, while `function` runs
    commands, while `function` runs      ──▶
                                         ◀──      its result, or what it raised
    all have answered: say so, return    ──▶      leave; the last one removes the folder

The parent kills all ranks as soon as one fails, or when anything is raised in it. They are not asked first: to a rank
SIGTERM is a request to end the training after its step. A rank whose parent is gone, even killed, removes the folder
and ends itself: each watches a pipe that only the parent's death closes before all have answered; one that is stopped
is continued by the system then (PR_SET_PDEATHSIG). No port is opened
outside the loopback interface, and nothing has a fixed name, so that runs do not collide.
"""

import contextlib
import mmap
import os
import pickle
import queue
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, Protocol

from trimaran.base.errors import EnvironmentProblem, InputError
from trimaran.base.files import folder_of_command, given, temporary_folder
from trimaran.base.processes import Process
from trimaran.base.signals import held_back, leaving
from trimaran.base.system import at_parents_death, needs_linux
from trimaran.base.user_errors import refuse_training
from trimaran.launch.activity import PAGE, ActivityWatch, HangLimits, Note, Stacks, memory_bytes, opened, stacks_of
from trimaran.launch.failures import Failure, find_cause, to_error
from trimaran.launch.memory import Killings, Limit, group_limit
from trimaran.launch.world import TIMEOUT_S, DeviceChoice

Event = Mapping[str, object]
Command = tuple[str, object]
"""What the parent sends to ranks that run: a kind, such as "stop", and a value that can be pickled."""

ALL_ANSWERED = "all-answered"
"""Kind of the last command."""

# A rank that lost a peer may speak before the peer's own failure is seen.
_GRACE_S = 3.0
# From the last message of a process to its natural end.
_LEAVE_S = 10.0
_POLL_S = 0.1
_USUAL = HangLimits()

_NOT_INHERITED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_DEFAULTS = {
    # glibc returns large blocks to the system when they are freed, and each step then takes time to get them again,
    # page by page: a tenth of the step of a small CNN. With these settings they are kept for the next step.
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
}
_ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    # On a CPU a device is one process with one thread, so that ranks do not fight over cores.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # What a rank printed before it was killed is in its log.
    "PYTHONUNBUFFERED": "1",
}
_HASH_SEED = "0"
"""Python orders the texts of a set by a seed that each process draws; ranks, and a run that goes on, need one order: a
data set may number its classes by that of a set."""


class Seat(Protocol):
    """Where a rank is started, and the variables that it needs there."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Of its process."""

    def start(self, work: Callable[[], Process]) -> Process:
        """Call what starts the process, there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """The request of the parent to one rank.

    Attributes:
        rank: number of the rank
        ranks: number of ranks
        device: as for `join_world`
        timeout_s: how long a collective may wait [s]
        python_path: the parent's own PYTHONPATH, None where it has none
        work: the pickled `(function, arguments, beforehand)`; opened once the rank can import what the parent can
    """

    rank: int
    ranks: int
    device: DeviceChoice
    timeout_s: float
    python_path: str | None
    work: bytes


@dataclass(slots=True, kw_only=True)
class _StartedRank:
    number: int
    process: Process
    connection: Connection
    log: Path
    page: mmap.mmap | None = None
    calls: int | None = None
    unseen: bool = False
    answered: bool = False
    result: Any = field(default=None)
    failure: Failure | None = None

    @property
    def finished(self) -> bool:
        return self.answered or self.failure is not None

    @property
    def note(self) -> Note:
        return Note() if self.page is None else Note.read(self.page)


def launch(
    function: Callable[..., Any],
    arguments: Sequence[Any] = (),
    *,
    ranks: int,
    log_dir: str | Path | None = None,
    on_event: Callable[[int, Event], None] | None = None,
    on_quiet: Callable[[], None] | None = None,
    commands: "queue.SimpleQueue[Command] | None" = None,
    environment: Mapping[str, str] | None = None,
    device: DeviceChoice = "auto",
    timeout_s: float = TIMEOUT_S,
    seats: Sequence[Seat] | None = None,
    hang: HangLimits | None = _USUAL,
    beforehand: Callable[..., Any] | None = None,
) -> list[Any]:
    """Run `function(world, *arguments)` on each of several local ranks, and wait for all.

    Args:
        function: a function that another process can import; gets its `World` first
        arguments: the same for all ranks; sent through memory, never through a file
        ranks: how many
        log_dir: folder for `rank<k>.log`, which gets what rank k prints; made where it is missing. None: a folder that
            is gone with the ranks, also where this process is killed
        on_event: called in the parent with the rank and the event for each `world.report(event)`
        on_quiet: called in the parent, time and again, where all is read that the ranks have reported; may raise
        commands: sent to every rank, soon after they are put there, also by a handler of a signal
        environment: variables to set in the ranks, such as `{"OMP_NUM_THREADS": "4"}`; by default a rank has one thread
        device: "auto" takes GPUs where there is one a rank, else the CPU
        timeout_s: how long a collective may wait for the others [s]
        seats: where each rank is started (`emulation.links`); None: in the network of this process
        hang: how long ranks may go without progress; None: as long as collectives let them
        beforehand: called in each rank before it has a world, with its number, what makes a world of another name,
            and the arguments; what it returns is the last argument of the function. None: nothing is

    Returns:
        What the function returned, by rank.

    Raises:
        InputError: the function or its arguments cannot be sent
        EnvironmentProblem: this is not Linux, or a log cannot be written
        TrimaranError: what a rank raised, with the rank among its figures; the others have been ended
        ExecutionError: a rank raised something else or died, with the end of its log; or a rank holds the others up;
            the others have been ended
    """
    refuse_training("ranks of Trimaran")
    needs_linux("starting ranks")
    if ranks < 1:
        raise InputError(f"at least one rank is needed, got {ranks}", code="launch.no-rank", ranks=ranks)
    work = _pack(function, arguments, beforehand)
    with (
        temporary_folder("trimaran-") as place,
        contextlib.ExitStack() as at_once,
    ):
        folder = str(place)
        logs = Path(folder if log_dir is None else log_dir)
        started: list[_StartedRank] = []
        try:
            with _writing(logs):
                logs.mkdir(parents=True, exist_ok=True)
            for number, seat in enumerate(seats or [None] * ranks):
                # What has been started must be known when a signal comes, or the next one fails.
                with held_back():
                    started.append(_start(number, folder, logs / f"rank{number}.log", environment or {}, seat))
            at_once.enter_context(leaving(lambda _: _leave(started, folder)))
            for rank in started:
                _ask(rank, LaunchRequest(
                    rank=rank.number,
                    ranks=ranks,
                    device=device,
                    timeout_s=timeout_s,
                    python_path=os.environ.get("PYTHONPATH"),
                    work=work,
                ))  # fmt: skip
            watch = None
            if hang is not None:
                pids = [rank.process.pid for rank in started]
                watch = ActivityWatch(pids, hang, time.monotonic(), partial(_ask_threads, started))
            _listen(started, on_event, on_quiet, commands, watch, keeps_logs=log_dir is not None)
            _let_go(started)
            return [rank.result for rank in started]
        finally:
            _end(started)


def _pack(function: Callable[..., Any], arguments: Sequence[Any], beforehand: Callable[..., Any] | None) -> bytes:
    if getattr(function, "__module__", None) == "__main__":
        raise InputError(
            f"{function!r} is defined in the script that is running, where another process cannot import it: "
            "move it to a module"
        )
    try:
        return pickle.dumps((function, tuple(arguments), beforehand))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"{function!r} and its arguments must be sent to other processes, and cannot be: {error}. Use a function "
            "at the top level of a module, and plain values",
            code="launch.cannot-send",
        ) from error


def _start(number: int, folder: str, log: Path, environment: Mapping[str, str], seat: Seat | None) -> _StartedRank:
    try:
        ours, theirs = socket.socketpair()
    except OSError as error:
        raise _not_started(number, error) from error
    variables = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    # The rank imports what the parent can import; it puts the variable back before it runs anything.
    if not variables.get("PYTHONHASHSEED", "").isdigit():
        variables["PYTHONHASHSEED"] = _HASH_SEED
    variables["PYTHONPATH"] = os.pathsep.join(str(given(Path(entry)).resolve()) for entry in sys.path)
    if seat is not None:
        environment = {**seat.environment, **environment}
    with ours, theirs, _opened(log) as output:
        try:
            process = (_here if seat is None else seat.start)(
                lambda: Process(
                    # -P: the folder in which the parent happens to be is not searched unless the parent searches it.
                    [sys.executable, "-P", "-m", "trimaran.launch.worker", str(theirs.fileno()), folder],
                    # As the command began: the code of the job may have gone elsewhere, and does so there by itself.
                    cwd=folder_of_command(),
                    env={**_DEFAULTS, **variables, **_ENVIRONMENT, **environment},
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # Ctrl-C reaches the parent alone, and a rank and what it started can be killed together.
                    start_new_session=True,
                    # Before its program begins: it may be stopped while that is loaded.
                    preexec_fn=_be_continued,
                )
            )
        except OSError as error:
            raise _not_started(number, error) from error
        return _StartedRank(number=number, process=process, connection=Connection(ours.detach()), log=log)


def _here(start: Callable[[], Process]) -> Process:
    return start()


def _not_started(number: int, error: OSError) -> EnvironmentProblem:
    where = "" if error.filename is None else f" ({error.filename})"
    return EnvironmentProblem(
        f"rank {number} cannot be started: {error.strerror}{where}. Limits of processes and open files are shown by "
        "ulimit -u and ulimit -n: end other processes, or take fewer ranks",
        code="launch.cannot-start",
        rank=number,
    )


_be_continued = at_parents_death("SIGCONT")
"""In a new rank: one that is stopped could not see that its parent, or the thread that started it, is gone. One that
runs notices nothing of it."""


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Around the making of a folder or a file of a launch.

    Raises:
        EnvironmentProblem: it cannot be made
    """
    try:
        yield
    except OSError as error:
        raise EnvironmentProblem(
            f"{path} cannot be written, and what ranks print goes there: {error.strerror}",
            code="launch.unwritable",
            path=str(path),
        ) from error


def _opened(log: Path) -> IO[bytes]:
    with _writing(log):
        return log.open("wb")


def _ask(rank: _StartedRank, request: LaunchRequest) -> None:
    try:
        rank.connection.send_bytes(pickle.dumps(request))
    except OSError:
        rank.failure = Failure(rank=rank.number, exit_code=_exit_code(rank))


def _listen(
    ranks: Sequence[_StartedRank],
    on_event: Callable[[int, Event], None] | None,
    on_quiet: Callable[[], None] | None,
    commands: "queue.SimpleQueue[Command] | None",
    watch: ActivityWatch | None,
    *,
    keeps_logs: bool,
) -> None:
    """Wait until every rank has answered; raise the cause as soon as one has failed."""
    # One may have died before it was asked.
    failures = [rank.failure for rank in ranks if rank.failure is not None]
    deadline: float | None = None
    killed = Killings.so_far()
    while not all(rank.finished for rank in ranks):
        while commands is not None and not commands.empty():
            _tell(ranks, *commands.get())
        waiting = {rank.connection: rank for rank in ranks if not rank.finished}
        ready = wait(list(waiting), timeout=_POLL_S)
        for connection, rank in waiting.items():
            if connection in ready:
                _receive(rank, on_event, watch)
            elif rank.process.poll() is not None and not connection.poll():
                # A process that the rank itself started may still hold the pipe open.
                rank.failure = Failure(rank=rank.number, exit_code=rank.process.returncode)
        failures += [rank.failure for rank in waiting.values() if rank.failure is not None]
        if failures and deadline is None:
            deadline = time.monotonic() + _GRACE_S
        if failures and (not find_cause(failures).because_of_peer or time.monotonic() > (deadline or 0.0)):
            break
        if on_quiet is not None and not failures and not wait(list(waiting), timeout=0):
            on_quiet()
        if watch is not None and not failures:
            _look(watch, [rank for rank in ranks if not rank.finished])
    failures += [rank.failure for rank in ranks if rank.failure is not None and rank.failure not in failures]
    if failures:
        cause = find_cause(failures)
        limit = _limit(ranks, cause.rank) if Killings.so_far().since(killed) else None
        if cause.steps is None and ranks[cause.rank].page is not None:
            note = ranks[cause.rank].note
            cause = replace(cause, steps=note.steps, asked=note.asked)
        raise to_error(cause, ranks[cause.rank].log, kept=keeps_logs, killed_for_memory=limit)


def _limit(ranks: Sequence[_StartedRank], rank: int) -> Limit | None:
    """The limit on memory that all ranks share, as one of them has it; None: nobody tells."""
    found = group_limit()
    if found is None:
        return None
    name, nbytes = found
    before = memory_bytes()[0] + sum(one.note.before_bytes for one in ranks)
    return Limit(
        name=f"{name}, of which each of {len(ranks)} ranks has its share",
        nbytes=nbytes // len(ranks),
        used_bytes=ranks[rank].note.resident_bytes,
        before_bytes=before // len(ranks),
    )


def _look(watch: ActivityWatch, ranks: Sequence[_StartedRank]) -> None:
    """End the launch where its ranks do not get on for too long.

    Raises:
        ExecutionError: it names the rank that holds the others up
    """
    if any(rank.unseen for rank in ranks):
        return
    now = time.monotonic()
    for rank in ranks:
        watch.hear(rank.number, rank.note, now)
    found = watch.look([rank.number for rank in ranks], now)
    if found is not None:
        raise found


def _ask_threads(ranks: Sequence[_StartedRank], numbers: Sequence[int]) -> Mapping[int, Stacks]:
    asked = {
        number: (ranks[number].process.pid, calls, (ranks[number].process.pid, *ranks[number].note.threads))
        for number in numbers
        if (calls := ranks[number].calls) is not None
    }
    return stacks_of(asked)


def _receive(rank: _StartedRank, on_event: Callable[[int, Event], None] | None, watch: ActivityWatch | None) -> None:
    try:
        # Written by a child of this process, into a pipe that no other process can open.
        kind, value = pickle.loads(rank.connection.recv_bytes())  # noqa: S301
    except (EOFError, OSError):
        rank.failure = Failure(rank=rank.number, exit_code=_exit_code(rank))
        return
    if kind == PAGE:
        try:
            rank.page, rank.calls = opened(rank.process.pid, *value)
        except OSError:
            rank.unseen = True
    elif kind == "event":
        if watch is not None:
            watch.moved(rank.number, time.monotonic())
        if on_event is not None:
            on_event(rank.number, value)
    elif kind == "result":
        rank.answered, rank.result = True, value
    else:
        rank.failure = value


def _tell(ranks: Sequence[_StartedRank], kind: str, value: object) -> None:
    """Send a command to ranks; one that is gone is noticed elsewhere."""
    message = pickle.dumps((kind, value))
    for rank in ranks:
        with contextlib.suppress(OSError):
            rank.connection.send_bytes(message)


def _let_go(ranks: Sequence[_StartedRank]) -> None:
    """Tell ranks that have answered that all have, so that none leaves while another still needs it."""
    _tell(ranks, ALL_ANSWERED, None)
    for rank in ranks:
        rank.connection.close()
    deadline = time.monotonic() + _LEAVE_S
    for rank in ranks:
        try:
            rank.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return


def _end(ranks: Sequence[_StartedRank]) -> None:
    """End ranks that still run, with all processes that they started."""
    for rank in ranks:
        _kill(rank)
    for rank in ranks:
        rank.process.wait()
        rank.connection.close()
        if rank.calls is not None:
            os.close(rank.calls)


def _exit_code(rank: _StartedRank) -> int:
    """The exit code of a rank that has closed its pipe; it is killed where its end takes long."""
    try:
        return rank.process.wait(_LEAVE_S)
    except subprocess.TimeoutExpired:
        _kill(rank)
        return rank.process.wait()


def _leave(ranks: Sequence[_StartedRank], folder: str) -> None:
    """End ranks where this process leaves at once.

    Nothing is waited for: a handler of a signal does this, and what it interrupted may hold the lock of such a wait.
    """
    for rank in ranks:
        _kill(rank)
    shutil.rmtree(folder, ignore_errors=True)


def _kill(rank: _StartedRank) -> None:
    """Kill a rank and what it started, which may be left also where the rank itself has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(rank.process.pid, signal.SIGKILL)
