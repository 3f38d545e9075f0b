"""Finished runs on disk: a line each, so that whatever ends the command leaves them.

A run is kept with its evaluations, so that it also says when a lower target was reached. One that ended before a
higher target, or at a smaller limit of epochs, is run again.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimaran.errors import CorruptDataError, EnvironmentProblem, InputError
from trimaran.measure.converge.crossing import Evaluation, best_metric, find_crossing
from trimaran.measure.converge.training import End
from trimaran.program.files import from_plain, to_plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run that has ended.

    Attributes:
        batch: global batch [samples]
        seed: of weights, order and dropout
        end: why it ended
        epochs: that it trained [epochs]
        samples: that it trained on
        updates: of the weights
        seconds: of training, evaluations not counted [s]
        evaluations: epochs and metric of each
        noise: of its gradients, as a plain document; None where it was not watched. Where the target was not known yet,
            `until` has the epochs of each evaluation that was the best so far, and the document up to there
    """

    batch: int
    seed: int
    end: End
    epochs: float
    samples: int
    updates: int
    seconds: float
    evaluations: tuple[Evaluation, ...] = ()
    noise: dict[str, Any] | None = field(default=None)

    @property
    def best(self) -> float | None:
        """The largest metric; None where there was no evaluation."""
        return best_metric(self.evaluations)

    def needed(self, target: float, *, most: float) -> float | None:
        """Epochs to a target; None where it was not reached within so many.

        Args:
            target: value of the metric
            most: limit of epochs
        """
        epochs = find_crossing(self.evaluations, target)
        return epochs if epochs is not None and epochs <= most else None

    def noise_until(self, target: float) -> dict[str, Any] | None:
        """What its gradients said until an evaluation reached a target: later ones say nothing of the way there.

        Args:
            target: value of the metric

        Returns:
            A plain document, of the whole run where nothing is known of a part; None where nothing is known.
        """
        if self.noise is None:
            return None
        reached = next((epochs for epochs, metric in self.evaluations if metric >= target), None)
        for epochs, document in self.noise.get("until", ()):
            if epochs == reached:
                return None if document is None else dict(document)
        return {name: value for name, value in self.noise.items() if name != "until"}

    def settles(self, target: float | None, *, most: float) -> bool:
        """Whether it says what a run to a target would say, so that it need not be run again.

        Args:
            target: value of the metric; None: only the epochs end a run
            most: limit of epochs
        """
        if self.end == "diverged" or (target is not None and self.needed(target, most=most) is not None):
            return True
        # One that reached the target after the limit, such as by its last update, has not reached it within.
        ended = self.end == "epochs" or (target is not None and self.end == "reached")
        return ended and self.epochs >= most - 1e-9


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[None]:
    """Hold a folder for one command.

    Raises:
        InputError: another command is at work in it
        EnvironmentProblem: it cannot be written
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise EnvironmentProblem(f"{folder} cannot be written: {error.strerror}", path=str(folder)) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                f"another `trimaran converge` is at work in {folder}: wait for it, or choose another --runs",
                code="converge.busy",
                path=str(folder),
            ) from None
        yield
    finally:
        os.close(descriptor)


def read_runs(folder: Path) -> list[Run]:
    """The finished runs of a folder; none where there is no file.

    Raises:
        CorruptDataError: a line is damaged; the last one may be cut short, as when the command was killed
        EnvironmentProblem: the file cannot be read
    """
    path = folder / "runs.jsonl"
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read: {error.strerror}", path=str(path)) from None
    runs = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            runs.append(from_plain(json.loads(line), Run, source=f"{path}:{number}"))
        except (ValueError, RecursionError, InputError) as error:
            raise CorruptDataError(
                f"{path}:{number} is damaged, {error}: remove the line, and the run is done again",
                code="converge.damaged-runs",
                path=str(path),
            ) from None
    return runs


def add_run(folder: Path, run: Run) -> None:
    """Append a finished run.

    Raises:
        EnvironmentProblem: it cannot be written
    """
    path = folder / "runs.jsonl"
    try:
        _end_line(path)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(to_plain(run)) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be written: {error.strerror}", path=str(path)) from None


def _end_line(path: Path) -> None:
    """Drop a last line that was cut short."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)


def find_run(runs: Sequence[Run], *, batch: int, seed: int, target: float | None, most: float) -> Run | None:
    """The last finished run of a batch and seed that need not be run again; None: there is none.

    Args:
        runs: that have finished
        batch: global batch [samples]
        seed: of the run
        target: value of the metric; None: only the epochs end a run
        most: limit of epochs
    """
    for run in reversed(runs):
        if run.batch == batch and run.seed == seed and run.settles(target, most=most):
            return run
    return None
