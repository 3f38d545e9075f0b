"""One run: train until the metric reaches the target, or a limit.

├─ update ─ update ─ … ─ evaluate ─ update ─ … ─ evaluate ─ reached, or out of epochs, or of time
epochs counted by the samples that were trained on, so that a smaller last batch is what it is
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from trimaran.errors import ExecutionError, InputError
from trimaran.measure.converge.crossing import Evaluation, is_due
from trimaran.runtime.executor import Executor

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
class Outcome:
    """What a run did.

    Attributes:
        end: why it ended
        epochs: that it trained [epochs]
        samples: that it trained on
        updates: of the weights
        seconds: of training, evaluations not counted [s]
        evaluations: epochs and metric of each
        evaluated_after: updates of the weights before each evaluation
    """

    end: End
    epochs: float
    samples: int
    updates: int
    seconds: float
    evaluations: tuple[Evaluation, ...] = field(default=())
    evaluated_after: tuple[int, ...] = field(default=())


def train_to_target(
    executor: Executor,
    held_out: Any,
    limits: Limits,
    report: Callable[[float, float], None] = lambda epochs, metric: None,
    *,
    batch: int,
) -> Outcome:
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

    def outcome(end: End) -> Outcome:
        return Outcome(
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
