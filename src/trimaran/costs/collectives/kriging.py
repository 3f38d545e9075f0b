"""How far measured collectives stray from physics, carried to a group that nobody measured.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimaran.costs.collectives.curves import GRID, MeasuredCurve, measured_curves
from trimaran.costs.collectives.groups import Group, Timing
from trimaran.costs.collectives.prior import Sizes, constants, prior_time

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
"""How much the way of timing counts at each size."""

PLATEAU, AFTER_PLATEAU = 2**28, 0.1
"""From this size on [bytes] a rate is taken to stay as it is; an octave beyond counts as so much of one before."""

Matrix = npt.NDArray[np.floating]
Cube = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is asked: an operation on a group, timed in some way with a library of some year."""

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
        weights: for each size and curve, the covariance's inverse times what was seen
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
    """What was asked of each curve, by how much it strayed at each size, and how those covary."""
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
        query: what is asked
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
    """Covariance of what two sets of questions stray by, at each size of `GRID`.

    How a time was taken matters for small messages only: the fixed cost of a call is lost in a long flight.

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
    """Distances of what can be measured."""

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
