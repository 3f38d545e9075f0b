"""Stable names of the operations and tensors of a flow.

An operation is a call of a leaf module or of a tensor function. Items of what it returns, numbers and attributes are
not operations of their own. Names do not depend on what lies inside leaf modules, so that they stay the same across
versions of torch.

Set on the nodes of the flow: `meta["op"]`, the id of the operation that makes the node's value, and `meta["tensor"]`,
the name of the tensor.
"""

import operator
from collections.abc import Sequence

from torch import Tensor, fx
from torch._ops import OpOverload

from trimaran.graph.exports import NotExportableError
from trimaran.graph.flow import hollow
from trimaran.graph.walk import Walk, tensors_in


def name_flow(graph: fx.Graph, inputs: Sequence[str], walk: Walk) -> list[fx.Node]:
    """Name the operations and tensors of a flow.

    Args:
        graph: of the flow; the names are set on its nodes
        inputs: names of the batch's tensors, in the order of the flow's arguments
        walk: a run of it

    Returns:
        The nodes that are operations, in order.
    """
    operations = [node for node in graph.nodes if _is_operation(node, walk)]
    taken = {str(node.meta["call"]) for node in operations if node.op == "call_module"}
    for node in operations:
        node.meta["op"] = str(node.meta["call"]) if node.op == "call_module" else _free_name(_base(node), taken)
        taken.add(node.meta["op"])
    for name, node in zip(inputs, [node for node in graph.nodes if node.op == "placeholder"], strict=True):
        node.meta["tensor"] = name
    for node in operations:
        _name_outputs(node, walk, set(inputs))
    return operations


def _is_operation(node: fx.Node, walk: Walk) -> bool:
    if node.op == "call_module":
        return "call" in node.meta
    return (
        node.op == "call_function"
        and node.target not in (operator.getitem, hollow)
        and bool(tensors_in(walk.values[node]))
    )


def _base(node: fx.Node) -> str:
    if isinstance(node.target, OpOverload):
        return node.target._schema.name.rpartition("::")[2]
    return str(getattr(node.target, "__name__", node.target))


def _free_name(base: str, taken: set[str]) -> str:
    name, number = base, 0
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    return name


def _name_outputs(node: fx.Node, walk: Walk, inputs: set[str]) -> None:
    """A single result has the name of its operation; items have it with their place, as in "lstm:1.0"."""
    if isinstance(walk.values[node], Tensor):
        name = str(node.meta["op"])
        node.meta["tensor"] = f"{name}:0" if name in inputs else name
        return
    pending: list[tuple[fx.Node, str]] = [(node, "")]
    while pending:
        source, place = pending.pop()
        for item in source.users:
            if item.target is not operator.getitem:
                raise NotExportableError(f"{item.name} reads all results of {source.name} at once")
            here = f"{place}.{item.args[1]}" if place else str(item.args[1])
            item.meta["op"] = node.meta["op"]
            if isinstance(walk.values[item], Tensor):
                item.meta["tensor"] = f"{node.meta['op']}:{here}"
            else:
                pending.append((item, here))
