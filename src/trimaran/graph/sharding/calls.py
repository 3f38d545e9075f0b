"""One operation of a flow, as the rules of sharing see it: name, arguments, shapes.

A leaf module whose inside is a single operation is seen as that operation.

How a tensor lies on the ranks that share it, and what views do with that.

A share is always an equal and contiguous part of one dimension, or of each of several sections of it. So a view keeps
a share a share only where the split dimension stays the slowest one of what it is taken apart into or joined from.
"""

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._ops import OpOverload

from trimaran.graph.capture.operations import Walk, tensors_in
from trimaran.user_code.model import has_user_hooks


class NotSharedError(Exception):
    """An operation cannot work on shares; the message is the reason, in one line."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A tensor of which every rank has a share.

    Attributes:
        dim: the dimension that is split
        sections: sizes of its parts that are split each by itself; together the size of the dimension
    """

    dim: int
    sections: tuple[int, ...]

    @property
    def size(self) -> int:
        """Size of the whole dimension."""
        return sum(self.sections)

    @property
    def units(self) -> int:
        """The number of ranks must divide it."""
        return math.gcd(*self.sections)

    def moved(self, dim: int) -> "Spread":
        """The same on another dimension."""
        return Spread(dim, self.sections)


def reshaped(spread: Spread, before: Sequence[int], after: Sequence[int]) -> Spread:
    """How a tensor is spread after a view.

    Args:
        spread: before the view
        before: shape before it
        after: shape after it

    Raises:
        NotSharedError: shares before are not shares after

    Example:
        >>> reshaped(Spread(2, (96,)), (4, 8, 96), (4, 8, 12, 8))
        Spread(dim=2, sections=(12,))
        >>> reshaped(Spread(2, (32, 32, 32)), (4, 8, 96), (4, 8, 3, 4, 8))
        Spread(dim=3, sections=(4,))
        >>> reshaped(Spread(2, (4,)), (4, 8, 4, 8), (4, 8, 32))
        Spread(dim=2, sections=(32,))
    """
    outside = math.prod(before[: spread.dim])
    found = [place for place in range(len(after)) if math.prod(after[:place]) == outside]
    # Of several, those before the last have size 1.
    if not found:
        raise NotSharedError("a view joins the split dimension to the one before it")
    place = found[-1]
    size, new = before[spread.dim], after[place]
    if new == size:
        return spread.moved(place)
    if new > size and new % size == 0:
        return Spread(place, tuple(part * (new // size) for part in spread.sections))
    if new < size and size % new == 0:
        if len(spread.sections) == 1:
            return Spread(place, (new,))
        each = spread.sections[0]
        follows = after[place + 1] if place + 1 < len(after) else 0
        if spread.sections == (each,) * new and follows and each % follows == 0:
            return Spread(place + 1, (follows,))
    raise NotSharedError("a view takes the split dimension apart in another way than its shares")


_ENDLESS = 2**62  # torch's end of a slice that has none is beyond


def mark_shapes(graph: fx.Graph, seen: Walk) -> None:
    """Keep on every node what the rules ask for.

    It is `meta["shape"]`, `meta["wants_gradient"]`, `meta["place"]`, and `meta["order"]` of tensors that do not lie in
    memory as their dimensions are numbered.

    Args:
        graph: of a flow
        seen: a run of it in training
    """
    for place, node in enumerate(graph.nodes):
        node.meta["place"] = place
        value = seen.values.get(node)
        if isinstance(value, torch.Tensor):
            node.meta["shape"] = tuple(value.shape)
            if not value.is_contiguous():
                steps = torch.empty_like(value).stride()  # the user's may have gaps, or be a broadcast
                node.meta["order"] = tuple(sorted(range(len(steps)), key=lambda dim: -steps[dim]))
        node.meta["wants_gradient"] = any(tensor.requires_grad for tensor in tensors_in(value))


def is_tensor(node: fx.Node) -> bool:
    """Whether a node stands for one tensor."""
    return "shape" in node.meta


def place_of(node: fx.Node) -> int:
    """Its place in the flow."""
    place: int = node.meta["place"]
    return place


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Its shape, for the batch with which the flow was looked at."""
    shape: tuple[int, ...] = node.meta["shape"]
    return shape


def dims_in_memory(node: fx.Node) -> tuple[int, ...] | None:
    """Its dimensions as a tensor like it has them in memory, the slowest first; None: as they are numbered."""
    return node.meta.get("order")


def interior(node: fx.Node) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """The operations inside a call of a leaf module: names, arguments (tensors as "_"), keywords.

    Raises:
        NotSharedError: what is inside is not known
    """
    found = []
    for text in node.meta.get("interior", ()):
        target, opening, arguments = text.partition("(")
        if target == "get_attr" or not opening:
            raise NotSharedError(f"{node.target} has {target} inside")
        try:
            positional, keywords = ast.literal_eval(f"({arguments}")
        except (ValueError, SyntaxError):
            positional, keywords = (), {"unknown": True}
        found.append((_plain_name(target.removeprefix("aten.").partition(".")[0]), positional, keywords))
    return found


def operation_name(node: fx.Node, owner: nn.Module) -> str:
    """What a node computes, by torch's name without variants; of a leaf module, its class and what is inside.

    Args:
        node: an operation of a flow
        owner: the flow

    Raises:
        NotSharedError: a module that must be called as it is
    """
    if node.op == "call_module":
        module = owner.get_submodule(str(node.target))
        if has_user_hooks(module):
            raise NotSharedError(f"hooks on {node.target} want whole tensors")
        if any(True for _ in module.parameters()):
            raise NotSharedError(f"{node.target} ({type(module).__name__}) has parameters for whole tensors")
        names = [name for name, _, _ in interior(node)]
        return names[0] if len(names) == 1 else "+".join(names)
    if isinstance(node.target, OpOverload):
        return _plain_name(node.target._schema.name.rpartition("::")[2])
    return str(getattr(node.target, "__name__", node.target))


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """Its arguments by name, with the defaults of its schema; of a leaf module, those of its one operation."""
    schema = overload_of(node)._schema
    if node.op == "call_module":
        _, values, keywords = interior(node)[0]
        tensors = iter(node.all_input_nodes)
        values = tuple(next(tensors, None) if value == "_" else value for value in values)
    else:
        values, keywords = node.args, dict(node.kwargs)
    found: dict[str, Any] = {}
    for position, argument in enumerate(schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        found[argument.name] = values[position] if position < len(values) else keywords.get(argument.name, default)
    return found


def overload_of(node: fx.Node) -> Any:
    """The operation of torch that a node calls; of a leaf module, its one operation."""
    if node.op != "call_module":
        return node.target
    (text,) = node.meta["interior"]
    packet, _, overload = text.partition("(")[0].removeprefix("aten.").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def is_endless(end: Any) -> bool:
    """Whether the end of a slice is the end of its dimension."""
    return end is None or (isinstance(end, int) and end > _ENDLESS)


def _plain_name(name: str) -> str:
    """The name of an operation, for the one that writes in place too."""
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


# ---------------------------------------------------------------------------------------------------------------------
# What the rules of sharing ask of a region that grows, and of the operation before them


Result = Spread | tuple[Spread | None, ...]


@dataclass(frozen=True, slots=True)
class OutsideTensor:
    """A tensor that is whole outside, as an operation inside a region reads it.

    Attributes:
        reader: the operation
        source: the tensor
        spread: the share that it takes; None: the whole
    """

    reader: fx.Node
    source: fx.Node
    spread: Spread | None


@dataclass(frozen=True, slots=True)
class Sized:
    """A size among the arguments of an operation that is divided by the number of ranks.

    Attributes:
        node: the operation
        name: of the argument
        place: in it, where it is a list
    """

    node: fx.Node
    name: str
    place: int | None


class Growing:
    """What splits spread through: a region, or the stream between regions.

    Attributes:
        spreads: how each tensor inside is split
        taken: what is read from outside
        sized: sizes that are divided
    """

    def __init__(self) -> None:
        self.spreads: dict[fx.Node, Result] = {}
        self.taken: list[OutsideTensor] = []
        self.sized: list[Sized] = []

    @property
    def units(self) -> int:
        """The number of ranks must divide it."""
        spreads = [
            part for found in self.spreads.values() for part in (found if isinstance(found, tuple) else (found,))
        ]
        return math.gcd(*(spread.units for spread in spreads if spread is not None))

    def spread(self, node: fx.Node) -> Spread | None:
        """How a tensor is split; None: it is whole."""
        found = self.spreads.get(node)
        return found if isinstance(found, Spread) else None

    def one_of_several(self, node: fx.Node) -> Result | None:
        """How a result is split that is taken out of several; None: the node is another operation.

        Raises:
            NotSharedError: the result is whole
        """
        if str(getattr(node.target, "__name__", "")) != "getitem" or not isinstance(node.args[0], fx.Node):
            return None
        results = self.spreads.get(node.args[0])
        found = results[node.args[1]] if isinstance(results, tuple) and isinstance(node.args[1], int) else None
        if found is None:
            raise NotSharedError(f"{node.name} takes a result that is not split")
        return found

    def join(self, node: fx.Node, source: fx.Node, right: int, sections: tuple[int, ...]) -> None:
        """Want an input split in a dimension counted from the right (-1 is the last), where it has more than one."""
        found, shape = self.spread(source), shape_of(source)
        if found is not None:
            if (found.dim - len(shape), found.sections) != (right, sections):
                raise NotSharedError(f"{node.name} reads two tensors that are split in different ways")
        elif len(shape) < -right or shape[right] == 1:
            self.taken.append(OutsideTensor(node, source, None))
        elif shape[right] != sum(sections):
            raise NotSharedError(f"{node.name} reads a tensor that cannot be split alike")
        else:
            self.check_taken(source)
            self.taken.append(OutsideTensor(node, source, Spread(len(shape) + right, sections)))

    def check_taken(self, source: fx.Node) -> None:
        """Refuse a tensor from outside of which a share would be read."""

    def resize(self, node: fx.Node, name: str, place: int | None = None) -> None:
        """Divide a size among the arguments by the number of ranks."""
        if node.op == "call_module":
            raise NotSharedError(f"{node.target} has sizes of whole tensors")
        self.sized.append(Sized(node, name, place))


Rule = Callable[[Growing, fx.Node], Result]


def leader(growing: Growing, node: fx.Node) -> tuple[fx.Node, Spread]:
    """The first input that is split, and how."""
    for source in node.all_input_nodes:
        found = growing.spread(source) if is_tensor(source) else None
        if found is not None:
            return source, found
    raise NotSharedError(f"{node.name} reads no share")


def lead(growing: Growing, node: fx.Node) -> tuple[fx.Node, Spread, dict[str, Any]]:
    """The only tensor that is read, how it is split, and the arguments."""
    source, spread = leader(growing, node)
    return source, spread, arguments_of(node)


def dim_of(dim: int, source: fx.Node) -> int:
    """A dimension counted from the front."""
    return dim % max(1, len(shape_of(source)))


def dims(node: fx.Node) -> int:
    """Number of dimensions of a tensor."""
    return len(shape_of(node))


def resize_listed(growing: Growing, node: fx.Node, name: str, size: object, place: int) -> None:
    """A size that is written down; one that torch finds (-1) is right as it is."""
    if isinstance(size, fx.Node):
        raise NotSharedError(f"{node.name} computes the size of the split dimension")
    if size != -1:
        growing.resize(node, name, place)


# ---------------------------------------------------------------------------------------------------------------------
# The operations that treat every element by itself, by torch's names without variants


_NAMES = """
    abs add addcdiv addcmul alias alpha_dropout and __and__ __or__ bitwise_and bitwise_or bitwise_not bitwise_xor celu
    ceil clamp clamp_max clamp_min clone contiguous cos detach div dropout elu empty_like eq erf exp expm1 fill float
    floor floor_divide ge gelu gt hardsigmoid hardswish hardtanh isinf isnan le leaky_relu lerp lift_fresh_copy log
    log1p log_sigmoid logical_and logical_not logical_or logical_xor lt masked_fill maximum minimum mish mul
    nan_to_num ne neg ones_like pow reciprocal relu relu6 remainder round rsqrt rsub selu sigmoid sign silu sin
    softplus sqrt square sub tan tanh threshold to _to_copy true_divide type_as where zero zeros_like
"""

ELEMENTWISE = frozenset(_NAMES.split())
