"""A part of a captured model as a module: the user's leaf modules and the operations between them.

    values by name ─▶ Segment ─▶ body(batch size, *tensors) ─▶ tensors for other segments; on the last, the output

The body is a graph over tensors by position, so that torch.compile takes it in one piece. What a segment can compute
again (masks, position ids, sizes) it does; everything else that it reads is sent to it or fed to it.

Some operations of a flow as a module, over the batch size and tensors by position.

What the operations read is given, or can be computed again: sizes, attributes of the model, and constants (masks,
position ids) with everything that writes them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from trimaran.base.errors import InputError, TrimaranError
from trimaran.graph.capture.capture import Capture
from trimaran.graph.capture.export import OutputStructure
from trimaran.graph.capture.flow import RESERVED, assemble, move_constants
from trimaran.graph.types import Op, TensorSpec
from trimaran.user_code.model import device_of


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


class Segment(nn.Module):
    """A part of the user's model.

    Its modules, parameters and buffers are the user's own objects under the user's names; so are the names in its
    `state_dict`. `train()` and `eval()` are those of the user's whole model, so that what the user's own `train()` does
    (such as to keep batch norms frozen) holds here too.

    Attributes:
        reads: names of the tensors that it gets from other segments
        inputs: names of the batch's tensors that it needs
        writes: names of the tensors that other segments read
        is_last: it also returns the model's output, in the structure that the user's model returns
        body: the graph that it runs, over the batch size and the tensors `reads` and `inputs` by position
    """

    reads: tuple[str, ...]
    inputs: tuple[str, ...]
    writes: tuple[str, ...]
    is_last: bool
    body: fx.GraphModule

    def __init__(
        self,
        *,
        model: nn.Module,
        body: fx.GraphModule,
        reads: Sequence[TensorSpec],
        inputs: Sequence[TensorSpec],
        writes: Sequence[str],
        structure: OutputStructure | None,
    ) -> None:
        super().__init__()
        own: dict[str, Any] = {
            "reads": tuple(spec.name for spec in reads),
            "inputs": tuple(spec.name for spec in inputs),
            "writes": tuple(writes),
            "is_last": structure is not None,
            "body": body,
            "_model": model,
            "_specs": (*reads, *inputs),
            "_structure": structure,
            "_run": body,
        }
        # Past nn.Module's registries: the body must not appear in the names of the state, and the user's model may well
        # have a part named "inputs".
        self.__dict__.update(own, training=model.training)
        self._modules.update(body._modules)
        self._parameters.update(body._parameters)
        self._buffers.update(body._buffers)
        self._non_persistent_buffers_set.update(body._non_persistent_buffers_set)

    def forward(self, values: Mapping[str, Tensor], batch: int) -> tuple[dict[str, Tensor], Any]:
        """Run this part of the model.

        Args:
            values: the tensors `reads` and `inputs` by name; others are ignored
            batch: number of samples

        Returns:
            The tensors `writes` by name, and the model's output on the last segment, None on the others.

        Raises:
            InputError: a tensor is missing, or its shape is not the one that the model was captured with
        """
        tensors = [self._checked(values, spec) for spec in self.__dict__["_specs"]]
        results = self.__dict__["_run"](batch, *tensors)
        count = len(self.writes)
        structure = self.__dict__["_structure"]
        output = structure.rebuild(results[count:]) if structure is not None else None
        return dict(zip(self.writes, results[:count], strict=True)), output

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Run the body through `torch.compile` from now on; the arguments are those of `torch.compile`."""
        self.__dict__["_run"] = torch.compile(self.body, *arguments, **options)

    @property
    def whole(self) -> nn.Module:
        """The user's whole model, of which this is a part."""
        model: nn.Module = self.__dict__["_model"]
        return model

    def train(self, mode: bool = True) -> "Segment":
        """Set the mode of the user's whole model, in the way of the user's model."""
        self.__dict__["_model"].train(mode)
        self.training = mode
        return self

    def _checked(self, values: Mapping[str, Tensor], spec: TensorSpec) -> Tensor:
        tensor = values.get(spec.name)
        if tensor is None:
            raise InputError(
                f'the segment reads "{spec.name}", and it was given {", ".join(sorted(values)) or "nothing"}',
                code="segment.missing-input",
            )
        fixed = [(place, size) for place, size in enumerate(spec.shape) if isinstance(size, int)]
        if tensor.dim() != len(spec.shape) or any(tensor.shape[place] != size for place, size in fixed):
            raise InputError(
                f'"{spec.name}" has shape {tuple(tensor.shape)}; the model was captured with {list(spec.shape)}, where '
                "only the batch size B may change: pad the samples to one length in Job.collate, or train without a "
                "pipeline",
                code="segment.wrong-shape",
                shape=tuple(tensor.shape),
            )
        return tensor


def build_segment(capture: Capture, boundaries: Iterable[str], index: int) -> Segment:
    """One segment of a model that is split into a chain.

    Build it after the model has moved to its device.

    Args:
        capture: of the job
        boundaries: ids of the last operations of every segment but the last (`Graph.split_points`), in order
        index: number of the segment

    Raises:
        InputError: the model has no graph, a boundary is no split point, or there is no such segment
    """
    boundaries = tuple(boundaries)
    _flow(capture)
    order = {name: place for place, name in enumerate(capture.graph.split_points)}
    places = [order.get(name, -1) for name in boundaries]
    if -1 in places or places != sorted(set(places)):
        raise InputError(
            f"boundaries must be operations after which the model may be split, in order; got {list(boundaries)}",
            code="segment.bad-boundaries",
        )
    return build_part(capture, capture.graph.parts(boundaries), index)


def build_part(capture: Capture, parts: Sequence[Sequence[Op]], index: int) -> Segment:
    """One segment of a model whose operations are dealt out in any way that can run.

    A parameter or module that several segments use is one object in all of them. What others read is returned when the
    segment has ended, so the operations between two neighbouring split points of the graph, which may write into each
    other's results, must be in one part; `check_strategy` of `program.rules.fits_graph` sees to that.

    Args:
        capture: of the job
        parts: operations of each segment
        index: number of the segment

    Raises:
        InputError: the model has no graph, or there is no such segment
    """
    flow = _flow(capture)
    graph = capture.graph
    if not 0 <= index < len(parts):
        raise InputError(
            f"there are {len(parts)} segments, numbered from 0; got {index}",
            code="segment.no-such-segment",
            index=index,
        )
    operations = {op.id for op in parts[index]}
    exchanged = graph.exchanged(parts)
    is_last = graph.ops[-1].id in operations
    read = {spec.name for (_, consumer), specs in exchanged.items() if consumer == index for spec in specs}
    needed = {spec.name for (producer, _), specs in exchanged.items() if producer == index for spec in specs}
    reads = [spec for op in graph.ops for spec in op.outputs if spec.name in read]
    writes = [spec.name for op in parts[index] for spec in op.outputs if spec.name in needed]
    nodes = list(flow.graph.nodes)
    outputs = list(nodes[-1].args[0]) if is_last else []
    fed = _fed(nodes, operations, outputs)
    inputs = [spec for spec in graph.inputs if spec.name in fed]
    given = [*(spec.name for spec in reads), *(spec.name for spec in inputs)]
    body = extract(capture.model, flow, operations, given, writes, outputs)
    return Segment(
        model=capture.model,
        body=body,
        reads=reads,
        inputs=inputs,
        writes=writes,
        structure=capture.structure if is_last else None,
    )


def _flow(capture: Capture) -> fx.GraphModule:
    if capture.flow is None:
        raise InputError(
            f"the model of {capture.graph.name} cannot be split: {' '.join(capture.graph.notes)}",
            code="segment.cannot-split",
        )
    return capture.flow


def _fed(nodes: Sequence[fx.Node], operations: set[str], outputs: Sequence[fx.Node]) -> set[str]:
    """The names of the batch's tensors that some operations read, or that the model returns as they are."""
    readers = [node for node in nodes if node.meta.get("op") in operations and not node.meta.get("constant")]
    sources = [*outputs, *(source for node in readers for source in node.all_input_nodes)]
    return {node.meta["tensor"] for node in sources if node.op == "placeholder"}
