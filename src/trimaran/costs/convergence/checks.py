"""Whether a table of points can be a convergence curve; and what is odd about one that can."""

import itertools
import math

from trimaran.costs.convergence.recipes import Recipe
from trimaran.costs.convergence.types import CurveTable, Point
from trimaran.errors import InputError

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
        source: what to call it in errors, such as the path of its file

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
    """What a reader should know of a table before trusting it.

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
                f"{right.amount:.4g} against {left.amount:.4g} {table.unit}"
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
