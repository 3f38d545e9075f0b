"""Physical model of a collective's time, with few constants: hops, bytes over the slowest link, a slow start.

    t = call + hops + v S/B (1 + (h/S)^p),   h = tau B

`v` is the volume that a link carries, `B` the rate of the rings, `h` the size at which half of it is reached: a larger
rate needs larger messages to fill it. The constants are shared by all machines (`constants.toml`, fitted by
`benchmarks/fits/collectives.py`). How far a kind of machine strays from this is `kriging`'s business. Left out: what
other traffic does on the same links.
"""

import functools
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from trimaran.base.files import packaged_toml
from trimaran.pricing.collectives.formulas import bus_factor
from trimaran.pricing.collectives.groups import OVER_PCIE, Group, Timing

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


def call_time(op: str, group: Group, timing: Timing, known: Mapping[str, float], *, year: float) -> float:
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
    op: str, sizes: Sizes, group: Group, timing: Timing, known: Mapping[str, float], *, year: float
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


def transfer_time(op: str, sizes: Sizes, group: Group, known: Mapping[str, float], *, year: float = 2024.0) -> Sizes:
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
    rate, ramp_s, power = inside_rate(op, group, known, year=year), _ramp(group, known), known["power"]
    if group.nodes > 1:
        between = between_rate(op, group, known)
        if group.per_node == 1 or between < rate:
            rate, ramp_s, power = between, known["ramp_network"], known["power_network"]
    half = ramp_s * rate
    volume = bus_factor(op, group.devices) + _own_part(op, known) / group.devices
    return _hops(op, group, known) + volume * sizes / rate * (1 + (half / sizes) ** power)


def inside_rate(op: str, group: Group, known: Mapping[str, float], *, year: float) -> float:
    """Bus rate inside a node [bytes/s]."""
    rate = group.exchange_bytes_per_s if op == "all_to_all" else group.ring_bytes_per_s
    rate *= known[f"reached_{group.kind}"]
    if op in ("broadcast", "reduce"):
        rate *= known["reached_one_way"]
    if op == "all_reduce" and uses_nvls(group, year):
        rate *= known["nvls"]
    return rate


def _ramp(group: Group, known: Mapping[str, float]) -> float:
    """Time that links inside a node need to fill [s]."""
    return known["ramp_pcie" if group.kind in OVER_PCIE else "ramp_nvlink"]


def uses_nvls(group: Group, year: float) -> bool:
    """Whether switches add up an all-reduce of these devices."""
    return (
        group.kind == "nvswitch"
        and group.generation >= NVLS_GENERATION
        and group.per_node >= NVLS_DEVICES
        and year >= NVLS_YEAR
    )


def between_rate(op: str, group: Group, known: Mapping[str, float]) -> float:
    """Bus rate between nodes [bytes/s]: rings leave a node once on each card, an all-to-all with nearly everything."""
    rate = network_rate(group.cards_bytes_per_s, group.cards, group.card_kind, known) / group.sharing
    if op == "all_to_all":
        n, g = group.devices, group.per_node
        return rate / g * (n - 1) / max(1, n - g)
    if op == "send_recv":
        return rate / max(1, group.cards)
    return rate


def network_rate(bytes_per_s: float, cards: int, kind: str, known: Mapping[str, float]) -> float:
    """Sustained rate of a node's cards together for a library of collectives [bytes/s].

    TCP is limited by the cores that copy: a card reaches `r / (1 + r/limit)`.
    """
    if kind == "ethernet":
        each = bytes_per_s / max(1, cards)
        return max(1, cards) * each / (1 + each / known["tcp_limit"])
    return bytes_per_s * known["reached_network"]


def hop_times(group: Group, known: Mapping[str, float]) -> tuple[float, float]:
    """Latency of a hop inside a node, and between nodes [s]."""
    inside = known["hop_pcie" if group.kind in OVER_PCIE else "hop_nvlink"]
    return inside, known[f"hop_{group.card_kind or 'infiniband'}"]


def ring_latency(op: str, group: Group, known: Mapping[str, float]) -> float:
    """Latency of a ring [s]: its hops one after the other; those between nodes are half overlapped by the pipeline."""
    inside, between = hop_times(group, known)
    once = (group.devices - group.nodes) * inside + (group.nodes - 1) * between * RING_HOP
    return known["base"] + (2 if op == "all_reduce" else 1) * once


def tree_latency(group: Group, known: Mapping[str, float]) -> float:
    """Latency of an all-reduce on trees between nodes, chains inside them [s]."""
    inside, between = hop_times(group, known)
    return known["base"] + 2 * ((group.per_node - 1) * inside + math.ceil(math.log2(group.nodes)) * between)


def _hops(op: str, group: Group, known: Mapping[str, float]) -> float:
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
