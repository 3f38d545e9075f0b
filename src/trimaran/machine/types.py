"""Machines, as values: nodes of devices, the links that join them, and the devices that a job may have of them.

A `Machine` is one or several equal nodes and the fabric between them. Of a machine of the catalog the links of a node
are a graph: devices, host sockets, switches and network cards are its vertices, named "gpu0", "cpu1", "plx2", "nvsw0",
"nic3". An edge is undirected; its rates are those of one direction, and both directions flow at once. This host is a
machine too: what its links take is measured (`CostTable.curves`), and they may be rate-limited.

A `Device` is described by what its memory, its units and its link to the host sustain. Of a device of this host that is
not known before something runs.

Every figure has a `source`: "measured", "calibrated", "datasheet" or "published", with where it comes from after a
colon. Figures are what a training step sustains, as a peak and the share of it that is reached; those of the catalog
decide estimates made before any run, never a measurement.

Memory has three sizes: what is on the card, what its driver reports, and what is left to a job once its context (driver
state, libraries' handles) is there. A budget in bytes stands for a card of that size, so the context comes off it too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trimaran.base.errors import InputError
from trimaran.base.units import format_bytes, format_count
from trimaran.machine.prices import Price


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


_EIGHT_BITS = frozenset({"hopper", "blackwell", "ada", "cdna3", "cdna4"})
"""Architectures whose tensor or matrix cores multiply in 8 bits, each at twice its rate in 16.

Source: data sheets, dense, in fp8 and in bf16 [TFLOP/s]: H100 1979 and 989, B200 4500 and 2250, L40S 733 and 362 (as in
stas00/ml-engineering, compute/accelerator/README.md); AMD Instinct MI300X 2614.9 and 1307.4, MI350X 4614.0 and 2309.6,
MI355X 5033.2 and 2516.6 (as in torch/_inductor/analysis/device_info.py); MI325X 2614.9 and 1307.4 (AMD, "Matrix Core
Programming on AMD CDNA 3 and CDNA 4 architecture", 2025). GeForce RTX 4090, both summed in fp32, 330.3 and 165.2
(NVIDIA, "Ada GPU Architecture", V2.02, appendix A, as quoted; earlier versions have 660.6, which is summed in fp16).
"""

GENERATIONS = {"ga10x": "ampere"}
"""Of architectures that are not called as their generation is."""

_UNKNOWN = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator, or one process's share of a CPU: of the catalog, with its figures, or of this host.

    Of a device of this host only the name and the memory are known without a run.

    Attributes:
        name: by which users ask for it, such as "titan-x"; on this host, that of the system
        title: as its vendor calls it
        aliases: other names
        caveat: a warning for users
        memory: sizes
        bandwidth: of its memory; a rate of 0 where it is not known
        compute: by precision: "fp32", "tf32", "bf16", "fp16"; what is missing it lacks, or it is not known
        copies: to and from its host; rates of 0 where it is not known
        launch: of kernels; 0 where it is not known
        architecture: such as "volta"; of Ampere's graphics chips "ga10x"; "other" where it is not known
        year: in which it came; 0 where it is not known
        form: "sxm" and "oam" (modules on a board of their maker), "pcie" (cards), "superchip", "mobile", "cpu"; ""
            where it is not known
        multiprocessors: streaming multiprocessors, or compute units; 0 where it is not known
        cache_bytes: of the cache that all of them share [bytes]; 0 where it is not known
        power_w: that its board may draw [W]; 0 where it is not known
        pcie_generation: of its slot; 0 where it is not known
        pcie_lanes: of its slot; 0 where it is not known
        links: to other devices, that it has: NVLink or Infinity Fabric
        link: type of those, a name of `links.toml`; "" where it has none
        peer_access: whether two of them on one host may copy to each other over PCIe; GeForce since 2018 may not
        tensor_precisions: precisions whose products run on tensor cores, accumulated in fp32
        source: source of the figures without a separate one
    """

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    caveat: str = ""
    memory: Memory
    bandwidth: Bandwidth = Bandwidth(bytes_per_s=0.0, fraction=0.0, source=_UNKNOWN)
    compute: Mapping[str, Peak] = field(default_factory=dict)
    copies: Copies = Copies(to_host_bytes_per_s=0.0, to_device_bytes_per_s=0.0, latency_s=0.0, source=_UNKNOWN)
    launch: Launch = Launch(seconds=0.0, source=_UNKNOWN)
    architecture: str = "other"
    year: int = 0
    form: str = ""
    multiprocessors: int = 0
    cache_bytes: int = 0
    power_w: float = 0.0
    pcie_generation: int = 0
    pcie_lanes: int = 0
    links: int = 0
    link: str = ""
    peer_access: bool = False
    tensor_precisions: tuple[str, ...] = ()
    source: str

    @property
    def generation(self) -> str:
        """Its architecture, where that of graphics chips has the name of the generation's large chip."""
        return GENERATIONS.get(self.architecture, self.architecture)

    @property
    def kind(self) -> str:
        """Of what torch calls it: "cpu" or "cuda"."""
        return "cpu" if self.form == "cpu" else "cuda"

    @property
    def usable_bytes(self) -> int:
        """Memory that a job may use [bytes]."""
        return self.memory.reported_bytes - self.memory.context_bytes

    def budget_bytes(self, card_bytes: int) -> int:
        """Memory that a job may use of a card of this kind with less memory.

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
        budget = min(self.checked_bytes(card_bytes) - self.memory.context_bytes, self.usable_bytes)
        if budget <= 0:
            raise InputError(
                f"of {format_bytes(card_bytes)} nothing is left to a job: the driver's context takes "
                f"{format_bytes(self.memory.context_bytes)}",
                code="device.budget-below-context",
                budget_bytes=card_bytes,
                context_bytes=self.memory.context_bytes,
            )
        return budget

    def checked_bytes(self, asked_bytes: int) -> int:
        """Memory that was asked for, as it is [bytes].

        Args:
            asked_bytes: of a card of this kind [bytes]

        Raises:
            InputError: more than the card has
        """
        if asked_bytes > self.memory.nbytes:
            raise InputError(
                f"{self.title} has {self.memory.nbytes / 2**30:.1f} GiB, less than the {asked_bytes / 2**30:.1f} GiB "
                "asked for: ask for less, or for another device",
                code="device.budget-exceeds-memory",
                budget_bytes=asked_bytes,
                memory_bytes=self.memory.nbytes,
            )
        return asked_bytes

    def check_computes(self, precision: str) -> None:
        """Refuse a precision in which the device does not compute; of fp8 the architecture says it.

        Raises:
            InputError: the device does not compute in it
        """
        eight_bits = precision == "fp8" and self.architecture in _EIGHT_BITS
        if precision not in self.compute and precision != "ieee" and not eight_bits:
            raise InputError(
                f"{self.title} does not compute in {precision}: ask for one that it has, {', '.join(self.compute)}",
                code="device.precision-unsupported",
                device=self.name,
                precision=precision,
            )

    @property
    def sustained_bytes_per_s(self) -> float:
        """Rate of its memory that elementwise work sustains [bytes/s].

        Raises:
            InputError: it is not known
        """
        if not self.bandwidth.bytes_per_s:
            raise InputError(
                f"how fast {self.title} reads its memory is not known: name a device of the catalog",
                code="device.bandwidth-unknown",
                device=self.name,
            )
        return self.bandwidth.bytes_per_s * self.bandwidth.fraction


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A connection, by what it sustains in one direction.

    Attributes:
        bytes_per_s: sustained by large messages [bytes/s]
        latency_s: of a small message [s]
        source: where the figures come from
        name: of the catalog, such as "nvlink2", "pcie3x16", "ib-edr", "ethernet-10g"; "" where only its rate is known
        kind: "nvlink", "xgmi", "pcie", "socket" (between CPUs), "infiniband", "ethernet", …; "" where it is not known
        raw_bytes_per_s: after encoding [bytes/s]; 0 where it is not known
        ring_bytes_per_s: share of a large ring all-reduce that goes over one of them (bus bandwidth) [bytes/s]; 0 where
            it is not measured
        access: of a card for the network, how collectives of devices use it: "direct", it reads and writes the memory
            of devices (RDMA); "host", processors copy through the memory of the host (TCP); "" where it is not known
        hop_s: of such a card, a message of a collective, with its way through software [s]; 0 where it is not measured
        reach: of such a card, the least and the most of `bytes_per_s` that large collectives reach; (0, 0) where it is
            not measured
    """

    bytes_per_s: float
    latency_s: float
    source: str
    name: str = ""
    kind: str = ""
    raw_bytes_per_s: float = 0.0
    ring_bytes_per_s: float = 0.0
    access: str = ""
    hop_s: float = 0.0
    reach: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Parallel links of one type between two vertices."""

    a: str
    b: str
    link: Link
    count: int = 1

    @property
    def bytes_per_s(self) -> float:
        """Of all of them together, sustained, one direction [bytes/s]."""
        return self.link.bytes_per_s * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One host with its devices.

    Attributes:
        name: by which users ask for it, such as "dgx1-v100"
        title: as its maker calls it
        aliases: other names
        device: of which it has several
        devices: how many
        unlike: the devices of this host that differ from `device`, by number
        edges: the link graph; empty where transfers are measured
        measured: what transfers between its devices take is measured (`CostTable.curves`); else the graph says it
        rate_limit: of the link of each device, in each direction; None: there is none
        peer_access: whether devices without NVLink between them copy to each other directly, not through the host
        cpu_cores: of the host, for loading data
        host_memory_bytes: of the host [bytes]
        network_cards: for other nodes: how many, and of what type; None: not known
        caveat: a warning for users
        source: where the figures come from
        price: of its devices, where the user says it
        like: of a node of a file, that of the catalog with these devices and links; what was measured of it holds
    """

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    device: Device
    devices: int
    unlike: Mapping[int, Device] = field(default_factory=dict)
    edges: tuple[Edge, ...] = ()
    measured: bool = False
    rate_limit: Link | None = None
    peer_access: bool = False
    cpu_cores: int = 0
    host_memory_bytes: int = 0
    network_cards: tuple[int, Link] | None = None
    caveat: str = ""
    source: str
    price: Price | None = None
    like: "Node | None" = None

    def host_room(self, devices: int) -> int | None:
        """Host memory into which each device may offload while several of the node are in use [bytes].

        Args:
            devices: of this node that are in use

        Returns:
            An equal part of `OFFLOAD_SHARE` of the host's memory; None: the memory of the host is not known.

        Example:
            >>> from trimaran.machine.catalog import find_node
            >>> round(find_node("dgx1-v100").host_room(8) / 2**30, 1)  # of 512 GiB
            51.2
        """
        if not self.host_memory_bytes:
            return None
        return int(OFFLOAD_SHARE * self.host_memory_bytes) // max(1, devices)


OFFLOAD_SHARE = 0.8
"""Of a host's memory, what offloaded storages may take; the rest is for the system, the processes and their loaders.
Assumed. All of it is page-locked on a GPU's host, so none of it can be swapped."""


MOST_NODES = 100_000
"""Of a machine, by a file or a name; several times what the largest ones of today have."""


class NodeKey:
    """A node as the key of a cache: hashing and comparing hundreds of edges takes longer than most answers."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node

    def __hash__(self) -> int:
        return hash((self.node.name, self.node.devices, len(self.node.edges)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeKey) and (self.node is other.node or self.node == other.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """The switches that cards of nodes are connected to ("leaves"), joined by switches above them (the "spine").

    Attributes:
        nodes: that share a leaf; `MOST_NODES`: all of them do
        oversubscription: rate of a leaf's cards by that of its links to the spine; 1: all cards may leave it at once
        by_rail: card i of these nodes has leaf i ("rail-optimized"); else all cards of a node have one leaf

    Source:
        NVIDIA DGX SuperPOD reference architecture, 2023: eight leaves for 32 nodes of eight cards, by rail and without
        oversubscription; Grattafiori et al., "The Llama 3 Herd of Models", 2024, section 3.3.1, for 7:1 above pods.
    """

    nodes: int
    oversubscription: float = 1.0
    by_rail: bool = False

    def __str__(self) -> str:
        rails = "rail by rail, " if self.by_rail else ""
        if self.nodes >= MOST_NODES:
            return f"{rails}all nodes on one set of leaves"
        return f"{rails}{format_count(self.nodes, 'node')} a leaf, {self.oversubscription:g}:1 above it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Equal nodes and what joins them: of the catalog, or this host.

    Devices are counted node by node.

    Attributes:
        node: each of them
        nodes: how many
        fabric: links of the cards that join them, and how many of them a node uses; None with one node
        joint: a link that every two devices have for themselves, in place of all others; None: they share those above
        leaves: the switches that these cards are connected to; None: any two nodes reach each other at the full rate
        kinds: names of the nodes that it has, and how many of each, where they differ; `node` is then the slowest
    """

    node: Node
    nodes: int = 1
    fabric: tuple[int, Link] | None = None
    joint: Link | None = None
    leaves: Leaves | None = None
    kinds: tuple[tuple[str, int], ...] = ()

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.node.devices * self.nodes

    @property
    def kinds_text(self) -> str:
        """The nodes where they differ, such as "2 dgx-a100 and 2 dgx-h100"; empty: they do not."""
        return " and ".join(f"{number} {name}" for name, number in self.kinds)

    def device(self, number: int) -> Device:
        """The device of a number."""
        return self.node.unlike.get(number % self.node.devices, self.node.device)

    def host(self, number: int) -> int:
        """The number of the node of a device."""
        return number // self.node.devices

    def rate_limited(self, link: Link | None) -> "Machine":
        """With a rate limit on the links of its devices, or without one."""
        return replace(self, node=replace(self.node, rate_limit=link))

    def allocate(self, devices: int | None = None, *, memory_bytes: int | None = None) -> "Allocation":
        """The first devices, node by node.

        Args:
            devices: how many of them; None: all
            memory_bytes: that a job may use of each; None: what there is [bytes]

        Raises:
            InputError: there are fewer
        """
        count = self.devices if devices is None else devices
        if not 1 <= count <= self.devices:
            raise InputError(
                f"{self.node.title} has {format_count(self.devices, 'device')} on {format_count(self.nodes, 'node')}, "
                f'{count} were asked for; more nodes are "{self.node.name}:{-(-count // self.node.devices)}"',
                code="machine.too-few-devices",
                devices=count,
                available=self.devices,
            )
        usable = tuple(self.device(number).usable_bytes for number in range(count))
        if memory_bytes is not None:
            usable = tuple(min(memory_bytes, nbytes) for nbytes in usable)
        return Allocation(machine=self, numbers=tuple(range(count)), memory_bytes=usable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Devices of a machine that a job may have, in the order of its ranks.

    Attributes:
        machine: that has them
        numbers: of the device of each rank, on the machine
        memory_bytes: what the job may use of the device of each rank [bytes]
    """

    machine: Machine
    numbers: tuple[int, ...]
    memory_bytes: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of devices."""
        return len(self.numbers)

    @property
    def devices(self) -> tuple[Device, ...]:
        """One a rank."""
        return tuple(self.machine.device(number) for number in self.numbers)

    @property
    def hosts(self) -> tuple[int, ...]:
        """For each rank, the number of its node."""
        return tuple(self.machine.host(number) for number in self.numbers)

    def host_room(self, ranks: int) -> int | None:
        """Host memory into which each of the first ranks may offload: the least part on any node [bytes].

        Args:
            ranks: that are in use, one a device

        Returns:
            None: the memory of the hosts is not known.
        """
        used = self.hosts[:ranks]
        return self.machine.node.host_room(max((used.count(host) for host in set(used)), default=1))

    def number(self, rank: int) -> int:
        """The device of a rank, on the machine.

        Raises:
            InputError: there is no such rank
        """
        if rank >= self.size:
            raise InputError(
                f'the program has a rank {rank}, cluster "{self.machine.node.name}" has '
                f"{format_count(self.size, 'device')}",
                code="cluster.too-few-devices",
                rank=rank,
                devices=self.size,
            )
        return self.numbers[rank]

    def ordered(self, order: Sequence[int]) -> "Allocation":
        """The devices in the order of the ranks that have them.

        Args:
            order: number of the device of each rank (`Strategy.device_order`), on the machine, also of those outside
                this allocation; empty: as they are

        Raises:
            InputError: a device twice, or one that is not there
        """
        if not order:
            return self
        available = self.machine.devices
        if len(set(order)) != len(order) or not all(0 <= number < available for number in order):
            raise InputError(
                f"the order of devices must name devices 0 to {available - 1}, each at most once; got "
                f"{', '.join(map(str, order))}",
                code="machine.bad-device-order",
                device_order=tuple(order),
            )
        known = dict(zip(self.numbers, self.memory_bytes, strict=True))
        usable = tuple(known.get(number, min(self.memory_bytes)) for number in order)
        return replace(self, numbers=tuple(order), memory_bytes=usable)

    def grown(self, devices: int) -> "Allocation":
        """With at least this number of devices; those that are added are like the last one, on its node.

        Args:
            devices: how many
        """
        extra = devices - self.size
        if extra <= 0:
            return self
        machine, each = self.machine, self.machine.node.devices

        def moved(number: int) -> int:
            return number // each * (each + extra) + number % each

        unlike = dict(machine.node.unlike)
        last = machine.device(self.numbers[-1])
        if last != machine.node.device:
            unlike |= {each + number: last for number in range(extra)}
        node = replace(machine.node, devices=each + extra, unlike=unlike)
        first = machine.host(self.numbers[-1]) * (each + extra) + each
        return Allocation(
            machine=replace(machine, node=node),
            numbers=(*map(moved, self.numbers), *range(first, first + extra)),
            memory_bytes=(*self.memory_bytes, *self.memory_bytes[-1:] * extra),
        )
