"""Place a profiled graph on devices that are all alike: from a file and a few figures to an answer.

Rules of the question: each ordered pair of devices has a separate link, which carries one transfer at a time. A
gradient is as large as the tensor that it belongs to. A forward keeps its output for its backward; parameters count
three times (weights, gradients, one state of the optimizer).
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path

from trimaran.base.errors import InputError
from trimaran.base.units import parse_bytes, parse_rate
from trimaran.graph.profiled import ProfiledGraph, read_profiled
from trimaran.placement.problem import Placement, PlacementNode, PlacementProblem, Wire, flatten
from trimaran.placement.solve import place
from trimaran.placement.stages import stages

_STATES = 3
"""Weights, gradients, and one state of the optimizer, such as momentum."""

_MOST_DEVICES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A graph, the question about it, and the answer.

    Attributes:
        graph: as it was read
        problem: what was asked
        placement: the answer
    """

    graph: ProfiledGraph
    problem: PlacementProblem
    placement: Placement


def place_profiled(
    file: Path,
    *,
    devices: int = 2,
    bandwidth: str = "25GB/s",
    latency_s: float = 0.0,
    memory: str | None = None,
    time_limit_s: float | None = None,
    work_s: float | None = None,
    seed: int = 0,
    gap: float = 0.0,
    began: float | None = None,
) -> Placed:
    """Read a graph and place it.

    Args:
        file: of the graph
        devices: how many there are
        bandwidth: of each link, such as "25GB/s"
        latency_s: of each transfer [s]
        memory: of each device, such as "16GiB"; None: as much as it takes
        time_limit_s: that the whole command may take [s]; None: as long as its work takes
        work_s: seconds of a usual core whose work may be spent; None: as `place` has it [s]
        seed: of everything random
        gap: stop within this share of the bound
        began: moment at which the command began, by the monotonic clock; None: now [s]

    Raises:
        InputError: a figure or the file is wrong
        InfeasibleError: the network does not fit
    """
    began = time.monotonic() if began is None else began
    if not 1 <= devices <= _MOST_DEVICES:
        raise InputError(f"--devices: expected 1 to {_MOST_DEVICES}, got {devices}", devices=devices)
    for name, value in (("--latency", latency_s), ("--gap", gap)):
        if not math.isfinite(value) or value < 0:
            raise InputError(f"{name}: expected a number that is not negative, got {value}", value=value)
    if time_limit_s is not None and (not math.isfinite(time_limit_s) or time_limit_s <= 0):
        raise InputError(f"--time-limit: expected seconds, got {time_limit_s}", value=time_limit_s)
    if work_s is not None and (not math.isfinite(work_s) or work_s < 0):
        raise InputError(f"--work: expected seconds, got {work_s}", value=work_s)
    rate = parse_rate(bandwidth)
    if rate <= 0:
        raise InputError(f"--bandwidth: expected more than nothing, got {bandwidth!r}", value=bandwidth)
    memory_bytes = math.inf if memory is None else float(parse_bytes(memory))
    if not file.suffix and not file.exists():
        raise InputError(
            f"{file}: no such file. Times and sizes of operations are read from a JSON file; those of a job are "
            f"measured and placed by `trimaran plan {file} --devices {devices} --allow placement`",
            code="placement.no-graph",
            path=str(file),
        )
    graph = read_profiled(file)
    problem = profiled_problem(graph, devices=devices, bytes_per_s=rate, latency_s=latency_s, memory_bytes=memory_bytes)
    answer = place(problem, time_limit_s=time_limit_s, work_s=work_s, seed=seed, gap=gap, began=began)
    return Placed(graph=graph, problem=problem, placement=answer)


def profiled_problem(
    graph: ProfiledGraph,
    *,
    devices: int,
    bytes_per_s: float,
    latency_s: float = 0.0,
    memory_bytes: float = math.inf,
) -> PlacementProblem:
    """The question on what devices to run a profiled graph.

    Args:
        graph: the network
        devices: number of devices, all alike
        bytes_per_s: of the link between each two, in each direction [bytes/s]
        latency_s: of each transfer [s]
        memory_bytes: of each device [bytes]
    """
    nodes = tuple(
        PlacementNode(
            name=node.name,
            forward_s=node.forward_s,
            backward_s=node.backward_s,
            nbytes=node.activation_bytes,
            backward_nbytes=node.activation_bytes,
            saved_bytes=node.activation_bytes,
            state_bytes=_STATES * node.parameter_bytes,
            module=node.op.partition("(")[0],
        )
        for node in graph.nodes
    )
    pairs = [(a, b) for a in range(devices) for b in range(devices) if a != b]
    return PlacementProblem(
        nodes=nodes,
        edges=graph.edges,
        memory_bytes=(memory_bytes,) * devices,
        wires={(a, b): Wire(bytes_per_s=bytes_per_s, latency_s=latency_s, links=(f"{a}>{b}",)) for a, b in pairs},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Some operations that follow each other.

    Attributes:
        first: name of the first
        last: name of the last
        kinds: of the operations
        seconds: forward and backward time on each device [s]
        crossing_bytes: of their outputs and gradients, what crosses [bytes]
    """

    first: str
    last: str
    kinds: tuple[str, ...]
    seconds: tuple[float, ...]
    crossing_bytes: float


def stretches(placed: Placed) -> list[Stretch]:
    """The network from one place where it narrows to the next; what is in between runs side by side.

    Args:
        placed: a graph with its answer
    """
    answer, nodes = placed.placement, placed.problem.nodes
    crossing = dict.fromkeys((node.name for node in nodes), 0.0)
    named = {node.name: node for node in nodes}
    for move in answer.transfers:
        node = named[move.node]
        crossing[move.node] += node.nbytes if move.phase == "F" else node.backward_nbytes
    found = []
    for stage in stages(flatten(placed.problem)):
        inside = (
            nodes[stage.first + stage.entry : stage.last + 1] if stage.entry else nodes[stage.first : stage.last + 1]
        )
        if stage.entry and stage.first == 0:
            inside = nodes[: stage.last + 1]
        seconds = [0.0] * placed.problem.devices
        for node in inside:
            seconds[answer.device_of[node.name]] += node.forward_s + node.backward_s
        found.append(
            Stretch(
                first=inside[0].name,
                last=inside[-1].name,
                kinds=tuple(dict.fromkeys(node.module for node in inside if node.module)),
                seconds=tuple(seconds),
                crossing_bytes=sum(crossing[node.name] for node in inside),
            )
        )
    return found
