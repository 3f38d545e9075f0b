"""Devices, links and clusters, as values.

Every figure has a `source`: "measured", "calibrated", "datasheet" or "published", with where it comes from after a
colon.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trimaran.cluster.machines import Machine


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
