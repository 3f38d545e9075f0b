"""How the learning rate follows the batch: the named rules, and the recipe that a curve was measured with."""

import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trimaran.errors import InputError

Schedule = Literal["hold", "job"]
"""The job's own schedule, followed by samples instead of updates; "hold": as far as it rises, without its decay."""

RULES = ("linear", "sqrt", "constant")

_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is done to a job's learning rate when its batch changes.

    Attributes:
        rule: "linear", "sqrt" or "constant", or "file.py:function" of the user
        base_batch: global batch at which the job's own rates hold [samples]
        warmup_epochs: over how many epochs the rate goes from the job's own to that of the rule, where it rises
        schedule: the job's own, with or without its decay
        samples_per_epoch: of the training data, so that a smaller last batch counts as what it is; None: as a full one
        rule_digest: of the user's file as it was (`digest_of_rule`); "": none, or not known
    """

    rule: str
    base_batch: int
    warmup_epochs: float = 0.0
    schedule: Schedule = "hold"
    samples_per_epoch: int | None = None
    rule_digest: str = ""


def is_function(rule: str) -> bool:
    """Whether a rule is "file.py:function" of the user.

    Args:
        rule: as a recipe has it

    Example:
        >>> is_function("linear"), is_function("rules.py:half")
        (False, True)
    """
    return ".py:" in rule


def digest_of_rule(rule: str) -> str:
    """What the user's file of a rule holds, as a digest; "" for a name, and for a file that cannot be read.

    Args:
        rule: as a recipe has it
    """
    if not is_function(rule):
        return ""
    try:
        return hashlib.sha256(Path(rule.rpartition(":")[0]).read_bytes()).hexdigest()[:_DIGITS]
    except OSError:
        return ""


def rule_seen_from(rule: str, folder: Path, *, relative: bool) -> str:
    """A rule with the path of its file: whole, or relative to a folder.

    Args:
        rule: as a recipe has it; a name stays as it is
        folder: that a relative path starts from
        relative: make it relative to the folder, taking it as seen from the current one; else make it whole, taking it
            as seen from the folder

    Example:
        >>> rule_seen_from("rules.py:half", Path("/curves"), relative=False)
        '/curves/rules.py:half'
    """
    if not is_function(rule):
        return rule
    path, _, name = rule.rpartition(":")
    found = os.path.relpath(Path(path).resolve(), folder.resolve()) if relative else str((folder / path).resolve())
    return f"{found}:{name}"


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
    raise InputError(
        f'no learning-rate rule "{rule}": one of {", ".join(RULES)}, or file.py:function',
        code="recipe.unknown-rule",
        rule=rule,
    )
