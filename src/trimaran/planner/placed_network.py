"""A network as a placement problem, and a placement as the parts of a strategy.

A node of the problem is a stretch of the graph: the operations between two neighbouring split points
(`Graph.split_points`), which may write in place into outputs of each other. A part of the answer is a run of stretches
on one device between which nothing has to leave and nothing has to arrive, so a message goes when the last operation of
a part has ended, and a part starts when all it reads is there:

    device 0   F: [a b c] | [d e]          split after c: device 1 reads it
    device 1   F:         [x y]            split before x: it reads c, which comes from device 0

Left out: a tensor is priced whole for each device that reads any output of a stretch, and the gradients of
tied weights that end up on two devices.

A strategy that places the branches of a network on the rows of a replica: the question, asked of `placement`.

The costs are those of a microbatch in graph segments; the way between two rows is a straight line through the times of
messages of a usual size, with what the host does for them. The answer is simulated like any other strategy: what the
solver leaves out (interference, the loading of data, the update) counts there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from trimaran.base.errors import InfeasibleError
from trimaran.graph.types import Graph, Op
from trimaran.machine.types import Allocation
from trimaran.placement.problem import Placement, PlacementNode, PlacementProblem, Wire
from trimaran.planner.candidates import PricedJob
from trimaran.pricing.compute import operation_phases
from trimaran.pricing.tables import CostTable
from trimaran.pricing.transfers import handling_seconds, transfer_cost
from trimaran.program.strategy import Part, Strategy
from trimaran.program.types import Instruction, Kind


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
    parts = graph.parts(graph.split_points)
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
            forward_s=_rounded(sum(forward_s[op.id] for op in ops)),
            backward_s=_rounded(sum(backward_s[op.id] for op in ops)),
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


def _rounded(seconds: float) -> float:
    """To ten digits: of roots and logarithms processors differ in the last one, and a search would go other ways."""
    return float(f"{seconds:.9e}")


def _state_bytes(graph: Graph, parts: Sequence[Sequence[Op]], state_bytes_per_byte: float) -> list[float]:
    """Parameters, gradients, optimizer state and buffers of each stretch; shared ones count for the first."""
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
    """Bytes that autograd keeps of each stretch; a storage that several keep counts for the first."""
    sizes = {name: size.at(batch) for name, size in graph.kept_storages.items()}
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
    stretches = graph.parts(graph.split_points)
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


SOLVER_S = 20.0
"""Work of the solver for one placement, in seconds of a usual core [s]."""

_SHARE_OF_LIMIT = 0.5

_NEAR_ENOUGH = 0.002
"""Gap at which the solver stops: steps are predicted within some percent at best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStrategy:
    """A placement as a strategy.

    Attributes:
        strategy: with its parts
        bound: the solver's bound over its answer [0..1]; no placement is faster by more
        answer: of the solver
    """

    strategy: Strategy
    bound: float
    answer: Placement


def place_for(
    strategy: Strategy,
    job: PricedJob,
    *,
    kept: Mapping[str, int] | None = None,
    time_limit_s: float | None = None,
    gap: float = 0.0,
) -> PlacedStrategy:
    """Place the branches of a network on the rows of a replica.

    Args:
        strategy: says how many rows, replicas and microbatches there are, and which devices they are
        job: with its costs and devices
        kept: operations that must be on a row, by id
        time_limit_s: work of the whole search [s on the reference]; None: no limit
        gap: the solver stops when it is as close to its bound, or within `_NEAR_ENOUGH`

    Raises:
        InfeasibleError: it does not fit, or one row alone is as fast
    """
    # The solver is loaded where it is needed only.
    from trimaran.placement.solve import place

    graph, table = job.graph, job.table
    microbatch = job.batch // (strategy.dp * strategy.microbatches)
    arranged = job.cluster.ordered(strategy.device_order)
    forward_s, backward_s = operation_phases(graph, table, batch=microbatch, execution=strategy.execution)
    step = table.steps.get(graph.digest)
    question = placement_problem(
        graph,
        forward_s,
        backward_s,
        batch=microbatch,
        memory_bytes=tuple(map(float, arranged.memory_bytes[: strategy.pp])),
        wires=_wires(strategy.pp, _usual_bytes(graph, microbatch), table, arranged),
        state_bytes_per_byte=step.state_bytes_per_byte if step else 0.0,
        pinned=kept or {},
    )
    work_s = SOLVER_S if time_limit_s is None else min(SOLVER_S, _SHARE_OF_LIMIT * time_limit_s)
    answer = place(question, work_s=work_s, gap=max(gap, _NEAR_ENOUGH))
    if len(set(answer.device_of.values())) < strategy.pp:
        raise InfeasibleError(
            f"the best placement of {graph.name} leaves one of {strategy.pp} rows without work: messages would cost "
            "what it saves",
            rows=strategy.pp,
        )
    parts, backward_order = parts_of(answer, graph)
    return PlacedStrategy(
        strategy=replace(strategy, parts=parts, backward_order=backward_order),
        bound=min(1.0, answer.bound_s / answer.makespan_s) if answer.makespan_s else 1.0,
        answer=answer,
    )


def _usual_bytes(graph: Graph, microbatch: int) -> int:
    """Size of a usual message: the median of the bytes that cross a split [bytes]."""
    crossing = graph.exchanged(graph.parts(graph.split_points))
    sizes = [spec.nbytes.at(microbatch) for specs in crossing.values() for spec in specs]
    return max(16, round(median(sizes))) if sizes else 16


def _wires(rows: int, usual_bytes: int, table: CostTable, cluster: Allocation) -> dict[tuple[int, int], Wire]:
    pairs = [(one, other) for one in range(rows) for other in range(rows) if one != other]
    return {(one, other): _wire(one, other, usual_bytes, table, cluster) for one, other in pairs}


def _wire(source: int, target: int, usual_bytes: int, table: CostTable, cluster: Allocation) -> Wire:
    """A straight line through the times of a usual message and of one half as large."""
    small, large = usual_bytes // 2, usual_bytes
    seconds: list[float] = []
    links: tuple[str, ...] = ()
    for nbytes in (small, large):
        send = Instruction(
            kind=Kind.SEND_FORWARD, rank=source, segment=0, microbatch=0, peer=target, peer_segment=1, nbytes=nbytes
        )
        receive = replace(send, kind=Kind.RECEIVE_FORWARD, rank=target, peer=source)
        transfer = transfer_cost(send, table, cluster)
        handled_s = handling_seconds(send, table) + handling_seconds(receive, table)
        seconds.append(_rounded(transfer.seconds + handled_s))
        links = transfer.links
    rate = (large - small) / max(seconds[1] - seconds[0], 1e-12)
    return Wire(bytes_per_s=rate, latency_s=max(0.0, seconds[1] - large / rate), links=links)
