"""How much training a global batch needs to reach the target: E(B), with its sources.

amount
  │  ·                       · measured: mean over runs, spread
  │   ·                 ·  ╱   E(B) = E0 · (1 + B / Bcrit) where no point is near,
  │     ·    ·   ·   ╱         drawn to the points where they are
  └──────────────────────── B
     known from … to    beyond: warned, and wider
"""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Literal

from trimaran.base.errors import InputError
from trimaran.base.units import format_figure
from trimaran.jobs.learning_rate import Recipe

Unit = Literal["epochs", "samples", "steps", "tokens"]
"""Unit of an amount of training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Training that one global batch needed.

    Attributes:
        global_batch: samples of one update, over all ranks
        amount: mean over the runs, in the unit of the table
        runs: how many reached the target
        deviation: standard deviation over the runs; None where it is not known
        values: of each run, where they are known
        failed: runs that did not reach the target
    """

    global_batch: int
    amount: float
    runs: int = 1
    deviation: float | None = None
    values: tuple[float, ...] = ()
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveTable:
    """Points of one task, and where they come from.

    Attributes:
        task: network, data and target, such as "resnet50 on ImageNet to 75.9 % top-1"
        unit: of the amounts
        points: by rising batch, one a batch
        source: where they were published, or how they were measured
        samples_per_epoch: of the training data; None where it is not known
        network: reference of the network or job it holds for; empty: any that the user names
        target: value of the metric that was reached; None where it is not known
        projection: they are a study's projections rather than measurements
        recipe: how the learning rate followed the batch; None where it is not known
        tokens_per_sample: length of a sample [tokens]; None where it is not known
        notes: remarks on the points, such as one that was left out
    """

    task: str
    unit: Unit
    points: tuple[Point, ...]
    source: str
    samples_per_epoch: int | None = None
    network: str = ""
    target: float | None = None
    projection: bool = False
    recipe: Recipe | None = None
    tokens_per_sample: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """How much training a batch needs, with a 90 % interval.

    Attributes:
        amount: in `unit`
        low: lower end
        high: upper end
        unit: of the three
        source: "measured: …", "interpolated: …" or "extrapolated: …"
        warnings: such as a batch beyond the data
    """

    amount: float
    low: float
    high: float
    unit: Unit
    source: str
    warnings: tuple[str, ...] = ()

    def scaled(self, factor: float, unit: Unit) -> "Need":
        """The same need in another unit, of which one of this unit has `factor`."""
        return Need(
            amount=self.amount * factor,
            low=self.low * factor,
            high=self.high * factor,
            unit=unit,
            source=self.source,
            warnings=self.warnings,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """E(B) = e0 · (1 + B / b_crit), fitted to the logarithms of the points.

    Attributes:
        e0: amount that small batches need, in the unit of the table
        b_crit: batch at which twice as much is needed [samples]; infinite where the points do not rise
        e0_interval: 90 %
        b_crit_interval: 90 %; its upper end may be infinite
        rms: root mean square of predicted / measured − 1 over the points
    """

    e0: float
    b_crit: float
    e0_interval: tuple[float, float]
    b_crit_interval: tuple[float, float]
    rms: float


# ---------------------------------------------------------------------------------------------------------------------
# Amounts of training from one unit to another: epochs, samples, steps, tokens


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
        InputError: the size of an epoch or a sample is not known
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
        InputError: the size of an epoch or a sample is not known
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


# ---------------------------------------------------------------------------------------------------------------------
# Checks and warnings of a table of points as a convergence curve


LARGEST_BATCH = 10**15
_MOST_POINTS = 300
_UPDATES_RISE = 1.15
_FALLS = 0.97
_SAME_MEAN = 1e-6
_SMALLEST = 1e-30


def check_table(table: CurveTable, *, source: str) -> None:
    """Refuse a table that is no curve.

    Args:
        table: to check
        source: its name in errors, such as the path of its file

    Raises:
        InputError: no points or too many, a batch twice, a figure out of range; the message names the point
    """
    if not table.points:
        raise InputError(
            f"{source}: no points: give at least one batch that was run", code="curve.no-points", source=source
        )
    if len(table.points) > _MOST_POINTS:
        raise InputError(
            f"{source}: {len(table.points)} batches, at most {_MOST_POINTS} can be fitted: leave some out",
            code="curve.too-many-points",
            source=source,
            points=len(table.points),
        )
    for name in ("samples_per_epoch", "tokens_per_sample"):
        figure = getattr(table, name)
        if figure is not None and figure < 1:
            raise InputError(f"{source}: {name} must be at least 1, got {figure}", source=source, value=figure)
    if table.target is not None and not math.isfinite(table.target):
        raise InputError(f"{source}: target must be a finite number, got {table.target}", source=source)
    _check_recipe(table.recipe, source)
    seen: set[int] = set()
    for point in table.points:
        _check_point(point, source)
        if point.global_batch in seen:
            raise InputError(
                f"{source}: batch {point.global_batch} is there twice: make one point of its runs",
                code="curve.batch-twice",
                source=source,
                batch=point.global_batch,
            )
        seen.add(point.global_batch)


def oddities(table: CurveTable) -> tuple[str, ...]:
    """Warnings about a table.

    Args:
        table: by rising batch, not in steps

    Returns:
        Sentences: a single point, amounts that fall with the batch, more updates at a larger batch, runs that failed.

    Example:
        >>> points = (Point(global_batch=64, amount=4.0), Point(global_batch=128, amount=3.0))
        >>> oddities(CurveTable(task="t", unit="epochs", points=points, source="by hand"))[1]
        'not monotone: batch 128 needs less than 64, 3 against 4 epochs'
    """
    points, found = table.points, []
    if len(points) == 1:
        found.append(f"one point only: nothing is known of other batches than {points[0].global_batch}")
    if len(points) == 2:
        found.append("two points only: the form passes through both, so nothing tests it")
    for left, right in itertools.pairwise(points):
        if right.amount < left.amount * _FALLS:
            found.append(
                f"not monotone: batch {right.global_batch} needs less than {left.global_batch}, "
                f"{format_figure(right.amount, 4)} against {format_figure(left.amount, 4)} {table.unit}"
            )
        updates = right.amount * left.global_batch / (left.amount * right.global_batch)
        if updates > _UPDATES_RISE:
            found.append(
                f"batch {right.global_batch} needs {updates - 1:.0%} more updates than {left.global_batch}: "
                "tuned alike, a larger batch needs no more"
            )
    for point in points:
        if point.failed:
            tried = point.runs + point.failed
            found.append(f"batch {point.global_batch}: {point.failed} of {tried} runs did not reach the target")
    return tuple(found)


def _check_point(point: Point, source: str) -> None:
    place = f"{source}: batch {point.global_batch}"
    if not 1 <= point.global_batch <= LARGEST_BATCH:
        raise InputError(f"{place}: a global batch is a whole number from 1 to 1e15", batch=point.global_batch)
    for name, figure in (("amount", point.amount), *(("values", value) for value in point.values)):
        if not (math.isfinite(figure) and figure > 0):
            raise InputError(
                f"{place}: {name} must be positive and finite, got {figure}",
                code="curve.amount-not-positive",
                batch=point.global_batch,
            )
        if not _SMALLEST <= figure <= 1 / _SMALLEST:
            raise InputError(
                f"{place}: {name} must lie between 1e-30 and 1e30, got {figure}",
                code="curve.amount-out-of-range",
                batch=point.global_batch,
            )
    if point.runs < 1 or point.failed < 0:
        raise InputError(
            f"{place}: expected at least one run and no negative count, got runs {point.runs}, failed {point.failed}",
            batch=point.global_batch,
        )
    if point.deviation is not None and not (math.isfinite(point.deviation) and point.deviation >= 0):
        raise InputError(
            f"{place}: deviation must be finite and not negative, got {point.deviation}", code="curve.bad-deviation"
        )
    if point.values:
        mean = sum(point.values) / len(point.values)
        if len(point.values) != point.runs or abs(mean / point.amount - 1) > _SAME_MEAN:
            raise InputError(
                f"{place}: {len(point.values)} values with mean {mean:g} contradict {point.runs} runs "
                f"with mean {point.amount:g}",
                code="curve.mean-contradicts-runs",
                batch=point.global_batch,
            )


def _check_recipe(recipe: Recipe | None, source: str) -> None:
    if recipe is None:
        return
    for name in ("base_batch", "samples_per_epoch"):
        figure = getattr(recipe, name)
        if figure is not None and figure < 1:
            raise InputError(
                f"{source}: recipe.{name} must be at least 1, got {figure}",
                code="curve.recipe-value-too-small",
                source=source,
                value=figure,
            )
    if not 0.0 <= recipe.warmup_epochs < math.inf:
        raise InputError(
            f"{source}: recipe.warmup_epochs must be finite and not negative, got {recipe.warmup_epochs}",
            code="curve.recipe-value-negative",
            source=source,
            value=recipe.warmup_epochs,
        )
