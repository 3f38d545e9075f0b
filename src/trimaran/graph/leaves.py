"""The modules that are not looked into, and their calls in an exported graph.

Export unfolds every module into tensor operations, with train or eval burnt in. The calls of leaf modules are folded up
again: their operations give way to one call of the user's own module, so that its parameters, its mode and its hooks
stay alive.
"""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, SymIntArgument, TensorArgument
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from trimaran.graph.exports import PREFIX
from trimaran.graph.sizes import is_number

# Modules of torch whose children are parts of one computation rather than steps in a row.
ATOMIC = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.AdaptiveLogSoftmaxWithLoss)


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is called as a whole: it has no children, or is atomic by its nature."""
    children = dict(module.named_children())
    if parametrize.is_parametrized(module):
        children.pop("parametrizations", None)
    return not children or isinstance(module, ATOMIC)


def leaf_paths(model: nn.Module) -> tuple[str, ...]:
    """Paths of the outermost leaf modules, in the order of the model; the model itself is not one of them."""
    paths: list[str] = []
    for path, module in model.named_modules():
        inside = paths and path.startswith(f"{paths[-1]}.")
        if path and not inside and is_leaf(module):
            paths.append(path)
    return tuple(paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One call of a leaf module in an exported graph."""

    path: str
    name: str
    signature: Any
    members: tuple[fx.Node, ...]


def fold_leaves(program: ExportedProgram) -> list[str]:
    """Replace the operations of each call of a leaf module by one call of the module.

    A `call_module` node keeps in its meta data the path of the module ("path"), the name of the call ("call"), the
    texts of the operations that it stands for ("interior"), and whether it is constant (see
    `trimaran.graph.constants`). A call without operations, such as one of an identity, disappears. A call whose inside
    is read from outside, or whose arguments are not tensors and plain values, stays unfolded.

    Args:
        program: changed in place

    Returns:
        Names of the calls that stay unfolded.
    """
    graph = program.graph_module.graph
    current = {node.name: node for node in graph.nodes}
    return [call.name for call in _calls(program) if not _fold(graph, call, current)]


def drop_marks(owner: fx.GraphModule, node: fx.Node) -> None:
    """Drop the marks of leaf calls from the graph of a region, such as one without gradients.

    Export takes them away only outside of regions. Calls inside stay unfolded.
    """
    inner = getattr(owner, str(node.target), None) if node.op == "get_attr" else None
    if not isinstance(inner, fx.GraphModule):
        return
    for part in list(inner.graph.nodes):
        drop_marks(inner, part)
        if "_export_tracepoint" in str(part.target):
            for item in list(part.users):
                item.replace_all_uses_with(part.args[item.args[1]])
                inner.graph.erase_node(item)
            inner.graph.erase_node(part)
    inner.recompile()


def _calls(program: ExportedProgram) -> list[_Call]:
    """The marked calls that have operations, in the order in which they ran."""
    signatures = {entry.fqn: entry.signature for entry in program.module_call_graph if entry.signature and entry.fqn}
    members: dict[str, list[fx.Node]] = {}
    paths: dict[str, str] = {}
    for node in program.graph_module.graph.nodes:
        if node.op not in ("call_function", "get_attr") or is_number(node.meta.get("val")):
            continue
        for key, (path, _) in node.meta.get("nn_module_stack", {}).items():
            call = path + (f"@{key.rpartition('@')[2]}" if "@" in key and "@" not in path else "")
            if call in signatures:
                members.setdefault(call, []).append(node)
                paths[call] = path.partition("@")[0]
    return [
        _Call(
            path=paths[name].removeprefix(f"{PREFIX}."),
            name=name.removeprefix(f"{PREFIX}."),
            signature=signatures[name],
            members=tuple(nodes),
        )
        for name, nodes in members.items()
    ]


def _fold(graph: fx.Graph, call: _Call, current: dict[str, fx.Node]) -> bool:
    inside = set(call.members)
    outputs = [current.get(output.name) for output in call.signature.outputs if isinstance(output, TensorArgument)]
    made = [node for node in outputs if node in inside]
    passed: dict[fx.Node, fx.Node | None] = {}
    for node in call.members:
        if node not in made and any(user not in inside for user in node.users):
            passed[node] = source_outside(node, inside)
    steps = _access(call.signature.out_spec)
    arguments = _arguments(call, current)
    if arguments is None or steps is None or not made or None in passed.values():
        return False
    with graph.inserting_before(call.members[0]):
        module = graph.create_node("call_module", call.path, *arguments)
    module.meta.update(
        path=call.path,
        call=call.name,
        interior=tuple(_operation_text(node) for node in call.members),
        constant=all(node.meta.get("constant", False) for node in call.members if node.users or node in made),
    )
    for output, path in zip(call.signature.outputs, steps, strict=True):
        result = current.get(output.name) if isinstance(output, TensorArgument) else None
        if result is not None and result in inside:
            passed[result] = _take(graph, module, path, result)
    for node, replacement in passed.items():
        if replacement is not None:
            node.replace_all_uses_with(replacement, delete_user_cb=lambda user: user not in inside)
            current[node.name] = replacement
    for node in reversed(call.members):
        graph.erase_node(node)
    return True


def source_outside(node: fx.Node, inside: set[fx.Node]) -> fx.Node | None:
    """The node outside that is the same tensor: `x.to(dtype)` and in-place operations return what they are given."""
    value = node.meta.get("val")
    for source in node.all_input_nodes:
        if _same_tensor(value, source.meta.get("val")):
            return source_outside(source, inside) if source in inside else source
    return None


def _same_tensor(one: object, other: object) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return (
        one.untyped_storage()._cdata == other.untyped_storage()._cdata
        and one.dtype == other.dtype
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.storage_offset() == other.storage_offset()
    )


def _arguments(call: _Call, current: dict[str, fx.Node]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    values: list[Any] = []
    for argument in call.signature.inputs:
        if isinstance(argument, ConstantArgument):
            values.append(argument.value)
        elif isinstance(argument, TensorArgument | SymIntArgument) and argument.name in current:
            values.append(current[argument.name])
        else:
            return None
    if len(values) != call.signature.in_spec.num_leaves:
        # A call inside of a region, as under torch.no_grad, of which export keeps no signature.
        return None
    arguments, keywords = pytree.tree_unflatten(values, call.signature.in_spec)
    return arguments, keywords


def _access(spec: pytree.TreeSpec) -> list[tuple[Any, ...]] | None:
    """How to reach each output in what the module returns: indexes and keys, one after the other."""
    count = spec.num_leaves
    returned = pytree.tree_unflatten(list(range(count)), spec)
    found: dict[int, tuple[Any, ...]] = {}

    def visit(value: Any, path: tuple[Any, ...]) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                visit(part, (*path, key))
        elif isinstance(value, tuple | list):
            for index, part in enumerate(value):
                visit(part, (*path, index))
        else:
            found[value] = path

    visit(returned, ())
    return [found[number] for number in range(count)] if len(found) == count else None


def _take(graph: fx.Graph, module: fx.Node, path: tuple[Any, ...], output: fx.Node) -> fx.Node:
    """The node of one output: the call itself, or items of what it returns."""
    taken, after = module, module
    for key in path:
        with graph.inserting_after(after):
            taken = after = graph.call_function(operator.getitem, (taken, key))
        taken.meta["constant"] = module.meta["constant"]
    taken.meta["val"] = output.meta.get("val")
    return taken


def _operation_text(node: fx.Node) -> str:
    """An operation without the names of its neighbours: its target and its constant arguments."""
    if node.op == "get_attr":
        return node.op
    arguments = fx.map_arg((node.args, node.kwargs), lambda _: "_")
    return f"{node.target}{arguments}"
