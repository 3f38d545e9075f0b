"""Every algorithm for a collective on a machine, with its time, the fastest first.

The algorithms of a library (rings, trees, switches that add, hierarchies) are priced by formulas on the machine's
links, and all times are scaled by the ratio of measured collectives to their formulas. So the fastest of a library
agrees with `collective_cost`, and the others keep their ratio to it. Algorithms outside the library (copies between
devices, a server in the host) have formulas that include the cost of their calls.

Cost of a collective on a machine of the catalog.

Measured curves of that machine give the answer where there are some, and correct the answer elsewhere: the prior of
the group's links, times the ratio of the nearest measurements to theirs (`prediction`). So a machine that was measured
is interpolated, one of a known kind is predicted well, and an unusual one gets a wide interval. A user's nccl-tests log
has priority over all of them (`corrections`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.base.errors import InputError
from trimaran.machine.topology import host_bandwidth
from trimaran.machine.types import Link, Machine
from trimaran.pricing.collectives.corrections import CollectiveCorrection
from trimaran.pricing.collectives.formulas import (
    chain_time,
    check_group,
    double_tree_time,
    hierarchical_times,
    nvls_time,
    ring_time,
)
from trimaran.pricing.collectives.links import DeviceGroup, LinkUse, Timing, first_devices, group_across, group_of
from trimaran.pricing.collectives.parameter_servers import star_time
from trimaran.pricing.collectives.prediction import (
    as_measured,
    between_rate,
    constants,
    group_cost,
    group_seconds,
    hop_times,
    inside_rate,
    ring_latency,
    tree_latency,
    uses_nvls,
)
from trimaran.pricing.exchange.unknowns import COPY_S, HOST_SUM_BYTES_PER_S
from trimaran.pricing.types import Cost

TIMINGS: dict[str, Timing] = {
    "": "stream",
    "stream": "stream",
    "nccl-tests": "single",
    "nccl-tests threads": "threads",
    "nccl-tests processes": "processes",
    "torch": "torch",
    "torch.distributed by the host's clock": "wall",
}
"""Names of the timing methods, and the method of each."""


def collective_cost(
    op: str,
    nbytes: float,
    *,
    machine: Machine,
    devices: int,
    nodes: int = 1,
    library: str = "",
    year: float = 2024.0,
    correction: CollectiveCorrection | None = None,
) -> Cost:
    """Time of a collective.

    Args:
        op: "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all" or "send_recv"
        nbytes: the whole buffer, as in `formulas` [bytes]
        machine: of the devices
        devices: in the group, equally many on each node
        nodes: in use
        library: how the time is taken, one of `TIMINGS`; "" as in a training step, calls queued ahead
        year: of the library
        correction: from the user's runs on this machine

    Returns:
        Time with its 90 % interval [s].

    Raises:
        InputError: an unknown operation or timing method, a size below zero or without end, no year, or a group that
            the machine has not
    """
    check_group(op, devices)
    crossing = first_devices(machine, devices, nodes, op=op)
    return crossing_cost(
        op, nbytes, machine=machine, crossing=crossing, library=library, year=year, correction=correction
    )


def crossing_cost(
    op: str,
    nbytes: float,
    *,
    machine: Machine,
    crossing: LinkUse,
    library: str = "",
    year: float = 2024.0,
    correction: CollectiveCorrection | None = None,
) -> Cost:
    """Time of a collective or a message, by the links that its members cross.

    Args:
        op: as in `collective_cost`
        nbytes: as there [bytes]
        machine: of the devices
        crossing: where on it
        library: as there
        year: as there
        correction: as there

    Returns:
        Time with its 90 % interval [s].

    Raises:
        InputError: an unknown operation or timing method, or a size below zero
    """
    devices = crossing.devices
    _check_bytes(op, nbytes, devices, year)
    if library not in TIMINGS:
        raise InputError(
            f'{op}: the library is one of {", ".join(map(repr, TIMINGS))}, got "{library}"',
            code="collective.unknown-library",
        )
    if devices == 1:
        return Cost(0.0, 0.0, 0.0, "analytic: one device has nothing to exchange")
    group = as_measured(group_across(machine, crossing))
    cost = group_cost(op, nbytes, group, timing=TIMINGS[library], year=year)
    return correction.apply(cost, op, nbytes, devices=devices, nodes=crossing.nodes) if correction else cost


def crossing_seconds(op: str, nbytes: float, *, machine: Machine, crossing: LinkUse, year: float = 2024.0) -> float:
    """The same of calls queued ahead, without its interval, which takes most of the work [s]."""
    _check_bytes(op, nbytes, crossing.devices, year)
    if crossing.devices == 1:
        return 0.0
    return group_seconds(op, nbytes, as_measured(group_across(machine, crossing)), timing=TIMINGS[""], year=year)


def _check_bytes(op: str, nbytes: float, devices: int, year: float) -> None:
    check_group(op, devices)
    if not 1990.0 <= year < 2100.0:
        raise InputError(
            f"{op}: the library is of a year such as 2024, got {year:g}", code="collective.bad-year", year=year
        )
    if not 0 <= nbytes < math.inf:
        raise InputError(
            f"{op}: a buffer has at least 0 bytes, got {nbytes}", code="collective.negative-bytes", nbytes=nbytes
        )


CHUNKS = 16
"""Chunks of the buffer in a chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveAlgorithm:
    """One algorithm for a collective.

    Attributes:
        name: "ring", "tree", "nvls", "hierarchical", "chain", "direct", "star" (copies through a device that sums)
            or "server" (through the host)
        seconds: its time [s]
        latency_s: part that does not grow with the buffer [s]
        library: a library of collectives does it; else a framework by copies
        how: in words
    """

    name: str
    seconds: float
    latency_s: float
    library: bool
    how: str


def algorithms(
    op: str, nbytes: float, *, machine: Machine, devices: int, nodes: int = 1, year: float = 2024.0
) -> tuple[CollectiveAlgorithm, ...]:
    """All candidates for a collective, the fastest first.

    Args:
        op: as in `collective_cost`
        nbytes: the whole buffer [bytes]
        machine: of the devices
        devices: in the group, equally many on each node
        nodes: in use
        year: of the library

    Returns:
        At least one; the first is the winner by prediction.

    Raises:
        InputError: as `collective_cost`
    """
    check_group(op, devices)
    if devices == 1:
        return (
            CollectiveAlgorithm(name="direct", seconds=0.0, latency_s=0.0, library=True, how="one device has it all"),
        )
    known = constants()["prior"]
    group = as_measured(group_of(machine, devices, nodes))
    expected = collective_cost(op, nbytes, machine=machine, devices=devices, nodes=nodes, year=year).seconds
    offered = _of_library(op, nbytes, group, known, year)
    scale = expected / min(one.seconds for one in offered)
    scaled = [
        CollectiveAlgorithm(
            name=one.name, seconds=one.seconds * scale, latency_s=one.latency_s * scale, library=True, how=one.how
        )
        for one in offered
    ]
    others = _by_copies(nbytes, machine, group, known) if op == "all_reduce" and nodes == 1 else []
    return tuple(sorted([*scaled, *others], key=lambda one: one.seconds))


def _of_library(
    op: str, nbytes: float, group: DeviceGroup, known: Mapping[str, float], year: float
) -> list[CollectiveAlgorithm]:
    rate = inside_rate(op, group, known, year=0.0) if group.per_node > 1 else between_rate(op, group, known)
    if group.nodes > 1:
        rate = min(rate, between_rate(op, group, known))
    wire = Link(bytes_per_s=rate, latency_s=0.0, source="prior")
    latency = ring_latency(op, group, known)
    flow = ring_time(op, nbytes, ranks=group.devices, link=wire)
    if op in ("broadcast", "reduce"):
        hop = hop_times(group, known)[1 if group.nodes > 1 else 0]
        link = Link(bytes_per_s=rate, latency_s=hop, source="prior")
        time = chain_time(nbytes, ranks=group.devices, chunks=CHUNKS, link=link)
        return [_library("chain", known["base"] + time, latency, f"{CHUNKS} parts down a chain")]
    if op in ("all_to_all", "send_recv"):
        return [_library("direct", latency + flow, latency, "each to each")]
    found = [_library("ring", latency + flow, latency, "around rings")]
    if op != "all_reduce":
        return found
    start = tree_latency(group, known)
    trees = double_tree_time(nbytes, ranks=group.devices, link=wire)
    found.append(_library("tree", start + trees, start, "up and down two trees, chains inside nodes"))
    if uses_nvls(group, year) and group.nodes == 1:
        time = nvls_time(nbytes, ranks=group.devices, ring=wire, gain=known["nvls"])
        found.append(_library("nvls", time, 25e-6, "the switches add"))
    if group.nodes > 1 and group.per_node > 1:
        found.append(_hierarchical(nbytes, group, known))
    return found


def _hierarchical(nbytes: float, group: DeviceGroup, known: Mapping[str, float]) -> CollectiveAlgorithm:
    inside_s, between_s = hop_times(group, known)
    inside = Link(bytes_per_s=inside_rate("all_reduce", group, known, year=0.0), latency_s=inside_s, source="prior")
    each = between_rate("all_reduce", group, known) / group.per_node
    parts = hierarchical_times(
        nbytes,
        per_node=group.per_node,
        nodes=group.nodes,
        inside=inside,
        between=Link(bytes_per_s=each, latency_s=between_s, source="prior"),
    )
    # Between one part after the other (their sum) and all at once (the longest): half way.
    time = known["base"] + 0.5 * (sum(parts) + max(parts))
    start = known["base"] + 2 * ((group.per_node - 1) * inside_s + (group.nodes - 1) * between_s)
    return _library("hierarchical", time, start, "inside nodes, between them, inside again")


def _by_copies(
    nbytes: float, machine: Machine, group: DeviceGroup, known: Mapping[str, float]
) -> list[CollectiveAlgorithm]:
    parts = [nbytes / group.devices] * group.devices
    rate = group.exchange_bytes_per_s * min(1.0, known[f"reached_{group.kind}"])
    calls = 2 * (group.devices - 1) * COPY_S.value
    memory = machine.node.device.sustained_bytes_per_s
    sums = 3 * (group.devices - 1) / group.devices * nbytes / memory  # two read and one written, for each that arrives
    star = star_time(parts, devices=group.devices, bytes_per_s=rate, call_s=COPY_S.value) + sums
    up = min(host_bandwidth(machine.node, range(group.devices)).values())
    summed = (group.devices + 1) * nbytes / HOST_SUM_BYTES_PER_S.value
    server_calls = 2 * group.devices * COPY_S.value
    server = 2 * nbytes / up + summed + server_calls
    return [
        CollectiveAlgorithm(
            name="star", seconds=star, latency_s=calls, library=False, how="each part summed on its own device"
        ),
        CollectiveAlgorithm(
            name="server", seconds=server, latency_s=server_calls, library=False, how="summed by the host"
        ),
    ]


def _library(name: str, seconds: float, latency_s: float, how: str) -> CollectiveAlgorithm:
    return CollectiveAlgorithm(name=name, seconds=seconds, latency_s=latency_s, library=True, how=how)
