"""Time of a collective of a group: physics, corrected by measurements on similar groups.

Curves over all sizes are kept, so that one group is asked often at little cost. They never fall as messages grow.

The error of the physics on measured collectives, applied to a group without measurements.

Of every measured curve the logarithm of measured over prior is known at some sizes. At each size, these
are taken as values of a Gaussian process over groups and operations, whose covariance is a sum of three parts:

    box        the same machine strays alike, whatever the operation
    pattern    the same operation on as many devices strays alike, on any machine
    kind       links of one kind and generation stray alike

each falling off with the distance in operation, devices, generation and so on. The conditional mean corrects the prior:
on a measured group it gives back the measurement, far from all of them the prior. The conditional spread is the
uncertainty. A curve that lacks a size lends its nearest one, with noise that grows by the octave; a curve that ends
among large messages lends its rate.

Source: Rasmussen & Williams, Gaussian Processes for Machine Learning, 2006, section 2.2.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimaran.pricing.collectives.groups import Group, Timing, family
from trimaran.pricing.collectives.measured_curves import GRID, MeasuredCurve, at_sizes, measured_curves
from trimaran.pricing.collectives.physics import Sizes, constants, prior_time
from trimaran.pricing.types import Cost

_FAMILIES = {"nvswitch": 0, "nvlink": 0, "xgmi": 0, "pcie": 1, "host": 1, "virtual": 1}
_OPERATION_CLASSES = {
    "all_reduce": (0.0, 0.0),
    "all_gather": (1.0, 0.0),
    "reduce_scatter": (1.0, 0.5),
    "broadcast": (0.7, -0.7),
    "reduce": (0.7, -1.0),
    "all_to_all": (2.0, 2.0),
    "send_recv": (-2.0, 2.0),
}
"""Places of operations on a plane: those that stray alike lie close."""

CALL_COUNTS: Sizes = 1 / (1 + GRID / 2**20)
"""Weight of the timing method at each size."""

PLATEAU, AFTER_PLATEAU = 2**28, 0.1
"""From this size on [bytes] a rate is taken to stay as it is; an octave beyond counts as so much of one before."""

Matrix = npt.NDArray[np.floating]
Cube = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query: an operation on a group, with a timing method and the year of a library."""

    op: str
    group: Group
    timing: Timing
    year: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Field:
    """Curves with their covariance solved, ready for questions.

    Attributes:
        queries: of each curve
        factors: Cholesky factor of their covariance, for each size of `GRID`
        weights: for each size and curve, the covariance's inverse times the observations
        known: constants
    """

    queries: tuple[Query, ...]
    factors: Cube
    weights: Matrix
    known: Mapping[str, Mapping[str, float]]


@functools.cache
def field() -> Field:
    """Of all curves of the package."""
    return solve(measured_curves(), constants())


def solve(curves: Sequence[MeasuredCurve], known: Mapping[str, Mapping[str, float]]) -> Field:
    """Solves for the weights of the curves.

    Args:
        curves: measured
        known: constants of the prior and the kernel
    """
    queries, seen, covariance = covariance_of(curves, known)
    factors = cholesky(covariance)
    return Field(queries=queries, factors=factors, weights=backward(factors, forward(factors, seen)), known=known)


def covariance_of(
    curves: Sequence[MeasuredCurve], known: Mapping[str, Mapping[str, float]]
) -> tuple[tuple[Query, ...], Matrix, Cube]:
    """The query of each curve, its residual at each size, and the covariance of the residuals."""
    queries = tuple(Query(op=c.op, group=c.group, timing=c.timing, year=c.year) for c in curves)
    strays, gaps = zip(*(strays_of(curve, known) for curve in curves), strict=True)
    seen, distance = np.array(strays).T, np.array(gaps).T
    covariance = kernel(queries, queries, known["kernel"])
    diagonal = np.arange(len(queries))
    covariance[:, diagonal, diagonal] += known["kernel"]["noise"] ** 2 + (known["kernel"]["octave"] * distance) ** 2
    return queries, seen, covariance


def correction(query: Query, solved: Field) -> tuple[Sizes, Sizes]:
    """By how much the time strays from the prior.

    Args:
        query: operation, group, timing and year
        solved: curves

    Returns:
        Logarithm of the factor, and its standard deviation, at each size of `GRID`.
    """
    near = kernel((query,), solved.queries, solved.known["kernel"])[:, 0, :]
    noise = solved.known["kernel"]["noise"] ** 2
    variance = kernel((query,), (query,), solved.known["kernel"])[:, 0, 0] + noise
    explained = np.sum(forward(solved.factors, near) ** 2, axis=1)
    return np.sum(solved.weights * near, axis=1), np.sqrt(np.maximum(variance - explained, noise))


def kernel(first: Sequence[Query], second: Sequence[Query], known: Mapping[str, float]) -> Cube:
    """Covariance of the residuals of two sets of queries, at each size of `GRID`.

    How a time was taken matters for small messages only: in a long transfer the fixed cost of a call does not show.

    Args:
        first: rows
        second: columns
        known: constants of the kernel
    """
    gap, other = _gaps(first, second), _differences(first, second)
    across, op = other["family"], np.hypot(gap["op_x"], gap["op_y"])
    devices = gap["devices"] + gap["nodes"]
    generation = np.where(across, 0.0, gap["generation"])
    kind = other["kind"] + 2.0 * across + 4.0 * other["network"]
    own_links = np.array([_FAMILIES[query.group.kind] == 0 for query in first])[:, None]
    stranger = np.where(across, 1.0, np.where(own_links, generation > 0, other["device"])).astype(float)
    box = np.where(other["node"] | other["network"], 0.0, 1.0)
    box = known["box"] ** 2 * box * np.exp(-known["box_devices"] * devices - known["box_op"] * op)
    pattern = known["pattern"] ** 2 * np.exp(
        -known["pattern_op"] * op
        - known["pattern_devices"] * devices
        - known["pattern_generation"] * generation
        - known["pattern_kind"] * kind
        - known["pattern_year"] * gap["year"]
    )
    like = known["kind"] ** 2 * np.exp(
        -known["kind_devices"] * devices
        - known["kind_kind"] * kind
        - known["kind_stranger"] * stranger
        - known["kind_op"] * op
    )
    timing = CALL_COUNTS[:, None, None] * other["timing"][None, :, :]
    total: Cube = box + like + pattern * np.exp(-known["pattern_timing"] * timing)
    return total


def _gaps(first: Sequence[Query], second: Sequence[Query]) -> dict[str, Matrix]:
    """Distances in measured quantities."""

    def numbers(queries: Sequence[Query]) -> dict[str, Matrix]:
        return {
            "op_x": np.array([_OPERATION_CLASSES[query.op][0] for query in queries]),
            "op_y": np.array([_OPERATION_CLASSES[query.op][1] for query in queries]),
            "devices": np.log2([query.group.devices for query in queries]),
            "nodes": np.log2([query.group.nodes for query in queries]),
            "generation": np.array([query.group.generation for query in queries]),
            "year": np.array([query.year for query in queries]),
        }

    a, b = numbers(first), numbers(second)
    return {name: np.abs(a[name][:, None] - b[name][None, :]) for name in a}


def _differences(first: Sequence[Query], second: Sequence[Query]) -> dict[str, npt.NDArray[np.bool_]]:
    """Whether two are not the same."""

    def names(queries: Sequence[Query]) -> dict[str, npt.NDArray[np.str_]]:
        return {
            "family": np.array([str(_FAMILIES[query.group.kind]) for query in queries]),
            "node": np.array([query.group.node for query in queries]),
            "device": np.array([query.group.device for query in queries]),
            "timing": np.array([str(query.timing) for query in queries]),
            "kind": np.array([str(query.group.kind) for query in queries]),
            "network": np.array([str(query.group.card_kind) for query in queries]),
        }

    a, b = names(first), names(second)
    return {name: a[name][:, None] != b[name][None, :] for name in a}


def strays_of(curve: MeasuredCurve, known: Mapping[str, Mapping[str, float]]) -> tuple[Sizes, Sizes]:
    """Logarithm of measured over prior at each size, and how many octaves away it was measured."""
    prior = prior_time(curve.op, GRID, curve.group, curve.timing, known["prior"], year=curve.year)
    there = np.flatnonzero(~np.isnan(curve.times_s))
    nearest = there[np.abs(there[None, :] - np.arange(len(GRID))[:, None]).argmin(axis=1)]
    away = np.abs(nearest - np.arange(len(GRID))).astype(float)
    beyond = (GRID[nearest] < GRID) & (GRID[nearest] >= PLATEAU)
    times = curve.times_s[nearest] * np.where(beyond, GRID / GRID[nearest], 1.0)
    strays: Sizes = np.log(times / np.where(beyond, prior, prior[nearest]))
    return strays, np.where(beyond, AFTER_PLATEAU * away, away)


# Many small systems at once. A library's threads cost more here than they gain, on a busy machine seconds.


def cholesky(matrices: Cube) -> Cube:
    """Lower factors of positive definite matrices, each times its transpose the matrix."""
    factors = np.zeros_like(matrices)
    for j in range(matrices.shape[1]):
        row = factors[:, j, :j]
        factors[:, j, j] = np.sqrt(matrices[:, j, j] - np.einsum("sj,sj->s", row, row))
        below = matrices[:, j + 1 :, j] - np.einsum("sij,sj->si", factors[:, j + 1 :, :j], row)
        factors[:, j + 1 :, j] = below / factors[:, j, j, None]
    return factors


def forward(factors: Cube, right: Matrix) -> Matrix:
    """Solutions of `factor x = right`, one for each matrix."""
    solution = np.zeros_like(right)
    for i in range(right.shape[1]):
        done = np.einsum("sj,sj->s", factors[:, i, :i], solution[:, :i])
        solution[:, i] = (right[:, i] - done) / factors[:, i, i]
    return solution


def backward(factors: Cube, right: Matrix) -> Matrix:
    """Solutions of `factor^T x = right`, one for each matrix."""
    solution = np.zeros_like(right)
    for i in reversed(range(right.shape[1])):
        done = np.einsum("sj,sj->s", factors[:, i + 1 :, i], solution[:, i + 1 :])
        solution[:, i] = (right[:, i] - done) / factors[:, i, i]
    return solution


SURE, LIKELY = 0.12, 0.5
"""Spread of the logarithm up to which an answer counts as interpolated, and as calibrated on like machines."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """Predicted times over `GRID`.

    Attributes:
        seconds: at each size [s]
        spread: standard deviation of their logarithm
    """

    seconds: Sizes
    spread: Sizes


def group_cost(op: str, nbytes: float, group: Group, *, timing: Timing = "stream", year: float = 2024.0) -> Cost:
    """Time of a collective of a group, however it is joined.

    Args:
        op: as in `collective_cost`
        nbytes: as there [bytes]
        group: the devices
        timing: how the time is taken
        year: of the library

    Returns:
        Time with its 90 % interval [s].
    """
    curve = predicted_curve(op, group, timing, year)
    if nbytes == 0 and op == "all_to_all":
        # Nothing is sent, so nothing is launched: only the host's loop over the ranks is left.
        empty = constants()["prior"]["call_empty"] * 2 * group.devices
        return Cost(empty, empty / 2, empty * 2, "calibrated: an empty exchange launches nothing")
    size = np.array([max(float(nbytes), GRID[0])])
    seconds = float(at_sizes(curve.seconds, size)[0])
    sigma = float(np.interp(math.log(size[0]), np.log(GRID), curve.spread))
    factor = half_width(sigma, group)
    return Cost(seconds, seconds / factor, seconds * factor, _source(sigma, group))


def half_width(sigma: float, group: Group) -> float:
    """Factor between a median and the ends of its 90 % interval.

    Args:
        sigma: standard deviation of the logarithm of the time, among groups like this one; what repeats of one
            measurement differ by comes on top
        group: the devices
    """
    known = constants()["intervals"]
    return math.exp(math.hypot(known[f"scale_{family(group)}"] * 1.645 * sigma, known["repeat"]))


@functools.lru_cache(maxsize=4096)
def predicted_curve(op: str, group: Group, timing: Timing, year: float) -> Curve:
    """Times over all sizes, that never fall as messages grow.

    Args:
        op: as in `collective_cost`
        group: the devices
        timing: how the time is taken
        year: of the library
    """
    known = constants()["prior"]
    factor, spread = correction(Query(op=op, group=group, timing=timing, year=year), field())
    seconds = prior_time(op, GRID, group, timing, known, year=year) * np.exp(factor)
    return Curve(seconds=np.maximum.accumulate(seconds), spread=spread)


def _source(sigma: float, group: Group) -> str:
    if sigma <= SURE:
        return f"interpolated: collectives measured on {group.node or 'like machines'}"
    if sigma <= LIKELY:
        return "calibrated: a model of the links, corrected by collectives measured on machines like it"
    return "analytic: a model of the links"
