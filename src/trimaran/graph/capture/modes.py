"""Train and eval: one graph that follows the mode of the user's model.

The model is exported in both modes. Where the two graphs run the same operations with other constants (the `training`
flag of a functional dropout, the `dropout_p` of attention), the constant becomes a switch. Where they run other
operations, as with an auxiliary head that only trains, no single graph stands for both.

`contiguous` is no difference: torch does not record it where the tensor already is, which may depend on the mode. The
graph gets the `contiguous` of both modes; where it is not needed it does nothing.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._ops import OpOverload

from trimaran.graph.capture.sizes import is_number

Path = tuple[str | int, ...]

CONTIGUOUS = torch.ops.aten.contiguous.default


class ByMode(nn.Module):
    """Chooses between two constants by the mode of the module of the user to which the operation belongs.

    Args:
        owner: that module; it is not registered here, so that it is not part of any segment's state
    """

    def __init__(self, owner: nn.Module) -> None:
        super().__init__()
        self.owner = (owner,)

    def forward(self, training: Any, evaluation: Any) -> Any:
        """The first in train mode, the second in eval mode."""
        return training if self.owner[0].training else evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeDifference:
    """An argument that differs between the modes.

    Attributes:
        node: the operation, in the graph of train mode
        path: name of the argument, and the indexes below it
        training: its value in train mode
        evaluation: its value in eval mode
    """

    node: fx.Node
    path: Path
    training: Any
    evaluation: Any


class OtherOperationsError(Exception):
    """The two graphs do not run the same operations; the message names the first difference."""


def compare_modes(training: fx.Graph, evaluation: fx.Graph) -> list[ModeDifference]:
    """The constants that differ between the two modes of a model.

    Args:
        training: the graph of train mode; it gets the `contiguous` that only eval mode has
        evaluation: the graph of eval mode

    Raises:
        OtherOperationsError: there is more than constants between them
    """
    comparison = _Comparison(training, evaluation)
    ours, theirs = _operations(training), _operations(evaluation)
    for one, other in zip(ours, theirs, strict=False):
        comparison.compare(one, other)
    if len(ours) != len(theirs):
        raise OtherOperationsError(f"{len(ours)} operations in training, {len(theirs)} in evaluation")
    for user, source in comparison.made_contiguous:
        with training.inserting_before(user):
            made = training.call_function(CONTIGUOUS, (source,))
        made.meta.update(source.meta, module=user.meta.get("module", ""))
        user.replace_input_with(source, made)
    return comparison.differences


def switch_by_mode(
    graph: fx.Graph, differences: list[ModeDifference], model: nn.Module, prefix: str
) -> dict[str, nn.Module]:
    """Put switches in the place of the constants that differ.

    Args:
        graph: of train mode; changed in place
        differences: as `compare_modes` found them
        model: the user's model
        prefix: of the names of the switches

    Returns:
        The switches, by the targets under which the graph calls them.
    """
    switches: dict[str, nn.Module] = {}
    for difference in differences:
        owner = _owner(difference.node, model)
        target = f"{prefix}{len(switches)}"
        switches[target] = ByMode(owner)
        with graph.inserting_before(difference.node):
            chosen = graph.create_node("call_module", target, (difference.training, difference.evaluation))
        chosen.meta["val"] = 0  # a number
        _set_argument(difference.node, difference.path, chosen)
    return switches


class _Comparison:
    def __init__(self, training: fx.Graph, evaluation: fx.Graph) -> None:
        self.differences: list[ModeDifference] = []
        self.made_contiguous: dict[tuple[fx.Node, fx.Node], None] = {}
        inputs = [[node for node in graph.nodes if node.op == "placeholder"] for graph in (training, evaluation)]
        if len(inputs[0]) != len(inputs[1]):
            raise OtherOperationsError("the forward reads other tensors in training than in evaluation")
        self._partners: dict[fx.Node, fx.Node] = dict(zip(*inputs, strict=True))

    def compare(self, one: fx.Node, other: fx.Node) -> None:
        if one.op != other.op or (one.target != other.target and one.op != "output"):
            raise OtherOperationsError(f"{_title(one)} in training, {_title(other)} in evaluation")
        self._partners[one] = other
        ours, theirs = _arguments(one), _arguments(other)
        for name in {**ours, **theirs}:
            self._compare(one, (name,), ours.get(name), theirs.get(name))

    def _compare(self, node: fx.Node, path: Path, one: Any, other: Any) -> None:
        if isinstance(one, fx.Node) and isinstance(other, fx.Node):
            ours, theirs = _before_contiguous(one), _before_contiguous(other)
            if not self._same_source(ours, theirs):
                raise OtherOperationsError(f"{_title(node)} reads other values in training than in evaluation")
            if theirs is not other and ours is one:
                self.made_contiguous[node, one] = None
        elif isinstance(one, tuple | list) and isinstance(other, tuple | list) and len(one) == len(other):
            for index, (part, counterpart) in enumerate(zip(one, other, strict=True)):
                self._compare(node, (*path, index), part, counterpart)
        elif isinstance(one, bool | int | float) and isinstance(other, bool | int | float):
            if one != other and not (one != one and other != other):
                self.differences.append(ModeDifference(node=node, path=path, training=one, evaluation=other))
        elif one != other:
            raise OtherOperationsError(f"{_title(node)} has other arguments in training than in evaluation")

    def _same_source(self, one: fx.Node, other: fx.Node) -> bool:
        if one in self._partners:
            return self._partners[one] is other
        if one.op != other.op:
            return False
        if one.op == "get_attr":
            return _same_attribute(one, other)
        numbers = is_number(one.meta.get("val")) and is_number(other.meta.get("val"))
        return numbers and one.target == other.target and self._same_numbers(one.args, other.args)

    def _same_numbers(self, ours: Any, theirs: Any) -> bool:
        return len(ours) == len(theirs) and all(
            self._same_source(one, other) if isinstance(one, fx.Node) and isinstance(other, fx.Node) else one == other
            for one, other in zip(ours, theirs, strict=True)
        )


def _operations(graph: fx.Graph) -> list[fx.Node]:
    return [
        node
        for node in graph.nodes
        if node.op in ("call_function", "call_module", "output")
        and node.target is not CONTIGUOUS
        and not is_number(node.meta.get("val"))
    ]


def _before_contiguous(node: fx.Node) -> fx.Node:
    while node.target is CONTIGUOUS:
        node = node.all_input_nodes[0]
    return node


def _arguments(node: fx.Node) -> dict[str, Any]:
    """All arguments by name, defaults included: export leaves out those that have their default value."""
    if not isinstance(node.target, OpOverload):
        return {**{str(index): value for index, value in enumerate(node.args)}, **node.kwargs}
    named = {}
    for index, argument in enumerate(node.target._schema.arguments):
        if index < len(node.args):
            named[argument.name] = node.args[index]
        else:
            named[argument.name] = node.kwargs.get(argument.name, argument.default_value)
    return named


def _set_argument(node: fx.Node, path: Path, value: fx.Node) -> None:
    name, *inner = path
    positions = {key: index for index, key in enumerate(_arguments(node))}
    changed = _replaced(_arguments(node)[str(name)], inner, value)
    if positions[str(name)] < len(node.args):
        node.update_arg(positions[str(name)], changed)
    else:
        node.update_kwarg(str(name), changed)


def _replaced(current: Any, path: list[str | int], value: fx.Node) -> Any:
    if not path:
        return value
    parts = list(current)
    parts[int(path[0])] = _replaced(parts[int(path[0])], path[1:], value)
    return parts


def _same_attribute(one: fx.Node, other: fx.Node) -> bool:
    """Attributes of the model are the same by name; graphs of regions, such as those without gradients, by content."""
    ours, theirs = (getattr(node.graph.owning_module, str(node.target), None) for node in (one, other))
    if not isinstance(ours, fx.GraphModule) or not isinstance(theirs, fx.GraphModule):
        return one.target == other.target
    try:
        return not compare_modes(ours.graph, theirs.graph)
    except OtherOperationsError:
        return False


def _owner(node: fx.Node, model: nn.Module) -> nn.Module:
    """The module that an operation belongs to; of a slice of a `ModuleList`, which has no path, what it is in."""
    path: str = node.meta.get("module", "")
    while path:
        try:
            return model.get_submodule(path)
        except AttributeError:
            path = path.rpartition(".")[0]
    return model


def _title(node: fx.Node) -> str:
    return str(node.meta.get("call") or node.target)
