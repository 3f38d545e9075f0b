"""Values that do not depend on data or parameters: causal masks, position ids, tables of a rotary embedding.

They depend only on sizes, on numbers and on buffers that nothing writes. A segment that reads one computes it again
instead of having it sent.
"""

from collections.abc import Collection, Iterator

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram

from trimaran.graph.sizes import is_number

# Operations that read nothing of their tensor but its shape, dtype and device.
_SHAPE_ONLY = frozenset({"new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like"})


def reads_shape_only(node: fx.Node) -> bool:
    """Whether an operation reads nothing of its tensor but its shape, dtype and device."""
    return isinstance(node.target, OpOverload) and node.target._schema.name.rpartition("::")[2] in _SHAPE_ONLY


def mark_constants(program: ExportedProgram, watched: Collection[str]) -> None:
    """Set `meta["constant"]` on every operation of an exported graph.

    A storage that is ever written with something that is not constant is not constant from the start.

    Args:
        program: an exported program
        watched: paths of modules (`meta["module"]`) that have hooks of the user, which want to see what they are called
            with
    """
    graph = program.graph_module.graph
    signature = program.graph_signature
    still = set(signature.inputs_to_buffers) | set(signature.inputs_to_lifted_tensor_constants)
    written = {key for node in graph.nodes for source in written_by(node) for key in _storages(source)}
    spoiled: set[int] = set()
    while True:
        for node in graph.nodes:
            seen = node.op == "call_function" and node.meta["module"] in watched
            node.meta["constant"] = not seen and _is_constant(node, still, written, spoiled)
        before = len(spoiled)
        for node in graph.nodes:
            if not node.meta["constant"]:
                spoiled.update(key for source in written_by(node) for key in _storages(source))
        if len(spoiled) == before:
            return


def written_by(node: fx.Node) -> Iterator[fx.Node]:
    """The arguments that an operation writes in place, by its schema; of a region with a graph inside, all of them."""
    if node.op != "call_function":
        return
    if isinstance(node.target, HigherOrderOperator):
        if any(written for inner in _inner_graphs(node) for part in inner.nodes for written in written_by(part)):
            yield from (source for source in node.all_input_nodes if source.op != "get_attr")
        return
    if not isinstance(node.target, OpOverload):
        return
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            if isinstance(value, fx.Node):
                yield value


def is_random(node: fx.Node) -> bool:
    """Whether an operation draws random numbers."""
    if isinstance(node.target, OpOverload):
        return torch.Tag.nondeterministic_seeded in node.target.tags or "dropout" in str(node.target)
    return any(is_random(part) for inner in _inner_graphs(node) for part in inner.nodes)


def _is_constant(node: fx.Node, still: set[str], written: set[int], spoiled: set[int]) -> bool:
    if node.op == "placeholder":
        return node.name in still and not any(key in written for key in _storages(node))
    if node.op == "get_attr" or is_number(node.meta.get("val")):
        return True
    if node.op != "call_function" or is_random(node) or any(key in spoiled for key in _storages(node)):
        return False
    return reads_shape_only(node) or all(source.meta["constant"] for source in node.all_input_nodes)


def _storages(node: fx.Node) -> list[int]:
    """The storages of the tensors that a node stands for, by the address of torch's record of them."""
    found: list[int] = []

    def visit(value: object) -> None:
        if isinstance(value, torch.Tensor):
            found.append(value.untyped_storage()._cdata)
        elif isinstance(value, tuple | list):
            for part in value:
                visit(part)

    visit(node.meta.get("val"))
    return found


def _inner_graphs(node: fx.Node) -> Iterator[fx.Graph]:
    owner = node.graph.owning_module
    for source in node.all_input_nodes:
        if source.op == "get_attr" and owner is not None:
            inner = getattr(owner, str(source.target), None)
            if isinstance(inner, fx.GraphModule):
                yield inner.graph
