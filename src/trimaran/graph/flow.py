"""The user's model as a graph over its own leaf modules.

    export, train mode ─▶ sizes from the batch ─▶ constants marked ─▶ leaves folded ─┐
                                                                                    ├─▶ compared ─▶ switches ─▶ flow
    export, eval mode  ─▶ sizes from the batch ─▶ constants marked ─▶ leaves folded ─┘

The flow takes the tensors of a batch by position and returns the tensors of the model's output.
"""

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from trimaran.graph.assemble import assemble
from trimaran.graph.constants import is_random, mark_constants, reads_shape_only, written_by
from trimaran.graph.exports import PREFIX, Exported, NotExportableError, export_model
from trimaran.graph.hooks import has_user_hooks
from trimaran.graph.leaves import drop_marks, fold_leaves, leaf_paths
from trimaran.graph.modes import OtherOperationsError, compare_modes, switch_by_mode
from trimaran.graph.outputs import OutputStructure
from trimaran.graph.sizes import Sizes, check_numbers, compute_sizes_from_batch
from trimaran.job import Job

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


def _fold(exported: Exported, model: nn.Module) -> None:
    program = exported.program
    graph = program.graph_module.graph
    by_name = {node.name: node for node in graph.nodes}
    sizes = compute_sizes_from_batch(graph, tuple(by_name[name] for name in program.graph_signature.user_inputs))
    _drop_checks(graph)
    for node in graph.nodes:
        drop_marks(program.graph_module, node)
    for node in graph.nodes:
        node.meta["module"] = _module_path(node)
    mark_constants(program, {path for path, module in model.named_modules() if has_user_hooks(module)})
    fold_leaves(program)
    for node in graph.nodes:
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


def _read_attributes(exported: Exported, model: nn.Module) -> dict[str, Any]:
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
