"""Machines as link graphs: devices, host sockets, switches and network cards, joined by links with their rates.

A `Machine` is one or several equal nodes and the fabric between them. Vertices are named "gpu0", "cpu1", "plx2",
"nvsw0", "nic3". An edge is undirected; its rates are those of one direction, and both directions flow at once.
"""

from dataclasses import dataclass

from trimaran.cluster.catalog import CatalogDevice
from trimaran.cluster.prices import Price


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkType:
    """A kind of link.

    Attributes:
        name: such as "nvlink2", "pcie3x16", "ib-edr", "ethernet-10g"
        kind: "nvlink", "xgmi", "pcie", "socket" (between CPUs), "infiniband", "ethernet", …
        raw_bytes_per_s: after encoding, one direction [bytes/s]
        bytes_per_s: sustained by large messages, one direction [bytes/s]
        latency_s: of a small message [s]
        source: where the figures come from
        ring_bytes_per_s: share of a large ring all-reduce that goes over one of them (bus bandwidth) [bytes/s]; 0 where
            nobody measured it
    """

    name: str
    kind: str
    raw_bytes_per_s: float
    bytes_per_s: float
    latency_s: float
    source: str
    ring_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Parallel links of one type between two vertices."""

    a: str
    b: str
    link: LinkType
    count: int = 1

    @property
    def bytes_per_s(self) -> float:
        """Of all of them together, sustained, one direction [bytes/s]."""
        return self.link.bytes_per_s * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine as it stands in a rack.

    Attributes:
        name: as one asks for it, such as "dgx1-v100"
        title: as its maker calls it
        aliases: other names
        device: of which it has several, all alike
        devices: how many
        edges: the link graph
        peer_access: whether devices without NVLink between them copy to each other directly, not through the host
        cpu_cores: of the host, for loading data
        host_memory_bytes: of the host [bytes]
        network_cards: for other nodes: how many, and of what type; None: it has none worth mentioning
        caveat: what to bear in mind
        source: where the figures come from
        price: of its devices, where the user says it
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    device: CatalogDevice
    devices: int
    edges: tuple[Edge, ...]
    peer_access: bool
    cpu_cores: int
    host_memory_bytes: int
    network_cards: tuple[int, LinkType] | None
    caveat: str
    source: str
    price: Price | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Equal nodes and what joins them.

    Attributes:
        node: each of them
        nodes: how many
        fabric: link type of the cards that join them, and how many of them a node uses; None with one node
    """

    node: Node
    nodes: int = 1
    fabric: tuple[int, LinkType] | None = None

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.node.devices * self.nodes
