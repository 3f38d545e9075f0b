"""A placement problem as flat lists of numbers, which the solvers loop over.

Task `v` is the forward of node `v`, task `n + v` its backward. Times are in the unit of the problem [s] or, where a
solver wants whole numbers, in ticks: see `ticks`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.planner.placement.types import PlacementProblem, Wire


@dataclass(slots=True, kw_only=True)
class Flat:
    """The numbers of a problem.

    Attributes:
        n: nodes
        devices: number of devices
        forward: time of each forward [s]
        backward: time of each backward [s]
        out_bytes: of each node, what crosses to a device that reads it [bytes]
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
