"""A run of a flow on tensors without content, to see what each operation makes, writes and keeps for its backward.

Fake tensors have shapes, dtypes, storages and version counters, but no memory, so that any batch size can be looked at.
What the run shows is what torch does, not what schemas say: which results share a storage, which storages an operation
writes.

What an operation computes, as a digest: operations with equal digests cost the same at the same batch size.

The digest holds the kind of operation, its constants, the shapes (as expressions in the batch) and dtypes of what it
reads and of its parameters, and which of them want a gradient. It holds no names, addresses or devices, so that the
twelve equal blocks of a transformer share their measurements, on every machine and in every process.

Where a model may be split.

A segment works on copies of what it receives, so no operation after a split may write, in place, into a storage that
was made before it: `relu_(batch_norm(x))` stays together. State that is written (running statistics of a layer that
is called twice) must be used on one side only.

    operation    0     1     2     3     4
                conv  norm  relu_ conv  relu_         relu_ at 2 writes what norm made at 1: no split after 1
    split points     ^           ^                    relu_ at 4 writes what conv made at 3: no split after 3
"""

import hashlib
import json
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

from trimaran.base.job import Job
from trimaran.base.precision import dtype_name
from trimaran.graph.capture.export import workspace_bytes
from trimaran.graph.capture.sizes import Batches, describe_number, describe_shape, fit
from trimaran.graph.types import Affine, Parameter
from trimaran.user_code.model import device_of, enter_mode, precision_context, quiet, untouched, without_user_hooks


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


def content_text(node: fx.Node, target: Any, walks: tuple[Walk, Walk], batches: tuple[int, int], precision: str) -> str:
    """What an operation computes, as text in a fixed order."""

    def describe(source: fx.Node) -> Any:
        first, second = (walk.values[source] for walk in walks)
        if isinstance(first, Tensor):
            shape = describe_shape(first.shape, second.shape, batches)
            return f"{dtype_name(first.dtype)}{list(shape)}{'+' if first.requires_grad else ''}"
        if isinstance(first, fx.GraphModule):
            return [str(part.target) for part in first.graph.nodes]
        return describe_number(first, second, batches)

    arguments = fx.map_arg((node.args, node.kwargs), describe)
    parts: dict[str, Any] = {"arguments": _plain(arguments), "precision": precision}
    if isinstance(target, nn.Module):
        parts["module"] = f"{type(target).__module__}.{type(target).__qualname__}"
        parts["state"] = [
            f"{name}:{dtype_name(tensor.dtype)}{list(tensor.shape)}{'+' if tensor.requires_grad else ''}"
            for name, tensor in [*target.named_parameters(), *target.named_buffers()]
        ]
        if type(target).__module__.startswith("torch.nn."):
            parts["attributes"] = _attributes(target)
        else:
            parts["interior"] = list(node.meta["interior"])
    else:
        parts["function"] = str(target)
    return json.dumps(parts, sort_keys=True)


def digest(text: str) -> str:
    """A short digest of a text.

    Example:
        >>> digest("a") == digest("a"), len(digest("a"))
        (True, 16)
    """
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _attributes(module: nn.Module) -> dict[str, str]:
    plain = {
        name: repr(value)
        for name, value in vars(module).items()
        if not name.startswith("_") and name != "training" and _is_plain(value)
    }
    return {**plain, "text": module.extra_repr()}


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, bool | int | float | str)


def _plain(value: Any) -> Any:
    """Arguments without what differs between machines; dtypes and the like by their text."""
    if isinstance(value, torch.device):
        return "device"
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    return value if isinstance(value, str | int | bool) or value is None else str(value)


# ---------------------------------------------------------------------------------------------------------------------
# The parameters and buffers of a model, each tensor once, and which of them an operation uses


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What an operation uses of the model's state, by name.

    Attributes:
        parameters: names of parameters
        buffers: names of buffers
    """

    parameters: tuple[str, ...]
    buffers: tuple[str, ...]


class ModelState:
    """The state of a model.

    Args:
        model: the user's model

    Attributes:
        parameters: every parameter; a tied one once, under its first name
        buffers: size of every buffer [bytes], by name
        names: of each parameter, by the identity of its tensor
    """

    def __init__(self, model: nn.Module) -> None:
        names: dict[int, list[str]] = {}
        tensors: dict[int, nn.Parameter] = {}
        for name, tensor in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(tensor), []).append(name)
            tensors[id(tensor)] = tensor
        self.parameters = tuple(_describe(tensors[key], found) for key, found in names.items())
        self.buffers = {name: tensor.numel() * tensor.element_size() for name, tensor in model.named_buffers()}
        self.names = {key: found[0] for key, found in names.items()}
        self._buffer_names = {id(tensor): name for name, tensor in model.named_buffers()}

    def read_by(self, node: fx.Node, model: nn.Module) -> Read:
        """What an operation of a flow uses, be it in its module or as an argument."""
        tensors: list[Any] = []
        if node.op == "call_module":
            module = model.get_submodule(str(node.target))
            tensors += [*module.parameters(), *module.buffers()]
        for source in node.all_input_nodes:
            if source.op == "get_attr":
                owner, _, name = str(source.target).rpartition(".")
                tensors.append(getattr(_submodule(model, owner), name, None))
        return Read(parameters=self._named(tensors, self.names), buffers=self._named(tensors, self._buffer_names))

    def of_model(self) -> Read:
        """All of it."""
        return Read(parameters=tuple(self.names.values()), buffers=tuple(self.buffers))

    @staticmethod
    def _named(tensors: list[Any], names: dict[int, str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(names[id(tensor)] for tensor in tensors if id(tensor) in names))


def _describe(tensor: Tensor, names: list[str]) -> Parameter:
    return Parameter(
        name=names[0],
        shape=tuple(tensor.shape),
        dtype=dtype_name(tensor.dtype),
        nbytes=tensor.numel() * tensor.element_size(),
        trainable=tensor.requires_grad,
        aliases=tuple(names[1:]),
    )


def _submodule(model: nn.Module, path: str) -> nn.Module | None:
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None


# ---------------------------------------------------------------------------------------------------------------------
# The storages that autograd keeps from forward to backward, by name


class SavedStorages:
    """Names the storages that were seen in two walks: by the first tensor that they hold, or by who keeps them.

    Args:
        nodes: of the flow, with names
        walks: of it, at two batch sizes
        batches: the batch sizes

    Attributes:
        found: size of each kept storage [bytes]
    """

    def __init__(self, nodes: Sequence[fx.Node], walks: tuple[Walk, Walk], batches: Batches) -> None:
        self.found: dict[str, Affine] = {}
        self._walks = walks
        self._batches = batches
        self._names: dict[int, str] = {}
        for node in nodes:
            if "tensor" in node.meta:
                for number in walks[0].storages[node]:
                    self._names.setdefault(number, str(node.meta["tensor"]))

    def saved_by(self, node: fx.Node, op: str) -> tuple[str, ...]:
        """The names of what an operation keeps."""
        first, second = self._walks
        names = []
        for place, (one, other) in enumerate(zip(first.saved[node], second.saved[node], strict=False)):
            name = self._names.setdefault(one, f"{op}/{place}")
            self.found.setdefault(name, fit(first.sizes[one], second.sizes[other], self._batches))
            names.append(name)
        return tuple(dict.fromkeys(names))


def fill_workspaces(flow: fx.GraphModule, nodes: Sequence[fx.Node], walks: Sequence[Walk]) -> None:
    """Give the workspaces of LSTMs their sizes.

    An LSTM on a CPU keeps a workspace whose size only oneDNN knows; on a tensor without content it looks empty.
    """
    for node in nodes:
        module = flow.get_submodule(str(node.target)) if node.op == "call_module" else None
        if not isinstance(module, nn.LSTM):
            continue
        for seen in walks:
            empty = [number for number in seen.saved[node] if not seen.sizes[number]]
            source = seen.values[node.all_input_nodes[0]]
            seen.sizes.update(zip(empty, workspace_bytes(module, source), strict=False))


def legal_splits(graph: fx.Graph, operations: Sequence[fx.Node], walk: Walk) -> list[bool]:
    """Whether the model may be split after each operation, as far as in-place writing goes.

    Args:
        graph: of the flow
        operations: its nodes that are operations, in order
        walk: a run of the flow
    """
    legal = [True] * len(operations)
    inputs = {number for node in graph.nodes if node.op == "placeholder" for number in walk.storages[node]}
    made: dict[int, int] = {}
    touched: dict[int, list[int]] = {}
    written: dict[int, list[int]] = {}
    for position, node in enumerate(operations):
        if node.meta.get("constant"):
            continue  # a segment computes it again, with everything that writes it
        for number in walk.touches[node] | walk.storages[node]:
            made.setdefault(number, position)
            touched.setdefault(number, []).append(position)
        for number in walk.writes[node]:
            written.setdefault(number, []).append(position)
    for number, positions in written.items():
        if number in walk.state:
            first, last = touched[number][0], touched[number][-1]
        elif number in inputs:
            first, last = positions[0], touched[number][-1]
        else:
            first, last = made[number], positions[-1]
        legal[first:last] = [False] * (last - first)
    return legal


def mark_rewrites(graph: fx.Graph, walk: Walk) -> None:
    """Set `meta["rewrites"]` on operations that write constants in place: the nodes whose values they change.

    A segment that computes a constant again must also run what completes it, as in `mask = zeros(...); mask.fill_(1)`.
    """
    constants = [node for node in graph.nodes if node.meta.get("constant")]
    for node in constants:
        written = walk.writes.get(node, frozenset())
        if written:
            node.meta["rewrites"] = [
                other for other in constants if other is not node and walk.storages[other] & written
            ]


def choose_splits(legal: Sequence[bool], costs: Sequence[bool], crossing: Sequence[float]) -> list[int]:
    """The positions worth splitting after: every segment between two of them has an operation that costs something.

    Of several positions that differ only by free operations, such as views, the one that least crosses is kept.

    Args:
        legal: for each operation, whether the model may be split after it
        costs: for each operation, whether it costs anything
        crossing: for each operation, bytes that cross a split after it [bytes]

    Example:
        >>> choose_splits([True] * 4, [True, True, False, True], [9.0, 9.0, 3.0, 9.0])
        [0, 2]
    """
    best: dict[int, int] = {}
    done = 0
    for position, counts in enumerate(costs):
        done += counts
        if legal[position] and 0 < done < sum(costs):
            kept = best.setdefault(done, position)
            if crossing[position] < crossing[kept]:
                best[done] = position
    return [best[count] for count in sorted(best)]
