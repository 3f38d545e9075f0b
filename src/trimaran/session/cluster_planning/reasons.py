"""Why more devices help a placement so little: the longest chain of operations, and how many branches run beside it.

However many devices there are, and however fast their links, a step takes at least the longest chain of forwards to the
loss and the longest chain of backwards from it. Its share of all work bounds the speedup of any placement.
"""

from collections.abc import Mapping, Sequence

from trimaran.costs.compute import context_of, operation_costs
from trimaran.graph import Graph
from trimaran.planner.problem import Problem
from trimaran.program import Strategy
from trimaran.units import format_seconds


def placement_notes(problem: Problem, strategy: Strategy) -> tuple[str, ...]:
    """What bounds the placement of a network's branches.

    Args:
        problem: has the graph and its costs
        strategy: a placement; of anything else nothing is said
    """
    if not strategy.parts:
        return ()
    microbatch = problem.batch // (strategy.dp * strategy.microbatches)
    costs = operation_costs(problem.graph, problem.table, batch=microbatch, execution=strategy.execution)
    context = context_of(
        problem.graph, problem.table, costs, batch=microbatch, form="graph", execution=strategy.execution
    )
    forward = {name: cost.forward.seconds * context.forward.seconds for name, cost in costs.items()}
    backward = {name: cost.backward.seconds * context.backward.seconds for name, cost in costs.items()}
    total_s = sum(forward.values()) + sum(backward.values())
    chain_s = longest_chain_s(problem.graph, forward) + longest_chain_s(problem.graph, backward)
    widths = shares_of_widths(problem.graph, {name: forward[name] + backward[name] for name in forward})
    alone = widths.get(1, 0.0)
    few = sum(share for width, share in widths.items() if width <= 2)
    return (
        f"on any number of devices a placement takes at least {format_seconds(chain_s)} of {format_seconds(total_s)}: "
        f"that long is the chain of operations of which each needs the one before it, so it is at most "
        f"{total_s / chain_s:.2f} times as fast as one device",
        f"{alone:.0%} of that chain has no branch beside it and {few:.0%} at most one, so devices beyond the second "
        "find little to do",
    )


def longest_chain_s(graph: Graph, seconds: Mapping[str, float]) -> float:
    """The longest way through a graph [s].

    Args:
        graph: of a network
        seconds: of each operation, by id [s]
    """
    ends = _earliest(graph, seconds)
    return max((ends[op.id] for op in graph.ops), default=0.0)


def shares_of_widths(graph: Graph, seconds: Mapping[str, float]) -> dict[int, float]:
    """How many operations would run side by side on as many devices as one likes, each as soon as it can.

    Args:
        graph: of a network
        seconds: of each operation, by id [s]

    Returns:
        By the number of operations, the share of the time in which so many run [0..1].
    """
    ends = _earliest(graph, seconds)
    events: list[tuple[float, int]] = []
    for op in graph.ops:
        if seconds[op.id] > 0.0:
            events += [(ends[op.id] - seconds[op.id], 1), (ends[op.id], -1)]
    return _shares(sorted(events))


def _shares(events: Sequence[tuple[float, int]]) -> dict[int, float]:
    total = events[-1][0] if events else 0.0
    found: dict[int, float] = {}
    running, since = 0, 0.0
    for at, change in events:
        if at > since and running:
            found[running] = found.get(running, 0.0) + (at - since) / total
        running, since = running + change, at
    return dict(sorted(found.items()))


def _earliest(graph: Graph, seconds: Mapping[str, float]) -> dict[str, float]:
    makers = {spec.name: op.id for op in graph.ops for spec in op.outputs}
    ends: dict[str, float] = {}
    for op in graph.ops:
        ready = max((ends[makers[name]] for name in op.inputs if name in makers), default=0.0)
        ends[op.id] = ready + seconds[op.id]
    return ends
