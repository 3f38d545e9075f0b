"""What a run notes of itself in its directory, while the disk fills, or the directory goes.

A training does not end because a note of it cannot be written: what could not be is kept in memory, is written as soon
as that works again, and is said at the end, with an exit code that is not 0. Weights that cannot be written into the
run directory go into the current one, or into that of temporary files (`save_weights`).

`run.json` names the process of a run. So a run that ended without a word, by SIGKILL or with its machine, is told from
one that runs (`read_status`).
"""

import contextlib
import errno
import itertools
import json
import os
import platform
import shlex
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trimaran.base.decoding import decode_object
from trimaran.base.errors import CorruptDataError, EnvironmentProblem, ExecutionError, InputError, TrimaranError
from trimaran.base.files import (
    file_name,
    folder_of_command,
    given,
    looked_at,
    read_bytes,
    shown_path,
    write_whole,
)
from trimaran.base.secrets import masked, without_secrets
from trimaran.base.signals import say, signal_name
from trimaran.base.system import reason_of
from trimaran.base.units import format_bytes
from trimaran.checkpoint_files.commit import FOLDER
from trimaran.launch.world import running_system

if TYPE_CHECKING:
    from torch import Tensor


SCHEMA_VERSION = 1

OTHER_FILES_BYTES = 4 * 2**20
"""Room for what a run writes besides its weights: plan, program, logs, timelines [bytes]."""

LONGEST_REASON = 300
"""Of a restart, as `run.json` has it [characters]."""

Status = Literal["running", "finished", "stopped", "failed", "lost"]

RUNS = Path("runs")
"""Where run directories are, if nobody says otherwise."""


class RunDirectory:
    """Paths of one run.

    Args:
        path: the directory

    Attributes:
        plan: that was run
        program: as text
        metrics: one JSON line an epoch
        predicted: the simulated timeline
        measured: the recorded timeline
        trace: both timelines, for a trace viewer
        report: predicted against measured
        model: the trained weights
        logs: one log a rank
        checkpoints: folder of its checkpoints; not there where none was saved
    """

    def __init__(self, *, path: Path) -> None:
        self.path = path
        self.plan = path / "plan.json"
        self.program = path / "program.txt"
        self.metrics = path / "metrics.jsonl"
        self.predicted = path / "predicted.json"
        self.measured = path / "measured.json"
        self.trace = path / "trace.json"
        self.report = path / "report.json"
        self.model = path / "model.safetensors"
        self.logs = path / "logs"
        self.checkpoints = path / FOLDER

    @property
    def shown(self) -> str:
        """Its path for people, from the folder in which the command was given."""
        return shown_path(self.path)


def create_run_directory(name: str, *, parent: Path | None = None) -> RunDirectory:
    """Make a new run directory, named by the job and the time.

    Args:
        name: of the job; what a file name cannot have is replaced
        parent: where; default: `runs` in the folder in which the command was given

    Returns:
        It, by its absolute path.

    Raises:
        EnvironmentProblem: it cannot be written
    """
    parent = given(parent or RUNS)
    with contextlib.suppress(OSError):  # what cannot be made is said below
        parent = parent.absolute()
    stem = f"{file_name(name)}-{time.strftime('%Y%m%d-%H%M%S')}"
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        path = parent / f"{stem}{suffix}"
        try:
            path.mkdir(parents=True)
            (path / "logs").mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            with contextlib.suppress(OSError):
                path.rmdir()
            raise EnvironmentProblem(
                f"cannot write run directory {shown_path(path)}: {reason_of(error)}", path=str(path)
            ) from None
        return RunDirectory(path=path)
    raise EnvironmentProblem(f"cannot find a free name for a run directory like {parent / stem}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """Where a signal has ended a training.

    Attributes:
        signal: its number
        step: training steps that all ranks have done
        epoch: the one that was under way, from 1
        loss: mean of its steps; None: it had none
    """

    signal: int
    step: int
    epoch: int
    loss: float | None

    def __str__(self) -> str:
        return (
            f"{signal_name(self.signal)} ended the training after step {self.step}, in epoch {self.epoch}: all ranks "
            "have done the same steps"
        )


class RunRecord:
    """The notes of one run, `run.json` and `metrics.jsonl`; its parent writes them.

    Args:
        run: its directory

    Attributes:
        problems: what could not be written, and why
    """

    def __init__(self, run: RunDirectory) -> None:
        self.problems: dict[str, str] = {}
        self._run = run
        self._facts: dict[str, object] = {}
        self._rows: dict[object, str] = {}
        self._restarts: list[dict[str, object]] = []

    def begin(self, *, job: str, strategy: str, resumed: Path | None = None, weights: Path | None = None) -> None:
        """Note that the run has begun, and in which process.

        Args:
            job: as it was named
            strategy: name of the strategy
            resumed: what it goes on from; None: it begins anew
            weights: that it begins from; None: those of the job's model

        Raises:
            EnvironmentProblem: it cannot be written
        """
        process = {"host": socket.gethostname(), "pid": os.getpid(), "started": process_start(os.getpid())}
        self._facts = {"status": "running", "job": job, "strategy": strategy, "command": command_line()}
        self._facts |= {"started_at": _now(), "process": process}
        if resumed is not None:
            self._facts["resumed_from"] = str(resumed)
        if weights is not None:
            self._facts["weights"] = str(weights)
        self._note()

    def finish(self, summary: Mapping[str, object]) -> None:
        """Note that the run has finished, with its results."""
        self._end("finished", **summary)

    def stop(self, stopped: Stopped, summary: Mapping[str, object]) -> None:
        """Note that a signal has ended the run, where, and its results so far."""
        self._end(
            "stopped",
            reason=str(stopped),
            signal=signal_name(stopped.signal),
            step=stopped.step,
            epoch=stopped.epoch,
            loss=stopped.loss,
            **summary,
        )

    def leave(self, number: int, step: int, epoch: int, *, starting: bool = False) -> None:
        """Note that a second signal has ended the run at once, or one between two starts of its ranks.

        Args:
            number: of the signal
            step: training steps that are known to be done
            epoch: that was under way, from 1
            starting: its ranks were started, or had not done a step
        """
        how = (
            " ended the run while its ranks were started" if starting else ", the second signal, ended the run at once"
        )
        reason = f"{signal_name(number)}{how}"
        self._end("stopped", reason=reason, signal=signal_name(number), step=step, epoch=epoch)

    def fail(self, error: TrimaranError) -> None:
        """Note that the run has failed, and why; that the note cannot be written is added to the message.

        Args:
            error: the reason
        """
        self._end("failed", reason=masked(error.message), code=error.code)
        if self.problems:
            error.message += f"\n{self.unwritten}"

    def restart(self, *, why: TrimaranError, step: int, strategy: str, ranks: int) -> None:
        """Note that the ranks are started again after a failure.

        Args:
            why: the failure
            step: training steps that were known to be done
            strategy: name of the strategy that they go on by
            ranks: how many there are
        """
        reason = masked(why.message).partition("\n")[0][:LONGEST_REASON]
        rank = why.figures.get("rank")
        entry = {"at": _now(), "reason": reason, "code": why.code, "rank": rank, "step": step, "from_step": None}
        self._restarts.append(entry | {"strategy": strategy, "ranks": ranks})
        self._facts |= {"strategy": strategy, "restarts": self._restarts}
        self.try_to("run.json", self._note)

    def recover(self, recovered: Mapping[str, object] | None, rollbacks: Sequence[Mapping[str, object]] = ()) -> None:
        """Note from what the ranks go on.

        Args:
            recovered: what a session has taken (`runtime.checkpoint.recovered`); None: they begin anew
            rollbacks: that it has; later ones are to come again
        """
        for name, value in (("recovered", recovered), ("rollbacks", [*map(dict, rollbacks)])):
            self._facts[name] = value
            if not value:
                del self._facts[name]
        if self._restarts:
            self._restarts[-1]["from_step"] = 0 if recovered is None else recovered["step"]
        self.try_to("run.json", self._note)

    @property
    def restarts(self) -> tuple[Mapping[str, object], ...]:
        """When and why the ranks were started again, and from which step they went on."""
        return tuple(self._restarts)

    def roll_back(self, rollback: Mapping[str, object]) -> None:
        """Note that the training has gone back for a loss that was not a finite number.

        Args:
            rollback: from where to where
        """
        self._facts["rollbacks"] = [*self._rollbacks, dict(rollback)]
        self.try_to("run.json", self._note)

    @property
    def _rollbacks(self) -> list[object]:
        found = self._facts.get("rollbacks", [])
        return found if isinstance(found, list) else []

    def add_metrics(self, row: Mapping[str, object]) -> None:
        """Append the figures of an epoch; of one that is done again they replace its own, and all after it."""
        epoch, text = row.get("epoch"), json.dumps(row) + "\n"
        if self._rows.get(epoch) != text:
            added = "" if epoch in self._rows or "metrics.jsonl" in self.problems else text
            before = itertools.takewhile(lambda one: one[0] != epoch, self._rows.items())
            self._rows = {**dict(before), epoch: text}
            self.try_to("metrics.jsonl", lambda: self._write_metrics(added))

    def try_to(self, what: str, write: Callable[[], object]) -> bool:
        """Write something, or note that it cannot be.

        Args:
            what: the file
            write: raises where it cannot

        Returns:
            Whether it has been written.
        """
        try:
            write()
        except (OSError, EnvironmentProblem, ExecutionError) as error:
            reason = error.message if isinstance(error, TrimaranError) else reason_of(error)
            self.problems[what] = reason
            return False
        self.problems.pop(what, None)
        return True

    def restore(self, rewrite: Callable[[], object]) -> None:
        """At the end, write again what is missing, as where the directory was deleted.

        Args:
            rewrite: writes plan and program
        """
        gone = not self._run.plan.exists()
        logs = self._run.logs.exists()
        if gone:
            with contextlib.suppress(OSError):
                self._run.path.mkdir(parents=True, exist_ok=True)
            self.try_to("plan.json, program.txt", rewrite)
            if not logs:
                self.problems["logs"] = "the run directory was deleted while it was in use"
        if self._rows and ("metrics.jsonl" in self.problems or not self._run.metrics.exists()):
            self.try_to("metrics.jsonl", self._write_metrics)

    @property
    def unwritten(self) -> str:
        """What could not be written, for people; empty: all was."""
        return self._said() if self.problems else ""

    def check(self) -> None:
        """Say what could not be written of a run that is done. One that a signal has ended has the code of that.

        Raises:
            EnvironmentProblem: something could not
        """
        if self.problems and self._facts.get("status") != "stopped":
            raise EnvironmentProblem(
                f"the training is done, and {self._said()}",
                code="run.not-written",
                path=str(self._run.path),
                files=tuple(self.problems),
            )

    def _said(self) -> str:
        lost = "\n".join(f"    {what}: {reason}" for what, reason in self.problems.items())
        return f"not all of the run could be written to {self._run.shown}:\n{lost}"

    def _write_metrics(self, added: str = "") -> None:
        """Append a row, or write all."""
        path, rows = self._run.metrics, "".join(self._rows.values()).encode()
        there = path.exists()
        if there and not added:
            write_whole(path, rows)
            return
        rows = added.encode() if there else rows
        with path.open("ab", buffering=0) as file:
            end = file.tell()
            if file.write(rows) < len(rows):
                os.ftruncate(file.fileno(), end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _end(self, status: Status, **facts: object) -> None:
        self._facts |= {"status": status, "finished_at": _now(), **facts}
        if self.problems:
            self._facts["not_written"] = dict(self.problems)
        self.try_to("run.json", self._note)

    def _note(self) -> None:
        from trimaran.base import VERSION

        about = {"schema_version": SCHEMA_VERSION, "trimaran": VERSION, "python": platform.python_version()}
        write_whole(self._run.path / "run.json", (json.dumps(about | self._facts, indent=2) + "\n").encode())


def command_line() -> str:
    """The command of this process, for a shell, without secrets."""
    name, *options = sys.argv or [""]
    own = Path(name).name in ("trimaran", "__main__.py")
    words = ["trimaran", *options] if own else [*([] if name == "-c" else ["python"]), *sys.argv]
    return shlex.join(without_secrets(words))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


# ---------------------------------------------------------------------------------------------------------------------
# The process of a run, and whether it is still there


def process_start(pid: int) -> str | None:
    """When a process of this machine has begun, in a form that no other process with its number shares.

    Args:
        pid: number of the process

    Returns:
        None where there is no such process, or the system does not tell.
    """
    with contextlib.suppress(OSError, IndexError):
        # The name of the command, in parentheses, may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return f"{running_system()}/{fields[19]}" if fields[0] not in "ZX" else None
    return None


def read_status(path: Path) -> tuple[Status, dict[str, Any]]:
    """The state of a run, and all that its `run.json` says.

    Args:
        path: of the run directory

    Returns:
        "lost" is a run that ended without a word: it says that it runs, and its process is gone. Of a run of another
        host nobody knows that here, and it counts as running.

    Raises:
        InputError: there is no `run.json`
        CorruptDataError: it is damaged
    """
    file = path / "run.json"
    if looked_at(file) is None:
        raise InputError(f"{path} is no run directory: it has no run.json", code="run.missing", path=str(path))
    try:
        facts = decode_object(read_bytes(file), source=str(file))
        status: Status = facts["status"]
        if status not in ("running", "finished", "stopped", "failed"):
            raise ValueError(f"status {status!r}")
        process = facts.get("process") or {}
        pid, started, host = process.get("pid"), process.get("started"), process.get("host")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptDataError(f"{file} is damaged: {error}", code="run.damaged", path=str(file)) from error
    gone = isinstance(pid, int) and started is not None and process_start(pid) != started
    return "lost" if status == "running" and gone and host == socket.gethostname() else status, facts


def describe_status(path: Path) -> str:
    """The state of a run, for people.

    Args:
        path: of the run directory

    Raises:
        InputError: there is no `run.json`
        CorruptDataError: it is damaged
    """
    status, facts = read_status(path)
    name = shown_path(path)
    if status == "lost":
        return f"{name}: ended without a word (process {facts['process']['pid']} is gone)"
    return f"{name}: {status}" + (f", {facts['reason']}" if "reason" in facts else "")


def say_status(path: Path) -> None:
    """Say how a run that is gone on from has ended, or that it still runs.

    Args:
        path: of the run, its checkpoints or one of them; nothing is said where there is no `run.json`
    """
    folder = given(path)
    for run in (folder, folder.parent, folder.parent.parent):
        try:
            said = describe_status(run) if looked_at(run / "run.json") else ""
        except TrimaranError as error:
            said = error.message
        if said:
            say(f"trimaran: {said}")
            return


# ---------------------------------------------------------------------------------------------------------------------
# Room on the disk


def check_runs(parent: Path | None, nbytes: int | None = None) -> None:
    """See that run directories can be made, and have room, before the work for one is done; nothing is left there.

    Args:
        parent: folder of run directories; None: `runs` in the current directory
        nbytes: size of the weights; None: not known [bytes]

    Raises:
        EnvironmentProblem: they cannot be, or have not
    """
    folder = parent or Path("runs")
    try:
        there = given(folder).absolute()
        while not there.exists():
            there = there.parent
        Path(tempfile.mkdtemp(prefix=".trimaran-", dir=there)).rmdir()
    except OSError as error:
        raise EnvironmentProblem(
            f"the run directory cannot be made in {folder}: {reason_of(error)}. Give another folder: --runs FOLDER",
            code="run.unwritable",
            path=str(folder),
        ) from error
    if nbytes is not None:
        needed = nbytes + OTHER_FILES_BYTES
        try:
            free = shutil.disk_usage(there).free
        except OSError as error:
            raise EnvironmentProblem(
                f"the room on the disk of {shown_path(there)} cannot be found out: {reason_of(error)}. Give another "
                "folder: --runs FOLDER",
                code="run.unknown-room",
                path=str(there),
            ) from error
        if free < needed:
            raise EnvironmentProblem(
                f"{shown_path(folder)} has {format_bytes(free)} free, and the run writes about {format_bytes(needed)}: "
                "its weights, logs and timelines. Free some, or give another folder: --runs FOLDER",
                code="run.no-space",
                path=str(folder),
                needed_bytes=needed,
                free_bytes=free,
            )


def save_weights(weights: "Mapping[str, Tensor]", run: RunDirectory) -> tuple[Path | None, dict[str, str]]:
    """Write the weights of a run, where it can be: its directory, the current one, that of temporary files.

    Args:
        weights: by name
        run: its directory

    Returns:
        Where they are, None: nowhere; and by the name of their file why they are not in the run directory.
    """
    from trimaran.runtime.checkpoint.weights import write_weights

    name = f"{run.path.name}-{run.model.name}"
    # Each is looked for in its turn: the current directory may be gone.
    places: tuple[Callable[[], Path], ...] = (
        lambda: run.model,
        lambda: (folder_of_command() or Path.cwd()) / name,
        lambda: Path(tempfile.gettempdir()) / name,
    )
    tried: list[str] = []
    for place in places:
        try:
            path = place()
            write_weights(weights, path)
        except ExecutionError as error:
            tried.append(error.message)
        except OSError as error:
            tried.append(f"no folder for the weights: {reason_of(error)}")
        else:
            elsewhere = f"{'; '.join(tried)}. THE WEIGHTS ARE IN {path}"
            return path, {run.model.name: elsewhere} if tried else {}
    return None, {run.model.name: f"the weights are lost: {'; '.join(tried)}"}
