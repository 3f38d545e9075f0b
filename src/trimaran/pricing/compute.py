"""Cost of the forward and the backward of a segment.

The cost of a segment is the sum of its operations' costs times a *context* factor: how much longer the whole model
takes, in one piece and as the runtime runs it, than the sum of its operations measured one by one. The factor contains
the effects that no single operation shows (cold caches, the interpreter between operations, autograd's bookkeeping,
hooks). So the price of the whole model is its measured time, and its parts share it in proportion.

The interval: the operations' errors are independent, the factor's error is common to all of them (`pricing.types`).

dgrad and wgrad: gradients of inputs, which others wait for, and of weights, which may be computed later.

Linear layers and convolutions have both, as two products of the same work: half of their backward each, unless they
were measured separately. An operation whose input needs no gradient, such as the first of a network, has wgrad only.
All other operations (norms, embeddings, recurrent layers, activations) have one computation, which is part of dgrad.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trimaran.base.errors import InputError
from trimaran.graph.types import Graph, Op
from trimaran.pricing.tables import FORMS, CostTable, Form, WholeCost, WholeKey
from trimaran.pricing.types import Cost, OpCost, add, divide, multiply
from trimaran.program.lowering.schedules import BACKWARDS
from trimaran.program.strategy import Strategy
from trimaran.program.types import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCost:
    """Durations of one segment at one batch size.

    Attributes:
        steps: time of each kind of compute step: forward, backward, dgrad, wgrad, evaluation
        places: for each kind of step and each operation, the fractions of the step between which its part lies [0..1]
    """

    steps: Mapping[Kind, Cost]
    places: Mapping[Kind, Mapping[str, tuple[float, float]]]

    @property
    def forward(self) -> Cost:
        """Of its forward."""
        return self.steps[Kind.FORWARD]

    @property
    def backward(self) -> Cost:
        """Of its whole backward."""
        return self.steps[Kind.BACKWARD]

    @property
    def reached(self) -> dict[str, float]:
        """For each operation, the fraction of the backward after which its part is done [0..1]."""
        return {name: done for name, (_, done) in self.places[Kind.BACKWARD].items()}


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
    if strategy.pp > 1 or strategy.parts:
        return "graph"
    return "replicated" if strategy.dp > 1 else "module"


def own_form(strategy: Strategy) -> str:
    """The form of strategies that a library runs differently, with its overhead; else `form_of`.

    Sharded operations, sharded state, and backwards split into dgrad and wgrad are measured where a plan needs them
    (`measure.trial_runs`). Where they are not measured, they are assumed to be like the plain form.

    Example:
        >>> own_form(Strategy(tp=2)), own_form(Strategy(dp=2, zero=3)), own_form(Strategy(dp=2))
        ('module tensor2', 'replicated sharded3', 'replicated')
    """
    words: list[str] = [form_of(strategy)]
    if strategy.tp > 1:
        words.append(f"tensor{strategy.tp}")
    elif strategy.shards:
        words.append(f"classifier{strategy.dp}")
    if strategy.zero >= 2:
        words.append(f"sharded{strategy.zero}")
    if strategy.schedule == "zero-bubble" and strategy.pp > 1 and not strategy.parts:
        words.append("halves")
    return " ".join(words)


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
    forward_s, backward_s = operation_phases(graph, table, batch=batch, execution=execution)
    return {name: forward_s[name] + backward_s[name] for name in forward_s}


def operation_phases(
    graph: Graph, table: CostTable, *, batch: int, execution: str
) -> tuple[dict[str, float], dict[str, float]]:
    """Forward and backward of each operation as part of a graph segment, each by operation id [s].

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
    forward_s = {name: cost.forward.seconds * context.forward.seconds for name, cost in costs.items()}
    backward_s = {name: cost.backward.seconds * context.backward.seconds for name, cost in costs.items()}
    return forward_s, backward_s


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
                f'the cost table has no cost of operation "{op.id}" ({op.target}); measure the operations of '
                f'"{graph.name}" on {table.fingerprint.device} first',
                code="cost-table.missing-operation",
                op=op.id,
                content=op.content,
            )
        by_content[op.content] = cost
    return {op.id: by_content[op.content] for op in graph.ops}


def context_of(
    graph: Graph, table: CostTable, costs: Mapping[str, OpCost], *, batch: int, form: str, execution: str
) -> Context:
    """How the whole model compares with the sum of its operations; 1 where the whole was never measured.

    A form that was not measured is assumed to be like a measured one.

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


def segment_cost(
    ops: Sequence[Op],
    costs: Mapping[str, OpCost],
    context: Context,
    *,
    weights: Mapping[str, float] | None = None,
    shares: Callable[[Op], float] | None = None,
) -> SegmentCost:
    """Cost of a segment.

    Args:
        ops: its operations, in order
        costs: cost of each operation, measured alone
        context: how the whole model compares with the sum of them
        weights: for each operation, the share of its backward that can be put off (`weight_shares`); None: half
        shares: the share of an operation that a rank computes, where operations are sharded; None: all of each
    """
    forward, backward, inputs, later = [], [], [], []
    for op in ops:
        cost, share = costs[op.id], 1.0 if shares is None else shares(op)
        share += (1.0 - share) * cost.launches  # a share of an operation launches all of its kernels
        put_off = 0.5 if weights is None else weights[op.id]
        forward.append(cost.forward.scaled(share))
        backward.append(cost.backward.scaled(share))
        inputs.append(cost.backward.scaled(share * (1.0 - put_off)))
        later.append(cost.backward.scaled(share * put_off))
    parts = {
        Kind.FORWARD: (forward, context.forward),
        Kind.BACKWARD: (backward, context.backward),
        Kind.BACKWARD_INPUT: (inputs, context.backward),
        Kind.BACKWARD_WEIGHT: (later, context.backward),
        Kind.EVALUATE: (forward, context.evaluation),
    }
    return SegmentCost(
        steps={kind: multiply(add(found), factor) for kind, (found, factor) in parts.items()},
        places={
            kind: _places(ops, [cost.seconds for cost in found], backward=kind in BACKWARDS)
            for kind, (found, _) in parts.items()
        },
    )


def _whole(digest: str, table: CostTable, batch: int, form: str, execution: str) -> WholeCost | None:
    plain = form.partition(" ")[0]
    points = table.wholes.get(WholeKey(digest, form, execution), {})
    if form != plain and points:
        return _scaled_whole(points, digest, table, batch, plain, execution)
    for candidate in dict.fromkeys((plain, *FORMS)):
        whole = table.whole(WholeKey(digest, candidate, execution), batch)
        if whole is not None:
            return whole
    return None


def _scaled_whole(
    points: Mapping[int, WholeCost], digest: str, table: CostTable, batch: int, plain: str, execution: str
) -> WholeCost | None:
    """A form that was measured at few sizes: at others, its ratio to the plain form is that of the nearest size."""
    nearest = min(points, key=lambda size: (abs(math.log(size / batch)), size))
    there, base = points[nearest], _whole(digest, table, nearest, plain, execution)
    here = _whole(digest, table, batch, plain, execution)
    if nearest == batch or base is None or here is None:
        return there

    def scaled(mine: Cost, theirs: Cost, at_batch: Cost) -> Cost:
        return mine.scaled(at_batch.seconds / theirs.seconds) if theirs.seconds > 0 else mine

    return WholeCost(
        forward=scaled(there.forward, base.forward, here.forward),
        backward=scaled(there.backward, base.backward, here.backward),
        evaluation=scaled(there.evaluation, base.evaluation, here.evaluation),
    )


def _places(ops: Sequence[Op], seconds: Sequence[float], *, backward: bool) -> dict[str, tuple[float, float]]:
    """Where each operation's part of a step lies; operations that all take 0 s share it evenly."""
    total = sum(seconds)
    order = range(len(ops))
    places: dict[str, tuple[float, float]] = {}
    done = 0.0
    for number, position in enumerate(reversed(order) if backward else order, start=1):
        start, done = done, done + (seconds[position] if total > 0 else 1.0)
        whole = total if total > 0 else float(len(ops))
        places[ops[position].id] = start / whole, 1.0 if number == len(ops) else min(1.0, done / whole)
    return places


_WITH_WEIGHTS = re.compile(r"Linear|NonDynamicallyQuantizableLinear|Conv(Transpose)?[123]d|aten\.(linear|conv\w*)\.\w+")


def weight_shares(graph: Graph, *, execution: str) -> dict[str, float]:
    """The share of each operation's backward that wgrad takes, by its id [0..1].

    Args:
        graph: the network
        execution: a compiled segment has its whole backward in dgrad
    """
    if execution == "compiled":
        return dict.fromkeys((op.id for op in graph.ops), 0.0)
    returned = {spec.name for op in graph.ops for spec in op.outputs if spec.requires_grad}
    trained = {parameter.name for parameter in graph.parameters if parameter.trainable}
    return {op.id: _weight_share(op, returned, trained) for op in graph.ops}


def put_off(ops: Sequence[Op], shares: dict[str, float]) -> list[Op]:
    """The operations with a wgrad."""
    return [op for op in ops if shares[op.id] > 0.0]


def _weight_share(op: Op, returned: set[str], trained: set[str]) -> float:
    if not _WITH_WEIGHTS.fullmatch(op.target) or not trained.issuperset(op.parameters) or not op.parameters:
        return 0.0
    return 0.5 if returned.intersection(op.inputs) else 1.0
