"""Amounts of training from one unit to another: epochs, samples, steps, tokens."""

from dataclasses import replace

from trimaran.costs.convergence.types import CurveTable, Need, Point
from trimaran.errors import InputError

_SAME_DATA = 0.02
"""Counts of samples that differ by less are of the same data, such as with and without the last batch."""


def without_steps(table: CurveTable) -> CurveTable:
    """A table whose amounts do not shrink with the batch: updates become samples.

    Args:
        table: in any unit

    Returns:
        The same table, in samples where it was in steps.

    Example:
        >>> point = Point(global_batch=4, amount=10.0, runs=2, deviation=1.0)
        >>> made = without_steps(CurveTable(task="t", unit="steps", points=(point,), source="by hand"))
        >>> made.unit, made.points[0].amount, made.points[0].deviation
        ('samples', 40.0, 4.0)
    """
    if table.unit != "steps":
        return table
    points = tuple(_times(point, point.global_batch) for point in table.points)
    return replace(table, unit="samples", points=points)


def as_samples(need: Need, table: CurveTable, samples_per_epoch: int | None = None) -> Need:
    """A need in samples.

    Args:
        need: in the unit of the table
        table: it comes from
        samples_per_epoch: of the data that is trained on; None: as in the table

    Raises:
        InputError: what an epoch or a sample holds is not known
    """
    if need.unit == "samples":
        return need
    if need.unit == "epochs":
        return need.scaled(_per_epoch(table, samples_per_epoch), "samples")
    if need.unit == "tokens" and table.tokens_per_sample is not None:
        return need.scaled(1.0 / table.tokens_per_sample, "samples")
    raise InputError(
        f'the curve of "{table.task}" is in {need.unit}: give tokens_per_sample to count samples',
        code="curve.needs-tokens-per-sample",
    )


def as_epochs(need: Need, table: CurveTable, samples_per_epoch: int | None = None) -> Need:
    """A need in epochs.

    Args:
        need: in the unit of the table
        table: it comes from
        samples_per_epoch: of the data that is trained on; None: as in the table

    Raises:
        InputError: what an epoch or a sample holds is not known
    """
    if need.unit == "epochs":
        return need
    return as_samples(need, table).scaled(1.0 / _per_epoch(table, samples_per_epoch), "epochs")


def same_data(a: int, b: int) -> bool:
    """Whether two counts of samples can be of the same data.

    Example:
        >>> same_data(1_281_167, 1_280_000), same_data(50_000, 60_000)
        (True, False)
    """
    return abs(a - b) <= _SAME_DATA * max(a, b)


def _per_epoch(table: CurveTable, samples_per_epoch: int | None) -> int:
    found = samples_per_epoch or table.samples_per_epoch
    if found is None:
        raise InputError(
            f'the curve of "{table.task}" is in {table.unit} and does not say how many samples an epoch has: '
            "give samples_per_epoch",
            code="curve.needs-samples-per-epoch",
        )
    return found


def _times(point: Point, factor: float) -> Point:
    return replace(
        point,
        amount=point.amount * factor,
        deviation=None if point.deviation is None else point.deviation * factor,
        values=tuple(value * factor for value in point.values),
    )
