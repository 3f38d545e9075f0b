"""The run directory: everything about one run, in files that outlive it.

    runs/digits-20260314-091500/
      run.json           status (running, finished, failed), job, versions, when; why it failed
      plan.json          the plan that was run
      program.txt        its program, readable
      metrics.jsonl      one line an epoch: epoch, loss, metric, seconds, samples
      predicted.json     the simulated timeline of one step
      measured.json      the recorded timeline, clocks aligned
      trace.json         both, for ui.perfetto.dev or chrome://tracing
      report.json        predicted against measured
      model.safetensors  the plain state_dict of the user's model
      logs/rank0.log     what each rank printed

Files are written whole or not at all: beside their place first, then renamed. `metrics.jsonl` grows line by line.
"""

import json
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trimaran.errors import EnvironmentProblem
from trimaran.report.files import write_whole

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDirectory:
    """Paths of one run.

    Attributes:
        path: the directory
    """

    path: Path

    @property
    def plan(self) -> Path:
        """The plan that was run."""
        return self.path / "plan.json"

    @property
    def program(self) -> Path:
        """The program, as text."""
        return self.path / "program.txt"

    @property
    def metrics(self) -> Path:
        """One JSON line an epoch."""
        return self.path / "metrics.jsonl"

    @property
    def predicted(self) -> Path:
        """The simulated timeline."""
        return self.path / "predicted.json"

    @property
    def measured(self) -> Path:
        """The recorded timeline."""
        return self.path / "measured.json"

    @property
    def trace(self) -> Path:
        """Both timelines, for a trace viewer."""
        return self.path / "trace.json"

    @property
    def report(self) -> Path:
        """Predicted against measured."""
        return self.path / "report.json"

    @property
    def model(self) -> Path:
        """The trained weights."""
        return self.path / "model.safetensors"

    @property
    def logs(self) -> Path:
        """One log a rank."""
        return self.path / "logs"

    def begin(self, *, job: str, strategy: str) -> None:
        """Note that the run has begun."""
        self._note({"status": "running", "job": job, "strategy": strategy, "started_at": _now()})

    def finish(self, summary: Mapping[str, object]) -> None:
        """Note that the run has finished, with its results."""
        self._note(self._noted() | {"status": "finished", "finished_at": _now()} | dict(summary))

    def fail(self, reason: str, *, code: str | None = None) -> None:
        """Note that the run has failed, and why.

        Args:
            reason: for people
            code: of the error; None: a person interrupted the run
        """
        failed = {"status": "failed", "finished_at": _now(), "reason": reason}
        self._note(self._noted() | failed | ({} if code is None else {"code": code}))

    def add_metrics(self, row: Mapping[str, object]) -> None:
        """Append the figures of an epoch."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _noted(self) -> dict[str, object]:
        noted: dict[str, object] = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        return noted

    def _note(self, facts: dict[str, object]) -> None:
        from trimaran import __version__

        about = {"schema_version": SCHEMA_VERSION, "trimaran": __version__, "python": platform.python_version()}
        write_whole(self.path / "run.json", (json.dumps(about | facts, indent=2) + "\n").encode())


def create_run_directory(name: str, *, parent: Path | None = None) -> RunDirectory:
    """Make a new run directory, named by the job and the time.

    Args:
        name: of the job
        parent: where; default: `runs` in the current directory

    Raises:
        EnvironmentProblem: it cannot be written
    """
    parent = parent or Path("runs")
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        path = parent / f"{stem}{suffix}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise EnvironmentProblem(f"cannot write run directory {path}: {error.strerror}", path=str(path)) from None
        (path / "logs").mkdir()
        return RunDirectory(path=path)
    raise EnvironmentProblem(f"cannot find a free name for a run directory like {parent / stem}")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
