"""A job whose model could not be exported: the model as one operation, and the loss as another.

They run on data, at two batch sizes, as nothing else shows what they do.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trimaran.errors import InputError, TrimaranError
from trimaran.graph.batches import call_model, compute_loss, name_tensors, rebuild_batch
from trimaran.graph.contents import digest
from trimaran.graph.hooks import without_user_hooks
from trimaran.graph.outputs import take_apart
from trimaran.graph.shapes import Batches, describe_shape, fit
from trimaran.graph.state import Read, State
from trimaran.graph.tally import Tally, state_of, tally_operation
from trimaran.graph.training_mode import begin_training
from trimaran.graph.types import Affine, Graph, Op, TensorSpec
from trimaran.graph.untouched import device_of, precision_context, quiet, uncompiled, untouched
from trimaran.job import Job
from trimaran.user_errors import told


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
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
) -> tuple[WholeRun, WholeRun]:
    """Run the model, its loss and their backwards in train mode, on two batches.

    Args:
        job: the job
        model: its model, which is left as it was
        batches: of a few samples, the second one larger
        samples: of each of them

    Raises:
        InputError: the model or the loss fails, or the loss is not one
    """
    with quiet(), uncompiled(), untouched(model), without_user_hooks(model):
        begin_training(model)
        return _run(job, model, batches[0], samples[0]), _run(job, model, batches[1], samples[1])


def describe_whole(job: Job, model: nn.Module, runs: tuple[WholeRun, WholeRun], reason: str) -> Graph:
    """The graph whose operations are the model and the loss.

    Args:
        job: the job
        model: its model
        runs: of `run_whole`
        reason: why the model could not be exported
    """
    state = State(model)
    names = [name for name, first in runs[0].inputs.items() if _is_alike(first, runs[1].inputs.get(name))]
    inputs = tuple(_spec(name, (runs[0].inputs[name], runs[1].inputs[name]), runs) for name in names)
    outputs = tuple(
        _spec(f"model:{place}", pair, runs)
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


def loss_op(runs: tuple[WholeRun, WholeRun], inputs: tuple[str, ...]) -> Op:
    """The loss as an operation, with the figures of runs on data."""
    tallies = tuple(run.loss_tally for run in runs)
    return whole_op("loss", runs, tallies, inputs, (_spec("loss", (runs[0].loss, runs[1].loss), runs),), None)


def loss_storage(runs: tuple[WholeRun, WholeRun]) -> Affine:
    """What the loss keeps for its backward [bytes]."""
    return _fit(runs, runs[0].loss_tally.saved_nbytes, runs[1].loss_tally.saved_nbytes)


def whole_op(
    name: str,
    runs: tuple[WholeRun, WholeRun],
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
        flops=_fit(runs, first.flops, second.flops),
        backward_flops=_fit(runs, first.backward_flops, second.backward_flops),
        bytes_moved=_fit(runs, first.nbytes, second.nbytes),
        backward_bytes_moved=_fit(runs, first.backward_nbytes, second.backward_nbytes),
        saved=(f"{name}/0",),
        content=digest(f"{name} {first.kernels} {first.flops} {second.flops} {first.nbytes} {second.nbytes}"),
    )


def _is_alike(first: Tensor, second: Tensor | None) -> bool:
    return second is not None and first.dim() == second.dim()


def _run(job: Job, model: nn.Module, batch: Any, samples: int) -> WholeRun:
    tensors = name_tensors(batch)
    with torch.enable_grad(), precision_context(job, device_of(model)):

        def forward(values: list[Tensor]) -> Any:
            return call_model(job, model, rebuild_batch(batch, dict(zip(tensors, values, strict=True))))

        with _blaming("the model", samples):
            model_tally, output = tally_operation(forward, (list(tensors.values()),), state_of(model))
        outputs, structure = take_apart(output, keep=True)

        def loss(values: list[Tensor]) -> Tensor:
            return compute_loss(job, structure.rebuild(values), batch, samples=samples)[0]

        with _blaming("the loss", samples):
            loss_tally, value = tally_operation(loss, (list(outputs),))
    return WholeRun(
        batch=samples,
        inputs=tensors,
        outputs=outputs,
        loss=value,
        model_tally=model_tally,
        loss_tally=loss_tally,
    )


@contextmanager
def _blaming(who: str, samples: int) -> Iterator[None]:
    try:
        yield
    except TrimaranError:
        raise
    except Exception as error:
        raise InputError(
            f"{who} failed on a batch of {samples} samples: {told(error)}", code="job.fails-on-batch"
        ) from error


def _fit(runs: tuple[WholeRun, WholeRun], first: float, second: float) -> Affine:
    if second < first:
        # Batches of one sample more that ask for less: their samples are not alike. Sizes must not fall below zero.
        return Affine(0.0, second / runs[1].batch)
    return fit(first, second, (runs[0].batch, runs[1].batch))


def _spec(name: str, pair: tuple[Tensor, Tensor], runs: tuple[WholeRun, WholeRun]) -> TensorSpec:
    first, second = pair
    batches: Batches = (runs[0].batch, runs[1].batch)
    return TensorSpec(
        name=name,
        shape=describe_shape(first.shape, second.shape, batches),
        dtype=str(first.dtype).removeprefix("torch."),
        nbytes=fit(first.numel() * first.element_size(), second.numel() * second.element_size(), batches),
        requires_grad=first.requires_grad,
    )
