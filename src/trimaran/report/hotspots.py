"""Where a job's compute goes: its operations, alone or grouped by module or by kind, and whether they are too small.

An operation's time is its share of the whole model's: measured alone, times the factor between the whole model in one
piece and the sum of its operations (`costs/compute.py`). So the groups sum to the forward and the backward of a step.

An operation is *small* if more than half of its time does not depend on the batch, while it neither computes nor moves
bytes at a quarter of the best rate that the job reaches anywhere: what it costs is being called. What does not depend
on the batch is read off the batch sizes that were measured. A large weight that is read once a step also costs the same
for any batch, but moves bytes quickly, and so is not small.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trimaran.costs import Cost, CostTable
from trimaran.costs.compute import Context, context_of, operation_costs
from trimaran.costs.intervals import add, multiply
from trimaran.costs.tables import Form, OperationKey
from trimaran.graph import Graph, Op
from trimaran.program.types import Execution

Grouping = Literal["module", "operation", "kind"]
"""What one line of a profile is."""

# See the definition of a small operation above.
SMALL_FIXED_SHARE = 0.5
SMALL_RATE = 0.25
# From this share of the compute on, small operations are what limits it.
BOUND_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """One line of a profile.

    Attributes:
        name: of the module, operation or kind
        operations: how many operations it stands for
        forward: of them, as part of the whole model
        backward: likewise
        flops: of both [FLOP]
        nbytes: read and written by both [bytes]
        parameters: elements of the parameters that they are the first to use
        saved_bytes: kept from forward to backward [bytes]
    """

    name: str
    operations: int
    forward: Cost
    backward: Cost
    flops: float
    nbytes: float
    parameters: int
    saved_bytes: float

    @property
    def seconds(self) -> float:
        """Forward and backward [s]."""
        return self.forward.seconds + self.backward.seconds

    @property
    def flops_per_s(self) -> float:
        """Rate of computing that is reached [FLOP/s]; 0 where it takes no time."""
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Rate of moving bytes that is reached [bytes/s]; 0 where it takes no time."""
        return self.nbytes / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What a job's compute costs beside its arithmetic.

    Attributes:
        forward: whole forward over the sum of its operations [1]
        backward: likewise
        operations: number of operations
        small: number of small ones; None where only one batch size was measured
        small_share: their share of forward and backward [0..1]; None likewise
        fixed_share: share of forward and backward that does not depend on the batch [0..1]; None likewise
    """

    forward: Cost
    backward: Cost
    operations: int
    small: int | None
    small_share: float | None
    fixed_share: float | None

    @property
    def is_bound_by_small_operations(self) -> bool:
        """Whether calling operations, rather than what they do, limits the compute."""
        return self.small_share is not None and self.small_share >= BOUND_SHARE


def find_spots(
    graph: Graph, table: CostTable, *, batch: int, form: Form, execution: Execution, by: Grouping
) -> tuple[Spot, ...]:
    """Where forward and backward go, most expensive first.

    Args:
        graph: the job's
        table: measured costs
        batch: samples of a microbatch
        form: how the model runs
        execution: "eager" or "compiled"
        by: what one line stands for

    Raises:
        InputError: the table lacks an operation
    """
    singles = _singles(graph, table, batch=batch, form=form, execution=execution)
    groups: dict[str, list[Spot]] = {}
    for op in graph.ops:
        groups.setdefault(_NAMES[by](op), []).append(singles[op.id])
    spots = [_together(name, members) for name, members in groups.items()]
    return tuple(sorted(spots, key=lambda spot: (-spot.seconds, spot.name)))


def find_overhead(graph: Graph, table: CostTable, *, batch: int, form: Form, execution: Execution) -> Overhead:
    """How much of the compute is host work and calls of operations that are too small.

    Args:
        graph: the job's
        table: measured costs
        batch: samples of a microbatch
        form: how the model runs
        execution: "eager" or "compiled"

    Raises:
        InputError: the table lacks an operation
    """
    context = _context(graph, table, batch=batch, form=form, execution=execution)
    singles = _singles(graph, table, batch=batch, form=form, execution=execution)
    fixed = {op.id: _fixed_share(op, table, batch, execution) for op in graph.ops}
    total_s = math.fsum(spot.seconds for spot in singles.values())
    if not total_s or any(share is None for share in fixed.values()):
        small, small_share, fixed_share = None, None, None
    else:
        names = _small(singles, {name: share or 0.0 for name, share in fixed.items()})
        small = len(names)
        small_share = math.fsum(singles[name].seconds for name in names) / total_s
        fixed_share = math.fsum((share or 0.0) * singles[name].seconds for name, share in fixed.items()) / total_s
    return Overhead(
        forward=context.forward,
        backward=context.backward,
        operations=len(graph.ops),
        small=small,
        small_share=small_share,
        fixed_share=fixed_share,
    )


_NAMES: Mapping[Grouping, Callable[[Op], str]] = {
    "module": lambda op: op.module or ("(loss)" if op.target == "loss" else "(model)"),
    "operation": lambda op: op.id,
    "kind": lambda op: op.target,
}


def _context(graph: Graph, table: CostTable, *, batch: int, form: Form, execution: Execution) -> Context:
    costs = operation_costs(graph, table, batch=batch, execution=execution)
    return context_of(graph, table, costs, batch=batch, form=form, execution=execution)


def _singles(graph: Graph, table: CostTable, *, batch: int, form: Form, execution: Execution) -> dict[str, Spot]:
    """Each operation by itself, by id; a parameter or a storage counts with the first that uses or keeps it."""
    costs = operation_costs(graph, table, batch=batch, execution=execution)
    context = context_of(graph, table, costs, batch=batch, form=form, execution=execution)
    elements = {parameter.name: math.prod(parameter.shape) for parameter in graph.parameters}
    kept = {name: size.at(batch) for name, size in graph.storages.items()}
    singles = {}
    for op in graph.ops:
        singles[op.id] = Spot(
            name=op.id,
            operations=1,
            forward=multiply(costs[op.id].forward, context.forward),
            backward=multiply(costs[op.id].backward, context.backward),
            flops=op.flops.at(batch) + op.backward_flops.at(batch),
            nbytes=op.bytes_moved.at(batch) + op.backward_bytes_moved.at(batch),
            parameters=sum(elements.pop(name, 0) for name in op.parameters),
            saved_bytes=math.fsum(kept.pop(name, 0.0) for name in op.saved),
        )
    return singles


def _together(name: str, members: Sequence[Spot]) -> Spot:
    return Spot(
        name=name,
        operations=len(members),
        forward=_sum([spot.forward for spot in members]),
        backward=_sum([spot.backward for spot in members]),
        flops=math.fsum(spot.flops for spot in members),
        nbytes=math.fsum(spot.nbytes for spot in members),
        parameters=sum(spot.parameters for spot in members),
        saved_bytes=math.fsum(spot.saved_bytes for spot in members),
    )


def _sum(costs: Sequence[Cost]) -> Cost:
    """The sum, as well known as the worst known of those that take time."""
    kinds = {kind_of(cost.source): cost.source for cost in costs if cost.seconds}
    worst = next((kinds[kind] for kind in ("assumed", "analytic", "interpolated") if kind in kinds), None)
    return add(costs, source=worst)


def kind_of(source: str) -> str:
    """First word of a source, which says how a figure came about.

    Example:
        >>> kind_of("measured: 2 ranks busy")
        'measured'
    """
    return source.partition(":")[0]


def _fixed_share(op: Op, table: CostTable, batch: int, execution: str) -> float | None:
    """Share of an operation's time that does not depend on the batch; None where one batch size was measured."""
    points = table.operations.get(OperationKey(op.content, execution)) or table.operations.get(
        OperationKey(op.content, "eager"), {}
    )
    if len(points) < 2:
        return None
    few, many = min(points), max(points)
    at_few, at_many = (points[size].forward.seconds + points[size].backward.seconds for size in (few, many))
    per_sample_s = max(0.0, (at_many - at_few) / (many - few))
    fixed_s = max(0.0, at_few - few * per_sample_s)
    total_s = fixed_s + batch * per_sample_s
    return fixed_s / total_s if total_s else 0.0


def _small(singles: Mapping[str, Spot], fixed: Mapping[str, float]) -> list[str]:
    flops_per_s = max((spot.flops_per_s for spot in singles.values()), default=0.0)
    bytes_per_s = max((spot.bytes_per_s for spot in singles.values()), default=0.0)
    return [
        name
        for name, spot in singles.items()
        if spot.seconds
        and fixed[name] > SMALL_FIXED_SHARE
        and spot.flops_per_s <= SMALL_RATE * flops_per_s
        and spot.bytes_per_s <= SMALL_RATE * bytes_per_s
    ]
