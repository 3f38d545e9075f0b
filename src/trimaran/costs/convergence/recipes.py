"""How the learning rate follows the batch: the named rules, and the recipe that a curve was measured with."""

import math
from dataclasses import dataclass
from typing import Literal

from trimaran.errors import InputError

Schedule = Literal["hold", "job"]
"""The job's own schedule, followed by samples instead of updates; "hold": as far as it rises, without its decay."""

RULES = ("linear", "sqrt", "constant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is done to a job's learning rate when its batch changes.

    Attributes:
        rule: "linear", "sqrt" or "constant", or "file.py:function" of the user
        base_batch: global batch at which the job's own rates hold [samples]
        warmup_epochs: over how many epochs the rate goes from the job's own to that of the rule, where it rises
        schedule: the job's own, with or without its decay
        samples_per_epoch: of the training data, so that a smaller last batch counts as what it is; None: as a full one
    """

    rule: str
    base_batch: int
    warmup_epochs: float = 0.0
    schedule: Schedule = "hold"
    samples_per_epoch: int | None = None


def named_factor(rule: str, ratio: float) -> float:
    """What a rule multiplies the learning rate by.

    Args:
        rule: "linear", "sqrt" or "constant"
        ratio: the batch over the one at which the job's own rate holds

    Raises:
        InputError: no such rule, or a ratio that is not positive

    Source:
        linear: Goyal et al., arXiv 1706.02677, section 2.1, for stochastic gradient descent. sqrt: Malladi et al.,
        arXiv 2205.10330, for Adam and RMSprop.

    Example:
        >>> named_factor("linear", 4.0), named_factor("sqrt", 4.0), named_factor("constant", 4.0)
        (4.0, 2.0, 1.0)
    """
    if not ratio > 0:
        raise InputError(f"the ratio of two batches must be positive, got {ratio}", ratio=ratio)
    if rule == "linear":
        return ratio
    if rule == "sqrt":
        return math.sqrt(ratio)
    if rule == "constant":
        return 1.0
    raise InputError(f'no learning-rate rule "{rule}": one of {", ".join(RULES)}, or file.py:function', rule=rule)
