"""The user's model as a graph over its own leaf modules.

    export, train mode ─▶ sizes from the batch ─▶ constants marked ─▶ leaves folded ─┐
                                                                                    ├─▶ compared ─▶ switches ─▶ flow
    export, eval mode  ─▶ sizes from the batch ─▶ constants marked ─▶ leaves folded ─┘

The flow takes the tensors of a batch by position and returns the tensors of the model's output.

The modules that are not looked into, and their calls in an exported graph.

Export unfolds every module into tensor operations, with train or eval burnt in. The calls of leaf modules are folded up
again: their operations give way to one call of the user's own module, so that its parameters, its mode and its hooks
stay alive.

Values that do not depend on data or parameters: causal masks, position ids, tables of a rotary embedding.

They depend only on sizes, on numbers and on buffers that nothing writes. A segment that reads one computes it again
instead of having it sent.
"""

import operator
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, SymIntArgument, TensorArgument
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from trimaran.base.job import Job
from trimaran.graph.capture.export import PREFIX, ExportedModel, NotExportableError, OutputStructure, export_model
from trimaran.graph.capture.modes import OtherOperationsError, compare_modes, switch_by_mode
from trimaran.graph.capture.sizes import Sizes, check_numbers, compute_sizes_from_batch, is_number
from trimaran.graph.types import ROOT
from trimaran.user_code.model import has_user_hooks

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
    texts of the operations that it stands for ("interior"), and whether it is constant. A
    call without operations, such as one of an identity, disappears. A call whose inside is read from outside, or whose
    arguments are not tensors and plain values, stays unfolded.

    Args:
        program: changed in place

    Returns:
        Names of the calls that stay unfolded.
    """
    graph = program.graph_module.graph
    current = {node.name: node for node in graph.nodes}
    return [call.name for call in _calls(program) if not _fold_call(graph, call, current)]


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
            call = _call_name(key, path)
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


def _fold_call(graph: fx.Graph, call: _Call, current: dict[str, fx.Node]) -> bool:
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
        origins=tuple(dict.fromkeys([call.name, *(_call_of(node) for node in call.members)])),
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


# ---------------------------------------------------------------------------------------------------------------------
# A graph over the user's own modules, parameters and buffers, as a module


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

    Raises:
        NotExportableError: some of it runs under a transform of torch.func
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
            if torch._C._functorch.is_functorch_wrapped_tensor(value):
                raise NotExportableError("it computes under a transform of torch.func, such as vmap")
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


RESERVED = "_trimaran_"  # first letters of the names in a flow that are not the user's

# Checks of what held when the model was exported. They would refuse another precision, and say nothing about the batch.
_CHECKS = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range", "_functional_assert")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The exported model.

    Attributes:
        module: runs it over the user's leaf modules
        inputs: names of the batch's tensors, in the order of its arguments
        structure: of the model's output
        notes: what is restricted
        one_for_both_modes: False where it stands for train mode only
    """

    module: fx.GraphModule
    inputs: tuple[str, ...]
    structure: OutputStructure
    notes: tuple[str, ...] = ()
    one_for_both_modes: bool = True


def make_flow(job: Job, model: nn.Module, batch: Any) -> Flow:
    """Export the model and fold it up.

    Args:
        job: the job
        model: its model, which is left as it was
        batch: a few samples

    Raises:
        NotExportableError: the model cannot be exported; with the reason
    """
    leaves = leaf_paths(model)
    exported = export_model(job, model, batch, leaves, training=True)
    _fold(exported, model)
    graph = exported.program.graph_module.graph
    notes = [f"segments leave {name} out of the model's output" for name in exported.structure.dropped]
    switches: dict[str, nn.Module] = {}
    both = True
    if exported.asks_mode:
        try:
            evaluation = export_model(job, model, batch, leaves, training=False)
            _fold(evaluation, model)
            differences = compare_modes(graph, evaluation.program.graph_module.graph)
            switches = switch_by_mode(graph, differences, model, f"{RESERVED}switch_")
        except (NotExportableError, OtherOperationsError) as error:
            both = False
            notes.append(f"no pipeline: the forward does other things in training than in evaluation ({error})")
    extras = {**switches, **_read_attributes(exported, model)}
    module = assemble(model, graph, extras)
    return Flow(
        module=module, inputs=exported.inputs, structure=exported.structure, notes=tuple(notes), one_for_both_modes=both
    )


def hollow(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor with no content, for what reads nothing of an argument but its shape, dtype and device."""
    return torch.zeros((), dtype=dtype, device=device).expand(shape)


def _fold(exported: ExportedModel, model: nn.Module) -> None:
    program = exported.program
    graph = program.graph_module.graph
    by_name = {node.name: node for node in graph.nodes}
    sizes = compute_sizes_from_batch(graph, tuple(by_name[name] for name in program.graph_signature.user_inputs))
    _drop_checks(graph)
    for node in graph.nodes:
        drop_marks(program.graph_module, node)
    for node in graph.nodes:
        node.meta["module"] = _module_path(node)
        node.meta["origins"] = (_origin(node),)
    shared = _calls_of_shared(graph, model)
    mark_constants(program, {path for path, module in model.named_modules() if has_user_hooks(module)})
    fold_leaves(program)
    for node in graph.nodes:
        calls = (origin.partition("/") for origin in node.meta.get("origins", ()))
        node.meta["origins"] = tuple(shared.get(call, call) + slash + function for call, slash, function in calls)
        if node.op == "call_module":
            node.meta["module"] = node.meta["path"]
        if node.meta["constant"] and (node.op == "call_module" or reads_shape_only(node)):
            _hollow_arguments(graph, node, sizes)
    _drop_dead_code(graph)
    check_numbers(graph)


def _module_path(node: fx.Node) -> str:
    """The innermost module of the user's model to which an operation belongs."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = str(stack[-1][0]).partition("@")[0] if stack else PREFIX
    return path.removeprefix(PREFIX).removeprefix(".") if path.startswith(PREFIX) else ""


def _call_name(key: str, path: str) -> str:
    """The call of a module by its entry in a stack of modules: the path, and from the second call on its number."""
    return path + (f"@{key.rpartition('@')[2]}" if "@" in key and "@" not in path else "")


def _call_of(node: fx.Node) -> str:
    """The call of the innermost module that an operation belongs to, as `TraceOp.origin` has it."""
    stack = list(node.meta.get("nn_module_stack", {}).items())
    call = _call_name(stack[-1][0], str(stack[-1][1][0])) if stack else PREFIX
    return call.removeprefix(PREFIX).removeprefix(".") or ROOT


def _calls_of_shared(graph: fx.Graph, model: nn.Module) -> dict[str, str]:
    """Calls of modules that have several names, as a trace names them: by the first name, numbered over all of them."""
    first: dict[int, str] = {}
    names = {path: first.setdefault(id(part), path) for path, part in model.named_modules(remove_duplicate=False)}
    shared = {names[path] for path in names if names[path] != path}
    calls: dict[str, dict[str, None]] = {}
    for node in graph.nodes:
        call = _call_of(node)
        name = names.get(call.partition("@")[0])
        if name in shared:
            calls.setdefault(name, {})[call] = None
    return {
        call: f"{name}@{number}" if number else name
        for name, found in calls.items()
        for number, call in enumerate(found)
    }


def _origin(node: fx.Node) -> str:
    """The call of a module and the torch function that an operation belongs to, as `TraceOp.origin` has it."""
    if "torch_fn" not in node.meta:
        return _call_of(node)
    numbered, function = node.meta["torch_fn"]
    return f"{_call_of(node)}/{function}_{numbered.rpartition('_')[2]}"


def _drop_checks(graph: fx.Graph) -> None:
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users and any(check in str(node.target) for check in _CHECKS):
            graph.erase_node(node)


def _hollow_arguments(graph: fx.Graph, node: fx.Node, sizes: Sizes) -> None:
    """A constant call reads no data, so a segment can repeat it without the tensors that it was called with."""
    for source in node.all_input_nodes:
        value = source.meta.get("val")
        if source.meta.get("constant") or not isinstance(value, Tensor):
            continue
        with graph.inserting_before(node):
            shape = tuple(sizes.node(size) for size in value.shape)
            stand_in = graph.call_function(hollow, (shape, value.dtype, value.device))
        stand_in.meta.update(val=value, constant=True, module=node.meta["module"])
        node.replace_input_with(source, stand_in)


def _drop_dead_code(graph: fx.Graph) -> None:
    """Drop what nothing reads and what has no effect. Modules stay, as they may have one; so do random operations."""
    for node in reversed(graph.nodes):
        if node.users or node.op not in ("call_function", "get_attr") or node.meta.get("batch"):
            continue
        if node.op == "call_function" and (is_random(node) or any(True for _ in written_by(node))):
            continue
        graph.erase_node(node)


def _read_attributes(exported: ExportedModel, model: nn.Module) -> dict[str, Any]:
    """Turn lifted parameters, buffers and constants into attributes of the model.

    Returns:
        What the model itself does not have: constants made in the forward, and the graphs of regions.
    """
    program = exported.program
    graph = program.graph_module.graph
    signature = program.graph_signature
    extras: dict[str, Any] = {}
    paths = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    for node in [node for node in graph.nodes if node.op == "placeholder" and node.name in paths]:
        target = paths[node.name].removeprefix(f"{PREFIX}.")
        if node.name in signature.inputs_to_lifted_tensor_constants and not _has(model, target):
            extras[f"{RESERVED}constant_{len(extras)}"] = program.constants[paths[node.name]]
            target = f"{RESERVED}constant_{len(extras) - 1}"
        if node.users:
            with graph.inserting_after(last):
                read = graph.create_node("get_attr", target)
            read.meta.update(node.meta)
            node.replace_all_uses_with(read)
        graph.erase_node(node)
    for number, node in enumerate([node for node in graph.nodes if node.op == "get_attr" and "val" not in node.meta]):
        extras[f"{RESERVED}region_{number}"] = getattr(program.graph_module, str(node.target))
        node.target = f"{RESERVED}region_{number}"
    _return_tuple(graph)
    return extras


def _has(model: nn.Module, path: str) -> bool:
    try:
        operator.attrgetter(path)(model)
    except AttributeError:
        return False
    return True


def _return_tuple(graph: fx.Graph) -> None:
    output = next(iter(reversed(graph.nodes)))
    returned = output.args[0]
    output.args = (tuple(returned) if isinstance(returned, tuple | list) else (returned,),)
