"""A strategy that places the branches of a network on the rows of a replica: the question, asked of `placement`.

The costs are those of a microbatch in graph segments; the way between two rows is a straight line through the times of
messages of a usual size, with what the host does for them. The answer is simulated like any other strategy: what the
solver leaves out (interference, the loading of data, the update) counts there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from trimaran.cluster import Cluster
from trimaran.cluster.layout import order_devices
from trimaran.costs import CostTable
from trimaran.costs.compute import context_of, operation_costs
from trimaran.costs.transfers import handling_seconds, transfer_cost
from trimaran.errors import InfeasibleError
from trimaran.graph import Graph
from trimaran.planner.placement.types import Placement, Wire
from trimaran.program import Instruction, Kind, Strategy

SOLVER_S = 20.0
"""Time that the solver may have for one placement, where a search has no limit of its own [s]."""

_SHARE_OF_LIMIT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A placement as a strategy.

    Attributes:
        strategy: with its parts
        bound: the solver's bound over what it found [0..1]; no placement is faster by more
        answer: what the solver found
    """

    strategy: Strategy
    bound: float
    answer: Placement


def place_for(
    strategy: Strategy,
    graph: Graph,
    table: CostTable,
    cluster: Cluster,
    *,
    batch: int,
    kept: Mapping[str, int] | None = None,
    time_limit_s: float | None = None,
    gap: float = 0.0,
) -> Placed:
    """Place the branches of a network on the rows of a replica.

    Args:
        strategy: says how many rows, replicas and microbatches there are, and which devices they are
        graph: the job's
        table: costs of its operations and of the links
        cluster: the devices
        batch: samples of one update, over all ranks
        kept: operations that must be on a row, by id
        time_limit_s: of the whole search [s]; None: it has none
        gap: the solver stops when it is as close to its bound

    Raises:
        InfeasibleError: it does not fit, or one row alone is as fast
    """
    # The solver is loaded where it is needed only.
    from trimaran.planner.placement import parts_of, place, placement_problem

    microbatch = batch // (strategy.dp * strategy.microbatches)
    arranged = order_devices(cluster, strategy.device_order)
    forward_s, backward_s = _seconds(graph, table, microbatch, strategy)
    step = table.steps.get(graph.digest)
    question = placement_problem(
        graph,
        forward_s,
        backward_s,
        batch=microbatch,
        memory_bytes=tuple(float(device.memory_bytes) for device in arranged.devices[: strategy.pp]),
        wires=_wires(strategy.pp, _usual_bytes(graph, microbatch), table, arranged),
        state_bytes_per_byte=step.state_bytes_per_byte if step else 0.0,
        pinned=kept or {},
    )
    limit_s = SOLVER_S if time_limit_s is None else min(SOLVER_S, _SHARE_OF_LIMIT * time_limit_s)
    answer = place(question, time_limit_s=limit_s, gap=gap)
    if len(set(answer.device_of.values())) < strategy.pp:
        raise InfeasibleError(
            f"the best placement of {graph.name} leaves one of {strategy.pp} rows without work: messages would cost "
            "what it saves",
            rows=strategy.pp,
        )
    parts, backward_order = parts_of(answer, graph)
    return Placed(
        strategy=replace(strategy, parts=parts, backward_order=backward_order),
        bound=min(1.0, answer.bound_s / answer.makespan_s) if answer.makespan_s else 1.0,
        answer=answer,
    )


def _seconds(
    graph: Graph, table: CostTable, microbatch: int, strategy: Strategy
) -> tuple[dict[str, float], dict[str, float]]:
    """Forward and backward of each operation as part of a graph segment, by id [s]."""
    operations = operation_costs(graph, table, batch=microbatch, execution=strategy.execution)
    context = context_of(graph, table, operations, batch=microbatch, form="graph", execution=strategy.execution)
    forward_s = {name: cost.forward.seconds * context.forward.seconds for name, cost in operations.items()}
    backward_s = {name: cost.backward.seconds * context.backward.seconds for name, cost in operations.items()}
    return forward_s, backward_s


def _usual_bytes(graph: Graph, microbatch: int) -> int:
    """Size of a usual message: the median of what crosses a cut [bytes]."""
    crossing = graph.exchanged(graph.parts(graph.cuts))
    sizes = [spec.nbytes.at(microbatch) for specs in crossing.values() for spec in specs]
    return max(16, round(median(sizes))) if sizes else 16


def _wires(rows: int, usual_bytes: int, table: CostTable, cluster: Cluster) -> dict[tuple[int, int], Wire]:
    pairs = [(one, other) for one in range(rows) for other in range(rows) if one != other]
    return {(one, other): _wire(one, other, usual_bytes, table, cluster) for one, other in pairs}


def _wire(source: int, target: int, usual_bytes: int, table: CostTable, cluster: Cluster) -> Wire:
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
        seconds.append(transfer.latency_s + transfer.flow_s + handled_s)
        links = transfer.links
    rate = (large - small) / max(seconds[1] - seconds[0], 1e-12)
    return Wire(bytes_per_s=rate, latency_s=max(0.0, seconds[1] - large / rate), links=links)
