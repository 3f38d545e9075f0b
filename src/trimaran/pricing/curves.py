"""Duration as a function of size or batch, through measured points.

Two shapes. A *size curve* (bytes to seconds) spans decades: between points it is a straight line in log-log, before the
first point it is flat (latency), beyond the last one it goes on as alpha-beta. A *batch curve* (samples to seconds) is
straight between points, because the work of an operation is fixed + per sample.
"""

import bisect
import math
from collections.abc import Callable, Mapping, Sequence

from trimaran.base.errors import InputError
from trimaran.pricing.types import Cost


def at_size(points: Sequence[tuple[int, Cost]], nbytes: int) -> Cost:
    """Duration at a size.

    Args:
        points: sizes [bytes] and durations, ascending in size
        nbytes: the size asked for [bytes]

    Raises:
        InputError: no point

    Example:
        >>> def exact(seconds):
        ...     return Cost(seconds, seconds, seconds, "measured")
        >>> points = ((1000, exact(1.0)), (100_000, exact(100.0)), (200_000, exact(150.0)))
        >>> round(at_size(points, 10_000).seconds, 9)  # geometric mean of 1 and 100
        10.0
        >>> at_size(points, 10).seconds, at_size(points, 400_000).seconds
        (1.0, 250.0)
    """
    if not points:
        raise InputError("a curve needs at least one measured point", code="curve.no-measured-size")
    sizes = [size for size, _ in points]
    index = bisect.bisect_left(sizes, nbytes)
    if index < len(sizes) and sizes[index] == nbytes:
        return points[index][1]
    if index == 0:
        return _relabel(points[0][1])
    if index == len(points):
        return _extrapolate(points, nbytes)
    (small, before), (large, after) = points[index - 1], points[index]
    weight = math.log(nbytes / small) / math.log(large / small)
    return _combine(before, after, lambda a, b: _geometric(a, b, weight))


def latency(points: Sequence[tuple[int, Cost]]) -> float:
    """The part of a size curve that no size shortens: its lowest point [s].

    Example:
        >>> latency(((1, Cost(2.0, 1.0, 3.0, "measured")), (9, Cost(5.0, 4.0, 6.0, "measured"))))
        2.0
    """
    return min(cost.seconds for _, cost in points)


def fixed_part(points: Sequence[tuple[int, Cost]], nbytes: int) -> float:
    """The part of the duration at a size that does not grow with the bytes around that size [s].

    The straight line through the two points around the size, carried back to no bytes; never below the lowest point of
    the curve, nor above the duration at the size. A collective of many ranks has a long one that small messages, which
    go another way, do not show.

    Args:
        points: sizes [bytes] and durations, ascending in size
        nbytes: the size asked for [bytes]

    Raises:
        InputError: no point

    Example:
        >>> points = tuple((size, Cost(s, s, s, "measured")) for size, s in ((1, 2.0), (100, 7.0), (300, 11.0)))
        >>> fixed_part(points, 1), fixed_part(points, 200), fixed_part(points, 500)  # 7 - 100 · 4 / 200
        (2.0, 5.0, 5.0)
    """
    seconds, least = at_size(points, nbytes).seconds, latency(points)
    sizes = [size for size, _ in points]
    index = min(max(bisect.bisect_left(sizes, nbytes), 1), len(sizes) - 1)
    if len(sizes) == 1 or nbytes <= sizes[0]:
        return min(least, seconds)
    (small, before), (large, after) = points[index - 1], points[index]
    slope = (after.seconds - before.seconds) / (large - small)
    return min(max(before.seconds - slope * small, least), before.seconds, seconds)


def at_batch(points: Mapping[int, Cost], batch: int) -> Cost:
    """Duration at a batch size.

    Outside the measured range the nearest two points are carried on, never below proportion and never below zero. From
    one point alone the duration is proportional, and the interval reaches to what it would be if it were fixed.

    Args:
        points: durations by batch size [samples]
        batch: the batch size asked for [samples]

    Raises:
        InputError: no point

    Example:
        >>> points = {8: Cost(10.0, 9.0, 11.0, "measured"), 16: Cost(18.0, 17.0, 19.0, "measured")}
        >>> at_batch(points, 12).seconds, at_batch(points, 32).seconds, at_batch(points, 4).seconds
        (14.0, 34.0, 6.0)
    """
    if not points:
        raise InputError("a duration by batch size needs at least one measured point", code="curve.no-measured-batch")
    if batch in points:
        return points[batch]
    sizes = sorted(points)
    if len(sizes) == 1:
        return _proportional(points[sizes[0]], batch / sizes[0])
    index = min(max(bisect.bisect_left(sizes, batch), 1), len(sizes) - 1)
    small, large = sizes[index - 1], sizes[index]
    weight = (batch - small) / (large - small)
    nearest = small if batch < small else large
    floor = min(1.0, batch / nearest) if batch < small else 0.0

    def line(a: float, b: float) -> float:
        return max(a + (b - a) * weight, floor * a, 0.0)

    return _combine(points[small], points[large], line)


def _extrapolate(points: Sequence[tuple[int, Cost]], nbytes: int) -> Cost:
    large, last = points[-1]
    if len(points) == 1:
        return _relabel(last.scaled(nbytes / large))
    small, before = points[-2]
    slope = (last.seconds - before.seconds) / (large - small)
    if slope <= 0:
        slope = last.seconds / large
    return _relabel(last.scaled((last.seconds + slope * (nbytes - large)) / last.seconds if last.seconds else 1.0))


def _proportional(point: Cost, ratio: float) -> Cost:
    scaled = point.scaled(ratio)
    ends = (scaled.low, scaled.high, point.low, point.high)
    return Cost(scaled.seconds, min(ends), max(ends), f"interpolated: in proportion to one batch size, {point.source}")


def _combine(before: Cost, after: Cost, mix: Callable[[float, float], float]) -> Cost:
    low, high = sorted((mix(before.low, after.low), mix(before.high, after.high)))
    seconds = mix(before.seconds, after.seconds)
    return _relabel(Cost(seconds, min(low, seconds), max(high, seconds), before.source))


def _geometric(a: float, b: float, weight: float) -> float:
    if a <= 0 or b <= 0:
        return a + (b - a) * weight
    return math.exp(math.log(a) + (math.log(b) - math.log(a)) * weight)


def _relabel(cost: Cost) -> Cost:
    _, colon, how = cost.source.partition(":")
    return Cost(cost.seconds, cost.low, cost.high, f"interpolated{colon}{how}")
