"""Epochs that a submission needs at another batch: the convergence curve of its benchmark, from one that ran.

    epochs = curve(batch)                 the recipe of another submitter, and where a log says nothing
           = curve(batch) × what the anchor's log says / curve(its batch)      where that is less than the curve
           = the larger of the anchor's log and curve(batch)                   where that is more

The last is a recipe, of an earlier round mostly, that takes its epochs however small the batch is. The log of the row
that is predicted is never looked at. A benchmark without a curve grows by the median of the curves that are known.
"""

import math
from dataclasses import dataclass

from trimaran.costs.convergence import find_curve
from trimaran.errors import InputError
from trimaran.session.validation.time_to_train_benchmarks import Benchmark
from trimaran.session.validation.time_to_train_submissions import Submission

_GROWTH, _MOST_GROWTH = 1.25, 1.6
"""Epochs at twice the batch, median and 95th percentile of the neighbouring points of curves in calibration rows."""

_BEYOND = 2.0
"""A batch so many times the largest of the curve is not predicted."""

_PLAUSIBLE = 2.0
"""A log that differs from the curve by more counts something else."""

_NORMAL_90 = 1.645


@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs:
    """Amounts of training of two submissions.

    Attributes:
        anchor: of the one that ran
        target: of the one that is predicted
        deviation: of the second, of its logarithm
        assumed: what was taken for granted, in words; "": nothing
    """

    anchor: float
    target: float
    deviation: float
    assumed: str = ""


def epochs_of(anchor: Submission, target: Submission, benchmark: Benchmark) -> Epochs:
    """What an anchor and a target train.

    Args:
        anchor: a smaller submission that ran
        target: of the same benchmark
        benchmark: what they train

    Raises:
        InputError: the target's batch is far beyond the curve's points
    """
    if not benchmark.curve:
        return _without_curve(anchor, target, benchmark)
    at_anchor, _ = _curve(benchmark, anchor.batch)
    at_target, deviation = _curve(benchmark, target.batch)
    ran = logged(anchor, benchmark, near=at_anchor)
    known = ran is not None
    ran = at_anchor if ran is None else ran
    below = min(1.0, ran / at_anchor)
    needs = at_target * below
    if anchor.batch == target.batch:
        needs, deviation = (ran if anchor.submitter == target.submitter else needs), deviation / 2
    elif anchor.submitter == target.submitter:
        needs = max(ran, needs)
    return Epochs(
        anchor=ran,
        target=needs,
        deviation=deviation,
        assumed="" if known else "the anchor's log counts something else: its epochs are the curve's",
    )


def logged(submission: Submission, benchmark: Benchmark, *, near: float | None) -> float | None:
    """Epochs by a submission's own log, in whatever unit it counts; None where no unit fits.

    Args:
        submission: that ran
        benchmark: what it trained
        near: epochs of the curve at its batch; None where there is none
    """
    told = submission.logged
    if told is None or told <= 0:
        return None
    units = (told - benchmark.counted_from, told / benchmark.samples_per_epoch)
    for epochs in units:
        if near is None and epochs > 0:
            return epochs
        if near is not None and near / _PLAUSIBLE < epochs < near * _PLAUSIBLE:
            return epochs
    return None


def _curve(benchmark: Benchmark, batch: int) -> tuple[float, float]:
    """Epochs at a batch by the curve, and their deviation."""
    curve = find_curve(benchmark.curve)
    _, largest = curve.range
    if batch > _BEYOND * largest:
        raise InputError(
            f'a batch of {batch} is far beyond the points of curve "{benchmark.curve}", which end at {largest}: '
            "nothing is known there",
            code="curve.batch-beyond-points",
            batch=batch,
            largest=largest,
        )
    need = curve.epochs(batch, benchmark.samples_per_epoch)
    deviation = math.log(need.high / need.low) / (2 * _NORMAL_90)
    return need.amount - benchmark.counted_from, deviation


def _without_curve(anchor: Submission, target: Submission, benchmark: Benchmark) -> Epochs:
    ran = logged(anchor, benchmark, near=None) or 1.0
    doublings = math.log2(target.batch / anchor.batch)
    wide = math.log(_MOST_GROWTH / _GROWTH) / _NORMAL_90
    return Epochs(
        anchor=ran,
        target=ran * _GROWTH ** max(0.0, doublings),
        deviation=wide * abs(doublings),
        assumed=f"no convergence curve of {benchmark.name} is known: {_GROWTH - 1:.0%} more epochs for twice the batch",
    )
