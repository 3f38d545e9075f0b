"""The pure graph of a flow: operations with their work, parameters, tensors, saved storages and legal cuts.

Everything is looked at for two batch sizes, which gives what is fixed and what grows with the batch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from trimaran.errors import TrimaranError
from trimaran.graph.aliases import choose_cuts, legal_cuts, mark_rewrites
from trimaran.graph.batches import compute_loss, count_samples, name_tensors, rebuild_batch, slice_batch
from trimaran.graph.contents import content_text, digest
from trimaran.graph.exports import NotExportableError, first_line
from trimaran.graph.flow import Flow
from trimaran.graph.hooks import without_user_hooks
from trimaran.graph.names import name_flow
from trimaran.graph.saved import SavedStorages, fill_workspaces
from trimaran.graph.shapes import Batches, describe_shape, fit
from trimaran.graph.sharding.calls import mark_shapes
from trimaran.graph.sharding.finding import find_regions
from trimaran.graph.state import State
from trimaran.graph.tally import Tally, state_of, tally_operation
from trimaran.graph.training_mode import begin_training
from trimaran.graph.types import Graph, Op, TensorSpec
from trimaran.graph.untouched import device_of, precision_context, quiet, untouched
from trimaran.graph.walk import Walk, walk
from trimaran.graph.whole import loss_op, loss_storage, run_whole
from trimaran.job import Job

BATCHES: Batches = (4, 8)


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
        except TrimaranError:
            raise
        except Exception as error:
            raise _LossNeedsDataError from error

    def look(size: int, *, training: bool, with_loss: bool) -> Walk:
        given = loss if with_loss else None
        try:
            return walk(job, model, flow.module, tensors, size, training=training, loss=given)
        except (TrimaranError, _LossNeedsDataError):
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
    describer = _Describer(job, model, flow, (walks[0], walks[1]), not isinstance(batch, Mapping))
    try:
        ops = describer.ops()
        describer.add_loss(ops, loss, on_data)
    except NotExportableError:
        raise
    except Exception as error:
        raise NotExportableError(first_line(error)) from error
    return describer.graph(ops, evaluation)


class _Describer:
    """Turns what was seen of a flow into a graph."""

    def __init__(self, job: Job, model: nn.Module, flow: Flow, walks: tuple[Walk, Walk], pair: bool) -> None:
        self._job = job
        self._model = model
        self._flow = flow
        self._walks = walks
        self._pair = pair
        self._state = State(model)
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
                **_work(tallies[0], tallies[1]),
            )
        )

    def graph(self, ops: Sequence[Op], evaluation: Walk) -> Graph:
        """The graph of these operations."""
        read = {name for op in ops[:-1] for name in op.inputs}
        mark_shapes(self._flow.module.graph, self._walks[0])
        regions, stream, whole = find_regions(self._flow.module, self._model, ops, self._state.names)
        inputs = [node for node in self._nodes if node.op == "placeholder"]
        return Graph(
            name=self._job.name,
            inputs=tuple(self._spec(node, node.meta["tensor"]) for node in inputs),
            targets=tuple(name for name in self._flow.inputs if name not in read and name in ops[-1].inputs),
            ops=tuple(ops),
            parameters=self._state.parameters,
            buffers=self._state.buffers,
            storages=self._storages.found,
            cuts=self._cuts(ops, evaluation) if self._flow.one_for_both_modes else (),
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
            **_work(*self._tallies[text]),
        )

    def _run(self, node: fx.Node, target: Any, seen: Walk) -> Tally:
        values = fx.map_arg((node.args, node.kwargs), seen.values.__getitem__)
        with seen.mode, precision_context(self._job, device_of(self._model)):
            return tally_operation(lambda args, kwargs: target(*args, **kwargs), values, state_of(target))[0]

    def _spec(self, node: fx.Node, name: str) -> TensorSpec:
        first, second = (seen.values[node] for seen in self._walks)
        return TensorSpec(
            name=name,
            shape=describe_shape(first.shape, second.shape, BATCHES),
            dtype=str(first.dtype).removeprefix("torch."),
            nbytes=fit(first.numel() * first.element_size(), second.numel() * second.element_size(), BATCHES),
            requires_grad=first.requires_grad,
        )

    def _read_by_loss(self) -> list[str]:
        """What the loss may read of a batch: the target of a pair, or all of a mapping."""
        if self._job.loss is None:
            return []
        return [name for name in self._flow.inputs if not self._pair or name.partition(".")[0] == "target"]

    def _cuts(self, ops: Sequence[Op], evaluation: Walk) -> tuple[str, ...]:
        legal = [True] * len(self._operations)
        for seen in (*self._walks, evaluation):
            allowed = legal_cuts(self._flow.module.graph, self._operations, seen)
            legal = [one and other for one, other in zip(legal, allowed, strict=True)]
        costs = [
            not node.meta.get("constant") and bool(op.flops.at(1) or op.bytes_moved.at(1))
            for node, op in zip(self._operations, ops, strict=False)
        ]
        return tuple(ops[position].id for position in choose_cuts(legal, costs, _crossing_bytes(ops)))


def _check_loss(job: Job, model: nn.Module, flow: Flow, batch: Any) -> None:
    """Check that the loss of the job can be computed from what segments return, which may leave out parts."""
    with quiet(), untouched(model), without_user_hooks(model), precision_context(job, device_of(model)):
        outputs = flow.module(*name_tensors(batch).values())
        try:
            compute_loss(job, flow.structure.rebuild(outputs), batch)
        except Exception as error:
            raise NotExportableError(
                f"the loss needs more of the model's output than its tensors: {first_line(error)}"
            ) from error


def _names_read(node: fx.Node) -> tuple[str, ...]:
    """The tensors that an operation reads, but for those that a segment can compute again."""
    sources = [source for source in node.all_input_nodes if not source.meta.get("constant")]
    return tuple(str(source.meta["tensor"]) for source in sources if "tensor" in source.meta)


def _work(first: Tally, second: Tally) -> dict[str, Any]:
    return {
        "flops": fit(first.flops, second.flops, BATCHES),
        "backward_flops": fit(first.backward_flops, second.backward_flops, BATCHES),
        "bytes_moved": fit(first.nbytes, second.nbytes, BATCHES),
        "backward_bytes_moved": fit(first.backward_nbytes, second.backward_nbytes, BATCHES),
    }


def _crossing_bytes(ops: Sequence[Op]) -> list[float]:
    """Bytes of one sample that cross a cut after each operation [bytes]."""
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
