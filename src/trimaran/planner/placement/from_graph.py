"""A network as a placement problem, and a placement as the parts of a strategy.

A node of the problem is a stretch of the graph: the operations between two neighbouring legal cuts (`Graph.cuts`),
which may write in place what another of them made. A part of the answer is a run of stretches on one device between
which nothing has to leave and nothing has to arrive, so a message goes when the last operation of a part has ended, and
a part starts when all it reads is there:

    device 0   F: [a b c] | [d e]          cut after c: device 1 reads it
    device 1   F:         [x y]            cut before x: it reads c, which comes from device 0

What this leaves out: a tensor is priced whole for each device that reads any output of a stretch, and the gradients of
tied weights that end up on two devices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimaran.graph import Graph
from trimaran.graph.types import Op
from trimaran.planner.placement.types import Placement, PlacementNode, PlacementProblem, Wire
from trimaran.program.types import Part


def placement_problem(
    graph: Graph,
    forward_s: Mapping[str, float],
    backward_s: Mapping[str, float],
    *,
    batch: float,
    memory_bytes: Sequence[float],
    wires: Mapping[tuple[int, int], Wire],
    state_bytes_per_byte: float = 0.0,
    pinned: Mapping[str, int] | None = None,
) -> PlacementProblem:
    """The question which device should run which part of a network.

    Args:
        graph: the network
        forward_s: time of the forward of each operation, by id [s]
        backward_s: likewise of the backward [s]
        batch: samples of a step
        memory_bytes: of each device [bytes]
        wires: ways between devices
        state_bytes_per_byte: state that the optimizer keeps for a byte of parameter [bytes/byte]
        pinned: device of operations that must be on one, by id

    Returns:
        One node for each stretch of the graph, named by its first operation.
    """
    parts = graph.parts(graph.cuts)
    owner = {op.id: number for number, ops in enumerate(parts) for op in ops}
    crossing: list[dict[str, tuple[float, float]]] = [{} for _ in parts]
    edges = []
    for (producer, consumer), specs in graph.exchanged(parts).items():
        edges.append((producer, consumer))
        for spec in specs:
            nbytes = spec.nbytes.at(batch)
            crossing[producer][spec.name] = (nbytes, nbytes if spec.requires_grad else 0.0)
    state = _state_bytes(graph, parts, state_bytes_per_byte)
    saved = _saved_bytes(graph, parts, batch)
    nodes = tuple(
        PlacementNode(
            name=ops[0].id,
            forward_s=sum(forward_s[op.id] for op in ops),
            backward_s=sum(backward_s[op.id] for op in ops),
            nbytes=sum(there for there, _ in crossing[number].values()),
            backward_nbytes=sum(back for _, back in crossing[number].values()),
            saved_bytes=saved[number],
            state_bytes=state[number],
            module=next((op.module for op in ops if op.module), ""),
        )
        for number, ops in enumerate(parts)
    )
    return PlacementProblem(
        nodes=nodes,
        edges=tuple(edges),
        memory_bytes=tuple(memory_bytes),
        wires=wires,
        pinned={parts[owner[name]][0].id: device for name, device in (pinned or {}).items()},
    )


def _state_bytes(graph: Graph, parts: Sequence[Sequence[Op]], state_bytes_per_byte: float) -> list[float]:
    """Parameters, gradients, optimizer state and buffers of each stretch; what several use counts for the first."""
    sizes: dict[str, float] = dict(graph.buffers)
    for parameter in graph.parameters:
        trained = (1.0 + state_bytes_per_byte) if parameter.trainable else 0.0
        sizes[parameter.name] = parameter.nbytes * (1.0 + trained)
    found = []
    for ops in parts:
        names = {name for op in ops for name in (*op.parameters, *op.buffers)}
        found.append(float(sum(sizes.pop(name, 0.0) for name in sorted(names))))
    return found


def _saved_bytes(graph: Graph, parts: Sequence[Sequence[Op]], batch: float) -> list[float]:
    """What autograd keeps of each stretch; a storage that several keep counts for the first."""
    sizes = {name: size.at(batch) for name, size in graph.storages.items()}
    return [float(sum(sizes.pop(name, 0.0) for op in ops for name in op.saved)) for ops in parts]


def parts_of(placement: Placement, graph: Graph) -> tuple[tuple[Part, ...], tuple[int, ...]]:
    """The parts of a strategy, and the order of their backwards.

    Args:
        placement: an answer to `placement_problem` of this graph
        graph: the network

    Returns:
        Parts in an order in which their forwards can run, the one with the loss last; rows are the devices that are
        used, numbered without holes. For the backwards: numbers of parts, consumers before producers.
    """
    stretches = graph.parts(graph.cuts)
    names = [ops[0].id for ops in stretches]
    number = {name: index for index, name in enumerate(names)}
    edges = tuple(graph.exchanged(stretches))
    on = [placement.device_of[name] for name in names]
    rows = {device: row for row, device in enumerate(sorted(set(on)))}
    forwards = [number[run.node] for run in placement.schedule if run.phase == "F"]
    backwards = [number[run.node] for run in placement.schedule if run.phase == "B"]
    seconds: dict[tuple[int, str], float] = {
        (number[run.node], run.phase): run.end_s - run.start_s for run in placement.schedule
    }
    groups = _joined(forwards, on, edges, _neighbours(backwards, on))
    few = _joined(forwards, on, edges, None)
    if _length(few, forwards, backwards, on, edges, seconds) <= 1.002 * _length(
        groups, forwards, backwards, on, edges, seconds
    ):
        groups = few
    groups.sort(key=lambda group: names.index(names[-1]) in group)
    parts = tuple(
        Part(ops=tuple(op.id for index in sorted(group) for op in stretches[index]), row=rows[on[group[0]]])
        for group in groups
    )
    return parts, _backward_order(groups, backwards, edges)


def _neighbours(backwards: Sequence[int], on: Sequence[int]) -> set[tuple[int, int]]:
    """Pairs (x, y) of which the backward of y runs right before that of x on their device."""
    last: dict[int, int] = {}
    pairs = set()
    for node in backwards:
        if on[node] in last:
            pairs.add((node, last[on[node]]))
        last[on[node]] = node
    return pairs


def _joined(
    forwards: Sequence[int], on: Sequence[int], edges: Sequence[tuple[int, int]], pairs: set[tuple[int, int]] | None
) -> list[list[int]]:
    """Runs of forwards on a device between which nothing leaves or arrives.

    Args:
        forwards: nodes in the order of their forwards
        on: device of each node
        edges: producer and consumer
        pairs: neighbours that may be joined; None: all
    """
    leaves = {producer for producer, consumer in edges if on[producer] != on[consumer]}
    reads: dict[int, list[int]] = {}
    for producer, consumer in edges:
        if on[producer] != on[consumer]:
            reads.setdefault(consumer, []).append(producer)
    arrived: set[tuple[int, int]] = set()
    open_at: dict[int, list[int]] = {}
    groups = []
    for node in forwards:
        device = on[node]
        new = {(producer, device) for producer in reads.get(node, ())} - arrived
        arrived |= new
        group = open_at.get(device)
        if group is None or new or group[-1] in leaves or (pairs is not None and (group[-1], node) not in pairs):
            group = []
            groups.append(group)
            open_at[device] = group
        group.append(node)
    return groups


def _backward_order(
    groups: Sequence[Sequence[int]], backwards: Sequence[int], edges: Sequence[tuple[int, int]]
) -> tuple[int, ...]:
    """Parts by the first of their backwards, consumers before producers."""
    owner = {node: number for number, group in enumerate(groups) for node in group}
    place = {node: position for position, node in enumerate(backwards)}
    waits: dict[int, set[int]] = {number: set() for number in range(len(groups))}
    for producer, consumer in edges:
        if owner[producer] != owner[consumer]:
            waits[owner[producer]].add(owner[consumer])
    order: list[int] = []
    left = sorted(waits, key=lambda number: min(place[node] for node in groups[number]))
    done: set[int] = set()
    while left:
        number = next(number for number in left if waits[number] <= done)
        left.remove(number)
        done.add(number)
        order.append(number)
    return tuple(order)


@dataclass(slots=True)
class _Clock:
    """When each device is free and each part has ended."""

    free: dict[int, float]
    ended: dict[int, float]


def _length(
    groups: Sequence[Sequence[int]],
    forwards: Sequence[int],
    backwards: Sequence[int],
    on: Sequence[int],
    edges: Sequence[tuple[int, int]],
    seconds: Mapping[tuple[int, str], float],
) -> float:
    """Length of the step in which parts run whole, with no time for transfers [s]."""
    owner = {node: number for number, group in enumerate(groups) for node in group}
    reads: dict[int, set[int]] = {number: set() for number in range(len(groups))}
    returns: dict[int, set[int]] = {number: set() for number in range(len(groups))}
    for producer, consumer in edges:
        if owner[producer] != owner[consumer]:
            reads[owner[consumer]].add(owner[producer])
            returns[owner[producer]].add(owner[consumer])
    clock = _Clock({}, {})
    for number in range(len(groups)):
        _run(clock, groups[number], number, reads[number], on, seconds, "F")
    ended, clock.ended = clock.ended, {}
    for number in _backward_order(groups, backwards, edges):
        clock.free[on[groups[number][0]]] = max(clock.free[on[groups[number][0]]], ended[number])
        _run(clock, groups[number], number, returns[number], on, seconds, "B")
    return max(clock.free.values())


def _run(
    clock: _Clock,
    group: Sequence[int],
    number: int,
    needs: set[int],
    on: Sequence[int],
    seconds: Mapping[tuple[int, str], float],
    phase: str,
) -> None:
    device = on[group[0]]
    start = max([clock.free.get(device, 0.0), *(clock.ended[other] for other in needs)])
    clock.ended[number] = clock.free[device] = start + sum(seconds[node, phase] for node in group)
