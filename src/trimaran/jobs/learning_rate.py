"""A job at another batch: the learning rate by a rule, the job's schedule followed by samples instead of updates.

    update        0      1      2      3                  batch 4 times the job's
    job's update  2      6      10     14                 the middle of the samples that the update takes
    rate          what the job's optimizer and schedule say there, times the rule's factor

The job's optimizer stays as it is. Its schedule is asked as often as in the job's own training, on the rates that the
job gave it; only what it says is multiplied. So a schedule that sets rates outright is scaled too.
"""

import dataclasses
import hashlib
import math
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trimaran.base.errors import InputError
from trimaran.base.files import read_bytes
from trimaran.base.job import Job
from trimaran.base.user_errors import users
from trimaran.user_code.functions import asked, load_function

if TYPE_CHECKING:
    from torch.optim import Optimizer


# ---------------------------------------------------------------------------------------------------------------------
# How the learning rate follows the batch: the named rules, and the recipe that a curve was measured with


Schedule = Literal["hold", "job"]
"""The job's own schedule, followed by samples instead of updates; "hold": as far as it rises, without its decay."""

RULES = ("linear", "sqrt", "constant")

_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Changes to a job's learning rate when its batch changes.

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
    """Digest of the user's file of a rule; "" for a name, and for a file that cannot be read.

    Args:
        rule: as a recipe has it
    """
    if not is_function(rule):
        return ""
    try:
        return hashlib.sha256(read_bytes(Path(rule.rpartition(":")[0]))).hexdigest()[:_DIGITS]
    except InputError:
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


def follow_recipe(job: Job, recipe: Recipe) -> Job:
    """The job as a recipe trains it at the batch that it has.

    Args:
        job: its `global_batch_size` is the batch that is wanted
        recipe: says at which batch the job's own rates hold

    Returns:
        The job itself, at that batch and with its own schedule; otherwise one with another `lr_schedule`.

    Raises:
        InputError: no such rule, the user's function returns no positive number, or a warm-up in epochs whose number of
            samples is not known
    """
    batch, base = job.global_batch_size, recipe.base_batch
    if batch == base and (recipe.schedule == "job" or job.lr_schedule is None):
        return job
    factor = rate_factor(recipe.rule, batch / base)
    own = _updates_per_epoch(recipe.samples_per_epoch, base, drop_last=job.drop_last)
    now = _updates_per_epoch(recipe.samples_per_epoch, batch, drop_last=job.drop_last)
    pace = batch / base if own is None or now is None else own / now
    warmup = 0.0
    if factor > 1 and recipe.warmup_epochs > 0:
        if now is None:
            raise InputError(
                f"the recipe warms up over {recipe.warmup_epochs:g} epochs and does not say how many samples an epoch "
                "has: give samples_per_epoch in the recipe of the curve, or warmup_epochs = 0",
                code="recipe.needs-samples-per-epoch",
            )
        warmup = recipe.warmup_epochs * now

    def make_schedule(optimizer: "Optimizer") -> Any:
        return FollowedSchedule(
            optimizer, job.lr_schedule, factor=factor, pace=pace, warmup=warmup, holds=recipe.schedule == "hold"
        )

    return dataclasses.replace(job, lr_schedule=make_schedule)


def rates_of(job: Job, recipe: Recipe, optimizer: "Optimizer") -> Iterator[float]:
    """The learning rate of each update of a job as a recipe trains it: that of the first group.

    Without an end, but where a schedule of the user's has one, as torch's one-cycle has, whose `step` raises ValueError
    after it: there the rates end too.

    Args:
        job: its `global_batch_size` is the batch that is wanted
        recipe: says at which batch the job's own rates hold
        optimizer: of the job, new; its rates are changed, its parameters are not

    Raises:
        InputError: where the schedule fails with anything else
    """
    followed = follow_recipe(job, recipe)
    schedule = None if followed.lr_schedule is None else followed.lr_schedule(optimizer)
    while True:
        yield float(optimizer.param_groups[0]["lr"])
        if schedule is not None:
            with warnings.catch_warnings():
                # It is the schedule that is asked: nothing is updated.
                warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step\\(\\)` before")
                with users("the job's schedule", followed.lr_schedule, code="recipe.schedule-fails"):
                    try:
                        schedule.step()
                    except ValueError:  # it has come to its end
                        return


def rate_factor(rule: str, ratio: float) -> float:
    """Factor by which a rule multiplies the learning rate.

    Args:
        rule: "linear", "sqrt" or "constant", or "file.py:function"; the function takes the ratio and returns the factor
        ratio: the batch over the one at which the job's own rates hold

    Raises:
        InputError: a ratio that is not positive; no such rule, file or function; the function raises, or returns no
            positive number

    Source:
        linear: Goyal et al., arXiv 1706.02677, section 2.1, for stochastic gradient descent. sqrt: Malladi et al.,
        arXiv 2205.10330, for Adam and RMSprop.

    Example:
        >>> rate_factor("linear", 4.0), rate_factor("sqrt", 4.0), rate_factor("constant", 4.0)
        (4.0, 2.0, 1.0)
    """
    if not ratio > 0:
        raise InputError(f"the ratio of two batches must be positive, got {ratio}", ratio=ratio)
    if rule in RULES:
        return {"linear": ratio, "sqrt": math.sqrt(ratio), "constant": 1.0}[rule]
    if ".py" not in rule:
        raise InputError(
            f'no learning-rate rule "{rule}": one of {", ".join(RULES)}, or file.py:function',
            code="recipe.unknown-rule",
            rule=rule,
        )
    function = load_function(rule)
    with asked(rule, function, code="recipe.rule-fails"):
        given = function(ratio)
        factor = float(given)  # type: ignore[arg-type]  # whatever it is, it is checked
    if not (math.isfinite(factor) and factor > 0):
        raise InputError(
            f"the rule {rule} returned {given!r} for {ratio:g} times the batch: it must be a positive number, by which "
            "the learning rate is multiplied",
            code="recipe.bad-factor",
            rule=rule,
            ratio=ratio,
        )
    return factor


def default_rule(optimizer: "Optimizer") -> str:
    """The rule for an optimizer: "sqrt" where it divides by the size of the gradients, as Adam does; else "linear".

    Args:
        optimizer: of the job

    Source:
        Malladi et al., arXiv 2205.10330, for the square root; Goyal et al., arXiv 1706.02677, for the line.
    """
    names = {kind.__name__ for kind in type(optimizer).__mro__}
    return "sqrt" if names & _ADAPTIVE else "linear"


_ADAPTIVE = {"Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "Adafactor", "SparseAdam"}


class FollowedSchedule:
    """The schedule of a job that runs at another batch; has what the runtime needs of one, `step`.

    Args:
        optimizer: of the job
        inner: makes the job's own schedule; None: the rate stays
        factor: of the rule
        pace: updates of the job that one update stands for
        warmup: updates over which the factor grows from 1
        holds: keep the largest rate that the job's schedule has come to
    """

    def __init__(
        self,
        optimizer: "Optimizer",
        inner: "Callable[[Optimizer], Any] | None",
        *,
        factor: float,
        pace: float,
        warmup: float,
        holds: bool,
    ) -> None:
        self.optimizer = optimizer
        from trimaran.graph.optimizers import takes_metric  # it imports torch, which commands do without

        self._inner = None if inner is None else inner(optimizer)
        if self._inner is not None and takes_metric(self._inner):
            raise InputError(
                f"the schedule {type(self._inner).__name__} follows a metric, and how it goes at another batch is not "
                "known before: plan with the job's own batch, or give a schedule that is stepped once an update"
            )
        self._factor, self._pace, self._warmup, self._holds = factor, pace, warmup, holds
        self._own = [group["lr"] for group in optimizer.param_groups]
        self._largest = list(self._own)
        self._update, self._followed = 0, 0
        self._set()

    def step(self) -> None:
        """Go on to the next update."""
        self._update += 1
        self._set()

    def get_last_lr(self) -> list[Any]:
        """The rates of the next update, one a group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def _set(self) -> None:
        groups = self.optimizer.param_groups
        wanted = math.floor((self._update + 0.5) * self._pace)
        if self._inner is not None and wanted > self._followed:
            for group, rate in zip(groups, self._own, strict=True):
                group["lr"] = rate
            with warnings.catch_warnings():
                # The first update corresponds to the middle of several of the job's, before the optimizer has stepped.
                warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step\\(\\)` before")
                for _ in range(wanted - self._followed):
                    self._inner.step()
                    self._own = [group["lr"] for group in groups]
                    self._largest = [max(pair) for pair in zip(self._largest, self._own, strict=True)]
            self._followed = wanted
        grown = min(1.0, (self._update + 1) / self._warmup) if self._warmup > 0 else 1.0
        for group, rate in zip(groups, self._largest if self._holds else self._own, strict=True):
            group["lr"] = rate * (1.0 + (self._factor - 1.0) * grown)


def _updates_per_epoch(samples: int | None, batch: int, *, drop_last: bool) -> int | None:
    if samples is None:
        return None
    return max(1, samples // batch if drop_last else -(-samples // batch))


def check_rule(rule: str) -> None:
    """Refuse a rule that is neither a name nor a function in a file.

    Raises:
        InputError: with the names
    """
    if rule not in RULES:
        rate_factor(rule, 2.0)
