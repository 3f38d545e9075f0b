"""The model of a job through `torch.export`, with the calls of its leaf modules marked.

The exported function takes the tensors of a batch in the order of their names and returns the tensors of the model's
output, so that the forms of batches and outputs stay outside. Dim 0 of every input is dynamic.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils.checkpoint import CheckpointFunction

from trimaran.graph.batches import call_model, name_tensors, rebuild_batch
from trimaran.graph.hooks import without_user_hooks
from trimaran.graph.outputs import OutputStructure, take_apart
from trimaran.graph.recurrent import layers_at_a_glance
from trimaran.graph.training_mode import enter_mode
from trimaran.graph.untouched import device_of, precision_context, quiet, untouched
from trimaran.job import Job

PREFIX = "model"  # attribute of the exported module under which the user's model is


class NotExportableError(Exception):
    """The model cannot be turned into a graph; the message is the reason, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The model as a graph in one of its modes.

    Attributes:
        program: what torch made of it
        inputs: names of the batch's tensors, in the order of the graph's inputs
        structure: of the model's output
    """

    program: ExportedProgram
    inputs: tuple[str, ...]
    structure: OutputStructure


class _OnTensors(nn.Module):
    """The model as a function from the tensors of a batch to the tensors of its output."""

    def __init__(self, model: nn.Module, call: Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.add_module(PREFIX, model)
        self.call = call

    def forward(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return self.call(self.get_submodule(PREFIX), tensors)


def export_model(job: Job, model: nn.Module, batch: Any, leaves: tuple[str, ...], *, training: bool) -> Exported:
    """The model as a graph of tensor operations.

    Args:
        job: the job
        model: its model, which is left as it was
        batch: a few samples, as the model is called with
        leaves: paths of the leaf modules, whose calls are marked
        training: the mode to export

    Raises:
        NotExportableError: torch cannot; with its reason
    """
    names, tensors = tuple(name_tensors(batch)), tuple(name_tensors(batch).values())
    structures: list[OutputStructure] = []  # torch.export puts a module's attributes back, so it is kept outside of one

    def call(model: nn.Module, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        output = call_model(job, model, rebuild_batch(batch, dict(zip(names, tensors, strict=True))))
        found, structure = take_apart(output)
        if not found:
            raise NotExportableError(f"it returns a {type(output).__name__}, in which no tensors are found")
        structures.append(structure)
        return found

    wrapper = _OnTensors(model, call)
    wrapper.training = training
    with (
        quiet(),
        untouched(model),
        without_user_hooks(model),
        layers_at_a_glance(model),
        precision_context(job, device_of(model)),
        _without_reentrant_checkpoints(),
        _lengths_that_follow(model),
    ):
        enter_mode(model, training=training)
        try:
            program = torch.export.export(
                wrapper,
                (tensors,),
                dynamic_shapes=(tuple({0: Dim.DYNAMIC} for _ in tensors),),
                strict=False,
                preserve_module_call_signature=tuple(f"{PREFIX}.{path}" for path in leaves),
            )
        except NotExportableError:
            raise
        except Exception as error:  # torch raises whatever the model's code or its own tracer raises
            raise NotExportableError(first_line(error)) from error
    return Exported(program=program, inputs=names, structure=structures[-1])


def first_line(error: BaseException) -> str:
    """The first line that says something, with the kind of the error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


@contextmanager
def _without_reentrant_checkpoints() -> Iterator[None]:
    """Refuse reentrant activation checkpointing, whose forward runs without gradients: a graph would have none."""

    def refuse(*_: object) -> Any:
        raise NotExportableError("it checkpoints activations with use_reentrant=True; with False it can be traced")

    known = vars(CheckpointFunction).get("apply")
    CheckpointFunction.apply = staticmethod(refuse)  # type: ignore[method-assign]
    try:
        yield
    finally:
        if known is None:
            del CheckpointFunction.apply
        else:
            CheckpointFunction.apply = known  # type: ignore[method-assign]


def _length(value: Any) -> Any:
    return value.shape[0] if isinstance(value, Tensor) and value.dim() else len(value)


@contextmanager
def _lengths_that_follow(model: nn.Module) -> Iterator[None]:
    """Let `len(tensor)` in the user's forwards be the size of the batch, whichever that is.

    Python wants a plain number of `len`, by which an export would hold for one batch size alone. So the functions of
    the user's modules see another `len` while they are traced.
    """
    known: dict[int, dict[str, Any]] = {}
    for module in model.modules():
        names = getattr(inspect.unwrap(type(module).forward), "__globals__", {})
        if not str(names.get("__name__", "torch")).startswith("torch.") and "len" not in names:
            known[id(names)] = names
    for names in known.values():
        names["len"] = _length
    try:
        yield
    finally:
        for names in known.values():
            del names["len"]
