"""Devices that one need not have, as values: what their memory, their units and their link to the host sustain.

The figures are what a training step sustains, as a peak and the share of it that is reached; they decide estimates made
before any run, never a measurement.

Memory has three sizes: what is on the card, what its driver reports, and what is left to a job once its context (driver
state, libraries' handles) is there. A budget in bytes stands for a card of that size, so the context comes off it too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.errors import InputError


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
            >>> from trimaran.cluster.catalog import find_device
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
