"""Steps of the training itself, compared with one process: those whose number is a power of two, from the 8th on.

Where a job has callbacks, which no trial calls, or a loop of the user's takes the steps, so that there is no trial,
from the first on.

A trial (`trial.trial`) takes six steps; what changes later, as by a callback, a count or the weights, is noticed within
a factor two of the step.

    rank k      copies of weights are alike? ─ step of the plan ─ gradients, whole ─┐ waits ─▶ goes on, or all end
       └─ judge's child   the whole batch through the model and the loss as they are now ┴▶ equal within rounding?

The judge is the first rank that computes the loss. Its child is forked before the step: it has the model and the loss
with all that callbacks, counts and flags have made of them, is told of no ranks, and ends, so that nothing of what it
does is left. Where a rank has a part of the model, the child puts the state of all ranks into the user's model. The
batch is that of the ranks: their microbatches, joined; or one by one, under the random states of the ranks, where the
model draws, a batch norm depends on them, or collate makes another batch of them.

Both compute in the precision of the job. Where they differ by more than rounding usually does, as a loss that goes to 0
loses its digits, it is measured what rounding does here: two processes that the child has forked before its pass, so
that all is as it was, move all weights by the rounding of the coarsest type. A difference is many times that.

What later steps bring is noticed, not guessed from the code of callbacks: of 21 jobs that such guesses refused, a trial
flags seven, and of ten that differ by callbacks this notices nine in the first step that is compared. Given up for
that: refusing these before they train, and steps after the trial on a GPU, whose process cannot be copied.
"""

import math
import pickle
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from trimaran.base.errors import TrimaranError
from trimaran.base.job import Job
from trimaran.base.signals import STOP_SIGNALS
from trimaran.base.user_errors import summary
from trimaran.launch.activity import ACTIVITY
from trimaran.launch.world import World
from trimaran.program.layout import strategy_layout
from trimaran.program.strategy import Strategy
from trimaran.runtime.executor import Executor
from trimaran.runtime.whole_state import WholeState
from trimaran.trial.compare import (
    DIFFERS,
    NOT_OF_ONE,
    VERIFYING,
    ComparedTensor,
    Verified,
    check_copies,
    compare_gradients,
    compare_losses,
    differing,
    distance,
    eps,
    inexact_by_choice,
    told_by,
)
from trimaran.trial.plain_loop import BatchGradients, PlainStep, join, joins, wide
from trimaran.trial.trial import Forked, heard, nothing_to_try
from trimaran.user_code.alone import alone
from trimaran.user_code.randomness import RandomState

FIRST = 8
"""The first step that is compared, after those of a trial."""

# Root mean square of the rounding of a number, in its last places: uniform between -1/2 and 1/2.
_ROUNDED = 12**-0.5
# Samples of what moving weights does; what rounding does is no more than some times that.
_SAMPLES = 2
_SPREAD = 16

# A process that is forked may find a lock of user code that a thread held, and nobody lets go of.
_LOCKED_S = 60.0
_SLOWER = 32

_DRAWS = "the model draws random numbers, and parts of it draw other ones than the whole"


def nothing_to_watch(job: Job, strategy: Strategy, device: str) -> str:
    """Why no step of a training is compared; empty: some are.

    Args:
        job: what is trained
        strategy: how
        device: of the rank
    """
    if device != "cpu":
        return "a process that has a GPU cannot be copied"
    if job.precision == "fp16":
        return "fp16 leaves out steps whose gradients are too large for it"
    if strategy.memory_bytes is not None:
        return "a memory plan is of one pass at a time"
    return inexact_by_choice(strategy) or nothing_to_try(strategy)


class TrialWatch:
    """Compares steps of a training; every rank has one.

    Args:
        executor: runs the plan
        job: what is trained
        strategy: how
        world: this process's
        first: number of first steps that are compared too
        tried: a trial has taken the first steps

    Attributes:
        verified: what was found so far: on the judge the figures, on every rank the reason why nothing more is compared
    """

    def __init__(
        self, executor: Executor, job: Job, strategy: Strategy, world: World, *, first: int = 0, tried: bool = True
    ) -> None:
        self._executor, self._job, self._strategy, self._device = executor, job, strategy, world.device
        # A trial has not called what runs after a step.
        self._begin = FIRST if tried and job.on_step is None and job.on_epoch is None else 1
        self._first, self._next, self._draws = first, self._begin if tried and not first else 0, False
        # Microbatches may be joined; None: it is not known yet.
        self._joins: bool | None = None
        self._rank = world.rank
        # Otherwise a rank has a part of the model, which draws other numbers than the whole.
        self._undivided = strategy.segments == 1 and strategy.tp == 1 and not strategy.shards
        # Otherwise it has a part of the parameters.
        self._whole = self._undivided and strategy.zero < 2
        told = executor.agreement.gather_integers([executor.has_loss, executor.reads], VERIFYING)
        layout = strategy_layout(strategy)
        self._judge = [has_loss for has_loss, _ in told].index(1)
        self._readers = [
            next(rank for rank, (_, reads) in enumerate(told) if reads and layout.place_of(rank)[0] == replica)
            for replica in range(strategy.dp)
        ]
        self.verified = Verified(reason=nothing_to_watch(job, strategy, world.device))

    def check_copies(self) -> None:
        """See that ranks that have copies of weights have the same; every rank calls it, between steps.

        Raises:
            ExecutionError: they have not; on every rank
        """
        state = self._executor.full_state(kinds=("parameter",), compare=True, to=None)
        check_copies(state, self._executor.steps, self._strategy, "before")

    def step(self, batch: Any, *, samples: int | None = None, keep_gradients: bool = False) -> float:
        """A training step; arguments and result as of `Executor.step`.

        Raises:
            ExecutionError: it is compared, and is not that of one process; on every rank
        """
        executor, number = self._executor, self._executor.steps
        if self.verified.reason or number < self._next:
            return executor.step(batch, samples=samples, keep_gradients=keep_gradients)
        with ACTIVITY.during(VERIFYING):
            self.check_copies()
            own = executor.microbatches(batch, samples) if self._rank in self._readers else []
            said = _pickled(own), RandomState.of(self._device) if self._draws else None
            heard = executor.agreement.gather_objects(said, VERIFYING)
            told = [heard[rank] for rank in self._readers]
            if not all(batches for batches, _ in told):
                self.verified = replace(self.verified, reason="batches of the job cannot be pickled")
                return executor.step(batch, samples=samples, keep_gradients=keep_gradients)
            before = WholeState()
            if not self._whole:
                before = executor.full_state(kinds=("parameter", "buffer"), to=self._judge)
            child = Forked(partial(self._repeat, before, told)) if self._rank == self._judge else None
        try:
            start = time.perf_counter()
            loss = executor.step(batch, samples=samples, keep_gradients=True)
            step_s = time.perf_counter() - start
            if math.isfinite(loss):
                with ACTIVITY.during(VERIFYING):
                    self._hear(child, number, loss, _LOCKED_S + _SLOWER * self._strategy.dp * step_s)
        finally:
            if child is not None:
                child.end()
        return loss

    def _hear(self, child: Forked | None, number: int, loss: float, limit_s: float) -> None:
        """Have the child compare, and all ranks hear what came of it."""
        after = self._executor.full_state(kinds=("gradient",), to=self._judge)

        def ask() -> Verified:
            try:
                found: Verified
                step = number, loss, after.gradients, after.ranks
                found, self._joins = child.ask(step, limit_s)  # type: ignore[union-attr]
            except TrimaranError as error:
                if error.code == DIFFERS:
                    raise
                found = Verified(reason=error.message.partition("\n")[0])
            return found

        found = told_by(self._judge, self._executor.agreement, ask)
        if found.reason == _DRAWS and self._undivided and not self._draws:
            # The next step is compared by its microbatches.
            self._draws = True
            return
        self._next = number + 1 if number + 1 < self._first else max(self._begin, 1 << number.bit_length())
        before = self.verified
        self.verified = replace(found if found.difference >= before.difference else before, reason=found.reason)
        self.verified = replace(self.verified, steps=before.steps + (not found.reason))

    def _repeat(
        self, before: WholeState, told: Sequence[tuple[bytes, RandomState | None]], connection: Connection
    ) -> tuple[Verified, bool | None]:
        """The step in one process, in the child: what was found, and whether microbatches may be joined."""
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        # Threads of this library do not survive a fork.
        torch.set_num_threads(1)
        with suppress(OSError):
            # Where memory runs out, this process is ended, and no rank.
            Path("/proc/self/oom_score_adj").write_text("1000")
        here, strategy = RandomState.of(self._device), self._strategy
        with alone():
            if not self._whole:
                self._executor.give_back()
                _put(self._executor.model, before)
            plain = PlainStep(self._job, self._executor.model, self._device)
            together = not (self._draws or plain.mixes_samples)
            if together and self._joins is None:
                self._joins = joins(self._job, replicas=strategy.dp, microbatches=strategy.microbatches)
            # Written by ranks of this run. A replica without a sample has none.
            given = [(pickle.loads(one), state or here) for one, state in told]  # noqa: S301
            batches, states = zip(*((one, state) for one, state in given if one), strict=True)
            if together and self._joins and (whole := join(batches)) is not None:
                batches, states = ([whole],), (here,)
            spare = [Forked(partial(_moved, plain, batches, states, seed)) for seed in range(_SAMPLES)]
            try:
                expected = plain.gradients(batches, states)
            except Exception as error:  # noqa: BLE001  # the trial has told what one process cannot do
                return Verified(reason=f"one process cannot take the step: {summary(error)}"), self._joins
            if expected.draws and not self._draws:
                return Verified(reason=_DRAWS), self._joins
            step, loss, gradients, ranks = heard(connection)
            compared = [*compare_gradients(gradients, expected), compare_losses(loss, expected)]
            if not all(one.agrees for one in compared):
                share = _ROUNDED * eps(expected.coarsest)
                compared = _widened(compared, expected, [one.ask(share) for one in spare])
        wrong = [one for one in compared if not one.agrees]
        if wrong:
            raise differing(wrong, step, strategy, ranks, NOT_OF_ONE)
        nearest = max(compared, key=lambda one: one.difference / one.limit)
        found = Verified(tensors=len(compared), difference=nearest.difference, limit=nearest.limit)
        return found, self._joins


def _moved(
    plain: PlainStep, batches: Sequence[Sequence[Any]], states: Sequence[RandomState], seed: int, connection: Connection
) -> BatchGradients:
    return plain.gradients(batches, states, moved=heard(connection), seed=seed)


def _pickled(batches: list[Any]) -> bytes:
    """Batches to be sent; empty where they cannot be."""
    try:
        return pickle.dumps(batches)
    except Exception:  # noqa: BLE001  # whatever an object of theirs raises
        return b""


def _put(model: torch.nn.Module, state: WholeState) -> None:
    """Give a model the whole tensors of a state."""
    for named, tensors in ((model.named_parameters(), state.parameters), (model.named_buffers(), state.buffers)):
        for name, tensor in named:
            if name in tensors:
                tensor.data = tensors[name].to(tensor.device)


def _widened(
    compared: Sequence[ComparedTensor], expected: BatchGradients, others: Sequence[BatchGradients]
) -> list[ComparedTensor]:
    """With limits that are some times what rounding of the weights does, to each tensor and to all together."""
    spread: Mapping[str, float] = {
        name: max((distance(other.of[name], one) for other in others if name in other.of), default=math.inf)
        for name, one in expected.of.items()
    }
    whole = math.hypot(*(float(wide(one).norm()) for one in expected.of.values()))
    overall = math.hypot(*spread.values()) / whole if whole else math.inf
    of_loss = max(abs(other.loss - expected.loss) for other in others) / max(1.0, abs(expected.loss))

    def limit(one: ComparedTensor) -> float:
        if one.kind == "loss":
            return of_loss
        scale = expected.scale.get(one.name, 0.0)
        return max(overall, spread[one.name] / scale if scale and one.name in spread else 0.0)

    return [replace(one, limit=max(one.limit, _SPREAD * limit(one))) for one in compared]
