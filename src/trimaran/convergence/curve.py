"""A convergence curve: training that a batch needs, from a table and the form, never sure beyond the data.

The amount and its interval come from `fit`.
"""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from trimaran.base.decoding import Count, Positive
from trimaran.base.errors import InputError
from trimaran.convergence.curve_fit import (
    FEW,
    fit_form,
    noise_of_single_runs,
    predict_amounts,
    variances_of_means,
)
from trimaran.convergence.types import (
    LARGEST_BATCH,
    CurveTable,
    Fit,
    Need,
    Point,
    as_epochs,
    as_samples,
    check_table,
    same_data,
    without_steps,
)

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
        """Training that a batch needs, in the unit of the table.

        The interval is of the mean over runs: one run strays further.

        Args:
            batch: samples of one update, over all ranks

        Raises:
            InputError: the batch is no whole number of at least 1
        """
        return self.needs((batch,))[0]

    def needs(self, batches: tuple[int, ...]) -> tuple[Need, ...]:
        """Training that each of several batches needs, in the unit of the table.

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


# ---------------------------------------------------------------------------------------------------------------------
# Whether a curve is of the job that it is used for


def check_task(
    curve: Curve, job: str, *, samples_per_epoch: int | None = None, target: float | None = None
) -> tuple[str, ...]:
    """Compare the task of a curve with the job that uses it.

    Args:
        curve: to use
        job: reference or name of the job, such as "resnet50", "bert:large" or "train.py:make"
        samples_per_epoch: of the job's data; None where it is not known
        target: of the job's metric; None where it has none

    Returns:
        Warnings: the curve names no network, or one that your job may have; other data, another target.

    Raises:
        InputError: it is a curve of another network
    """
    table = curve.table
    found = []
    if not table.network:
        found.append(f'the curve names no network: it holds if "{table.task}" is what {job} trains')
    elif _is_own(job) and not _is_own(table.network):
        found.append(f'the curve is of {table.network}: it holds if "{table.task}" is what {job} trains')
    elif not _same_network(table.network, job):
        raise InputError(
            f'the curve of {table.network} ("{table.task}") is not of the job {job}: name another curve, measure one '
            "with trimaran crossover --measure, or, if it holds all the same, take network out of a copy of its file",
            code="curve.other-job",
            network=table.network,
            job=job,
        )
    own = table.samples_per_epoch
    if own is not None and samples_per_epoch is not None and not same_data(own, samples_per_epoch):
        found.append(f"the curve was measured on {own} samples an epoch, {job} has {samples_per_epoch}")
    if table.target is not None and target is not None and table.target != target:
        found.append(f"the curve is to the target {table.target:g}, that of {job} is {target:g}")
    return tuple(found)


def _is_own(reference: str) -> bool:
    """Whether it names a job of the user's, of whose network nothing is known by its name."""
    return ".py:" in reference or reference.startswith("hf:")


def _same_network(network: str, job: str) -> bool:
    ours, theirs = _parts(network), _parts(job)
    shared = min(len(ours), len(theirs))
    return ours[:shared] == theirs[:shared]


def _parts(reference: str) -> tuple[str, ...]:
    """Name and size of a network; file and function of your job."""
    file, _, function = reference.partition(".py:")
    if function:
        return (f"{Path(file).name}.py", function)
    name, *rest = reference.strip().lower().split(":")
    size = [part for part in rest if "=" not in part]
    return (re.sub(r"[-_ ]", "", name), *size)


# ---------------------------------------------------------------------------------------------------------------------
# Leave-one-out error of a curve: each point predicted from the others


_FEWEST = 3
_MOST = 20
"""Points that are left out of a long table, evenly chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A point predicted from the others.

    Attributes:
        global_batch_size: of the point [samples]
        measured: its amount
        predicted: from the others
        interval: 90 % of that
        inside: others lie on both sides
    """

    derived: ClassVar = ("error", "covered")
    global_batch_size: Count
    measured: Positive
    predicted: Positive
    interval: tuple[Positive, Positive]
    inside: bool

    @property
    def error(self) -> float:
        """Predicted / measured − 1."""
        return self.predicted / self.measured - 1.0

    @property
    def covered(self) -> bool:
        """Whether the interval contains the measured value."""
        return self.interval[0] <= self.measured <= self.interval[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Leave-one-out figures of one or several tables.

    Attributes:
        rms: of the form at the points, predicted / measured − 1; None without points
        left_out: every point that was left out
    """

    derived: ClassVar[tuple[str, ...]] = (
        "leave_one_out_mean",
        "leave_one_out_mean_inside",
        "coverage_90",
        "points_left_out",
    )
    rms: Positive | None = None
    left_out: tuple[LeftOut, ...] = ()

    @property
    def leave_one_out_mean(self) -> float | None:
        """Mean of the size of the errors over all points left out."""
        return _mean([abs(point.error) for point in self.left_out])

    @property
    def leave_one_out_mean_inside(self) -> float | None:
        """The same over points that have others on both sides."""
        return _mean([abs(point.error) for point in self.left_out if point.inside])

    @property
    def coverage_90(self) -> float | None:
        """Share of the points left out that lie in their 90 % interval."""
        return _mean([float(point.covered) for point in self.left_out])

    @property
    def points_left_out(self) -> int:
        """How many these figures are over."""
        return len(self.left_out)


def leave_one_out(table: CurveTable) -> tuple[LeftOut, ...]:
    """Predict each point of a table from the others.

    The interval is that of the mean over the point's runs, so their luck counts.

    Args:
        table: in epochs, samples or tokens

    Returns:
        One entry a point; none where fewer than three are there.
    """
    points = table.points
    if len(points) < _FEWEST:
        return ()
    luck = variances_of_means(points)
    step = max(1, math.ceil(len(points) / _MOST))
    found = []
    for number in range(0, len(points), step):
        point, others = points[number], points[:number] + points[number + 1 :]
        noise = noise_of_single_runs(others) if point.runs < FEW else 0.0
        extra = (float(luck[number]) + noise**2,)
        low, middle, high = predict_amounts(others, (point.global_batch,), extra)[:, 0]
        found.append(
            LeftOut(
                global_batch_size=point.global_batch,
                measured=point.amount,
                predicted=float(middle),
                interval=(float(low), float(high)),
                inside=0 < number < len(points) - 1,
            )
        )
    return tuple(found)


def pooled(qualities: list[tuple[Quality, int]]) -> Quality:
    """Quality over several tables.

    Args:
        qualities: of each, with its number of points

    Returns:
        Root mean square over all points, every point left out.
    """
    squares = [(quality.rms**2, count) for quality, count in qualities if quality.rms is not None]
    count = sum(number for _, number in squares)
    rms = math.sqrt(sum(square * number for square, number in squares) / count) if count else None
    return Quality(rms=rms, left_out=tuple(point for quality, _ in qualities for point in quality.left_out))


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
