"""Machines as documents for programs: one object a machine, with what its link graph says of pairs and rings."""

from collections.abc import Sequence
from typing import Any

from trimaran.cluster.catalog_types import CatalogDevice
from trimaran.cluster.machines import LinkType, Machine, Node
from trimaran.cluster.rings import RingSet, ring_bandwidth
from trimaran.cluster.topology import Pair, host_bandwidth, pairs

FEW = 16
"""Devices of a node whose pairs and rings are all worked out."""


def device_document(device: CatalogDevice) -> dict[str, Any]:
    """A device of the catalog."""
    return {
        "name": device.name,
        "title": device.title,
        "aliases": list(device.aliases),
        "architecture": device.architecture,
        "year": device.year,
        "form": device.form,
        "multiprocessors": device.multiprocessors,
        "memory_bytes": device.memory.nbytes,
        "memory_bytes_per_s": device.bandwidth.bytes_per_s,
        "cache_bytes": device.cache_bytes,
        "power_w": device.power_w,
        "flops_per_s": {dtype: peak.flops_per_s for dtype, peak in device.compute.items()},
        "tensor_dtypes": list(device.tensor_dtypes),
        "links": device.links,
        "link": device.link,
        "caveat": device.caveat,
        "source": device.source,
    }


def node_line(node: Node) -> dict[str, Any]:
    """A node in short."""
    return {
        "name": node.name,
        "title": node.title,
        "aliases": list(node.aliases),
        "device": node.device.name,
        "devices": node.devices,
        "network": network_words(node.network_cards),
    }


def machine_document(machine: Machine) -> dict[str, Any]:
    """A machine in full: links, pairs, rings, copies from the host."""
    node = machine.node
    few = min(node.devices, FEW)
    return node_line(node) | {
        "nodes": machine.nodes,
        "fabric": network_words(machine.fabric),
        "peer_access": node.peer_access,
        "cpu_cores": node.cpu_cores,
        "host_memory_bytes": node.host_memory_bytes,
        "links": [
            {
                "a": edge.a,
                "b": edge.b,
                "link": edge.link.name,
                "count": edge.count,
                "bytes_per_s": edge.bytes_per_s,
            }
            for edge in node.edges
        ],
        "pairs": [pair_document(found) for found in (pairs(node) if node.devices <= FEW else ())],
        "rings": [ring_document(found) for found in ring_sets(node)],
        "from_host_bytes_per_s": list(host_bandwidth(node, range(few)).values()),
        "caveat": node.caveat,
        "source": node.source,
    }


def pair_document(found: Pair) -> dict[str, Any]:
    """Two devices."""
    return {
        "a": found.a,
        "b": found.b,
        "kind": found.kind,
        "links": found.links,
        "peer": found.peer,
        "route": list(found.route.vertices),
        "bytes_per_s": found.bytes_per_s,
    }


def ring_document(found: RingSet) -> dict[str, Any]:
    """Rings of some devices."""
    return {
        "devices": len(found.devices),
        "kind": found.kind,
        "rings": len(found.rings) * found.share,
        "bytes_per_s": found.bytes_per_s,
        "slowest": found.slowest,
    }


def ring_sets(node: Node) -> tuple[RingSet, ...]:
    """Rings of the first two, three, … devices; of powers of two and all of them where there are many."""
    counts: Sequence[int] = range(2, node.devices + 1)
    if node.devices > 8:
        counts = sorted({count for count in (2, 4, 8, 16, 32, 64, node.devices) if count <= node.devices})
    return tuple(ring_bandwidth(node, range(count)) for count in counts)


def network_words(cards: tuple[int, LinkType] | None) -> str:
    """Cards for the network, such as "4 x ib-edr"; empty where there are none."""
    return f"{cards[0]} x {cards[1].name}" if cards else ""
