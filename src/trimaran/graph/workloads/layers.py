"""Attention and recurrent layers, each one work: a fused kernel, or a library's call."""

import math
from collections.abc import Iterator

from trimaran.graph.trace.recurrent_names import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    GATES,
    RECURRENT,
)
from trimaran.graph.trace.types import TraceOp
from trimaran.graph.workload import Gradient, Work, WorkKind
from trimaran.graph.workloads.kinds import short_name

_MAKES = {FORWARD: Gradient.NONE, BACKWARD_INPUT: Gradient.INPUT, BACKWARD_WEIGHT: Gradient.WEIGHT}


def is_attention(op: TraceOp) -> bool:
    """Whether an operation is a fused attention, or its backward."""
    return "_scaled_dot_product" in op.name


def is_recurrent(op: TraceOp) -> bool:
    """Whether an operation is a recurrent layer, or a part of its backward."""
    return op.name.rpartition(".")[0] in RECURRENT


def attention(op: TraceOp) -> Iterator[Work]:
    """The work of a fused attention. Its backward makes the gradients of queries, keys and values at once."""
    backward = "backward" in op.name
    (_, query), (_, key) = op.operands[backward : backward + 2]
    batch, heads, queries, size = query
    yield Work(
        kind=WorkKind.ATTENTION,
        phase=op.phase,
        gradient=Gradient.INPUT if backward else Gradient.NONE,
        module=op.module,
        name=f"aten.{short_name(op)}",
        dtype=op.dtype,
        flops=op.flops,
        nbytes=op.nbytes,
        dims=(batch, heads, queries, key[2], size),
        launches=3 if backward else 1,  # the backward sums over rows first, and converts the queries' gradient last
    )


def recurrent(op: TraceOp) -> Iterator[Work]:
    """The work of one recurrent layer of one or both directions.

    Where the state is projected to fewer numbers than the cell has, `flops` counts the projection, `dims` does not.
    """
    name = op.name.rpartition(".")[0]
    cell, part = RECURRENT[name]
    matrices = [shape for _, shape in op.operands if len(shape) == 2]
    steps, batch, _ = op.operands[0][1]
    directions = op.operands[1][1][0]
    rows, width = matrices[0]
    yield Work(
        kind=WorkKind.RECURRENT,
        phase=op.phase,
        gradient=_MAKES[part],
        module=op.module,
        name=name,
        dtype=op.dtype,
        flops=2.0 * steps * batch * sum(map(math.prod, matrices)),
        nbytes=op.nbytes,
        dims=(steps, batch, width, rows // GATES[cell], GATES[cell], directions),
        launches=2 * directions if part == BACKWARD_WEIGHT else (1 + 2 * steps) * directions,
    )
