"""Time of a collective of a group: physics, corrected by measurements on similar groups.

Predicted curves over all sizes are kept, so that one group is asked often at little cost. They never fall as messages
grow.

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

The physics is a model of a collective's time with few constants: hops, bytes over the slowest link, a slow start.

    t = call + hops + v S/B (1 + (h/S)^p),   h = tau B

`v` is the volume that a link carries, `B` the rate of the rings, `h` the size at which half of it is reached: a larger
rate needs larger messages to fill it. The constants are shared by all machines (`constants.toml`, fitted by
`benchmarks/fits/collectives.py`). How far a kind of machine strays from this, the measured curves say. Left out: what
other traffic does on the same links.

Measured curves of collectives are thinned to powers of two.

`curves.csv` has a line for each machine, operation and number of devices: what the group is, how the time was taken,
and the time at 4 B, 8 B, … 16 GiB in microseconds, empty where not measured. `benchmarks/fits/collectives.py` makes
it. Sizes count as in `formulas`.

The node that a card without NVLink is assumed to be in, where the source does not say.

The rate of such cards together depends more on their box than on the cards: whether they may access each other, through
which switches and sockets. Where the machine is only "eight of this card", the box in which collectives of this card
were measured stands in; it is a real one.
"""

import csv
import functools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt

from trimaran.base.files import packaged_text, packaged_toml
from trimaran.machine.catalog import link_types
from trimaran.machine.types import Machine
from trimaran.pricing.collectives.formulas import bus_factor
from trimaran.pricing.collectives.links import OVER_PCIE, DeviceGroup, LinkKind, LinkUse, Timing, family, group_across
from trimaran.pricing.types import Cost

# ---------------------------------------------------------------------------------------------------------------------
# The physical model


Sizes = npt.NDArray[np.float64]

RING_HOP = 0.54
"""A hop between nodes in a ring, as a share of one in a tree: 2.7 us of 5.0 us in NCCL 2.30's own table for LL."""

LAUNCH_YEARLY, LAUNCH_YEAR = 0.88, 2020.0
"""One thread's launch gets shorter by the year: 6.4 us a device in 2018 (uuudown/Tartan@e3166ab, 8 P100), 4.3 us in
2021 (microsoft/superbenchmark@700d650, 8 A100)."""

NVLS_GENERATION, NVLS_DEVICES, NVLS_YEAR = 4, 5, 2023.0
"""Switches add up from this generation of NVLink on, from this many devices up, since NCCL 2.17 or so."""


@functools.cache
def constants() -> Mapping[str, Mapping[str, float]]:
    """Tables of `constants.toml`: "prior", "kernel", "intervals"."""
    tables: dict[str, Mapping[str, float]] = {
        name: table
        for name, table in packaged_toml("trimaran.pricing.collectives", "constants.toml").items()
        if isinstance(table, dict)
    }
    return tables


def call_time(op: str, group: DeviceGroup, timing: Timing, known: Mapping[str, float], *, year: float) -> float:
    """Fixed cost of a call, besides the work of the device [s].

    One thread that launches on all devices pays for each; a send or receive is a separate call.

    Args:
        op: the operation
        group: the devices
        timing: how the time is taken
        known: constants of the prior
        year: of the library and its host
    """
    single = timing == "single"
    launch = known["call_single"] * LAUNCH_YEARLY ** (min(max(year, 2016.0), 2025.0) - LAUNCH_YEAR)
    cost = launch * group.per_node if single else known[f"call_{timing}"]
    if op == "all_to_all":
        cost += known["call_message"] * 2 * group.devices * (group.per_node if single else 1)
    return cost


def with_call(transfer_s: Sizes, call_s: float, timing: Timing) -> Sizes:
    """Time of a call and its transfer together.

    Calls that are issued one after the other overlap with the transfers of those before them, so that the time is about
    the longer of the two; where the host waits for every call, both do.

    Args:
        transfer_s: the device's part [s]
        call_s: the fixed cost of a call [s]
        timing: how the time is taken

    Returns:
        Time of one call [s].

    Example:
        >>> with_call(np.array([3.0]), 4.0, "wall").tolist()
        [7.0]
        >>> with_call(np.array([100.0]), 4.0, "single").round(2).tolist()
        [100.0]
    """
    power = _overlap(timing)
    result: Sizes = (transfer_s**power + call_s**power) ** (1 / power)
    return result


def prior_time(
    op: str, sizes: Sizes, group: DeviceGroup, timing: Timing, known: Mapping[str, float], *, year: float
) -> Sizes:
    """Time of a collective by physics alone, by size, its call included.

    Args:
        op: the operation
        sizes: whole buffers [bytes], none of them 0
        group: the devices
        timing: how the time is taken
        known: constants of the prior
        year: of the library

    Returns:
        For each size its time [s].
    """
    transfer_s = transfer_time(op, sizes, group, known, year=year)
    return with_call(transfer_s, call_time(op, group, timing, known, year=year), timing)


def _overlap(timing: Timing) -> float:
    return 1.0 if timing in ("wall", "torch") else 3.0


def transfer_time(
    op: str, sizes: Sizes, group: DeviceGroup, known: Mapping[str, float], *, year: float = 2024.0
) -> Sizes:
    """Time of the device's part of a collective, by size.

    Args:
        op: the operation
        sizes: whole buffers [bytes], none of them 0
        group: the devices
        known: constants of the prior
        year: of the library

    Returns:
        For each size its time [s].
    """
    if group.devices == 1:
        return np.zeros_like(sizes)
    volume = bus_factor(op, group.devices) + _own_part(op, known) / group.devices
    links = []
    if group.per_node > 1:
        links.append((inside_rate(op, group, known, year=year), _ramp(group, known), known["power"]))
    if group.nodes > 1:
        links.append((between_rate(op, group, known), known["ramp_network"], known["power_network"]))
    # The slowest decides, by its time and not by its rate: a faster link never takes longer.
    flows = [volume * sizes / rate * (1 + (ramp_s * rate / sizes) ** power) for rate, ramp_s, power in links]
    slowest: Sizes = _hops(op, group, known) + np.maximum.reduce(flows)
    return slowest


def inside_rate(op: str, group: DeviceGroup, known: Mapping[str, float], *, year: float) -> float:
    """Bus rate inside a node [bytes/s]."""
    rate = (group.exchange_bytes_per_s if op == "all_to_all" else group.ring_bytes_per_s) / group.inside
    rate *= known[f"reached_{group.kind}"]
    if op in ("broadcast", "reduce"):
        rate *= known["reached_one_way"]
    if op == "all_reduce" and uses_nvls(group, year):
        rate *= known["nvls"]
    return rate


def _ramp(group: DeviceGroup, known: Mapping[str, float]) -> float:
    """Time that links inside a node need to fill [s]."""
    return known["ramp_pcie" if group.kind in OVER_PCIE else "ramp_nvlink"]


def uses_nvls(group: DeviceGroup, year: float) -> bool:
    """Whether switches add up an all-reduce of these devices."""
    return (
        group.kind == "nvswitch"
        and group.generation >= NVLS_GENERATION
        and group.per_node >= NVLS_DEVICES
        and year >= NVLS_YEAR
    )


def between_rate(op: str, group: DeviceGroup, known: Mapping[str, float]) -> float:
    """Bus rate between nodes [bytes/s]: rings leave a node once on each card, an all-to-all with nearly everything."""
    rate = group.cards_bytes_per_s * math.sqrt(math.prod(network_reach(group, known))) / group.sharing
    if op == "all_to_all":
        n, g = group.devices, group.per_node
        return rate / g * (n - 1) / max(1, n - g)
    if op == "send_recv":
        return rate / max(1, group.cards)
    return rate


def network_reach(group: DeviceGroup, known: Mapping[str, float]) -> tuple[float, float]:
    """Of the rate of a node's cards, the least and the most that large collectives of a library reach.

    TCP is limited by the cores that copy: a card of rate `r` reaches `1/(1 + r/limit)`. A card of which it is not known
    how it is used reaches at least what the slowest known one does, at that rate, and at most what the fastest does.
    """
    if group.reach[1]:
        return group.reach
    copied = 1 / (1 + group.cards_bytes_per_s / max(1, group.cards) / known["tcp_limit"])
    direct = known["reached_network"]
    if group.access:
        return (copied, copied) if group.access == "host" else (direct, direct)
    least = min((copied, *(link.reach[0] for link in link_types().values() if link.reach[1])))
    return max(least, direct / WIDEST), direct


WIDEST = 8.0
"""Between the ends of what a card may reach of which nothing is known: from TCP at 400 Gb/s to InfiniBand."""


def hop_times(group: DeviceGroup, known: Mapping[str, float]) -> tuple[float, float]:
    """Latency of a hop inside a node, and between nodes [s]."""
    inside = known["hop_pcie" if group.kind in OVER_PCIE else "hop_nvlink"]
    other = known["hop_infiniband" if group.access == "direct" else "hop_ethernet"]
    return inside, group.hop_s or known.get(f"hop_{group.card_kind}", other)


def ring_latency(op: str, group: DeviceGroup, known: Mapping[str, float]) -> float:
    """Latency of a ring [s]: its hops one after the other; those between nodes are half overlapped by the pipeline."""
    inside, between = hop_times(group, known)
    once = (group.devices - group.nodes) * inside + (group.nodes - 1) * between * RING_HOP
    return known["base"] + (2 if op == "all_reduce" else 1) * once


def tree_latency(group: DeviceGroup, known: Mapping[str, float]) -> float:
    """Latency of an all-reduce on trees between nodes, chains inside them [s]."""
    inside, between = hop_times(group, known)
    return known["base"] + 2 * ((group.per_node - 1) * inside + math.ceil(math.log2(group.nodes)) * between)


def _hops(op: str, group: DeviceGroup, known: Mapping[str, float]) -> float:
    if op == "send_recv":
        return known["base"] + hop_times(group, known)[1 if group.nodes > 1 else 0]
    ring = ring_latency(op, group, known)
    return min(ring, tree_latency(group, known)) if op == "all_reduce" and group.nodes > 1 else ring


def _own_part(op: str, known: Mapping[str, float]) -> float:
    """Share of the buffer, times the ranks, that a rank moves within itself: its own part of the result."""
    return {
        "all_reduce": known["own_all_gather"],
        "all_gather": known["own_all_gather"],
        "reduce_scatter": known["own_reduce_scatter"],
        "all_to_all": known["own_all_to_all"],
    }.get(op, 0.0)


# ---------------------------------------------------------------------------------------------------------------------
# Measured curves, at powers of two


FIRST_POWER, LAST_POWER = 2, 34
GRID: Sizes = np.array([2.0**power for power in range(FIRST_POWER, LAST_POWER + 1)])
"""Sizes of all curves [bytes]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredCurve:
    """Times of one operation on one group.

    Attributes:
        op: the operation
        group: the devices
        timing: how the time was taken
        year: of the library
        times_s: at each size of `GRID`; NaN where not measured [s]
        source: where they come from
    """

    op: str
    group: DeviceGroup
    timing: Timing
    year: float
    times_s: Sizes
    source: str


@functools.cache
def measured_curves() -> tuple[MeasuredCurve, ...]:
    """All curves of `curves.csv`."""
    text = packaged_text("trimaran.pricing.collectives", "curves.csv")
    return tuple(_curve(row) for row in csv.DictReader(text.splitlines()))


def at_sizes(times_s: Sizes, sizes: Sizes) -> Sizes:
    """Times between those of a curve over `GRID`, straight in logarithms; beyond its last size time grows as size does.

    Args:
        times_s: at each size of `GRID` [s]
        sizes: wanted, none of them 0 [bytes]

    Returns:
        Time at each size [s].
    """
    inside = np.interp(np.log(sizes), np.log(GRID), np.log(times_s))
    beyond = np.maximum(0.0, np.log(sizes / GRID[-1]))
    result: Sizes = np.exp(inside + beyond)
    return result


def _curve(row: dict[str, str]) -> MeasuredCurve:
    times = [row[str(power)] for power in range(FIRST_POWER, LAST_POWER + 1)]
    group = DeviceGroup(
        devices=int(row["devices"]),
        nodes=int(row["nodes"]),
        kind=cast(LinkKind, row["kind"]),
        generation=float(row["generation"]),
        ring_bytes_per_s=float(row["ring_gb_s"]) * 1e9,
        exchange_bytes_per_s=float(row["exchange_gb_s"]) * 1e9,
        card_kind=row["card_kind"],
        cards_bytes_per_s=float(row["cards_gb_s"] or 0) * 1e9,
        cards=int(row["cards"] or 0),
        node=row["node"],
        device=row["device"],
    )
    return MeasuredCurve(
        op=row["op"],
        group=group,
        timing=cast(Timing, row["timing"]),
        year=float(row["year"]),
        times_s=np.array([float(time) * 1e-6 if time else math.nan for time in times]),
        source=row["source"],
    )


_PLAIN = re.compile(r"\d+x")


def as_measured(group: DeviceGroup) -> DeviceGroup:
    """The same devices in the box where their like was measured; the group itself where there is none, or no need.

    Args:
        group: the devices

    Returns:
        With kind, rates and name of the measured box that has the nearest number of devices.
    """
    if group.kind not in OVER_PCIE or not _PLAIN.match(group.node):
        return group
    boxes = _boxes(group.device)
    if not boxes or group.node in {box.node for box in boxes}:
        boxes = tuple(box for box in boxes if box.node == group.node)
    if not boxes:
        return group
    box = min(boxes, key=lambda one: abs(one.devices - group.per_node))
    return replace(
        group,
        kind=box.kind,
        generation=box.generation,
        ring_bytes_per_s=box.ring_bytes_per_s,
        exchange_bytes_per_s=box.exchange_bytes_per_s,
        node=box.node,
    )


@functools.cache
def _boxes(device: str) -> tuple[DeviceGroup, ...]:
    """Measured groups of one node, of this device and without NVLink, each once."""
    groups = {curve.group for curve in measured_curves() if curve.group.device == device and curve.group.nodes == 1}
    return tuple(sorted((one for one in groups if one.kind in OVER_PCIE), key=lambda one: (one.devices, one.node)))


# ---------------------------------------------------------------------------------------------------------------------
# Physics, corrected by measured curves of groups alike


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
    group: DeviceGroup
    timing: Timing
    year: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SolvedCurves:
    """Curves with their covariance solved, ready for questions.

    Attributes:
        queries: of each curve
        traits: of these
        factors: Cholesky factor of their covariance, for each size of `GRID`
        weights: for each size and curve, the covariance's inverse times the observations
        known: constants
    """

    queries: tuple[Query, ...]
    traits: "Traits"
    factors: Cube
    weights: Matrix
    known: Mapping[str, Mapping[str, float]]


FITTED = ("", "infiniband", "efa", "ethernet")
"""Networks whose curves the constants of the covariance were fitted with."""


@functools.cache
def field(network: str = "") -> SolvedCurves:
    """Of the curves that say something of groups over a network: of another one than those of the fit its own.

    Args:
        network: as `DeviceGroup.card_kind`
    """
    return solve(_own_curves(network) or fitted_curves(), constants())


def fitted_curves() -> tuple[MeasuredCurve, ...]:
    """Curves of one node, and over networks that the constants were fitted with."""
    return tuple(one for one in measured_curves() if one.group.card_kind in FITTED)


@functools.cache
def _own_curves(network: str) -> tuple[MeasuredCurve, ...]:
    """Curves over another network than those of the fit."""
    return tuple(one for one in measured_curves() if one.group.card_kind == network not in FITTED)


def solve(curves: Sequence[MeasuredCurve], known: Mapping[str, Mapping[str, float]]) -> SolvedCurves:
    """Solves for the weights of the curves.

    Args:
        curves: measured
        known: constants of the prior and the kernel
    """
    queries, seen, covariance = covariance_of(curves, known)
    factors = cholesky(covariance)
    weights = backward(factors, forward(factors, seen))
    return SolvedCurves(queries=queries, traits=traits_of(queries), factors=factors, weights=weights, known=known)


def covariance_of(
    curves: Sequence[MeasuredCurve], known: Mapping[str, Mapping[str, float]]
) -> tuple[tuple[Query, ...], Matrix, Cube]:
    """The query of each curve, its residual at each size, and the covariance of the residuals."""
    queries = tuple(Query(op=c.op, group=c.group, timing=c.timing, year=c.year) for c in curves)
    strays, gaps = zip(*(strays_of(curve, known) for curve in curves), strict=True)
    seen, distance = np.array(strays).T, np.array(gaps).T
    traits = traits_of(queries)
    covariance = kernel(traits, traits, known["kernel"])
    diagonal = np.arange(len(queries))
    covariance[:, diagonal, diagonal] += known["kernel"]["noise"] ** 2 + (known["kernel"]["octave"] * distance) ** 2
    return queries, seen, covariance


def correction(query: Query, solved: SolvedCurves) -> Sizes:
    """By how much the time strays from the prior: the logarithm of the factor at each size of `GRID`.

    Args:
        query: operation, group, timing and year
        solved: curves
    """
    near = kernel(traits_of((query,)), solved.traits, solved.known["kernel"])[:, 0, :]
    found: Sizes = np.sum(solved.weights * near, axis=1)
    return found


def doubt(query: Query, solved: SolvedCurves) -> Sizes:
    """Standard deviation of the logarithm of the same factor at each size of `GRID`; arguments as of `correction`."""
    traits, known = traits_of((query,)), solved.known["kernel"]
    near, noise = kernel(traits, solved.traits, known)[:, 0, :], known["noise"] ** 2
    variance = kernel(traits, traits, known)[:, 0, 0] + noise
    explained = np.sum(forward(solved.factors, near) ** 2, axis=1)
    found: Sizes = np.sqrt(np.maximum(variance - explained, noise))
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traits:
    """What queries are compared by.

    Attributes:
        numbers: measured quantities, by name
        names: what is the same or is not
        own_links: devices are joined by direct links
    """

    numbers: Mapping[str, Matrix]
    names: Mapping[str, npt.NDArray[np.str_]]
    own_links: npt.NDArray[np.bool_]


def traits_of(queries: Sequence[Query]) -> Traits:
    """What queries are compared by."""
    return Traits(
        numbers={
            "op_x": np.array([_OPERATION_CLASSES[query.op][0] for query in queries]),
            "op_y": np.array([_OPERATION_CLASSES[query.op][1] for query in queries]),
            "devices": np.log2([query.group.devices for query in queries]),
            "nodes": np.log2([query.group.nodes for query in queries]),
            "generation": np.array([query.group.generation for query in queries]),
            "year": np.array([query.year for query in queries]),
        },
        names={
            "family": np.array([str(_FAMILIES[query.group.kind]) for query in queries]),
            "node": np.array([query.group.node for query in queries]),
            "device": np.array([query.group.device for query in queries]),
            "timing": np.array([str(query.timing) for query in queries]),
            "kind": np.array([str(query.group.kind) for query in queries]),
            "network": np.array([str(query.group.card_kind) for query in queries]),
        },
        own_links=np.array([_FAMILIES[query.group.kind] == 0 for query in queries]),
    )


def kernel(first: Traits, second: Traits, known: Mapping[str, float]) -> Cube:
    """Covariance of the residuals of two sets of queries, at each size of `GRID`.

    How a time was taken matters for small messages only: in a long transfer the fixed cost of a call does not show.

    Args:
        first: rows
        second: columns
        known: constants of the kernel
    """
    gap = {name: np.abs(one[:, None] - second.numbers[name][None, :]) for name, one in first.numbers.items()}
    other = {name: one[:, None] != second.names[name][None, :] for name, one in first.names.items()}
    across, op = other["family"], np.hypot(gap["op_x"], gap["op_y"])
    devices = gap["devices"] + gap["nodes"]
    generation = np.where(across, 0.0, gap["generation"])
    kind = other["kind"] + 2.0 * across + 4.0 * other["network"]
    own_links = first.own_links[:, None]
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


def group_cost(op: str, nbytes: float, group: DeviceGroup, *, timing: Timing = "stream", year: float = 2024.0) -> Cost:
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
    if nbytes == 0 and op == "all_to_all":
        # Nothing is sent, so nothing is launched: only the host's loop over the ranks is left.
        empty = constants()["prior"]["call_empty"] * 2 * group.devices
        return Cost(empty, empty / 2, empty * 2, "calibrated: an empty exchange launches nothing")
    seconds = group_seconds(op, nbytes, group, timing=timing, year=year)
    sigma = float(np.interp(math.log(max(float(nbytes), GRID[0])), _LOG_GRID, predicted_doubt(op, group, timing, year)))
    factor = half_width(sigma, group)
    return Cost(seconds, seconds / factor, seconds * factor, _source(sigma, group))


def half_width(sigma: float, group: DeviceGroup) -> float:
    """Factor between a median and the ends of its 90 % interval.

    Args:
        sigma: standard deviation of the logarithm of the time, among groups like this one; what repeats of one
            measurement differ by comes on top, and what is known of how collectives use the cards. Over a network with
            few curves, a machine that has none is as unsure as one that was left out of the fit
        group: the devices
    """
    known = constants()["intervals"]
    width = math.hypot(known[f"scale_{family(group)}"] * 1.645 * sigma, known["repeat"], _spread(group))
    if group.card_kind not in FITTED and group.node not in {one.group.node for one in _own_curves(group.card_kind)}:
        width = max(width, math.log1p(constants()["errors"]["machine_left_out_p80"]))
    return math.exp(width)


def _spread(group: DeviceGroup) -> float:
    """Half of the logarithm of what the group's cards may reach, from the least to the most."""
    least, most = network_reach(group, constants()["prior"])
    return math.log(most / least) / 2 if group.nodes > 1 else 0.0


def network_ends(machine: Machine) -> tuple[Machine, ...]:
    """The machine with cards that reach the least and the most of what they may; none where one figure is known."""
    if machine.fabric is None:
        return ()
    count, link = machine.fabric
    reach = network_reach(group_across(machine, LinkUse(local=(0,), nodes=2, cards=1)), constants()["prior"])
    ends = [replace(machine, fabric=(count, replace(link, reach=(share, share)))) for share in reach]
    return tuple(ends) if reach[0] < reach[1] else ()


def group_seconds(
    op: str, nbytes: float, group: DeviceGroup, *, timing: Timing = "stream", year: float = 2024.0
) -> float:
    """The same without its interval, which takes most of the work; arguments as of `group_cost` [s]."""
    size = np.array([max(float(nbytes), GRID[0])])
    return float(at_sizes(predicted_curve(op, group, timing, year), size)[0])


@functools.lru_cache(maxsize=4096)
def predicted_curve(op: str, group: DeviceGroup, timing: Timing, year: float) -> Sizes:
    """Times over `GRID`, that never fall as messages grow [s].

    Args:
        op: as in `collective_cost`
        group: the devices
        timing: how the time is taken
        year: of the library
    """
    factor = correction(Query(op=op, group=group, timing=timing, year=year), field(group.card_kind))
    seconds = prior_time(op, GRID, group, timing, constants()["prior"], year=year) * np.exp(factor)
    curve: Sizes = np.maximum.accumulate(seconds)
    return curve


@functools.lru_cache(maxsize=4096)
def predicted_doubt(op: str, group: DeviceGroup, timing: Timing, year: float) -> Sizes:
    """Standard deviation of the logarithm of these times; arguments as of `predicted_curve`."""
    return doubt(Query(op=op, group=group, timing=timing, year=year), field(group.card_kind))


_LOG_GRID = np.log(GRID)


def _source(sigma: float, group: DeviceGroup) -> str:
    if sigma <= SURE:
        return f"interpolated: collectives measured on {group.node or 'like machines'}"
    if sigma <= LIKELY:
        return "calibrated: a model of the links, corrected by collectives measured on machines like it"
    unknown = group.nodes > 1 and not group.access and not group.reach[1]
    return f"analytic: a model of the links{', and how collectives use the cards is not known' if unknown else ''}"
