"""Machines as link graphs: devices, host sockets, switches and network cards, joined by links with their rates.

A `Machine` is one or several equal nodes and the fabric between them. Vertices are named "gpu0", "cpu1", "plx2",
"nvsw0", "nic3". An edge is undirected; its rates are those of one direction, and both directions flow at once.

Devices that one need not have, as values: what their memory, their units and their link to the host sustain.

The figures are what a training step sustains, as a peak and the share of it that is reached; they decide estimates made
before any run, never a measurement.

Memory has three sizes: what is on the card, what its driver reports, and what is left to a job once its context (driver
state, libraries' handles) is there. A budget in bytes stands for a card of that size, so the context comes off it too.

Devices, links and clusters, as values.

Every figure has a `source`: "measured", "calibrated", "datasheet" or "published", with where it comes from after a
colon.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trimaran.base.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of a card.

    Attributes:
        nbytes: on the card [bytes]
        reported_bytes: what its driver reports in all [bytes]
        context_bytes: what a context takes of that [bytes]
        source: where the figures come from
    """

    nbytes: int
    reported_bytes: int
    context_bytes: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bandwidth:
    """How fast a device reads and writes its own memory.

    Attributes:
        bytes_per_s: peak [bytes/s]
        fraction: share of it that elementwise work sustains [0..1]
        source: where the figures come from
    """

    bytes_per_s: float
    fraction: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """How fast a device computes in one dtype.

    Attributes:
        flops_per_s: peak [FLOP/s]
        fraction: share of it that products and convolutions of a training step sustain [0..1]
        source: where the figures come from
    """

    flops_per_s: float
    fraction: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Copies between a device and page-locked memory of its host.

    Attributes:
        to_host_bytes_per_s: sustained from the device [bytes/s]
        to_device_bytes_per_s: sustained to the device [bytes/s]
        latency_s: fixed part of a copy [s]
        source: where the figures come from
    """

    to_host_bytes_per_s: float
    to_device_bytes_per_s: float
    latency_s: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Start of a kernel.

    Attributes:
        seconds: between two kernels that do nothing [s]
        source: where the figure comes from
    """

    seconds: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogDevice:
    """A device of the catalog.

    Attributes:
        name: as one asks for it, such as "titan-x"
        title: as its vendor calls it
        aliases: other names
        caveat: what to bear in mind
        memory: sizes
        bandwidth: of its own memory
        compute: by dtype: "float32", "tf32" (float32 on tensor cores), "bfloat16", "float16"; what is missing it lacks
        copies: to and from its host
        launch: of kernels
        architecture: generation, such as "volta"; "other" where nobody says
        year: in which it came; 0 where nobody says
        form: "sxm" and "oam" (modules on a board of their maker), "pcie" (cards), "superchip", "mobile", "cpu"
        multiprocessors: streaming multiprocessors, or compute units; 0 where nobody says
        cache_bytes: of the cache that all of them share [bytes]; 0 where nobody says
        power_w: that its board may draw [W]; 0 where nobody says
        pcie_generation: of its slot
        pcie_lanes: of its slot
        links: to other devices, that it has: NVLink or Infinity Fabric
        link: type of those, a name of `links.toml`; "" where it has none
        peer_access: whether two of them on one host may copy to each other over PCIe; GeForce since 2018 may not
        tensor_dtypes: dtypes that run on tensor cores, accumulated in float32
        source: where the figures come from that have no source of their own
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    caveat: str
    memory: Memory
    bandwidth: Bandwidth
    compute: Mapping[str, Peak]
    copies: Copies
    launch: Launch
    architecture: str
    year: int
    form: str
    multiprocessors: int
    cache_bytes: int
    power_w: float
    pcie_generation: int
    pcie_lanes: int
    links: int
    link: str
    peer_access: bool
    tensor_dtypes: tuple[str, ...]
    source: str

    @property
    def usable_bytes(self) -> int:
        """What a job may use [bytes]."""
        return self.memory.reported_bytes - self.memory.context_bytes

    def budget_bytes(self, card_bytes: int) -> int:
        """What a job may use of a card of this kind with less memory.

        Args:
            card_bytes: memory of that card [bytes]

        Returns:
            The same less the context, and no more than there is on this one [bytes].

        Raises:
            InputError: more than this card has, or no more than the context takes

        Example:
            >>> from trimaran.machine.catalog import find_device
            >>> round(find_device("titan-x").budget_bytes(12 * 2**30) / 2**30, 3)
            11.6
        """
        if card_bytes > self.memory.nbytes:
            raise InputError(
                f"{self.title} has {self.memory.nbytes / 2**30:.1f} GiB, less than the {card_bytes / 2**30:.1f} GiB "
                "asked for: ask for less, or for another device",
                code="device.budget-exceeds-memory",
                budget_bytes=card_bytes,
                memory_bytes=self.memory.nbytes,
            )
        budget = min(card_bytes - self.memory.context_bytes, self.usable_bytes)
        if budget <= 0:
            raise InputError(
                f"of {card_bytes / 2**30:.2f} GiB nothing is left to a job: "
                f"the context takes {self.memory.context_bytes / 2**30:.2f} GiB",
                code="device.budget-below-context",
                budget_bytes=card_bytes,
                context_bytes=self.memory.context_bytes,
            )
        return budget

    def sustained_flops_per_s(self, dtype: str) -> float:
        """What products and convolutions sustain in a dtype [FLOP/s].

        Raises:
            InputError: the device does not compute in it
        """
        if dtype not in self.compute:
            raise InputError(
                f"{self.title} does not compute in {dtype}; it has {', '.join(self.compute)}",
                code="device.precision-unsupported",
                device=self.name,
                dtype=dtype,
            )
        peak = self.compute[dtype]
        return peak.flops_per_s * peak.fraction

    @property
    def sustained_bytes_per_s(self) -> float:
        """What elementwise work sustains of its own memory [bytes/s]."""
        return self.bandwidth.bytes_per_s * self.bandwidth.fraction


# ---------------------------------------------------------------------------------------------------------------------
# What devices cost for a time, as the user says it: nobody's price list is built in


Per = Literal["device-hour", "node-hour"]

_SECONDS_PER_HOUR = 3600.0
_FORM = re.compile(
    r"\s*([A-Za-z€$£]{0,4})\s*([0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?|[0-9]+\.?[0-9]*|\.[0-9]+)\s*([A-Za-z€$£]{0,4})\s*(?:/|per\s)\s*(\S+)\s*"
)
_PER: dict[str, Per] = {
    "device-hour": "device-hour",
    "gpu-hour": "device-hour",
    "device-h": "device-hour",
    "gpu-h": "device-hour",
    "node-hour": "node-hour",
    "node-h": "node-hour",
    "instance-hour": "node-hour",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """A price of devices.

    Attributes:
        amount: for an hour [currency]
        currency: such as "USD"
        per: what an hour is paid of; a node is paid whole
    """

    amount: float
    currency: str
    per: Per

    def of(self, devices: int, seconds: float, *, node_devices: int = 1) -> float:
        """What devices for a time cost [currency].

        Args:
            devices: in use
            seconds: for how long [s]
            node_devices: devices of a node

        Example:
            >>> Price(amount=24.0, currency="USD", per="node-hour").of(9, 1800.0, node_devices=8)
            24.0
            >>> Price(amount=3.0, currency="USD", per="device-hour").of(9, 1800.0, node_devices=8)
            13.5
        """
        paid = devices if self.per == "device-hour" else math.ceil(devices / node_devices)
        return paid * self.amount * seconds / _SECONDS_PER_HOUR

    def __str__(self) -> str:
        return f"{self.amount:g} {self.currency}/{self.per}"


def parse_price(text: str) -> Price:
    """A price as one writes it.

    Args:
        text: an amount, a currency, and "device-hour" or "node-hour"

    Raises:
        InputError: not such a text

    Example:
        >>> str(parse_price("24.48 USD per node-hour")), str(parse_price("$2.5/gpu-hour"))
        ('24.48 USD/node-hour', '2.5 USD/device-hour')
    """
    match = _FORM.fullmatch(text)
    per = _PER.get(match[4].lower()) if match else None
    currency = (match[1] or match[3]) if match else ""
    amount = float(match[2].replace(",", "")) if match else 0.0
    if match is None or per is None or not currency or (match[1] and match[3]) or not 0.0 < amount < math.inf:
        raise InputError(
            f'expected a price such as "24.48 USD/node-hour" or "3 USD/device-hour", got "{text}"',
            code="price.malformed",
            price=text,
        )
    named = {"$": "USD", "€": "EUR", "£": "GBP"}.get(currency, currency.upper())
    return Price(amount=amount, currency=named, per=per)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, or one process's share of a CPU.

    Attributes:
        name: as people say it
        kind: "cpu" or "cuda"
        memory_bytes: memory that a job may use [bytes]
        bytes_per_s: memory bandwidth [bytes/s]; 0 where unknown
        flops_per_s: peak by dtype name, such as "float32" [FLOP/s]; empty where unknown
        source: where the figures come from
    """

    name: str
    kind: str
    memory_bytes: int
    bytes_per_s: float = 0.0
    flops_per_s: Mapping[str, float] = field(default_factory=dict)
    source: str = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connection, by what it sustains in one direction.

    Attributes:
        bytes_per_s: sustained rate [bytes/s]
        latency_s: time of an empty message [s]
        source: where the figures come from
    """

    bytes_per_s: float
    latency_s: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Devices, the host of each, and the links between them.

    Attributes:
        name: as people say it
        devices: one a rank, in rank order
        hosts: for each device, the number of its host
        links: for each pair of devices `(a, b)` with a < b that is joined, its link; a missing pair has none
        link: what the links between ranks of this machine are held to; None: nothing
        uplink: what each host has to the others, each way, for all its devices together; counts for pairs that no link
            of their own joins; None: nothing
        machine: of the catalog, whose link graph prices transfers; None: the devices are here, or `links` say it all
        numbers: for each rank, the number of its device on that machine, counted node by node; empty: rank r has
            device r
    """

    name: str
    devices: tuple[Device, ...]
    hosts: tuple[int, ...]
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    link: Link | None = None
    uplink: Link | None = None
    machine: Machine | None = None
    numbers: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.devices)
