"""A group of devices as its collectives see it: what joins them, and how the time is taken.

Everything that the model of a collective needs to know, so that a machine of the catalog and a machine that somebody
measured are described alike.
"""

from dataclasses import dataclass
from typing import Literal

LinkKind = Literal["nvswitch", "nvlink", "xgmi", "pcie", "host", "virtual"]
"""What joins devices of a node: links through switches, links pair by pair (of two makes), PCIe, or only
memory of the host, on a machine of one's own or in a virtual one."""

OVER_PCIE = frozenset({"pcie", "host", "virtual"})
"""Kinds of devices that have no links of their own."""

CardKind = Literal["", "infiniband", "efa", "ethernet"]
"""What joins nodes; "ethernet" is TCP, without direct access to device memory."""

Timing = Literal["stream", "threads", "single", "processes", "torch", "wall"]
"""How a time was taken, which decides the fixed cost in it.

"stream": by the device, calls queued ahead, as in a training step. "threads": nccl-tests with a thread a device.
"single": nccl-tests with one thread that launches on all devices in turn (its default, `-g 8`). "processes": nccl-tests
with a process a device. "torch": torch.distributed, calls one after the other. "wall": torch.distributed by the host's
clock, with the device idle before every call.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Devices that exchange with one another.

    Attributes:
        devices: in the group
        nodes: that they sit on, equally many on each
        kind: of the slowest link of the best rings inside a node
        generation: of those links, counted within their family: NVLink 1 to 5, PCIe 3 to 6
        ring_bytes_per_s: of the best set of rings inside a node, one direction [bytes/s]
        exchange_bytes_per_s: of a device when each sends another part to each other one [bytes/s]
        card_kind: what joins the nodes; "" with one node
        cards_bytes_per_s: of all cards of a node together, one direction [bytes/s]; 0 with one node
        cards: of a node
        node: name of the machine in the catalog, or of that which was measured
        device: name of the device's family, such as "a100"
    """

    devices: int
    nodes: int = 1
    kind: LinkKind
    generation: float
    ring_bytes_per_s: float
    exchange_bytes_per_s: float
    card_kind: CardKind = ""
    cards_bytes_per_s: float = 0.0
    cards: int = 0
    node: str = ""
    device: str = ""

    @property
    def per_node(self) -> int:
        """Devices of each node."""
        return max(1, self.devices // self.nodes)


def family(group: Group) -> Literal["links", "pcie", "network"]:
    """What decides how a group's collectives go: links of the devices' own, PCIe, or the network between nodes."""
    if group.nodes > 1:
        return "network"
    return "pcie" if group.kind in OVER_PCIE else "links"
