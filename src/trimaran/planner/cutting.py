"""A strategy with its stages cut: by time, by what is kept on a row, and where need be by memory."""

import dataclasses
from collections.abc import Mapping

from trimaran.costs import CostTable, operation_seconds
from trimaran.graph import Graph
from trimaran.planner.partition import Admit, partition
from trimaran.planner.stage_memory import StageMemory, in_flight
from trimaran.program import Strategy
from trimaran.program.orders import Order
from trimaran.program.schedules import compute_order
from trimaran.program.shards import chosen_regions


def cut(
    strategy: Strategy,
    graph: Graph,
    table: CostTable,
    *,
    batch: int,
    kept: Mapping[str, int] | None = None,
    admit: Admit | None = None,
) -> Strategy:
    """The strategy with its stages cut for the costs of its microbatch.

    Args:
        strategy: with or without boundaries, which are made anew
        graph: the job's
        table: costs of its operations
        batch: samples of one update, over all ranks
        kept: operations that must be on a row, by id
        admit: which segments count beside; None: all

    Raises:
        InfeasibleError: the graph has too few legal cuts, or none that keeps what is kept
    """
    if strategy.pp == 1 or strategy.parts:
        return strategy
    microbatch = batch // (strategy.dp * strategy.microbatches)
    seconds = operation_seconds(graph, table, batch=microbatch, execution=strategy.execution)
    segments = strategy.pp * strategy.chunks
    rows = [(kept or {}).get(op.id) for op in graph.ops]
    torn = _inside_regions(graph, strategy)

    def admits(segment: int, first: int, last: int) -> bool:
        row = segment % strategy.pp
        if last in torn or any(wanted not in (None, row) for wanted in rows[first:last]):
            return False
        return admit is None or admit(segment, first, last)

    needed = admits if kept or admit or torn else None
    return dataclasses.replace(strategy, boundaries=partition(graph, seconds, stages=segments, admit=needed))


def _inside_regions(graph: Graph, strategy: Strategy) -> frozenset[int]:
    """Places in the order of operations where a cut would tear apart what is sharded together."""
    if strategy.tp == 1:
        return frozenset()
    place = {op.id: number for number, op in enumerate(graph.ops)}
    torn: set[int] = set()
    for region in chosen_regions(graph, strategy):
        members = [place[name] for name in (*region.columns, *region.inside, *region.rows)]
        torn.update(range(min(members) + 1, max(members) + 1))
    return frozenset(torn)


def cut_within(
    strategy: Strategy,
    graph: Graph,
    table: CostTable,
    *,
    batch: int,
    memory_bytes: float,
    kept: Mapping[str, int] | None = None,
) -> Strategy:
    """The strategy with its stages cut so that each fits its device, and beyond that by time.

    Args:
        strategy: with or without boundaries, which are made anew
        graph: the job's
        table: costs of its operations, and what the optimizer keeps
        batch: samples of one update, over all ranks
        memory_bytes: of each device [bytes]
        kept: operations that must be on a row, by id

    Raises:
        InfeasibleError: no cut fits
    """
    if strategy.pp == 1 or strategy.parts:
        return strategy
    step = table.steps.get(graph.digest)
    memory = StageMemory(
        graph=graph,
        microbatch=batch // (strategy.dp * strategy.microbatches),
        state_bytes_per_byte=step.state_bytes_per_byte if step else 0.0,
        in_flight=in_flight(order_of(strategy)),
        limits=(memory_bytes / strategy.chunks,) * (strategy.pp * strategy.chunks),
    )
    return cut(strategy, graph, table, batch=batch, kept=kept, admit=memory.admits)


def order_of(strategy: Strategy) -> Order:
    """What each row of a pipeline computes, in order."""
    return compute_order(
        strategy.schedule, stages=strategy.pp, microbatches=strategy.microbatches, chunks=strategy.chunks
    )
