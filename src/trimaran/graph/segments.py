"""A part of a captured model as a module of its own: the user's leaf modules and the operations between them.

    values by name ─▶ Segment ─▶ body(batch size, *tensors) ─▶ tensors for other segments; on the last, the output

The body is a graph over tensors by position, so that torch.compile takes it in one piece. What a segment can compute
again (masks, position ids, sizes) it does; everything else that it reads is sent to it or fed to it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from trimaran.errors import InputError
from trimaran.graph.capture import Capture
from trimaran.graph.extract import extract
from trimaran.graph.outputs import OutputStructure
from trimaran.graph.types import Op, TensorSpec


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
    """One segment of a model that is cut into a chain.

    Build it after the model has moved to its device.

    Args:
        capture: of the job
        boundaries: ids of the last operations of every segment but the last (`Graph.cuts`), in order
        index: number of the segment

    Raises:
        InputError: the model has no graph, a boundary is no legal cut, or there is no such segment
    """
    boundaries = tuple(boundaries)
    _flow(capture)
    order = {name: place for place, name in enumerate(capture.graph.cuts)}
    places = [order.get(name, -1) for name in boundaries]
    if -1 in places or places != sorted(set(places)):
        raise InputError(
            f"boundaries must be operations after which the model may be cut, in order; got {list(boundaries)}",
            code="segment.bad-boundaries",
        )
    return build_part(capture, capture.graph.parts(boundaries), index)


def build_part(capture: Capture, parts: Sequence[Sequence[Op]], index: int) -> Segment:
    """One segment of a model whose operations are dealt out in any way that can run.

    A parameter or module that several segments use is one object in all of them. What others read is returned when the
    segment has ended, so the operations between two neighbouring cuts of the graph, which may write into each other's
    results, must be in one part; whoever makes the parts sees to that (`program.check_strategy`).

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
            f"the model of {capture.graph.name} cannot be cut: {' '.join(capture.graph.notes)}",
            code="segment.cannot-split",
        )
    return capture.flow


def _fed(nodes: Sequence[fx.Node], operations: set[str], outputs: Sequence[fx.Node]) -> set[str]:
    """The names of the batch's tensors that some operations read, or that the model returns as they are."""
    readers = [node for node in nodes if node.meta.get("op") in operations and not node.meta.get("constant")]
    sources = [*outputs, *(source for node in readers for source in node.all_input_nodes)]
    return {node.meta["tensor"] for node in sources if node.op == "placeholder"}
