"""A duration over lists of tensors as fixed + per tensor + per byte.

    minimise over a, b, c >= 0    sum over lists k of  w_k * ((a + b * tensors_k + c * bytes_k) / seconds_k - 1)^2

Relative errors, so that short lists count as much as long ones. With three unknowns, the best of the unconstrained fits
on every subset of them, as far as it has no negative coefficient, is the constrained optimum. Then all three are scaled
so that the first list, which has all tensors, is met exactly.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

import numpy
import numpy.typing

from trimaran.costs.tables import TensorFit
from trimaran.costs.types import Cost
from trimaran.errors import ExecutionError
from trimaran.measure.samples import Rounds, summarize

_FIRST_WEIGHT = 3.0


class ListKey(NamedTuple):
    """Which list of tensors was worked on.

    Attributes:
        tensors: its length
        nbytes: bytes of all of them [bytes]
    """

    tensors: int
    nbytes: int


def fit_rounds(rounds: Mapping[ListKey, Rounds], *, how: str) -> TensorFit:
    """Fit samples of durations over lists of tensors.

    Args:
        rounds: by list, of which the first has all tensors [s]; empty where there is no tensor
        how: a word on how they were taken
    """
    if not rounds:
        return TensorFit(
            fixed_s=0.0, per_tensor_s=0.0, per_byte_s=0.0, low=1.0, high=1.0, source="analytic: nothing is trained"
        )
    return fit_tensors({key: summarize(times, how=how) for key, times in rounds.items()})


def fit_tensors(costs: Mapping[ListKey, Cost]) -> TensorFit:
    """Fit durations over lists of tensors.

    Args:
        costs: by list; the first one, which has all tensors, is met exactly

    Returns:
        The fit; its interval covers that of the first list and the misfit of the others.

    Raises:
        ExecutionError: no list, or one that took no time

    Example:
        >>> def exact(seconds):
        ...     return Cost(seconds, seconds, seconds, "measured")
        >>> seconds = {ListKey(4, 1000): 7.0, ListKey(2, 500): 4.0, ListKey(2, 300): 3.8, ListKey(1, 900): 3.15}
        >>> fit = fit_tensors({key: exact(value) for key, value in seconds.items()})
        >>> round(fit.fixed_s, 6), round(fit.per_tensor_s, 6), round(fit.per_byte_s, 6)
        (1.0, 1.25, 0.001)
    """
    seconds = numpy.array([cost.seconds for cost in costs.values()])
    if not len(seconds) or (seconds <= 0).any():
        raise ExecutionError(
            "lists of tensors took no time that could be measured: this clock is too coarse", code="measure.no-time"
        )
    columns = numpy.array([[1.0, key.tensors, key.nbytes] for key in costs])
    found = _fit_non_negative(columns / seconds[:, None])
    found = found * (seconds[0] / (columns[0] @ found))
    misfit = seconds / (columns @ found)
    whole = next(iter(costs.values()))
    return TensorFit(
        fixed_s=float(found[0]),
        per_tensor_s=float(found[1]),
        per_byte_s=float(found[2]),
        low=min(whole.low / whole.seconds, float(misfit.min())),
        high=max(whole.high / whole.seconds, float(misfit.max())),
        source=whole.source,
    )


def _fit_non_negative(rows: numpy.typing.NDArray[numpy.float64]) -> numpy.typing.NDArray[numpy.float64]:
    """Coefficients >= 0 for which `rows @ coefficients` is nearest to 1 everywhere."""
    best, least = numpy.zeros(3), numpy.inf
    weights = numpy.ones(len(rows))
    weights[0] = _FIRST_WEIGHT
    # Columns differ by many orders of magnitude: scaled, the solver's cut-off for small ones means something.
    scale = numpy.maximum(numpy.abs(rows).max(axis=0), 1e-300)
    for count in (1, 2, 3):
        for chosen in combinations(range(3), count):
            part = rows[:, chosen] / scale[list(chosen)]
            solution = numpy.linalg.lstsq(part * weights[:, None] ** 0.5, weights**0.5, rcond=1e-9)[0]
            error = float((weights * (part @ solution - 1.0) ** 2).sum())
            if (solution >= 0).all() and error < least - 1e-12:
                best, least = numpy.zeros(3), error
                best[list(chosen)] = solution / scale[list(chosen)]
    return best
