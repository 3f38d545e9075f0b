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
"""

from typing import Literal

from trimaran.base.errors import InputError, did_you_mean
from trimaran.program.strategy import Strategy

OnNan = Literal["stop", "skip"]

MOST_SKIPPED = 10
"""This number of steps in a row whose loss is not a finite number end the run all the same."""


def check_on_nan(on_nan: str, strategy: Strategy | None = None, *, observes: str = "") -> None:
    """Refuse an answer to a loss that is not a finite number where it could not be given exactly.

    Args:
        on_nan: "stop" or "skip"
        strategy: how the job runs; None: not known yet
        observes: what else each step is used for, as "gradient_noise" or "verify"; empty: nothing

    Raises:
        InputError: it is none of these, or a step that is left out would change later ones
    """
    if on_nan == "rollback":
        raise InputError(
            "on_nan=rollback is not done here: take stop, and go on from the last checkpoint (--save-every, --resume), "
            "or skip",
            code="on-nan.no-checkpoint",
        )
    if on_nan not in ("stop", "skip"):
        raise InputError(
            f'on_nan must be "stop" or "skip", got "{on_nan}"{did_you_mean(on_nan, ["stop", "skip"])}',
            code="on-nan.unknown",
            on_nan=on_nan,
        )
    if on_nan == "stop":
        return
    if strategy is not None and strategy.compression is not None and strategy.dp > 1:
        raise InputError(
            f"on_nan=skip cannot be kept under {strategy.name}: compression keeps a remainder of each gradient for "
            "later steps, and that of a skipped step is not a number. Take on_nan=stop, or a plan without compression "
            "(--compression none)",
            code="on-nan.compressed",
            strategy=strategy.name,
        )
    if observes:
        raise InputError(
            f"on_nan=skip cannot be combined with {observes}, which uses the gradients of every step, also of one that "
            "is skipped: leave one of them out",
            code="on-nan.observed",
            observes=observes,
        )
