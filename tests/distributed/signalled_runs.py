"""`trimaran train` in a process that gets signals, and all that it has started.

The process and its ranks are forked where nothing else is asked for: an interpreter that has begun gets signals as one
that was forked does, and is there ten times as soon.
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.commands.running import trimaran
from tests.distributed.signalled_jobs import FAULT
from tests.forks.client import Forked
from tests.forks.commands import begin_module

JOBS = Path(__file__).with_name("signalled_jobs.py")
ROOT = Path(__file__).parents[2]
DEADLINE_S = 200.0


def plan_for_two(folder: Path, job: str, name: str = "plan.json") -> Path:
    """The folder, with a plan of a job by replicas on both devices; what it costs is measured once, next to it."""
    pins = ("--devices", "2", "--dp", "2", "--pp", "1", "--execution", "eager")
    done = trimaran("plan", job, *pins, "--output", name, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


class Run:
    """A command whose descendants can be found by where they work.

    Args:
        command: a module and its arguments
        folder: where it works, and nothing else does
        planned: folder of plans, next to which is what they cost
        fault: for the job
        environment: more variables
        new: in an interpreter of its own, with ranks in interpreters of their own
        options: of `subprocess.Popen`, for a new interpreter
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        planned: Path,
        fault: str = "",
        *,
        environment: Mapping[str, str] | None = None,
        new: bool = False,
        **options: Any,
    ) -> None:
        self.folder = folder.resolve()
        self.errors = self.folder / f"{uuid.uuid4().hex}.err"
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
            "TRIMARAN_CACHE": f"{planned}-cache",
            FAULT: fault,
            **(environment or {}),
        }
        self.process: subprocess.Popen[bytes] | Forked
        with self.errors.open("wb") as errors:
            if new:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", *command],
                    cwd=self.folder,
                    env=variables,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    **options,
                )
            else:
                self.process = begin_module(*command, folder=self.folder, environment=variables, errors=errors.fileno())

    def processes(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and (entry / "cwd").readlink() == self.folder:
                    found.append(int(entry.name))
        return sorted(found)

    def ranks(self) -> list[int]:
        """Those of the processes that lead a session, as ranks do, and none of what ranks have started."""
        return [pid for pid in self.processes() if pid != self.process.pid and _leads_a_session(pid)]

    def wait_for(self, seen: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if seen():
                return
            time.sleep(0.05)
        raise AssertionError(f"no {what}: exit code {self.process.poll()}, {self.note()}, {self.said()}")

    def wait_for_step(self, number: int = 2) -> None:
        self.wait_for(lambda: all(step >= number for step in self.steps()), f"step {number}")

    def steps(self) -> list[int]:
        """The last step that each rank has said."""
        return [self._last_step(rank) for rank in range(2)]

    def _last_step(self, rank: int) -> int:
        texts = [log.read_text() for log in self.folder.glob(f"runs/*/logs/rank{rank}.log")]
        lines = [line for text in texts for line in text.splitlines() if line.startswith("step ")]
        return int(lines[-1][5:]) if lines else 0

    def run_dir(self) -> Path:
        (found,) = self.folder.glob("runs/*")
        return found

    def note(self) -> dict[str, Any]:
        files = list(self.folder.glob("runs/*/run.json"))
        return json.loads(files[0].read_text()) if files else {}

    def epochs(self) -> list[int]:
        """Those of which figures were written."""
        files = list(self.folder.glob("runs/*/metrics.jsonl"))
        return [json.loads(line)["epoch"] for line in files[0].read_text().splitlines()] if files else []

    def said(self) -> str:
        return self.errors.read_text()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, timeout_s: float = DEADLINE_S) -> tuple[int, str]:
        code = self.process.wait(timeout_s)
        return code, self.said()

    def left(self) -> list[int]:
        """Processes that are still there soon after the end."""
        deadline = time.monotonic() + 10
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.processes()

    def kill(self) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def train(job: str, planned: Path, *options: str) -> list[str]:
    return ["trimaran", "train", f"{JOBS}:{job}", "--plan", str(planned / "plan.json"), *options]


def _leads_a_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False
