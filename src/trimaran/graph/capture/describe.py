"""The pure graph of a flow: operations with their work, parameters, tensors, saved storages and split points.

Everything is looked at for two batch sizes, which gives what is fixed and what grows with the batch.

A job whose model could not be exported: the model as one operation, and the loss as another.

They run on data, at two batch sizes, as nothing else shows what they do.

Stable names of the operations and tensors of a flow.

An operation is a call of a leaf module or of a tensor function. Items of what it returns, numbers and attributes are
no separate operations. Names do not depend on what lies inside leaf modules, so that they stay the same across
versions of torch.

Set on the nodes of the flow: `meta["op"]`, the id of the operation that makes the node's value, and `meta["tensor"]`,
the name of the tensor.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload

from trimaran.base.errors import InputError, TrimaranError
from trimaran.base.job import Job
from trimaran.base.precision import dtype_name
from trimaran.base.units import format_some
from trimaran.base.user_errors import told, users
from trimaran.graph.capture.export import NotExportableError, first_line, take_apart
from trimaran.graph.capture.flow import Flow, hollow, written_by
from trimaran.graph.capture.operations import (
    ModelState,
    Read,
    SavedStorages,
    Walk,
    choose_splits,
    content_text,
    digest,
    fill_workspaces,
    legal_splits,
    mark_rewrites,
    tensors_in,
    walk,
)
from trimaran.graph.capture.sizes import Batches, describe_shape, fit
from trimaran.graph.flops import Tally, state_of, tally_operation
from trimaran.graph.sharding.calls import mark_shapes
from trimaran.graph.sharding.regions import find_regions
from trimaran.graph.types import OUTSIDE, ROOT, Affine, Graph, Op, TensorSpec
from trimaran.user_code.batches import call_model, compute_loss, count_samples, name_tensors, rebuild_batch, slice_batch
from trimaran.user_code.held_state import HeldState
from trimaran.user_code.model import (
    begin_training,
    device_of,
    has_user_hooks,
    hooks_of_user,
    precision_context,
    quiet,
    uncompiled,
    untouched,
    without_user_hooks,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRun:
    """A run of the whole model and its loss on data.

    Attributes:
        batch: number of samples
        inputs: tensors of the batch, by name
        outputs: tensors of the model's output
        loss: the loss
        model_tally: work of the model
        loss_tally: work of the loss
    """

    batch: int
    inputs: dict[str, Tensor]
    outputs: tuple[Tensor, ...]
    loss: Tensor
    model_tally: Tally
    loss_tally: Tally


def run_whole(
    job: Job, model: nn.Module, batches: tuple[Any, Any], samples: tuple[int, int]
) -> tuple[ModelRun, ModelRun]:
    """Run the model, its loss and their backwards in train mode, on two batches.

    Args:
        job: the job
        model: its model, which is left as it was
        batches: of a few samples, the second one larger
        samples: of each of them

    Raises:
        InputError: the model or the loss fails, or the loss is not one
    """

    def run() -> tuple[ModelRun, ModelRun]:
        begin_training(model)
        return _run(job, model, batches[0], samples[0]), _run(job, model, batches[1], samples[1])

    with quiet(), uncompiled(), untouched(model):
        try:
            with without_user_hooks(model):
                return run()
        except InputError:
            hooks = [hook for module in model.modules() for hook in hooks_of_user(module)]
            if not hooks:
                raise
            # The loss may read what hooks have kept.
            held = HeldState({"the loss": job.loss, "hooks": tuple(hooks)})
            try:
                return run()
            finally:
                held.put_back()


def describe_whole(job: Job, model: nn.Module, runs: tuple[ModelRun, ModelRun], reason: str) -> Graph:
    """The graph whose operations are the model and the loss.

    Args:
        job: the job
        model: its model
        runs: of `run_whole`
        reason: why the model could not be exported
    """
    state = ModelState(model)
    names = [name for name, first in runs[0].inputs.items() if _is_alike(first, runs[1].inputs.get(name))]
    batches = runs[0].batch, runs[1].batch
    inputs = tuple(_spec(name, runs[0].inputs[name], runs[1].inputs[name], batches) for name in names)
    if not names:
        # Objects of the user's alone, which are loaded all the same.
        names = ["batch"]
        inputs = (_spec("batch", torch.empty(batches[0], 0), torch.empty(batches[1], 0), batches),)
    outputs = tuple(
        _spec(f"model:{place}", *pair, batches)
        for place, pair in enumerate(zip(runs[0].outputs, runs[1].outputs, strict=False))
        if _is_alike(*pair)
    )
    targets = tuple(name for name in names if name.partition(".")[0] == "target") if job.loss is not None else ()
    read = tuple(name for name in names if name not in targets)
    ops = (
        whole_op("model", runs, tuple(run.model_tally for run in runs), read, outputs, state.of_model()),
        loss_op(runs, (*(spec.name for spec in outputs), *targets)),
    )
    return Graph(
        name=job.name,
        inputs=inputs,
        targets=targets,
        ops=ops,
        parameters=state.parameters,
        buffers=state.buffers,
        storages={
            "model/0": _fit(runs, runs[0].model_tally.saved_nbytes, runs[1].model_tally.saved_nbytes),
            "loss/0": loss_storage(runs),
        },
        precision=job.precision,
        notes=(
            "the model is one operation: no pipeline, no operator placement, and costs only of the whole model; "
            f"torch.export could not trace it: {reason}",
        ),
    )


def loss_op(runs: tuple[ModelRun, ModelRun], inputs: tuple[str, ...]) -> Op:
    """The loss as an operation, with the figures of runs on data."""
    tallies = tuple(run.loss_tally for run in runs)
    spec = _spec("loss", runs[0].loss, runs[1].loss, (runs[0].batch, runs[1].batch))
    return whole_op("loss", runs, tallies, inputs, (spec,), None)


def loss_storage(runs: tuple[ModelRun, ModelRun]) -> Affine:
    """What the loss keeps for its backward [bytes]."""
    return _fit(runs, runs[0].loss_tally.saved_nbytes, runs[1].loss_tally.saved_nbytes)


def whole_op(
    name: str,
    runs: tuple[ModelRun, ModelRun],
    tallies: tuple[Tally, ...],
    inputs: tuple[str, ...],
    outputs: tuple[TensorSpec, ...],
    read: Read | None,
) -> Op:
    """An operation with the figures of runs on data."""
    first, second = tallies
    return Op(
        id=name,
        target=name,
        inputs=inputs,
        outputs=outputs,
        parameters=read.parameters if read else (),
        buffers=read.buffers if read else (),
        saved=(f"{name}/0",),
        content=digest(f"{name} {first.kernels} {first.flops} {second.flops} {first.nbytes} {second.nbytes}"),
        origins=(OUTSIDE if name == "loss" else ROOT,),
        **_work(first, second, partial(_fit, runs)),
    )


def _is_alike(first: Tensor, second: Tensor | None) -> bool:
    return second is not None and first.dim() == second.dim()


def _run(job: Job, model: nn.Module, batch: Any, samples: int) -> ModelRun:
    tensors = name_tensors(batch)
    with torch.enable_grad(), precision_context(job, device_of(model)):
        given: list[Any] = []

        def forward(values: list[Tensor]) -> Any:
            given.append(rebuild_batch(batch, dict(zip(tensors, values, strict=True))))
            return call_model(job, model, given[0])

        with _blaming("the model", samples):
            model_tally, output = tally_operation(forward, (list(tensors.values()),), state_of(model))
        outputs, structure = take_apart(output, keep=True)

        def loss(values: list[Tensor]) -> Tensor:
            # The forward may have put something into it.
            return compute_loss(job, structure.rebuild(values), given[0], samples=samples)[0]

        def both(values: list[Tensor]) -> Tensor:
            outputs, structure = take_apart(forward(values), keep=True)
            return compute_loss(job, structure.rebuild(list(outputs)), given[-1], samples=samples)[0]

        with _blaming("the loss", samples):
            try:
                loss_tally, value = tally_operation(loss, (list(outputs),))
            except RuntimeError as error:
                if "have been used in the graph" not in str(error):
                    raise
                # It takes the gradient of one output by another, which are not connected outside of the model.
                whole_tally, value = tally_operation(both, (list(tensors.values()),), state_of(model))
                loss_tally = whole_tally.beyond(model_tally)
    return ModelRun(
        batch=samples,
        inputs=tensors,
        outputs=outputs,
        loss=value,
        model_tally=model_tally,
        loss_tally=loss_tally,
    )


def _blaming(who: str, samples: int) -> AbstractContextManager[None]:
    failed = f"{who} failed on a batch of {samples} samples"
    return users(who, said=lambda error: InputError(f"{failed}: {told(error)}", code="job.fails-on-batch"))


def _fit(runs: tuple[ModelRun, ModelRun], first: float, second: float) -> Affine:
    if second < first:
        # Batches of one sample more that ask for less: their samples are not alike. Sizes must not fall below zero.
        return Affine(0.0, second / runs[1].batch)
    return fit(first, second, (runs[0].batch, runs[1].batch))


def _spec(name: str, first: Tensor, second: Tensor, batches: Batches) -> TensorSpec:
    """A tensor by what it is at two batch sizes."""
    return TensorSpec(
        name=name,
        shape=describe_shape(first.shape, second.shape, batches),
        dtype=dtype_name(first.dtype),
        nbytes=fit(first.numel() * first.element_size(), second.numel() * second.element_size(), batches),
        requires_grad=first.requires_grad,
    )


def name_flow(graph: fx.Graph, inputs: Sequence[str], walk: Walk) -> list[fx.Node]:
    """Name the operations and tensors of a flow.

    Args:
        graph: of the flow; the names are set on its nodes
        inputs: names of the batch's tensors, in the order of the flow's arguments
        walk: a run of it

    Returns:
        The nodes that are operations, in order.
    """
    operations = [node for node in graph.nodes if _is_operation(node, walk)]
    taken = {str(node.meta["call"]) for node in operations if node.op == "call_module"}
    for node in operations:
        node.meta["op"] = str(node.meta["call"]) if node.op == "call_module" else _free_name(_base(node), taken)
        taken.add(node.meta["op"])
    for name, node in zip(inputs, [node for node in graph.nodes if node.op == "placeholder"], strict=True):
        node.meta["tensor"] = name
    for node in operations:
        _name_outputs(node, walk, set(inputs))
    return operations


def _is_operation(node: fx.Node, walk: Walk) -> bool:
    if node.op == "call_module":
        return "call" in node.meta
    return (
        node.op == "call_function"
        and node.target not in (operator.getitem, hollow)
        # A block without gradients that follows the batch by buffers may give nothing, and write.
        and (bool(tensors_in(walk.values[node])) or any(True for _ in written_by(node)))
    )


def _base(node: fx.Node) -> str:
    if isinstance(node.target, OpOverload):
        return node.target._schema.name.rpartition("::")[2]
    return str(getattr(node.target, "__name__", node.target))


def _free_name(base: str, taken: set[str]) -> str:
    name, number = base, 0
    while name in taken:
        number += 1
        name = f"{base}_{number}"
    return name


def _name_outputs(node: fx.Node, walk: Walk, inputs: set[str]) -> None:
    """A single result has the name of its operation; items have it with their place, as in "lstm:1.0"."""
    if isinstance(walk.values[node], Tensor):
        name = str(node.meta["op"])
        node.meta["tensor"] = f"{name}:0" if name in inputs else name
        return
    pending: list[tuple[fx.Node, str]] = [(node, "")]
    while pending:
        source, place = pending.pop()
        for item in source.users:
            if item.target is not operator.getitem:
                raise NotExportableError(f"{item.name} reads all results of {source.name} at once")
            here = f"{place}.{item.args[1]}" if place else str(item.args[1])
            item.meta["op"] = node.meta["op"]
            if isinstance(walk.values[item], Tensor):
                item.meta["tensor"] = f"{node.meta['op']}:{here}"
            else:
                pending.append((item, here))


BATCHES: Batches = (4, 8)
_FITTED = partial(fit, batches=BATCHES)


class _LossNeedsDataError(Exception):
    """The loss cannot be looked at on tensors without content, as it selects by a mask or prints a value."""


def describe_flow(job: Job, model: nn.Module, flow: Flow, batch: Any, tensors: Mapping[str, Tensor]) -> Graph:
    """The pure graph of a job whose model could be exported.

    Args:
        job: the job
        model: its model, which is left as it was
        flow: its flow; names are set on its nodes
        batch: a few samples
        tensors: the tensors of that batch, by name

    Raises:
        NotExportableError: an operation cannot be looked at without data
        InputError: the loss is not one, or fails
    """

    def loss(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Tensor:
        given = rebuild_batch(batch, dict(zip(tensors, inputs, strict=True)))
        try:
            return compute_loss(job, flow.structure.rebuild(outputs), given)[0]
        except TrimaranError as error:
            if error.code == "loss.nothing-to-train":
                # Whether it is so of the model is seen where that runs: an export may lose gradients on the way.
                raise NotExportableError("in its graph the loss depends on no parameter that is trained") from error
            raise
        except Exception as error:
            raise _LossNeedsDataError(f"the loss fails on outputs alone: {first_line(error)}") from error

    def look(size: int, *, training: bool, with_loss: bool) -> Walk:
        given = loss if with_loss else None
        try:
            return walk(job, model, flow.module, tensors, size, training=training, loss=given)
        except (TrimaranError, NotExportableError, _LossNeedsDataError):
            raise
        except Exception as error:
            raise NotExportableError(first_line(error)) from error

    try:
        walks = [look(size, training=True, with_loss=True) for size in BATCHES]
        on_data = None
    except _LossNeedsDataError:
        walks = [look(size, training=True, with_loss=False) for size in BATCHES]
        samples = count_samples(batch)
        fewer = slice_batch(batch, 0, samples - 1)
        on_data = run_whole(job, model, (fewer, batch), (samples - 1, samples))
        _check_loss(job, model, flow, batch)
    evaluation = look(BATCHES[0], training=False, with_loss=False)
    describer = _Describer(job, model, flow, (walks[0], walks[1]), isinstance(batch, tuple | list))
    try:
        ops = describer.ops()
        describer.add_loss(ops, loss, on_data)
    except NotExportableError:
        raise
    except Exception as error:
        raise NotExportableError(first_line(error)) from error
    return describer.graph(ops, evaluation)


class _Describer:
    """Makes a graph of what was seen of a flow."""

    def __init__(self, job: Job, model: nn.Module, flow: Flow, walks: tuple[Walk, Walk], pair: bool) -> None:
        self._job = job
        self._model = model
        self._flow = flow
        self._walks = walks
        self._pair = pair
        self._state = ModelState(model)
        self._nodes = list(flow.module.graph.nodes)
        self._operations = name_flow(flow.module.graph, flow.inputs, walks[0])
        mark_rewrites(flow.module.graph, walks[0])
        fill_workspaces(flow.module, self._operations, walks)
        self._storages = SavedStorages(self._nodes, walks, BATCHES)
        self._made: dict[str, list[fx.Node]] = {}
        for node in self._nodes:
            if "op" in node.meta and "tensor" in node.meta:
                self._made.setdefault(node.meta["op"], []).append(node)
        self._tallies: dict[str, tuple[Tally, Tally]] = {}

    def ops(self) -> list[Op]:
        """The operations of the model."""
        with quiet(), untouched(self._model), without_user_hooks(self._model), torch.enable_grad():
            begin_training(self._model)
            return [self._op(node) for node in self._operations]

    def add_loss(self, ops: list[Op], loss: Any, on_data: Any) -> None:
        """Add the loss as the last operation, from the walks, or from runs on data where it needs them."""
        output = self._nodes[-1]
        inputs = tuple(dict.fromkeys([*_names_read(output), *self._read_by_loss()]))
        if on_data is not None:
            self._storages.found["loss/0"] = loss_storage(on_data)
            ops.append(loss_op(on_data, inputs))
            return
        given = [node for node in self._nodes if node.op == "placeholder"]
        tallies = tuple(
            self._run(output, lambda outputs, seen=seen: loss(outputs, [seen.values[node] for node in given]), seen)
            for seen in self._walks
        )
        shapes = [self._spec(node, "").shape for node in output.all_input_nodes]
        ops.append(
            Op(
                id="loss",
                target="loss",
                inputs=inputs,
                outputs=(self._spec(output, "loss"),),
                saved=self._storages.saved_by(output, "loss"),
                content=digest(f"loss {shapes} {tallies[0].kernels} {self._job.precision}"),
                origins=(OUTSIDE,),
                **_work(tallies[0], tallies[1], _FITTED),
            )
        )

    def graph(self, ops: Sequence[Op], evaluation: Walk) -> Graph:
        """The graph of these operations."""
        read = {name for op in ops[:-1] for name in op.inputs}
        mark_shapes(self._flow.module.graph, self._walks[0])
        regions, stream, whole = find_regions(self._flow.module, self._model, ops, self._state.names)
        if self._job.metric is not None and not self._flow.one_for_both_modes:
            # Ranks that share tensors evaluate by it, too.
            regions, whole = (), {"the model": "its forward does other things in training than in evaluation"}
        inputs = [node for node in self._nodes if node.op == "placeholder"]
        return Graph(
            name=self._job.name,
            inputs=tuple(self._spec(node, node.meta["tensor"]) for node in inputs),
            targets=tuple(name for name in self._flow.inputs if name not in read and name in ops[-1].inputs),
            ops=tuple(ops),
            parameters=self._state.parameters,
            buffers=self._state.buffers,
            storages=self._storages.found,
            split_points=self._split_points(ops, evaluation) if self._flow.one_for_both_modes else (),
            precision=self._job.precision,
            notes=self._flow.notes,
            regions=regions,
            stream=stream,
            whole=whole,
        )

    def _op(self, node: fx.Node) -> Op:
        target: Any = self._flow.module.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        text = content_text(node, target, self._walks, BATCHES, self._job.precision)
        if text not in self._tallies:
            first, second = (self._run(node, target, seen) for seen in self._walks)
            self._tallies[text] = first, second
        read = self._state.read_by(node, self._model)
        name = str(node.meta["op"])
        return Op(
            id=name,
            target=type(target).__name__ if isinstance(target, nn.Module) else str(target),
            module=str(node.meta["module"]),
            inputs=() if node.meta.get("constant") else _names_read(node),
            outputs=tuple(self._spec(made, made.meta["tensor"]) for made in self._made.get(name, [])),
            parameters=read.parameters,
            buffers=read.buffers,
            saved=self._storages.saved_by(node, name),
            content=digest(text),
            origins=tuple(node.meta["origins"]),
            **_work(*self._tallies[text], _FITTED),
        )

    def _run(self, node: fx.Node, target: Any, seen: Walk) -> Tally:
        values = fx.map_arg((node.args, node.kwargs), seen.values.__getitem__)
        with seen.mode, precision_context(self._job, device_of(self._model)):
            return tally_operation(lambda args, kwargs: target(*args, **kwargs), values, state_of(target))[0]

    def _spec(self, node: fx.Node, name: str) -> TensorSpec:
        first, second = (seen.values[node] for seen in self._walks)
        return _spec(name, first, second, BATCHES)

    def _read_by_loss(self) -> list[str]:
        """What the loss may read of a batch: the target of a pair, or all of a mapping."""
        if self._job.loss is None:
            return []
        return [name for name in self._flow.inputs if not self._pair or name.partition(".")[0] == "target"]

    def _split_points(self, ops: Sequence[Op], evaluation: Walk) -> tuple[str, ...]:
        legal = [True] * len(self._operations)
        for seen in (*self._walks, evaluation):
            allowed = legal_splits(self._flow.module.graph, self._operations, seen)
            legal = [one and other for one, other in zip(legal, allowed, strict=True)]
        costs = [
            not node.meta.get("constant") and bool(op.flops.at(1) or op.bytes_moved.at(1))
            for node, op in zip(self._operations, ops, strict=False)
        ]
        return tuple(ops[position].id for position in choose_splits(legal, costs, _crossing_bytes(ops)))


def _check_loss(job: Job, model: nn.Module, flow: Flow, batch: Any) -> None:
    """Check that the loss of the job can be computed from what segments return, which may leave out parts."""
    with quiet(), untouched(model), without_user_hooks(model), precision_context(job, device_of(model)):
        outputs = flow.module(*name_tensors(batch).values())
        try:
            compute_loss(job, flow.structure.rebuild(outputs), batch)
        except Exception as error:
            hooked = [path or "the model" for path, module in model.named_modules() if has_user_hooks(module)]
            reads = f", or what hooks on {format_some(hooked)} have kept" if hooked else ""
            raise NotExportableError(
                f"the loss needs more of the model's output than its tensors{reads}: {first_line(error)}"
            ) from error


def _names_read(node: fx.Node) -> tuple[str, ...]:
    """The tensors that an operation reads, but for those that a segment can compute again."""
    sources = [source for source in node.all_input_nodes if not source.meta.get("constant")]
    return tuple(str(source.meta["tensor"]) for source in sources if "tensor" in source.meta)


def _work(first: Tally, second: Tally, fitted: Callable[[float, float], Affine]) -> dict[str, Any]:
    """The figures of an operation, of its tallies at two batch sizes."""
    return {
        "flops": fitted(first.flops, second.flops),
        "backward_flops": fitted(first.backward_flops, second.backward_flops),
        "bytes_moved": fitted(first.nbytes, second.nbytes),
        "backward_bytes_moved": fitted(first.backward_nbytes, second.backward_nbytes),
    }


def _crossing_bytes(ops: Sequence[Op]) -> list[float]:
    """Bytes of one sample that cross a split after each operation [bytes]."""
    last = {name: position for position, op in enumerate(ops) for name in op.inputs}
    change = [0.0] * (len(ops) + 1)
    for position, op in enumerate(ops):
        for spec in op.outputs:
            if spec.name in last:
                change[position] += spec.nbytes.at(1)
                change[last[spec.name]] -= spec.nbytes.at(1)
    total, found = 0.0, []
    for step in change[:-1]:
        total += step
        found.append(total)
    return found
