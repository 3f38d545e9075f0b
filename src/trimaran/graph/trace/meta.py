"""Traces a step on meta tensors, which have shapes and no bytes: no device, no memory and no data are needed.

The shapes, and so the lives and sizes of everything, are those of a real step. Where meta tensors would take another
kernel than a device does, the device's is asked for: attention (`attention`), dropout (`dropout`) and autocast
(`autocast`). What still differs: recurrent layers run step by step, so that a real kernel keeps its intermediate states
in one storage of its own; the fused forms of optimizers may need scratch memory that is not seen; convolutions have no
workspace.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from trimaran.errors import InputError, TrimaranError
from trimaran.graph.trace.attention import AttentionForm, attend
from trimaran.graph.trace.autocast import Autocast
from trimaran.graph.trace.calls import replaced
from trimaran.graph.trace.dropout import drop_out
from trimaran.graph.trace.overrides import Overrides, Replacement
from trimaran.graph.trace.record import Recorder
from trimaran.graph.trace.types import StepTrace

Loss = Callable[[nn.Module, Any], torch.Tensor]
"""Runs the forward of a model on a batch, and gives the scalar that is minimised."""

_META = torch.device("meta")


def trace_on_meta(
    make_model: Callable[[], nn.Module],
    make_batch: Callable[[], Any],
    loss: Loss,
    *,
    make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
    autocast: torch.dtype | None = None,
    attention: AttentionForm = "flash",
) -> StepTrace:
    """Trace one step of training.

    With an optimizer the second of two steps is traced, so that its state is there from the beginning.

    Args:
        make_model: makes the model, in training mode; its weights are never filled
        make_batch: makes a batch: tensors, or tuples, lists and dicts of them
        loss: `(model, batch)` to the scalar loss
        make_optimizer: makes the optimizer from parameters; None: no update, and no state
        autocast: lower precision, such as `torch.bfloat16`; None: none
        attention: form of attention; "flash" is that of a GPU. With "cpu" dropout is that of a CPU too

    Returns:
        The trace, with no durations.

    Raises:
        InputError: the model cannot run without data, as where it decides by the values of a tensor
    """
    casting = Autocast(autocast) if autocast is not None else None
    try:
        model = _model_on_meta(make_model)
        batch = replaced(make_batch(), torch.Tensor, _to_meta)
        optimizer = make_optimizer(model.parameters()) if make_optimizer is not None else None

        def step() -> None:
            with _META, Overrides(_rules(casting, attention)):
                value = loss(model, batch)
            if casting is not None:
                casting.end_forward()
            value.backward()
            del value
            if optimizer is not None:
                optimizer.step()

        if optimizer is not None:
            step()
            optimizer.zero_grad(set_to_none=True)
        recorder = Recorder(model)
        with recorder:
            step()
    except TrimaranError:
        raise
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        raise InputError(
            f"this step cannot be traced without data: {_first_line(error)}. A model whose course depends on the "
            "values of its tensors needs a real step: record one with `Recorder`, or run it under "
            "`trimaran.virtual_memory`",
            error=type(error).__name__,
        ) from error
    return recorder.recording.trace


def _rules(casting: Autocast | None, attention: AttentionForm) -> Callable[[str], Replacement | None]:
    def attend_in_form(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        if casting is not None:
            args, kwargs = replaced((args, dict(kwargs)), torch.Tensor, casting.cast)
        return attend(attention, func, args, kwargs)

    def rule(name: str) -> Replacement | None:
        if name == "scaled_dot_product_attention":
            return attend_in_form
        if name == "dropout" and attention != "cpu":
            return drop_out
        return casting.replacement(name) if casting is not None else None

    return rule


def _model_on_meta(make_model: Callable[[], nn.Module]) -> nn.Module:
    """Make a model on meta tensors; one that reads values while it is made is made for real first."""
    try:
        with _META:
            model = make_model()
    except (RuntimeError, NotImplementedError):
        model = make_model()
    return model.to(_META)


def _to_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_meta else torch.empty_like(tensor, device=_META)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(". ")
