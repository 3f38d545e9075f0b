"""Times of the operations of a captured graph, in the order and on the data of a real step.

One pass walks the flow twice. Forward: each operation runs on what the operations before it made, detached from their
autograd graph, so that it has a separate one. Then backward, last operation first, each graph by itself:

    forward    op0 ████  op1 ██  op2 ██████  loss █        data flows on, autograd graphs end at each operation
    backward   loss ██  op2 ████████████  op1 ████  op0 ████████

So an operation meets the caches and the memory that it meets in a step, which repeating it alone would not show.
Operations with equal content give samples of the same cost; a pass is a round. What starting a backward takes by
itself is measured on an operation that does nothing, and taken off. Runs inside the ranks; imports torch.
"""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from trimaran.base.job import Job
from trimaran.graph.capture.capture import Capture
from trimaran.runtime.parts.part import Stage
from trimaran.runtime.precision import autocast
from trimaran.runtime.step.losses import loss_term
from trimaran.runtime.streams import Stamp, Streams
from trimaran.user_code.batches import name_tensors

LOSS = "loss"
_SHORTEST_S = 1e-7
_STARTS = 50


@dataclass(slots=True)
class _OperationPass:
    """One operation of a pass: when it ran, and what its backward starts from."""

    op: str
    started: Stamp
    ended: Stamp
    outputs: list[Tensor]
    backward: tuple[Stamp, Stamp] | None = None


class OperationPasses:
    """Passes over the operations of one job.

    Args:
        job: has the loss and the precision
        capture: graph and model, on the device
        whole: the user's module as a stage, for what only it shows: the loss, and a model that is one operation
        streams: clock of the device
        device: of the rank
    """

    def __init__(self, job: Job, capture: Capture, whole: Stage, streams: Streams, device: str) -> None:
        self._job = job
        self._capture = capture
        self._whole = whole
        self._streams = streams
        self._device = device
        self._writing: set[fx.Node] = set()
        self._parameters = list(capture.model.parameters())
        self._start_s = self._time_start()

    def run(self, batch: Any, samples: int) -> dict[str, tuple[float, float]]:
        """One pass.

        Args:
            batch: on the device
            samples: of the batch

        Returns:
            Forward and backward of each operation, by id [s].
        """
        self._drop_gradients()
        if self._capture.flow is None:
            return self._run_as_one(batch, samples)
        visits = list(self._forward(self._capture.flow, batch, samples))
        for visit in reversed(visits):
            self._backward(visit)
        self._drop_gradients()
        return self._seconds(visits)

    def _forward(self, flow: fx.GraphModule, batch: Any, samples: int) -> Iterator[_OperationPass]:
        values: dict[fx.Node, Any] = {}
        fed = iter(name_tensors(batch).values())
        last_use = _last_uses(flow.graph)
        for node in flow.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(fed)
            elif node.op == "get_attr":
                values[node] = _attribute(flow, str(node.target))
            elif node.op == "output":
                yield self._visit_loss([values[source] for source in node.args[0]], batch, samples)
            else:
                visit, values[node] = self._visit(flow, node, values)
                if visit is not None:
                    yield visit
            for used in last_use.get(node, ()):
                values.pop(used, None)

    def _visit(
        self, flow: fx.GraphModule, node: fx.Node, values: Mapping[fx.Node, Any]
    ) -> tuple[_OperationPass | None, Any]:
        target: Any = flow.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        is_operation = node.meta.get("op") is not None and not _is_item(node)
        arguments, keywords = self._arguments(node, values, copied=node in self._writing)
        try:
            started, made, ended = self._call(target, arguments, keywords)
        except RuntimeError as error:
            if "in-place" not in str(error):
                raise
            # It writes into what it is given, which autograd refuses for a tensor that starts a graph.
            self._writing.add(node)
            arguments, keywords = self._arguments(node, values, copied=True)
            started, made, ended = self._call(target, arguments, keywords)
        if not is_operation:
            return None, made
        outputs = [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, Tensor) and leaf.requires_grad]
        return _OperationPass(str(node.meta["op"]), started, ended, outputs), pytree.tree_map(_detached, made)

    def _call(self, target: Any, arguments: Any, keywords: Any) -> tuple[Stamp, Any, Stamp]:
        with autocast(self._job.precision, self._device):
            started = self._streams.stamp()
            made = target(*arguments, **keywords)
            return started, made, self._streams.stamp()

    def _arguments(self, node: fx.Node, values: Mapping[fx.Node, Any], *, copied: bool) -> tuple[Any, Any]:
        def argument(source: fx.Node) -> Any:
            value = values[source]
            if not isinstance(value, Tensor) or isinstance(value, torch.nn.Parameter):
                return value
            # A fresh start of a graph for each reader, which keeps whether a gradient is wanted.
            fresh = value.detach().requires_grad_(value.requires_grad)
            return fresh.clone() if copied else fresh

        return fx.map_arg(node.args, argument), fx.map_arg(node.kwargs, argument)

    def _visit_loss(self, outputs: list[Tensor], batch: Any, samples: int) -> _OperationPass:
        structure = self._capture.structure
        output = structure.rebuild([_detached(tensor) for tensor in outputs]) if structure is not None else outputs[0]
        with autocast(self._job.precision, self._device):
            started = self._streams.stamp()
            root, _ = loss_term(self._job, output, batch, samples=samples, of=samples)
            return _OperationPass(LOSS, started, self._streams.stamp(), [root] if root.requires_grad else [])

    def _backward(self, visit: _OperationPass) -> None:
        if not visit.outputs:
            return
        gradients = [torch.ones_like(output) for output in visit.outputs]
        started = self._streams.stamp()
        torch.autograd.backward(visit.outputs, gradients)
        visit.backward = (started, self._streams.stamp())
        visit.outputs = []

    def _run_as_one(self, batch: Any, samples: int) -> dict[str, tuple[float, float]]:
        """A model that could not be exported is one operation, whose backward has that of the loss in it."""
        with autocast(self._job.precision, self._device):
            started = self._streams.stamp()
            _, output = self._whole.forward(batch, {}, samples, completing=True)
            between = self._streams.stamp()
            root, _ = loss_term(self._job, output, batch, samples=samples, of=samples)
            ended = self._streams.stamp()
        model = _OperationPass(self._capture.graph.ops[0].id, started, between, [root])
        self._backward(model)
        self._drop_gradients()
        return self._seconds([model, _OperationPass(LOSS, between, ended, [])])

    def _seconds(self, visits: list[_OperationPass]) -> dict[str, tuple[float, float]]:
        self._streams.synchronize()
        read = self._streams.nanoseconds
        seconds = {}
        for visit in visits:
            forward_s = (read(visit.ended) - read(visit.started)) * 1e-9
            backward_s = 0.0
            if visit.backward is not None:
                started, ended = visit.backward
                backward_s = max(_SHORTEST_S, (read(ended) - read(started)) * 1e-9 - self._start_s)
            seconds[visit.op] = (max(_SHORTEST_S, forward_s), backward_s)
        return seconds

    def _time_start(self) -> float:
        """Time of a backward without compute [s]."""
        stamps = []
        for _ in range(_STARTS):
            leaf = torch.zeros((), device=self._device, requires_grad=True)
            root, gradient = leaf.view(()), torch.ones((), device=self._device)
            started = self._streams.stamp()
            torch.autograd.backward([root], [gradient])
            stamps.append((started, self._streams.stamp()))
        self._streams.synchronize()
        read = self._streams.nanoseconds
        return statistics.median((read(ended) - read(started)) * 1e-9 for started, ended in stamps)

    def _drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None


def _is_item(node: fx.Node) -> bool:
    return any(source.meta.get("op") == node.meta.get("op") for source in node.all_input_nodes)


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """For each node, the nodes whose values are not read after it."""
    last: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        for source in node.all_input_nodes:
            last[source] = node
    ends: dict[fx.Node, list[fx.Node]] = {}
    for source, node in last.items():
        ends.setdefault(node, []).append(source)
    return ends


def _attribute(module: Any, target: str) -> Any:
    for step in target.split("."):
        module = getattr(module, step)
    return module


def _detached(value: Any) -> Any:
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value
