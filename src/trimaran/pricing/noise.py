"""How far two identical runs are from each other; no prediction can be more exact than that.

The same program runs several times in fresh processes, and each run gives one median step time. The logarithms of these
are assumed to be normal; their spread is as uncertain as the small number of runs makes it. For two further runs, the
ratio of the slower to the faster one is then below

    exp(t * sqrt(2) * s)        s   standard deviation of the logarithms of the R medians
                                t   95 % point of Student's distribution with R - 1 degrees of freedom

in 90 % of cases; sqrt(2) because both runs scatter.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev

from trimaran.base.errors import InputError

# 95 % points of Student's t with 1, 2, ... 10 degrees of freedom. Source: Student, Metron 5, 1925, table of integrals.
_STUDENT_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
_NORMAL_95 = 1.645


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The spread of the step time between fresh runs that are alike.

    Attributes:
        ranks: ranks that ran
        low: lower end of the 90 % interval of the ratio of two runs, minus 1 [1]
        high: upper end of the 90 % interval of the ratio of two runs, minus 1 [1]
        step_time_s: median step time of each run [s]
        date: day on which they ran, such as "2026-11-20"
        source: the program that ran
    """

    ranks: int
    low: float
    high: float
    step_time_s: tuple[float, ...]
    date: str
    source: str


def noise_between(step_time_s: Sequence[float], *, ranks: int, date: str, source: str) -> Noise:
    """The noise that a few runs show.

    Args:
        step_time_s: median step time of each run, at least two [s]
        ranks: ranks that ran
        date: day on which they ran
        source: the program that ran

    Raises:
        InputError: fewer than two runs, or a time that is not positive

    Example:
        >>> runs = [0.099, 0.100, 0.101]  # logarithms 0.01 apart: 2.92 * 1.414 * 0.01 = 0.0413
        >>> noise = noise_between(runs, ranks=2, date="2026-11-20", source="example")
        >>> round(noise.low, 4), round(noise.high, 4)
        (-0.0405, 0.0422)
    """
    if len(step_time_s) < 2 or min(step_time_s) <= 0:
        raise InputError(
            f"the noise of repeated runs needs at least two step times above 0, got {list(step_time_s)}",
            code="noise.too-few-runs",
            runs=len(step_time_s),
        )
    spread = stdev(math.log(seconds) for seconds in step_time_s)
    width = student_95(len(step_time_s) - 1) * math.sqrt(2) * spread
    return Noise(
        ranks=ranks,
        low=math.expm1(-width),
        high=math.expm1(width),
        step_time_s=tuple(step_time_s),
        date=date,
        source=source,
    )


def noise_for(noises: Sequence[Noise], *, ranks: int) -> Noise | None:
    """The noise of a run on a number of ranks; None where none was measured.

    Args:
        noises: measured ones
        ranks: of the run; where they were not tried, the next larger number counts, else the largest
    """
    larger = [noise for noise in noises if noise.ranks >= ranks]
    if larger:
        return min(larger, key=lambda noise: noise.ranks)
    return max(noises, key=lambda noise: noise.ranks, default=None)


def student_95(degrees: int) -> float:
    """95 % point of Student's t distribution.

    Args:
        degrees: of freedom, at least 1

    Source:
        Up to ten degrees a table; beyond, the first terms of its expansion about the normal distribution (Cornish &
        Fisher, Revue de l'Institut international de statistique 5, 1938), right to three digits there.

    Example:
        >>> student_95(4), round(student_95(20), 3)
        (2.132, 1.725)
    """
    if degrees <= len(_STUDENT_95):
        return _STUDENT_95[degrees - 1]
    z = _NORMAL_95
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / degrees + second / degrees**2
