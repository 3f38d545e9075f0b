"""Problem and answer of a placement.

The question is a dataflow graph of operations with their times and sizes, the memory of each device, and the wires
between devices. The answer says which device runs each operation, when, and which tensor crosses which link when.

A placement problem as flat lists of numbers, which the solvers loop over.

Task `v` is the forward of node `v`, task `n + v` its backward. Times are in the unit of the problem [s] or, where a
solver wants whole numbers, in ticks: see `ticks`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Phase = Literal["F", "B"]
"""Forward or backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementNode:
    """One operation, or several that stay together.

    Attributes:
        name: unique in its problem
        forward_s: time of its forward [s]
        backward_s: time of its backward [s]
        nbytes: of its output, sent to each device that reads it [bytes]
        backward_nbytes: the gradient of that output, which crosses back from each such device [bytes]
        saved_bytes: kept from the start of its forward to the end of its backward [bytes]
        state_bytes: parameters, their gradients, and the state of the optimizer [bytes]
        module: path of the module that it belongs to, for tables
    """

    name: str
    forward_s: float
    backward_s: float
    nbytes: float = 0.0
    backward_nbytes: float = 0.0
    saved_bytes: float = 0.0
    state_bytes: float = 0.0
    module: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The way from one device to another.

    Attributes:
        bytes_per_s: of one transfer that has it to itself [bytes/s]
        latency_s: added to every transfer, which holds the links that long too [s]
        links: names of the links that it goes over, each for one direction; two transfers never hold the same link at
            once, be they on the same wire or not
    """

    bytes_per_s: float
    latency_s: float = 0.0
    links: tuple[str, ...] = ()

    def transfer_s(self, nbytes: float) -> float:
        """Time of one transfer [s].

        Example:
            >>> Wire(bytes_per_s=25e9, latency_s=1e-6).transfer_s(25_000)
            2e-06
        """
        return self.latency_s + nbytes / self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementProblem:
    """The operations to place, and the devices.

    Attributes:
        nodes: in an order in which their forwards can run
        edges: pairs of node numbers, producer and consumer; a backward needs the backwards of the consumers
        memory_bytes: of each device; one for each device [bytes]
        wires: for each ordered pair of devices between which tensors may cross, the way
        pinned: device on which a node must be, by name
    """

    nodes: tuple[PlacementNode, ...]
    edges: tuple[tuple[int, int], ...]
    memory_bytes: tuple[float, ...]
    wires: Mapping[tuple[int, int], Wire]
    pinned: Mapping[str, int] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.memory_bytes)

    @property
    def serial_s(self) -> float:
        """Time of all forwards and backwards, one after another [s]."""
        return sum(node.forward_s + node.backward_s for node in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRun:
    """A forward or backward of a node in the schedule.

    Attributes:
        node: its name
        phase: "F" or "B"
        device: where
        start_s: since the start of the step [s]
        end_s: likewise [s]
    """

    node: str
    phase: Phase
    device: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTransfer:
    """A tensor that crosses to another device.

    Attributes:
        node: name of the producer of the tensor, or of the tensor whose gradient it is
        phase: "F": the output of `node`, to where it is read; "B": its gradient, back to where `node` is
        source: device that it leaves
        target: device that it goes to
        start_s: since the start of the step [s]
        end_s: likewise [s]
        links: that it holds meanwhile
    """

    node: str
    phase: Phase
    source: int
    target: int
    start_s: float
    end_s: float
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where and when everything runs.

    Attributes:
        device_of: device of each node, by name
        schedule: forwards and backwards by start
        transfers: by start
        makespan_s: end of the step [s]
        serial_s: time on one device [s]
        bound_s: no placement is faster [s]
        peak_bytes: of each device [bytes]
        heft_s: makespan of the list schedule by earliest finish time, for comparison; None where that does not fit [s]
        method: of the answer, such as "exact" or "modules, list, annealing"
        notes: for the reader
        work_s: seconds of a usual core whose work it was given: as much again, with the same searches and seed, gives
            the same answer where there was no time limit [s]
        searches: that ran at the same time
    """

    device_of: Mapping[str, int]
    schedule: tuple[NodeRun, ...]
    transfers: tuple[NodeTransfer, ...]
    makespan_s: float
    serial_s: float
    bound_s: float
    peak_bytes: tuple[float, ...]
    heft_s: float | None = None
    method: str = ""
    notes: tuple[str, ...] = field(default=())
    work_s: float = field(default=0.0, compare=False)
    searches: int = field(default=1, compare=False)

    @property
    def gap(self) -> float:
        """How much longer than the bound the step is at most, as a share of the bound."""
        return self.makespan_s / self.bound_s - 1.0 if self.bound_s > 0 else 0.0

    @property
    def speedup(self) -> float:
        """Over one device."""
        return self.serial_s / self.makespan_s if self.makespan_s > 0 else 1.0


@dataclass(slots=True, kw_only=True)
class Flat:
    """The numbers of a problem.

    Attributes:
        n: nodes
        devices: number of devices
        forward: time of each forward [s]
        backward: time of each backward [s]
        out_bytes: of each node's output, sent to a device that reads it [bytes]
        grad_bytes: likewise its gradient [bytes]
        held: of each node, kept from its forward to its backward [bytes]
        state: of each node, kept always [bytes]
        reads: producers of each node
        read_by: consumers of each node
        memory: of each device [bytes]
        wires: way between each ordered pair of devices
        links: names of the links, of which the numbers in `ways` are the positions
        ways: numbers of the links of each ordered pair
        pins: device that a node must be on
    """

    n: int
    devices: int
    forward: list[float]
    backward: list[float]
    out_bytes: list[float]
    grad_bytes: list[float]
    held: list[float]
    state: list[float]
    reads: list[list[int]]
    read_by: list[list[int]]
    memory: list[float]
    wires: Mapping[tuple[int, int], Wire]
    links: list[str]
    ways: dict[tuple[int, int], tuple[int, ...]]
    pins: dict[int, int]

    def crossing_s(self, node: int, source: int, target: int) -> float:
        """Time of the transfer of a node's output [s]."""
        return self.wires[source, target].transfer_s(self.out_bytes[node])

    def returning_s(self, node: int, source: int, target: int) -> float:
        """Time of the transfer of the gradient of a node's output [s]."""
        return self.wires[source, target].transfer_s(self.grad_bytes[node])

    def part(self, nodes: Sequence[int], pins: Mapping[int, int]) -> "Flat":
        """The problem of some nodes alone, numbered in their order.

        Args:
            nodes: by their numbers in this problem
            pins: devices of some nodes, by the same numbers; those of others do not count
        """
        number = {node: index for index, node in enumerate(nodes)}
        return replace(
            self,
            n=len(nodes),
            forward=[self.forward[node] for node in nodes],
            backward=[self.backward[node] for node in nodes],
            out_bytes=[self.out_bytes[node] for node in nodes],
            grad_bytes=[self.grad_bytes[node] for node in nodes],
            held=[self.held[node] for node in nodes],
            state=[self.state[node] for node in nodes],
            reads=[[number[other] for other in self.reads[node] if other in number] for node in nodes],
            read_by=[[number[other] for other in self.read_by[node] if other in number] for node in nodes],
            pins={number[node]: device for node, device in pins.items() if node in number},
        )

    @property
    def serial_s(self) -> float:
        """Time of all tasks, one after another [s]."""
        return sum(self.forward) + sum(self.backward)


def flatten(problem: PlacementProblem) -> Flat:
    """The numbers of a problem, which must be well formed."""
    n = len(problem.nodes)
    reads: list[list[int]] = [[] for _ in range(n)]
    read_by: list[list[int]] = [[] for _ in range(n)]
    for producer, consumer in dict.fromkeys(problem.edges):
        reads[consumer].append(producer)
        read_by[producer].append(consumer)
    links = sorted({link for wire in problem.wires.values() for link in wire.links})
    position = {link: index for index, link in enumerate(links)}
    number = {node.name: index for index, node in enumerate(problem.nodes)}
    return Flat(
        n=n,
        devices=problem.devices,
        forward=[node.forward_s for node in problem.nodes],
        backward=[node.backward_s for node in problem.nodes],
        out_bytes=[node.nbytes for node in problem.nodes],
        grad_bytes=[node.backward_nbytes for node in problem.nodes],
        held=[node.saved_bytes for node in problem.nodes],
        state=[node.state_bytes for node in problem.nodes],
        reads=reads,
        read_by=read_by,
        memory=list(problem.memory_bytes),
        wires=problem.wires,
        links=links,
        ways={pair: tuple(position[link] for link in wire.links) for pair, wire in problem.wires.items()},
        pins={number[name]: device for name, device in problem.pinned.items()},
    )
