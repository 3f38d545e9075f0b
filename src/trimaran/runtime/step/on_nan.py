"""What to do where the loss of a step is not a finite number.

"stop" ends the run with an error. "skip" leaves the update out on every rank, as a plain loop does that goes on with
the next batch:

    loss = loss_of(batch)
    loss.backward()
    if math.isfinite(loss):
        optimizer.step()
        schedule.step()
    optimizer.zero_grad()

Weights, the optimizer's state and the schedule stay as they are. What the forward itself has changed stays changed:
running statistics of batch norm, random states. The loss is that of the global batch, known to all ranks before the
update, so that all of them skip the same steps.

"rollback" leaves the update out too, and then puts back all of the last checkpoint but the place in the data, so that
the global batches from the checkpoint up to this one are left out of the training:

    step        7       8       9       10 (not finite)
    batch       8       9       10      11              12 ...
                │checkpoint                             │
                └──────── put back, steps = 7 ─────────▶└ next

To do the same batches again and leave out only the last one would give the weights that "skip" has: what has led to
the loss may be in any of them. Only a run of `trimaran train` rolls back, as it decides when checkpoints are made.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from trimaran.base.errors import InputError, did_you_mean
from trimaran.base.units import format_count
from trimaran.program.strategy import Strategy

OnNan = Literal["stop", "skip", "rollback"]

MOST_SKIPPED = 10
"""This number of steps in a row whose loss is not a finite number end the run all the same."""

MOST_ROLLBACKS = 3
"""After as many in a row to the same checkpoint the next loss that is not a finite number ends the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """A training has gone back to a checkpoint.

    Attributes:
        step: number of the step whose loss was not a finite number
        to: training steps that the checkpoint has
        batches: global batches that were left out
    """

    step: int
    to: int
    batches: int

    def __str__(self) -> str:
        batches = "1 global batch" if self.batches == 1 else f"{self.batches} global batches"
        return (
            f"the loss of step {self.step} was not a finite number: the training has gone back to the checkpoint after "
            f"{format_count(self.to, 'step')}, and leaves out {batches}"
        )


def check_on_nan(on_nan: str, strategy: Strategy | None = None, *, observes: str = "") -> None:
    """Refuse an answer to a loss that is not a finite number where it could not be given exactly.

    Args:
        on_nan: "stop", "skip" or "rollback"
        strategy: how the job runs; None: not known yet
        observes: what else each step is used for, as "gradient_noise" or "verify"; empty: nothing

    Raises:
        InputError: it is none of these, or a step that is left out would change later ones
    """
    known = get_args(OnNan)
    if on_nan not in known:
        raise InputError(
            f'on_nan must be "stop", "skip" or "rollback", got "{on_nan}"{did_you_mean(on_nan, known)}',
            code="on-nan.unknown",
            on_nan=on_nan,
        )
    if on_nan == "stop":
        return
    if strategy is not None and strategy.is_stale:
        raise InputError(
            f"on_nan={on_nan} cannot be kept under {strategy.name}: passes under way have used weights "
            "that a step which is not done would have changed. Take on_nan=stop, or a synchronous schedule",
            code="on-nan.stale",
            strategy=strategy.name,
        )
    # A checkpoint has the remainders of before.
    compressed = strategy is not None and strategy.compression is not None and strategy.dp > 1
    if strategy is not None and compressed and on_nan == "skip":
        raise InputError(
            f"on_nan=skip cannot be kept under {strategy.name}: compression keeps a remainder of each gradient for "
            "later steps, and that of a skipped step is not a number. Take stop or rollback, or a plan without "
            "compression (--compression none)",
            code="on-nan.compressed",
            strategy=strategy.name,
        )
    if observes:
        raise InputError(
            f"on_nan={on_nan} cannot be combined with {observes}, which uses the gradients of every step, also of one "
            "that is left out: leave one of them out",
            code="on-nan.observed",
            observes=observes,
        )


def on_nan_of_trials(strategy: Strategy) -> OnNan:
    """What steps do that are measured and not kept: their number counts, and a sample may be what a training skips.

    Args:
        strategy: how the job runs
    """
    try:
        check_on_nan("skip", strategy)
    except InputError:
        return "stop"
    return "skip"
