"""A convergence curve: what a batch needs, from a table and the form, never sure beyond the data."""

from dataclasses import dataclass, replace

from trimaran.costs.convergence.checks import LARGEST_BATCH, check_table
from trimaran.costs.convergence.form import fit_form
from trimaran.costs.convergence.prediction import predict_amounts
from trimaran.costs.convergence.types import CurveTable, Fit, Need, Point
from trimaran.costs.convergence.units import as_epochs, as_samples, without_steps
from trimaran.errors import InputError

_FAR = 1.02
"""A batch this much beyond the data is named as such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """E(B) of one task.

    Attributes:
        table: the points; amounts in epochs, samples or tokens
        fit: the form's parameters, with intervals

    Example:
        >>> points = tuple(Point(global_batch=b, amount=10 * (1 + b / 512)) for b in (64, 256, 1024))
        >>> curve = fit_curve(CurveTable(task="t", unit="epochs", points=points, source="by hand"))
        >>> need = curve.need(512)
        >>> round(need.amount, 1), need.source, curve.need(8192).warnings
        (20.0, 'interpolated: between 256 and 1024', ('batch 8192 is 8 times the largest measured one, 1024',))
    """

    table: CurveTable
    fit: Fit

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest measured batch [samples]."""
        return self.table.points[0].global_batch, self.table.points[-1].global_batch

    def need(self, batch: int) -> Need:
        """What a batch needs, in the unit of the table.

        The interval is of the mean over runs: one run strays further.

        Args:
            batch: samples of one update, over all ranks

        Raises:
            InputError: the batch is no whole number of at least 1
        """
        return self.needs((batch,))[0]

    def needs(self, batches: tuple[int, ...]) -> tuple[Need, ...]:
        """What each of several batches needs, in the unit of the table.

        Args:
            batches: samples of one update, over all ranks

        Raises:
            InputError: a batch is no whole number of at least 1
        """
        for batch in batches:
            if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= LARGEST_BATCH:
                raise InputError(
                    f"a global batch is a whole number of at least 1, got {batch!r}",
                    code="curve.bad-batch",
                    batch=batch,
                )
        found = predict_amounts(self.table.points, tuple(batches), given=self.table.projection)
        return tuple(
            self._told(batch, float(low), float(middle), float(high))
            for batch, low, middle, high in zip(batches, *found, strict=True)
        )

    def samples(self, batch: int, samples_per_epoch: int | None = None) -> Need:
        """Samples that a batch needs.

        Args:
            batch: samples of one update, over all ranks
            samples_per_epoch: of the data that is trained on; None: as in the table

        Raises:
            InputError: the table does not say how its unit becomes samples
        """
        return as_samples(self.need(batch), self.table, samples_per_epoch)

    def epochs(self, batch: int, samples_per_epoch: int | None = None) -> Need:
        """Epochs that a batch needs, E(B).

        Args:
            batch: samples of one update, over all ranks
            samples_per_epoch: of the data that is trained on; None: as in the table

        Raises:
            InputError: the table does not say how its unit becomes epochs
        """
        return as_epochs(self.need(batch), self.table, samples_per_epoch)

    def steps(self, batch: int, samples_per_epoch: int | None = None) -> Need:
        """Updates that a batch needs.

        Args:
            batch: samples of one update, over all ranks
            samples_per_epoch: of the data that is trained on; None: as in the table

        Raises:
            InputError: the table does not say how its unit becomes samples
        """
        return self.samples(batch, samples_per_epoch).scaled(1.0 / batch, "steps")

    def _told(self, batch: int, low: float, middle: float, high: float) -> Need:
        points, (smallest, largest) = self.table.points, self.range
        warnings: list[str] = []
        if self.table.projection:
            warnings.append("a study's projection, not measured")
        if len(points) == 1:
            # Which way it goes from a single point is not known: the amount stays, the interval opens to both sides.
            middle = points[0].amount
            low, high = min(low, middle), max(high, middle)
            if batch != smallest:
                warnings.append(f"only batch {smallest} was measured: whether {batch} needs more is not known")
        elif batch > largest * _FAR:
            warnings.append(f"batch {batch} is {batch / largest:.3g} times the largest measured one, {largest}")
        elif batch < smallest / _FAR:
            warnings.append(f"batch {batch} is 1/{smallest / batch:.3g} of the smallest measured one, {smallest}")
        return Need(
            amount=middle,
            low=low,
            high=high,
            unit=self.table.unit,
            source=_source(points, batch),
            warnings=tuple(warnings),
        )


def fit_curve(table: CurveTable) -> Curve:
    """The curve of a table.

    Args:
        table: points in any order; amounts in steps become samples, so that the form applies

    Raises:
        InputError: no points, a batch twice, an amount that is not positive
    """
    check_table(table, source=f'convergence table of "{table.task}"')
    ordered = replace(table, points=tuple(sorted(table.points, key=lambda point: point.global_batch)))
    counted = without_steps(ordered)
    return Curve(table=counted, fit=fit_form(counted))


def _source(points: tuple[Point, ...], batch: int) -> str:
    for point in points:
        if point.global_batch == batch:
            return "measured: 1 run" if point.runs == 1 else f"measured: mean of {point.runs} runs"
    below = [point.global_batch for point in points if point.global_batch < batch]
    above = [point.global_batch for point in points if point.global_batch > batch]
    if below and above:
        return f"interpolated: between {below[-1]} and {above[0]}"
    return f"extrapolated: from {below[-1] if below else above[0]}"
