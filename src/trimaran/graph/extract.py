"""Some operations of a flow as a module of their own, over the batch size and tensors by position.

What the operations read is given, or can be computed again: sizes, attributes of the model, and constants (masks,
position ids) with everything that writes them.
"""

from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor, fx, nn

from trimaran.errors import TrimaranError
from trimaran.graph.assemble import assemble, move_constants
from trimaran.graph.flow import RESERVED
from trimaran.graph.untouched import device_of


def extract(
    model: nn.Module,
    flow: fx.GraphModule,
    operations: Collection[str],
    given: Sequence[str],
    made: Sequence[str],
    outputs: Sequence[fx.Node],
) -> fx.GraphModule:
    """A module that runs some operations of a flow, where the model is now.

    Args:
        model: the user's model
        flow: its flow
        operations: ids of the operations
        given: names of the tensors that it is called with, after the batch size
        made: names of the tensors that it returns first
        outputs: nodes of the flow whose values it returns after them
    """
    nodes = list(flow.graph.nodes)
    by_name = {node.meta["tensor"]: node for node in nodes if "tensor" in node.meta}
    graph = fx.Graph()
    batch = graph.placeholder("batch")
    copies: dict[fx.Node, Any] = {
        by_name[name]: graph.placeholder(f"tensor_{place}") for place, name in enumerate(given)
    }
    wanted = [by_name[name] for name in made] + list(outputs)
    own = [node for node in nodes if node.meta.get("op") in operations and not node.meta.get("constant")]
    read = [*wanted, *(source for node in own for source in node.all_input_nodes)]
    needed = _repeated(read, set(own) | set(copies), nodes) | set(own)
    for node in nodes:
        if node in copies or node not in needed:
            continue
        copies[node] = batch if node.meta.get("batch") else graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in wanted))
    move_constants(graph, device_of(model))
    extras = {name: _attribute(flow, name) for name in _targets(graph) if name.startswith(RESERVED)}
    return assemble(model, graph, extras)


def _repeated(read: Sequence[fx.Node], known: set[fx.Node], nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """What is read and can be computed again: numbers, attributes, constants, and what writes those constants."""
    writers: dict[fx.Node, list[fx.Node]] = {}
    for node in nodes:
        for written in node.meta.get("rewrites", ()):
            writers.setdefault(written, []).append(node)
    found: set[fx.Node] = set()
    pending = list(read)
    while pending:
        node = pending.pop()
        if node in known or node in found:
            continue
        if node.op == "placeholder" or ("op" in node.meta and not node.meta.get("constant")):
            raise TrimaranError(
                f"a segment reads {node.name}, which it is not given: a defect in the capture of this model"
            )
        found.add(node)
        if not node.meta.get("batch"):
            pending += [*node.all_input_nodes, *writers.get(node, [])]
    return found


def _targets(graph: fx.Graph) -> set[str]:
    return {str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")}


def _attribute(flow: fx.GraphModule, name: str) -> Any:
    value = getattr(flow, name)
    return value.to(device_of(flow)) if isinstance(value, Tensor) else value
