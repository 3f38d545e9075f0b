"""Finished runs on disk, one line each, so that they remain however the command ends.

A run is kept with its evaluations, so that it also says when a lower target was reached. One that ended before a
higher target, or at a smaller limit of epochs, is run again.

When a run reached its target, between the evaluations that it had.

metric                     ·  evaluated
  target ─ ─ ─ ─ ─ ─ ─╱─ ─    the first one at the target or above, and the one before it:
                  ·  ╱        a straight line between them says when
               ·    │
  ─────────────────────── epochs

One run: train until the metric reaches the target, or a limit.

├─ update ─ update ─ … ─ evaluate ─ update ─ … ─ evaluate ─ reached, or out of epochs, or of time
epochs counted by the samples that were trained on, so that a smaller last batch is what it is
"""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trimaran.base.decoding import decode_json, from_plain
from trimaran.base.errors import CorruptDataError, EnvironmentProblem, ExecutionError, InputError, TrimaranError
from trimaran.base.files import locked, read_bytes
from trimaran.base.system import reason_of
from trimaran.program.json_files import to_plain
from trimaran.runtime.executor import Executor

Evaluation = tuple[float, float]
"""Epochs of training, and the metric then."""


def find_crossing(evaluations: Sequence[Evaluation], target: float) -> float | None:
    """Epochs that a run needed.

    Args:
        evaluations: by rising epochs
        target: value of the metric

    Returns:
        Between the first evaluation that reaches it and the one before [epochs]; None where none does.

    Example:
        >>> find_crossing([(1.0, 0.5), (2.0, 0.9), (3.0, 0.8)], target=0.8)
        1.75
    """
    before: Evaluation | None = None
    for epochs, metric in evaluations:
        if metric >= target:
            if before is None:
                return epochs
            return before[0] + (epochs - before[0]) * (target - before[1]) / (metric - before[1])
        before = (epochs, metric)
    return None


def best_metric(evaluations: Sequence[Evaluation]) -> float | None:
    """The largest value; None where there was no evaluation."""
    return max((metric for _, metric in evaluations), default=None)


_GROWTH = 0.05
"""Share of the training so far that may pass without an evaluation."""


def is_due(epochs: float, last: float, *, per_epoch: int) -> bool:
    """Whether it is time to evaluate.

    Args:
        epochs: of training so far
        last: at the last evaluation
        per_epoch: most evaluations of an epoch

    Returns:
        True as soon as both the share and that part of an epoch have passed; half an update early does not matter.

    Example:
        >>> is_due(0.25, 0.0, per_epoch=4), is_due(10.25, 10.0, per_epoch=4), is_due(10.5, 10.0, per_epoch=4)
        (True, False, True)
    """
    # Sums of fractions of an epoch are a little less than what they stand for.
    return epochs - last >= max(1.0 / per_epoch, _GROWTH * last) - 1e-9


End = Literal["reached", "epochs", "diverged", "time"]
"""Why a run ended: at the target, at the limit of epochs, by a loss or metric that is no number, or of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a run ends.

    Attributes:
        target: value of the metric; None: only the epochs end it
        epochs: most passes over the data
        deadline: moment of `time.time` at which it is broken off; None: there is none
        per_epoch: most evaluations of an epoch
    """

    target: float | None
    epochs: float
    deadline: float | None = None
    per_epoch: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """Training that has ended.

    Attributes:
        end: why it ended
        epochs: that it trained [epochs]
        samples: that it trained on
        updates: of the weights
        seconds: of training, evaluations not counted [s]
        evaluations: epochs and metric of each
    """

    end: End
    epochs: float
    samples: int
    updates: int
    seconds: float
    evaluations: tuple[Evaluation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome(TrainingResult):
    """Result of one training.

    Attributes:
        evaluated_after: updates of the weights before each evaluation
    """

    evaluated_after: tuple[int, ...] = ()


def train_to_target(
    executor: Executor,
    held_out: Any,
    limits: Limits,
    report: Callable[[float, float], None] = lambda epochs, metric: None,
    *,
    batch: int,
) -> TrainingOutcome:
    """Train one job on one device.

    Args:
        executor: of the job, new
        held_out: the job's evaluation data
        batch: the job's global batch [samples]
        limits: when it ends
        report: told the epochs and the metric of each evaluation

    Raises:
        TrimaranError: the job is wrong, or its metric raises
    """
    feed = executor.feed()
    evaluations: list[Evaluation] = []
    evaluated_after: list[int] = []
    if feed.epoch_samples is None or feed.batches is None:
        raise InputError("how many samples an epoch has is not known: give the stream of Job.dataset __len__")
    per_epoch = min(feed.epoch_samples, feed.batches * batch)
    samples, updates, seconds, last = 0, 0, 0.0, 0.0

    def outcome(end: End) -> TrainingOutcome:
        return TrainingOutcome(
            end=end,
            epochs=samples / per_epoch,
            samples=samples,
            updates=updates,
            seconds=seconds,
            evaluations=tuple(evaluations),
            evaluated_after=tuple(evaluated_after),
        )

    while True:
        for share in feed.shares():
            if limits.deadline is not None and time.time() > limits.deadline:
                return outcome("time")
            started = time.perf_counter()
            try:
                executor.step(share)
            except ExecutionError:
                # One process has no peer to lose: its loss is no finite number.
                return outcome("diverged")
            seconds += time.perf_counter() - started
            samples, updates = samples + share.samples, updates + 1
            epochs = samples / per_epoch
            over = epochs >= limits.epochs - 1e-9
            if over or is_due(epochs, last, per_epoch=limits.per_epoch):
                last = epochs
                metric = executor.evaluate(held_out)
                if not math.isfinite(metric):
                    return outcome("diverged")
                evaluations.append((epochs, metric))
                evaluated_after.append(updates)
                report(epochs, metric)
                if limits.target is not None and metric >= limits.target:
                    return outcome("reached")
            if over:
                return outcome("epochs")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun(TrainingResult):
    """A run that has ended, as it is kept.

    Attributes:
        batch: global batch [samples]
        seed: of weights, order and dropout
        noise: of its gradients, as a plain document; None where it was not watched. Where the target was not known yet,
            `until` has the epochs of each evaluation that was the best so far, and the document up to there
    """

    batch: int
    seed: int
    noise: dict[str, Any] | None = field(default=None)

    @property
    def best(self) -> float | None:
        """The largest metric; None where there was no evaluation."""
        return best_metric(self.evaluations)

    def needed(self, target: float, *, most: float) -> float | None:
        """Epochs to a target; None where it was not reached within `most` epochs.

        Args:
            target: value of the metric
            most: limit of epochs
        """
        epochs = find_crossing(self.evaluations, target)
        return epochs if epochs is not None and epochs <= most else None

    def noise_until(self, target: float) -> dict[str, Any] | None:
        """The noise of its gradients until an evaluation reached a target, without later ones.

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
        # A run that reached the target after `most` epochs, such as by its last update, has not reached it within them.
        ended = self.end == "epochs" or (target is not None and self.end == "reached")
        return ended and self.epochs >= most - 1e-9


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[None]:
    """Hold a folder for one command.

    Raises:
        InputError: another command is at work in it
        EnvironmentProblem: it cannot be written
    """
    held = contextlib.ExitStack()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held.enter_context(locked(folder / "lock", wait=False))
    except BlockingIOError:
        raise InputError(
            f"another `trimaran crossover --measure` is at work in {folder}: wait for it, or choose another --runs",
            code="converge.busy",
            path=str(folder),
        ) from None
    except OSError as error:
        raise EnvironmentProblem(f"{folder} cannot be written: {reason_of(error)}", path=str(folder)) from None
    with held:
        yield


def read_runs(folder: Path) -> list[TrainingRun]:
    """The finished runs of a folder; none where there is no file.

    Raises:
        CorruptDataError: a line is damaged; the last one may be cut short, as when the command was killed
        InputError: the file cannot be read
    """
    path = folder / "runs.jsonl"
    if not path.exists():
        return []
    lines = read_bytes(path).split(b"\n")
    runs = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            place = f"{path}:{number}"
            runs.append(from_plain(decode_json(line, source=place), TrainingRun, source=place))
        except TrimaranError as error:
            raise CorruptDataError(
                f"{error.message}: the line is damaged; remove it, and the run is done again",
                code="converge.damaged-runs",
                path=str(path),
            ) from None
    return runs


def add_run(folder: Path, run: TrainingRun) -> None:
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
        raise EnvironmentProblem(f"{path} cannot be written: {reason_of(error)}", path=str(path)) from None


def _end_line(path: Path) -> None:
    """Drop a last line that was cut short."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)


def find_run(
    runs: Sequence[TrainingRun], *, batch: int, seed: int, target: float | None, most: float
) -> TrainingRun | None:
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
