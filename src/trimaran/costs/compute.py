"""What the forward and the backward of a segment take.

The cost of a segment is the sum of its operations' costs times a *context* factor: how much longer the whole model
takes, in one piece and as the runtime runs it, than the sum of its operations measured one by one. The factor carries
what no single operation shows (cold caches, the interpreter between operations, autograd's bookkeeping, hooks). So
the price of the whole model is what was measured, and its parts share it in proportion.

The interval: the operations' errors are independent, the factor's error is common to all of them (`costs.intervals`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimaran.costs.intervals import add, divide, multiply
from trimaran.costs.tables import CostTable, Form, WholeCost, WholeKey
from trimaran.costs.types import Cost, OpCost
from trimaran.errors import InputError
from trimaran.graph.types import Graph, Op
from trimaran.program.types import Strategy

FORMS: tuple[Form, ...] = ("module", "replicated", "graph")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCost:
    """Durations of one segment at one batch size.

    Attributes:
        forward: of its forward
        backward: of its backward
        evaluation: of its forward without gradients
        reached: for each operation, the fraction of the backward after which its part is done [0..1]
    """

    forward: Cost
    backward: Cost
    evaluation: Cost
    reached: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Whole model over the sum of its operations, by phase.

    Attributes:
        forward: factor on forwards [1]
        backward: factor on backwards [1]
        evaluation: factor on forwards to get evaluation [1]
    """

    forward: Cost
    backward: Cost
    evaluation: Cost


def form_of(strategy: Strategy) -> Form:
    """How the runtime runs a model under a strategy: as the user's module, under DDP, or as graph segments.

    Example:
        >>> form_of(Strategy(dp=2)), form_of(Strategy(pp=2, boundaries=("conv2",)))
        ('replicated', 'graph')
    """
    if strategy.pp > 1:
        return "graph"
    return "replicated" if strategy.dp > 1 else "module"


def operation_seconds(graph: Graph, table: CostTable, *, batch: int, execution: str) -> dict[str, float]:
    """Forward and backward time of each operation as part of a graph segment, by operation id [s].

    Args:
        graph: the network
        table: measured costs
        batch: samples of a microbatch
        execution: "eager" or "compiled"

    Raises:
        InputError: the table lacks an operation
    """
    costs = operation_costs(graph, table, batch=batch, execution=execution)
    context = context_of(graph, table, costs, batch=batch, form="graph", execution=execution)
    return {
        name: cost.forward.seconds * context.forward.seconds + cost.backward.seconds * context.backward.seconds
        for name, cost in costs.items()
    }


def operation_costs(graph: Graph, table: CostTable, *, batch: int, execution: str) -> dict[str, OpCost]:
    """Cost of each operation, measured alone, by operation id.

    Raises:
        InputError: the table lacks an operation
    """
    by_content: dict[str, OpCost] = {}
    for op in graph.ops:
        if op.content in by_content:
            continue
        cost = table.operation(op.content, batch, execution)
        if cost is None:
            raise InputError(
                f'the cost table knows nothing of operation "{op.id}" ({op.target}); measure the operations of '
                f'"{graph.name}" on {table.fingerprint.device} first',
                op=op.id,
                content=op.content,
            )
        by_content[op.content] = cost
    return {op.id: by_content[op.content] for op in graph.ops}


def context_of(
    graph: Graph, table: CostTable, costs: Mapping[str, OpCost], *, batch: int, form: Form, execution: str
) -> Context:
    """How the whole model compares with the sum of its operations; 1 where the whole was never measured.

    A form that was not measured is taken to be like one that was.

    Args:
        graph: the network
        table: measured costs
        costs: cost of each operation, measured alone
        batch: samples of a microbatch
        form: how the model runs
        execution: "eager" or "compiled"
    """
    whole = _whole(graph.digest, table, batch, form, execution)
    if whole is None:
        unknown = Cost(1.0, 1.0, 1.0, "assumed: operations one by one")
        return Context(forward=unknown, backward=unknown, evaluation=unknown)
    forward_s = math.fsum(cost.forward.seconds for cost in costs.values())
    backward_s = math.fsum(cost.backward.seconds for cost in costs.values())
    return Context(
        forward=divide(whole.forward, forward_s),
        backward=divide(whole.backward, backward_s),
        evaluation=divide(whole.evaluation, forward_s),
    )


def segment_cost(ops: Sequence[Op], costs: Mapping[str, OpCost], context: Context) -> SegmentCost:
    """What a segment costs.

    Args:
        ops: its operations, in order
        costs: cost of each operation, measured alone
        context: how the whole model compares with the sum of them
    """
    forward = add(costs[op.id].forward for op in ops)
    backward = add(costs[op.id].backward for op in ops)
    return SegmentCost(
        forward=multiply(forward, context.forward),
        backward=multiply(backward, context.backward),
        evaluation=multiply(forward, context.evaluation),
        reached=_reached(ops, [costs[op.id].backward.seconds for op in ops]),
    )


def _whole(digest: str, table: CostTable, batch: int, form: Form, execution: str) -> WholeCost | None:
    for candidate in dict.fromkeys((form, *FORMS)):
        whole = table.whole(WholeKey(digest, candidate, execution), batch)
        if whole is not None:
            return whole
    return None


def _reached(ops: Sequence[Op], backward_s: Sequence[float]) -> dict[str, float]:
    total = sum(backward_s)
    reached: dict[str, float] = {}
    done = 0.0
    for number, (op, seconds) in enumerate(zip(reversed(ops), reversed(backward_s), strict=True), start=1):
        done += seconds
        reached[op.id] = min(1.0, done / total) if total > 0 else number / len(ops)
    return reached
