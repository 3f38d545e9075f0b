"""What operations on shares draw: the tensor of random numbers that one process would draw for the whole.

A rank draws all of it, as every other rank of its group does, and keeps its share.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx, nn

from trimaran.graph.capture.flow import is_random
from trimaran.graph.sharding.calls import (
    NotSharedError,
    Spread,
    arguments_of,
    dims_in_memory,
    interior,
    is_tensor,
    operation_name,
    shape_of,
)

LIKE = frozenset({"rand_like", "randn_like"})
"""Draws of the size of a tensor."""

BY_CHANNEL = frozenset({"feature_dropout", "feature_alpha_dropout"})
"""Draws of one number for each sample and channel: [samples, channels, 1, ...]."""

_BY_ELEMENT = frozenset({"dropout", "alpha_dropout"})
_DRAWING = LIKE | BY_CHANNEL | _BY_ELEMENT | {"bernoulli"}
_ATTENTION = "scaled_dot_product_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Random numbers that are drawn for a whole tensor.

    Attributes:
        right: the dimension that is split, counted from the right (-1 is the last)
        sections: of it that are split each by itself
        order: its dimensions as they lie in memory in one process, the slowest first, because a generator fills memory
            in that order; None: as they are numbered
        attention: it is drawn inside of `scaled_dot_product_attention`
    """

    right: int
    sections: tuple[int, ...]
    order: tuple[int, ...] | None = None
    attention: bool = False


class Spreading(Protocol):
    """What tells how tensors are split: a region, or the stream between regions."""

    def spread(self, node: fx.Node) -> Spread | None:
        """How a tensor is split; None: it is whole."""


def draw_of(spreading: Spreading, node: fx.Node, owner: nn.Module) -> Draw | None:
    """What an operation on a share draws; None: nothing, or the same for every share.

    Args:
        spreading: has the operation
        node: the operation
        owner: the flow
    """
    if not may_draw(node, owner):
        return None
    name = operation_name(node, owner)
    if name == _ATTENTION:
        query = arguments_of(node)["query"]
        spread = _spread(spreading, query)
        right = spread.dim - len(shape_of(query))
        return Draw(right=right, sections=spread.sections, attention=True)
    spread = _spread(spreading, node)
    draw = Draw(right=spread.dim - len(shape_of(node)), sections=spread.sections)
    if name in BY_CHANNEL:
        return draw if spread.dim < 2 else None
    source = next(part for part in node.all_input_nodes if is_tensor(part))
    return Draw(right=draw.right, sections=draw.sections, order=dims_in_memory(source))


def may_draw(node: fx.Node, owner: nn.Module) -> bool:
    """Whether an operation may draw; a module may by its present settings draw nothing.

    Args:
        node: of a flow
        owner: the flow
    """
    if node.op == "call_module":
        return draws_inside(node)
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload) or not is_random(node):
        return False
    return _draws_by_arguments(node, owner)


def draws_in_training(node: fx.Node, owner: nn.Module) -> bool:
    """Whether an operation draws in training, as it was captured.

    Args:
        node: of a flow
        owner: the flow
    """
    if not may_draw(node, owner):
        return False
    return (node.op == "call_module" and len(interior(node)) > 1) or _draws_by_arguments(node, owner)


def _draws_by_arguments(node: fx.Node, owner: nn.Module) -> bool:
    name, given = operation_name(node, owner), arguments_of(node)
    if name == _ATTENTION:
        return not _is(given["dropout_p"], 0.0)
    return not ("dropout" in name and (_is(given.get("p"), 0.0) or _is(given.get("train"), 0.0)))


def check_drawn_alike(node: fx.Node) -> None:
    """Refuse a module of several operations that draws for other shapes than that of its result.

    Args:
        node: a call of a module

    Raises:
        NotSharedError: it is not told what is drawn for a share, and what for a whole tensor
    """
    names = [name for name, _, _ in interior(node)]
    if len(names) < 2 or not any(name in _DRAWING for name in names):
        return
    if any(not is_tensor(part) or shape_of(part) != shape_of(node) for part in node.all_input_nodes):
        raise NotSharedError(f"{node.target} draws random numbers for tensors of several shapes")


def draws_inside(node: fx.Node) -> bool:
    """Whether one of the operations inside a module draws."""
    return any(name in _DRAWING or name == _ATTENTION for name, _, _ in interior(node))


def _spread(spreading: Spreading, node: fx.Node) -> Spread:
    found = spreading.spread(node)
    if found is None:
        raise NotSharedError(f"{node.name} draws for what is not split")
    return found


def _is(value: Any, wanted: float) -> bool:
    """Whether an argument is this number, rather than another one or one that a switch chooses."""
    return isinstance(value, bool | int | float) and value == wanted
