"""Intervals of what is computed from the steps of a run, which scatter and drift.

Blocks of neighbouring steps are drawn with replacement within each window of steps, so that neither what neighbours
share nor the drift of a run is mistaken for independent scatter.

Source:
    Künsch, The jackknife and the bootstrap for general stationary observations, Ann. Statist. 17(3), 1989: blocks.
"""

import math

import numpy

WINDOW = 12
"""Steps over which a figure of the run is taken as one."""

LEAST_STEPS = 4
"""With fewer, an interval is open: so few say nothing of their spread."""

_DRAWS = 1000
_TAILS = (0.05, 0.95)
Array = numpy.ndarray


def windows(count: int) -> list[Array]:
    """The steps of each window: equal parts of about `WINDOW` steps.

    Args:
        count: of steps

    Example:
        >>> [len(window) for window in windows(25)]
        [13, 12]
    """
    return numpy.array_split(numpy.arange(count), max(1, round(count / WINDOW)))


def resample(count: int, seed: int) -> Array:
    """Runs as they might have been.

    Args:
        count: of steps
        seed: of the draws

    Returns:
        Indices of steps [draws, count]; in each window, blocks of its steps, which wrap around.
    """
    generator = numpy.random.default_rng(seed)
    parts = []
    for members in windows(count):
        size, block = len(members), _block(len(members))
        starts = generator.integers(0, size, (_DRAWS, -(-size // block)))
        places = (starts[:, :, None] + numpy.arange(block)) % size
        parts.append(members[places.reshape(_DRAWS, -1)[:, :size]])
    return numpy.concatenate(parts, axis=1)


def widen(values: Array) -> Array:
    """Values drawn apart about the means of their windows, by what resampling takes away.

    The mean of n values in blocks of b, resampled, varies by (n − b) / n of what it should.

    Args:
        values: one a step
    """
    found = values.copy()
    for members in windows(len(values)):
        mean, size, block = values[members].mean(), len(members), _block(len(members))
        found[members] = mean + (values[members] - mean) * math.sqrt(size / max(1, size - block))
    return found


def interval_of(values: Array, steps: int) -> tuple[float, float]:
    """The 90 % interval of what was computed from resampled runs; open where they have too few steps.

    Args:
        values: one a draw; may be infinite
        steps: of a run
    """
    if steps < LEAST_STEPS:
        return 0.0, math.inf
    ordered = numpy.sort(values)
    low, high = (float(ordered[min(len(ordered) - 1, int(tail * len(ordered)))]) for tail in _TAILS)
    return low, high


def _block(size: int) -> int:
    return max(1, round(math.cbrt(size)))
