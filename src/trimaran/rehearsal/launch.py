"""Start one process a rehearsed rank, and never leave one behind.

    parent                                           rank k (a process in a new session)
    ──────                                           ──────
    RankRequest → folder/rank<k>.json          ──▶   python -m trimaran.rehearsal.worker folder/rank<k>.json
    looks at the clock and at what is printed        runs the script; what it prints goes to `request.output`
    the process has ended                      ◀──   leaves `request.record`
    kills what the rank has started

Ranks that exchange objects or messages with each other (`RankRequest.together`), or meet at barriers (`at_barriers`),
run all at once; others as many at once as there are cores. A rank ends by itself at its limits of steps and seconds;
one that does not is killed `GRACE_S` later.

What a script starts is killed with it: its group of processes, and, by a mark in their environment, processes that have
left that group. A rank dies when its parent is killed. Temporary files of a script go to a folder that is gone when all
ranks have ended. Nothing listens on a port.
"""

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trimaran.base.errors import EnvironmentProblem, TrimaranError
from trimaran.base.files import folder_of_command, put_in_place, read_end, temporary_folder
from trimaran.base.processes import Process
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.secrets import masked
from trimaran.base.signals import held_back, leaving
from trimaran.base.system import allowed_cores, at_parents_death, needs_linux
from trimaran.base.units import format_bytes
from trimaran.machine.detect import free_memory_bytes
from trimaran.rehearsal.record import End, Record, read_record
from trimaran.rehearsal.request import REMOVED, UNFINISHED, RankRequest

WORKER = "trimaran.rehearsal.worker"
"""Module of a rank's process; its only argument is the path of its request."""

GRACE_S = 30.0
"""From the limit in seconds, which a rank keeps by itself, until it is killed [s]."""

MOST_PRINTED_BYTES = 64 * 2**20
"""Of what a rank prints; when there is more, what came before is dropped [bytes]."""

LEAST_RANK_BYTES, MOST_RANK_BYTES = 300 * 2**20, 800 * 2**20
"""Of a rank's process: torch with nothing in it, and a rank of a model of 400 billion parameters [bytes]."""

MARK = "TRIMARAN_REHEARSAL"
"""In the environment of a rank and of all that it starts. A script may look at it."""

_ROOT = Path(__file__).resolve().parents[2]

_BOOT = (
    "import runpy, sys; root, worker = sys.argv[1:3]; del sys.argv[1:3]; sys.path += [root] * (root not in sys.path); "
    "runpy.run_module(worker, run_name='__main__', alter_sys=True)"
)
"""Ours is found behind all that the interpreter finds by itself, as packages next to it may be of other versions."""

_END_BYTES = 64 * 2**10
_POLL_S = 0.05
_SWEEPS = 5

# What another launcher may have left in our own environment, and what a rank is told by its request.
_NOT_INHERITED = frozenset({
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES",
})  # fmt: skip
_NOT_INHERITED_PREFIXES = ("TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRank:
    """One rank's process, which has ended.

    Attributes:
        request: what it was told
        status: exit code of the process; negative: number of the signal that ended it
        overdue: whether it was killed because it went on beyond its limit
        seconds: from its start to its end [s]
        printed: the end of what it printed
        record: what it did; where it left none, one that says only how it ended
    """

    request: RankRequest
    status: int
    overdue: bool
    seconds: float
    printed: str
    record: Record


def run_ranks(
    requests: Sequence[RankRequest],
    *,
    folder: Path,
    at_once: int | None = None,
    progress: Progress = ignore_progress,
    worker: str = WORKER,
) -> list[EndedRank]:
    """Rehearse ranks, and wait for all.

    Args:
        requests: one a rank; paths in them lie in `folder`
        folder: exists and is the caller's to remove; requests go there
        at_once: most ranks at one time; those that are rehearsed together are always started together, and fewer are
            where memory is short. None: the cores that this process may use
        progress: is told how many ranks have ended
        worker: module that is run

    Returns:
        Of each request, in order, how its process ended.

    Raises:
        EnvironmentProblem: this is not Linux, a process cannot be started, or ranks that run together need more memory
            than is free
    """
    needs_linux("rehearsing a script")
    together = max((len(request.together) for request in requests), default=1)
    free_bytes = free_memory_bytes()
    if together > 1 and together * LEAST_RANK_BYTES > free_bytes:
        raise EnvironmentProblem(
            f"{together} ranks exchange objects and run at once, which takes at least "
            f"{format_bytes(together * LEAST_RANK_BYTES)} of memory here, and {format_bytes(free_bytes)} are free: "
            "rehearse fewer (--ranks)",
            code="rehearse.too-many-at-once",
            ranks=together,
        )
    at_barriers = max((len(request.at_barriers) for request in requests), default=1)
    most = max(1, together, at_barriers, min(at_once or allowed_cores(), free_bytes // MOST_RANK_BYTES))
    mark = secrets.token_hex(8)
    waiting = deque(requests)
    running: list[_Rank] = []
    ended: dict[int, EndedRank] = {}
    with _scratch() as scratch, leaving(lambda _: _leave(running)):
        try:
            if requests:
                _tools(scratch, requests[0])
            while waiting or running:
                while waiting and len(running) < most:
                    request = waiting.popleft()
                    with held_back():
                        running.append(_start(request, folder, mark, scratch, worker))
                time.sleep(_POLL_S)
                for rank in [rank for rank in running if rank.has_ended(time.monotonic())]:
                    running.remove(rank)
                    _kill(rank)
                    ended[rank.request.rank] = rank.result()
                progress("rehearsing ranks", len(ended), len(requests))
        finally:
            for rank in running:
                _kill(rank)
            for rank in running:
                rank.process.wait()
            _sweep(mark)
            for request in requests:
                clean_up(request.made_folders)
    return [ended[request.rank] for request in requests]


_LONGEST_SCRATCH = 72
"""Of the path for temporary files [characters]: multiprocessing makes sockets in it, with 32 more characters, and Linux
takes 107 for a socket's address. A loader's workers hang where theirs cannot be made."""


def _scratch() -> AbstractContextManager[Path]:
    """A folder for temporary files of the script."""
    usual = Path(tempfile.gettempdir()).absolute()
    name = "trimaran-ranks-"
    is_short = len(f"{usual}/{name}") + 8 <= _LONGEST_SCRATCH
    return temporary_folder(name, inside=None if is_short else Path("/tmp"))


class _Rank:
    """A rank whose process may still run."""

    def __init__(self, request: RankRequest, process: Process) -> None:
        self.request = request
        self.process = process
        self.started_s = time.monotonic()
        self.overdue = False

    def has_ended(self, now_s: float) -> bool:
        """Whether the process is gone; it is killed when it is overdue."""
        if self.process.poll() is not None:
            return True
        if now_s - self.started_s > self.request.most_seconds + GRACE_S:
            self.overdue = True
            _kill(self)
            self.process.wait()
            return True
        printed = Path(self.request.output)
        with contextlib.suppress(OSError):
            if printed.stat().st_size > MOST_PRINTED_BYTES:
                os.truncate(printed, 0)  # opened for appending: what follows is written from the new end
        return False

    def result(self) -> EndedRank:
        """How the process ended, and what it left."""
        status = self.process.wait()
        printed = masked(read_end(Path(self.request.output), most_bytes=_END_BYTES))
        return EndedRank(
            request=self.request,
            status=status,
            overdue=self.overdue,
            seconds=time.monotonic() - self.started_s,
            printed=printed,
            record=self._record(status, printed),
        )

    def _record(self, status: int, printed: str) -> Record:
        asked = self.request
        path = Path(asked.record)
        lines = printed.strip().splitlines()
        text = lines[-1] if lines else ""
        if path.exists():
            try:
                return read_record(path)
            except TrimaranError as error:
                text = error.message
        end = End(how="seconds" if self.overdue else "killed", status=status, text=text, lines=-1)
        script = [*(("-m",) if asked.is_module else ()), asked.script, *asked.arguments]
        return Record(
            rank=asked.rank,
            world=asked.world,
            per_node=asked.per_node,
            device=asked.gpu.catalog_name,
            memory_bytes=asked.gpu.memory_bytes,
            script=script,
            end=end,
            host_s=time.monotonic() - self.started_s,
        )


def _tools(scratch: Path, request: RankRequest) -> None:
    """Programs that a machine with GPUs has, which answer for the one that is rehearsed."""
    folder = scratch / "bin"
    folder.mkdir()
    gpu, program = request.gpu, Path(__file__).with_name("nvidia_smi.py")
    count = min(request.per_node, request.world)
    told = [gpu.name, str(gpu.memory_bytes), ".".join(map(str, gpu.capability)), str(count)]
    command = shlex.join([sys.executable, "-IS", str(program), *told])
    (folder / "nvidia-smi").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    (folder / "nvidia-smi").chmod(0o755)


def command_of(path: Path, worker: str = WORKER) -> list[str]:
    """What starts a rank whose request lies there."""
    # -P: the folder in which the command was given is not searched before what is installed.
    return [sys.executable, "-P", "-c", _BOOT, str(_ROOT), worker, str(path)]


def _start(request: RankRequest, folder: Path, mark: str, scratch: Path, worker: str) -> _Rank:
    path = folder / f"rank{request.rank}.json"
    put_in_place(path, msgspec.json.encode(request))
    try:
        with Path(request.output).open("ab") as output:
            process = Process(
                command_of(path, worker),
                cwd=folder_of_command(),
                env=_environment(os.environ, mark, scratch),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C reaches the parent alone, and a rank is killed together with what it has started.
                start_new_session=True,
                preexec_fn=_prepare,
            )
    except OSError as error:
        raise EnvironmentProblem(
            f"the process of rank {request.rank} cannot be started: {error.strerror or error}. Limits of processes and "
            "open files are shown by ulimit -u and ulimit -n: end other processes, or rehearse fewer ranks (--ranks)",
            code="rehearse.cannot-start",
            rank=request.rank,
        ) from error
    return _Rank(request, process)


def _environment(ours: Mapping[str, str], mark: str, scratch: Path) -> dict[str, str]:
    """Variables of a rank's process: ours, without what a launcher of ranks has set."""
    variables = {
        name: value
        for name, value in ours.items()
        if name not in _NOT_INHERITED and not name.startswith(_NOT_INHERITED_PREFIXES)
    }
    variables["PATH"] = os.pathsep.join(part for part in (str(scratch / "bin"), ours.get("PATH", os.defpath)) if part)
    # As torchrun does for several ranks of a node.
    variables.setdefault("OMP_NUM_THREADS", "1")
    return variables | {"PYTHONUNBUFFERED": "1", "TMPDIR": str(scratch), MARK: mark}


_die_with_parent = at_parents_death("SIGKILL")


def _prepare() -> None:
    """In a new process, before its program: it dies with its parent, and leaves no file of its memory."""
    _die_with_parent()
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


# ---------------------------------------------------------------------------------------------------------------------
# Ends of processes


def _kill(rank: _Rank) -> None:
    """Kill a rank and its group, of which some may be left where the rank itself has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(rank.process.pid, signal.SIGKILL)


def _leave(ranks: Sequence[_Rank]) -> None:
    """Kill all where this process leaves at once; a handler of a signal does this, so that nothing is waited for."""
    for rank in ranks:
        _kill(rank)


def _sweep(mark: str) -> None:
    """Kill what has left the groups of its ranks, such as a daemon: it still has the mark in its environment."""
    wanted = f"{MARK}={mark}".encode()
    for _ in range(_SWEEPS):
        found = [pid for pid in _processes() if wanted in _environment_of(pid)]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def clean_up(listed: Path) -> None:
    """Remove a rank's empty folders, as scripts look for them, and open files; put back what it removed."""
    with contextlib.suppress(FileNotFoundError):
        for path in map(Path, map(os.fsdecode, reversed(listed.read_bytes().split(b"\0")[:-1]))):
            with contextlib.suppress(OSError):
                if path.suffix == UNFINISHED:
                    path.unlink()
                elif path.suffix != REMOVED:
                    path.rmdir()
                elif os.path.lexists(path):
                    place = path.with_suffix("").with_suffix("")
                    if place.is_dir() and not place.is_symlink():
                        shutil.rmtree(place)
                    path.replace(place)
        listed.unlink()


def _processes() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return []


def _environment_of(pid: int) -> list[bytes]:
    """Variables that a process began with; none where it may not be read, or where it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []
