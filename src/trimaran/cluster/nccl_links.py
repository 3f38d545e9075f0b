"""Kinds of links that a topology of NCCL tells of: slots by speed and lanes, cards by rate, sockets by processor."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from trimaran.cluster.links import find_link
from trimaran.cluster.machines import Edge, LinkType
from trimaran.cluster.xml_elements import Element

GENERATIONS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}
"""Of PCIe, by its transfers per second [GT/s]."""

_SOCKETS = {"GenuineIntel": "upi-10.4", "AuthenticAMD": "xgmi-rome", "ppc64": "x-bus-p9"}
_INTEL = {63: "qpi-9.6", 79: "qpi-9.6", 85: "upi-10.4", 106: "upi-11.2", 143: "upi-16", 207: "upi-20"}
"""Between sockets of Intel processors, by model: Haswell, Broadwell, Skylake, Ice Lake, Sapphire and Emerald Rapids."""


def pcie(generation: int, lanes: int) -> LinkType:
    """A slot, also of a kind that the catalog does not list: a share of one of 16 lanes."""
    older = {1: 3 * 4, 2: 3 * 2}.get(generation)
    whole = find_link(f"pcie{3 if older else generation}x16")
    share = lanes / 16 * (3 / older if older else 1.0)
    return replace(
        whole,
        name=f"pcie{generation}x{lanes}",
        raw_bytes_per_s=whole.raw_bytes_per_s * share,
        bytes_per_s=whole.bytes_per_s * share,
        ring_bytes_per_s=whole.ring_bytes_per_s * share,
    )


def card_link(name: str, bytes_per_s: float, assumed: list[str]) -> LinkType:
    """Kind of a card for the network.

    Args:
        name: such as "mlx5_0"
        bytes_per_s: its rate [bytes/s]
        assumed: takes what was assumed, in words
    """
    kind = "ib" if name.startswith(("mlx", "ib")) else "efa" if name.startswith(("rdmap", "efa")) else "ethernet"
    if kind == "ib":
        assumed.append("that cards of Mellanox are InfiniBand, not RoCE")
    kinds = {
        "ib": ("ib-edr", "ib-hdr", "ib-ndr", "ib-xdr", "ib-fdr"),
        "efa": ("efa-v1-100g", "efa-v3-200g", "efa-v4-400g"),
    }
    rates = kinds.get(kind, tuple(f"ethernet-{rate}g" for rate in (1, 10, 25, 40, 50, 100, 200, 400)))
    nearest = min((find_link(rate) for rate in rates), key=lambda link: abs(link.raw_bytes_per_s - bytes_per_s))
    share = bytes_per_s / nearest.raw_bytes_per_s
    if abs(share - 1) < 0.05:
        return nearest
    assumed.append(f"that {name} sustains the share of its rate that {nearest.name} does")
    return replace(
        nearest,
        name=f"{kind}-{bytes_per_s * 8 / 1e9:g}g",
        raw_bytes_per_s=bytes_per_s,
        bytes_per_s=nearest.bytes_per_s * share,
    )


def socket_edges(system: Element) -> Iterator[Edge]:
    """Links between sockets: every two are joined, as NCCL has it."""
    cpus = [child for child in system.children if child.tag == "cpu"]
    for b, cpu in enumerate(cpus):
        attributes: Mapping[str, str] = cpu.attributes
        vendor = "ppc64" if attributes.get("arch", "").startswith("ppc") else attributes.get("vendor", "GenuineIntel")
        model = int(attributes["modelid"]) if attributes.get("modelid", "").isdigit() else 0
        name = _INTEL.get(model, "upi-10.4") if vendor == "GenuineIntel" else _SOCKETS.get(vendor, "upi-10.4")
        for a in range(b):
            yield Edge(a=f"cpu{a}", b=f"cpu{b}", link=find_link(name))
