"""One operation of a flow, as the rules of sharing see it: name, arguments, shapes.

A leaf module whose inside is a single operation is seen as that operation.
"""

import ast
from typing import Any

import torch
from torch import fx, nn
from torch._ops import OpOverload

from trimaran.graph.hooks import has_user_hooks
from trimaran.graph.sharding.spread import NotSharedError
from trimaran.graph.walk import Walk, tensors_in

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
        NotSharedError: what is inside cannot be told
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
