"""A run of a flow on tensors without content, to see what each operation makes, writes and keeps for its backward.

Fake tensors have shapes, dtypes, storages and version counters, but no memory, so that any batch size can be looked at.
What the run shows is what torch does, not what schemas say: which results share a storage, which storages an operation
writes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree

from trimaran.graph.hooks import without_user_hooks
from trimaran.graph.training_mode import enter_mode
from trimaran.graph.untouched import device_of, precision_context, quiet, untouched
from trimaran.job import Job


class Loss(Protocol):
    """The loss as a function of tensors."""

    def __call__(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Tensor:
        """The loss of the tensors of a model's output and of a batch."""


@dataclass(slots=True, kw_only=True)
class Walk:
    """What was seen. Storages are numbers, counted in the order in which they were met.

    Attributes:
        values: what each node stands for; the output node stands for the loss
        storages: storages of the tensors among it
        touches: storages that each operation was given, those of its module's parameters and buffers included
        writes: those of them that it wrote in place
        saved: storages that autograd keeps of each operation, those of parameters and buffers left out
        sizes: size of each storage [bytes]
        state: storages of parameters and buffers
        mode: the mode under which the tensors can be computed with
    """

    values: dict[fx.Node, Any] = field(default_factory=dict)
    storages: dict[fx.Node, frozenset[int]] = field(default_factory=dict)
    touches: dict[fx.Node, frozenset[int]] = field(default_factory=dict)
    writes: dict[fx.Node, frozenset[int]] = field(default_factory=dict)
    saved: dict[fx.Node, tuple[int, ...]] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    state: frozenset[int] = frozenset()
    mode: FakeTensorMode


def walk(
    job: Job,
    model: nn.Module,
    flow: fx.GraphModule,
    inputs: Mapping[str, Tensor],
    batch: int,
    *,
    training: bool,
    loss: Loss | None = None,
) -> Walk:
    """Run a flow on fake tensors.

    Args:
        job: the job
        model: its model, which is left as it was
        flow: its flow
        inputs: tensors of a batch, in the order of the flow's arguments; only their shapes and dtypes count
        batch: the batch size to look at
        training: the mode; gradients are followed in training
        loss: the loss of the output's tensors and the batch's; None: the run ends with the output
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    device = device_of(model)
    with quiet(), untouched(model), without_user_hooks(model), mode:
        enter_mode(model, training=training)
        fakes = [fake_like(tensor, batch) for tensor in inputs.values()]
        with precision_context(job, device), torch.set_grad_enabled(training):
            return _Walker(model, flow, mode, loss).run(fakes)


def fake_like(tensor: Tensor, batch: int) -> Tensor:
    """A tensor of the same kind for another batch size; called under a fake tensor mode."""
    return torch.empty((batch, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


class Storages:
    """Numbers storages in the order in which they are met, and keeps them alive so that no two get one number."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._kept: list[Tensor] = []

    def number(self, *tensors: Tensor) -> int:
        """The number of a tensor's storage; tensors that stand for one another share one."""
        storage = tensors[0].untyped_storage()
        number = self._numbers.setdefault(storage._cdata, len(self.sizes))
        self.sizes.setdefault(number, storage.nbytes())
        for tensor in tensors:
            self._numbers[tensor.untyped_storage()._cdata] = number
        self._kept += tensors
        return number


class _Walker:
    def __init__(self, model: nn.Module, flow: fx.GraphModule, mode: FakeTensorMode, loss: Loss | None) -> None:
        self._flow = flow
        self._mode = mode
        self._loss = loss
        self._storages = Storages()
        self._saving: list[int] = []
        state = [*model.parameters(), *model.buffers()]
        numbers = frozenset(self._storages.number(tensor, mode.from_tensor(tensor)) for tensor in state)
        self._walk = Walk(mode=mode, sizes=self._storages.sizes, state=numbers)

    def run(self, inputs: list[Tensor]) -> Walk:
        values = self._walk.values
        arguments = iter(inputs)
        with saved_tensors_hooks(self._pack, lambda packed: packed):
            for node in self._flow.graph.nodes:
                if node.op == "placeholder":
                    values[node] = next(arguments)
                elif node.op == "get_attr":
                    values[node] = self._attribute(str(node.target))
                elif node.op != "output":
                    self._call(node, self._target(node))
                elif self._loss is not None:
                    self._call(node, partial(self._loss, inputs=inputs))
                self._walk.storages[node] = self._numbers(tensors_in(values.get(node)))
        return self._walk

    def _call(self, node: fx.Node, target: Any) -> None:
        arguments, keywords = fx.map_arg((node.args, node.kwargs), self._walk.values.__getitem__)
        given = tensors_in((arguments, keywords))
        if isinstance(target, nn.Module):
            given += [*target.parameters(), *target.buffers()]
        versions = [tensor._version for tensor in given]
        self._saving = []
        self._walk.values[node] = target(*arguments, **keywords)
        written = [tensor for tensor, version in zip(given, versions, strict=True) if tensor._version != version]
        if isinstance(target, _NormBase) or "batch_norm" in str(node.target) or "instance_norm" in str(node.target):
            written += [tensor for tensor in given if not tensor.requires_grad and self._is_state(tensor)]
        self._walk.saved[node] = tuple(dict.fromkeys(self._saving))
        self._walk.touches[node] = self._numbers(given)
        self._walk.writes[node] = self._numbers(written)

    def _target(self, node: fx.Node) -> Any:
        return self._flow.get_submodule(str(node.target)) if node.op == "call_module" else node.target

    def _attribute(self, target: str) -> Any:
        value: Any = self._flow
        for step in target.split("."):
            value = getattr(value, step)
        return self._mode.from_tensor(value) if isinstance(value, Tensor) else value

    def _numbers(self, tensors: list[Tensor]) -> frozenset[int]:
        return frozenset(self._storages.number(tensor) for tensor in tensors)

    def _is_state(self, tensor: Tensor) -> bool:
        return self._storages.number(tensor) in self._walk.state

    def _pack(self, tensor: Tensor) -> Tensor:
        if not self._is_state(tensor):
            self._saving.append(self._storages.number(tensor))
        return tensor
