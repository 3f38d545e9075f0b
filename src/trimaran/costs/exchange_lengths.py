"""Batches of unequal work: devices get sentences of different lengths, and all wait for the longest batch.

A device's work in a step is taken as normally distributed about the mean that one device alone shows. The step takes
as long as the largest of the group's draws. Left out: work that is skewed, and batches that a sampler made alike.
"""

import functools
import math

_REACH = 9.0
"""Standard deviations beyond which nothing of a normal distribution is left that counts."""

_PARTS = 3600


@functools.cache
def largest_of(count: int) -> float:
    """Mean of the largest of so many standard normal draws.

    Args:
        count: of draws

    Source:
        Harter, "Expected values of normal order statistics", Biometrika 48, 1961: the integral of
        x n phi(x) Phi(x)^(n - 1), here by the trapezoidal rule, and its table: 0.56419 of 2, 1.42360 of 8.

    Example:
        >>> [round(largest_of(count), 3) for count in (1, 2, 4, 8, 16)]
        [0.0, 0.564, 1.029, 1.424, 1.766]
    """
    if count == 1:
        return 0.0
    width = 2 * _REACH / _PARTS
    places = (-_REACH + width * part for part in range(_PARTS + 1))
    return round(width * sum(place * _density(place) * count * _below(place) ** (count - 1) for place in places), 9)


def length_wait(spread: float, devices: int, *, microbatches: int = 1) -> float:
    """How much longer forward and backward are because devices have unequal work, as a share of them.

    Args:
        spread: standard deviation of a microbatch's work by its mean
        devices: in the group
        microbatches: that a device runs before it waits; their work evens out

    Example:
        >>> round(length_wait(0.1, 4), 4), round(length_wait(0.1, 4, microbatches=4), 4), length_wait(0.1, 1)
        (0.1029, 0.0515, 0.0)
    """
    return spread * largest_of(devices) / math.sqrt(microbatches)


def _density(place: float) -> float:
    return math.exp(-place * place / 2) / math.sqrt(2 * math.pi)


def _below(place: float) -> float:
    return math.erfc(-place / math.sqrt(2)) / 2
