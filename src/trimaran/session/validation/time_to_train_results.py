"""Submissions to benchmark rounds: the time to train of larger ones from the smallest of the same round and device.

    time = what does not shrink + epochs × samples of an epoch / batch × step

Of the anchor all but the step is known or taken from the curve, so its step follows; that gives the speed of a device,
and with it the step of the target. Intervals are put together from deviations: of a training from a smaller one, as
fitted to calibration rows (time_to_train_widths.py), and of what is assumed or follows from a curve.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from trimaran.errors import InputError, TrimaranError
from trimaran.session.validation.baselines import scaling_baselines
from trimaran.session.validation.intervals import interval
from trimaran.session.validation.time_to_train_benchmarks import Benchmark, benchmark_of
from trimaran.session.validation.time_to_train_epochs import Epochs, epochs_of
from trimaran.session.validation.time_to_train_steps import StepModel, TunedStep
from trimaran.session.validation.time_to_train_submissions import Submission, anchors_of, read_submission
from trimaran.session.validation.time_to_train_widths import BUILT, SIZE_ONLY
from trimaran.session.validation.types import Answer, Row

_BETWEEN = 0.08
"""Deviation between trainings of two submitters, all else being equal; assumed."""

_ASSUMED = math.log(3.0) / 1.645
"""Deviation of the logarithm of what does not shrink: assumed, so it may be a third or three times as much."""

_STAND_IN = 0.15
"""Deviation where nothing is known of the benchmark."""

_SHRINKS = 0.5
"""Of an anchor's time at least, whatever is taken not to shrink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A target's time from one anchor.

    Attributes:
        minutes: to train
        deviation: of its logarithm
        baselines: what simple rules say [min]
        epochs: of both
        step: of the target
    """

    minutes: float
    deviation: float
    baselines: Mapping[str, float]
    epochs: Epochs
    step: TunedStep


def answer_submissions(rows: Sequence[Row]) -> tuple[Answer, ...]:
    """What we say of lines of results, in their order.

    Args:
        rows: all of a file, because one is predicted from another
    """
    read = [_read(row) for row in rows]
    every = [one for one in read if isinstance(one, Submission)]
    factors: dict[str, float | None] = {}
    return tuple(
        _answer(one, every, factors) if isinstance(one, Submission) else Answer(row=row, predicted=None, skipped=one)
        for row, one in zip(rows, read, strict=True)
    )


def _read(row: Row) -> Submission | str:
    try:
        return read_submission(row)
    except TrimaranError as error:
        return error.message
    except (ArithmeticError, LookupError, ValueError, TypeError) as error:
        return f"row {row.row_id}: a cell is not what its column holds ({error})"


def _answer(target: Submission, every: Sequence[Submission], factors: dict[str, float | None]) -> Answer:
    benchmark = benchmark_of(target.benchmark, target.version)
    row = replace(target.row, fields={**target.row.fields, "model": benchmark.name})
    anchors = anchors_of(target, every)
    if not anchors:
        of = f"{target.benchmark} on {target.kind} in round {target.round}"
        why = f"no smaller submission of {of} to predict from"
        return Answer(row=row, predicted=None, skipped=why)
    found, reasons = [], []
    for anchor in anchors:
        try:
            found.append(forecast(anchor, target, benchmark, factors))
        except TrimaranError as error:
            reasons.append(error.message)
        except (ArithmeticError, LookupError, ValueError, TypeError) as error:
            # A row that nobody thought of must not cost the others their answers; the reason is told all the same.
            reasons.append(f"row {row.row_id}: Trimaran failed on it: {type(error).__name__}: {error}")
    if not found:
        return Answer(row=row, predicted=None, skipped=reasons[0])
    middle = median_low([one.minutes for one in found])
    chosen = next(one for one in found if one.minutes == middle)
    low, high = interval(chosen.minutes, chosen.deviation, time=True)
    return Answer(
        row=row,
        predicted=chosen.minutes,
        low=low,
        high=high,
        baselines=chosen.baselines,
        basis="from its submitter's smallest"
        if anchors[0].submitter == target.submitter
        else "from another's smallest",
        anchors=tuple(one.row.row_id for one in anchors),
        several_nodes=target.machine.nodes > 1,
    )


def forecast(
    anchor: Submission, target: Submission, benchmark: Benchmark, factors: dict[str, float | None] | None = None
) -> Forecast:
    """A target's time to train from an anchor's.

    Args:
        anchor: that ran
        target: that is predicted; its time and its log are not looked at
        benchmark: what both train
        factors: of the devices of anchors, which live as long; kept from one call to the next

    Raises:
        InputError: the anchor's time is not that of the benchmark, or the batch is beyond what is known
    """
    factors = {} if factors is None else factors
    epochs = epochs_of(anchor, target, benchmark)
    trained = epochs.anchor * benchmark.samples_per_epoch / anchor.batch
    spent_s = 60 * anchor.minutes
    step_s = max(spent_s - benchmark.fixed_s, _SHRINKS * spent_s) / trained
    model, own = StepModel(target, benchmark), StepModel(anchor, benchmark)
    key = f"{id(anchor)} {epochs.anchor}"
    if key not in factors:
        factors[key] = own.factor(step_s)
    factor = factors[key]
    if factor is None:
        raise InputError(
            f"row {anchor.row.row_id} took {step_s:.3g} s a step, which no speed of its devices explains: "
            "nothing follows from it",
            row=anchor.row.row_id,
        )
    step = model.step(factor)
    steps = epochs.target * benchmark.samples_per_epoch / target.batch
    took_s = benchmark.fixed_s + steps * step.seconds
    # More that does not shrink adds to the target, and takes from the steps of the anchor, and so from the target's.
    shrinks = steps * step.seconds / (step_s * trained)
    fixed = benchmark.fixed_s / took_s * abs(1.0 - shrinks)
    unsure = math.hypot(model.unsure - own.unsure, _ASSUMED * fixed)
    return Forecast(
        minutes=took_s / 60,
        deviation=_deviation(anchor, target, benchmark, epochs, step, unsure),
        baselines=_baselines(anchor, target, epochs),
        epochs=epochs,
        step=step,
    )


def _deviation(
    anchor: Submission, target: Submission, benchmark: Benchmark, epochs: Epochs, step: TunedStep, unsure: float
) -> float:
    width = SIZE_ONLY if benchmark.sized else BUILT
    return math.hypot(
        width.deviation(math.log2(target.devices / anchor.devices), step.added_s / step.seconds),
        _BETWEEN if anchor.submitter != target.submitter else 0.0,
        epochs.deviation,
        unsure,
        _STAND_IN if benchmark.stand_in else 0.0,
    )


def _baselines(anchor: Submission, target: Submission, epochs: Epochs) -> Mapping[str, float]:
    """Linear scaling and a discount for every doubling, and linear scaling with the epochs of the curve [min]."""
    rates = {name: scaling_baselines(1.0, one.devices) for name, one in (("anchor", anchor), ("target", target))}
    rules = {name: anchor.minutes * rates["anchor"][name] / rates["target"][name] for name in rates["anchor"]}
    return {**rules, "linear, curve": rules["linear"] * epochs.target / epochs.anchor}
