"""A graph over the user's own modules, parameters and buffers, as a module."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from trimaran.graph.exports import NotExportableError


def assemble(model: nn.Module, graph: fx.Graph, extras: Mapping[str, Any]) -> fx.GraphModule:
    """A module that runs a graph, with the names of the user's model.

    The modules, parameters and buffers that the graph reads are the user's objects under the user's paths; nothing else
    of the model is in it. Its `state_dict` is therefore the part of the model's that the graph uses.

    Args:
        model: the user's model
        graph: its targets are paths in the model or keys of `extras`
        extras: modules and tensors that the user's model does not have; they are not part of the state

    Returns:
        The module; it runs `graph` itself, not a copy.

    Raises:
        NotExportableError: a module of the user has a name that a graph module needs for itself
    """
    module = fx.GraphModule(nn.Module(), _empty_graph())
    targets = {str(node.target): node.op for node in graph.nodes if node.op in ("call_module", "get_attr")}
    for target in sorted(targets, key=lambda path: (path.count("."), path)):
        first = target.partition(".")[0]
        if hasattr(fx.GraphModule, first):
            raise NotExportableError(f'the model has a part named "{first}", a name that torch.fx keeps for itself')
        value, persistent = (extras[target], False) if target in extras else _find(model, target)
        _place(module, target, value, persistent, model)
    module.graph = graph
    return module


def move_constants(graph: fx.Graph, device: torch.device) -> None:
    """Make the operations that name a device name this one: masks and ids are made where the model is."""

    def moved(value: Any) -> Any:
        if isinstance(value, torch.device):
            return device
        if isinstance(value, tuple | list):
            return type(value)([moved(part) for part in value])
        return value

    for node in graph.nodes:
        node.args = tuple(moved(value) for value in node.args)
        node.kwargs = {key: moved(value) for key, value in node.kwargs.items()}


def _empty_graph() -> fx.Graph:
    graph = fx.Graph()
    graph.output(())
    return graph


def _find(model: nn.Module, target: str) -> tuple[Any, bool]:
    """What is at a path of the model, and whether it is part of the model's state."""
    parent, _, name = target.rpartition(".")
    owner = model.get_submodule(parent)
    return getattr(owner, name), name in owner._buffers and name not in owner._non_persistent_buffers_set


def _place(root: nn.Module, target: str, value: Any, persistent: bool, model: nn.Module) -> None:
    """Put a value at a path. The registries are written directly: `setattr` would refuse names such as "forward"."""
    *path, name = target.split(".")
    owner = root
    for depth, step in enumerate(path):
        if step not in owner._modules:
            owner._modules[step] = nn.Module()
        owner = owner._modules[step]  # type: ignore[assignment]
        if owner is model.get_submodule(".".join(path[: depth + 1])):
            return  # inside one of the user's own modules, where the value is already
    if isinstance(value, nn.Module):
        owner._modules[name] = value
    elif isinstance(value, nn.Parameter):
        owner._parameters[name] = value
    elif isinstance(value, Tensor):
        owner._buffers[name] = value
        if not persistent:
            owner._non_persistent_buffers_set.add(name)
