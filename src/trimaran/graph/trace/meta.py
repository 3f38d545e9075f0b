"""Traces a step on meta tensors, which have shapes and no bytes: no device, no memory and no data are needed.

The shapes, and so the lives and sizes of everything, are those of a real step. Where meta tensors would take another
kernel than a device does, the device's is asked for: attention (`attention`), dropout (`dropout`) and autocast
(`autocast`). What still differs: recurrent layers run step by step, so that a real kernel keeps its intermediate states
in one storage of its own; the fused forms of optimizers may need scratch memory that is not seen; convolutions have no
workspace.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from trimaran.errors import InputError, TrimaranError
from trimaran.graph.optimizers import Trained, trained_parameters, without_hooks
from trimaran.graph.trace.attention import AttentionForm, attend
from trimaran.graph.trace.autocast import Autocast
from trimaran.graph.trace.calls import replaced
from trimaran.graph.trace.dropout import drop_out
from trimaran.graph.trace.overrides import Overrides, Replacement
from trimaran.graph.trace.record import Recorder
from trimaran.graph.trace.recurrent import CELLS, run_layers
from trimaran.graph.trace.types import StepTrace

Loss = Callable[[nn.Module, Any], torch.Tensor]
"""Runs the forward of a model on a batch, and gives the scalar that is minimised."""

_META = torch.device("meta")

_DRAWS = frozenset(
    ["normal_", "uniform_", "trunc_normal_", "kaiming_normal_", "kaiming_uniform_", "xavier_normal_", "xavier_uniform_"]
)
"""Fill a tensor with random numbers, in place."""


def trace_on_meta(
    make_model: Callable[[], nn.Module],
    make_batch: Callable[[], Any],
    loss: Loss,
    *,
    make_optimizer: Callable[[Trained], Optimizer] | None = None,
    autocast: torch.dtype | None = None,
    attention: AttentionForm = "flash",
    layers: bool = False,
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
        layers: recurrent layers run in one operation each, as a library of a GPU runs them; otherwise step by step

    Returns:
        The trace, with no durations.

    Raises:
        InputError: the model cannot run without data, as where it decides by the values of a tensor
    """
    rules = _Rules(autocast=autocast, attention=attention, layers=layers)
    with _telling():
        model = _model_on_meta(make_model)
        batch = replaced(make_batch(), torch.Tensor, _to_meta)
        optimizer = _made(make_optimizer, model) if make_optimizer is not None else None
        if optimizer is not None:
            _step(model, batch, loss, optimizer, rules)
            optimizer.zero_grad(set_to_none=True)
        return _recorded(model, batch, loss, optimizer, rules)


def trace_twice_on_meta(
    make_model: Callable[[], nn.Module],
    make_batches: tuple[Callable[[], Any], Callable[[], Any]],
    loss: Loss,
    *,
    make_optimizer: Callable[[Trained], Optimizer],
    autocast: torch.dtype | None = None,
    layers: bool = False,
) -> tuple[StepTrace, StepTrace]:
    """Trace two steps of training, the first without an update.

    Its gradients then give the optimizer its state, which is there in the second from the beginning. So the two cost
    half of what two calls of `trace_on_meta` do; no update depends on the batch.

    Args:
        make_model: as for `trace_on_meta`
        make_batches: make the batch of each
        loss: `(model, batch)` to the scalar loss
        make_optimizer: makes the optimizer from parameters
        autocast: lower precision; None: none
        layers: recurrent layers run in one operation each

    Raises:
        InputError: as for `trace_on_meta`
    """
    rules = _Rules(autocast=autocast, attention="flash", layers=layers)
    with _telling():
        model = _model_on_meta(make_model)
        optimizer = _made(make_optimizer, model)
        first, second = (replaced(make_batch(), torch.Tensor, _to_meta) for make_batch in make_batches)
        model.zero_grad(set_to_none=True)
        without = _recorded(model, first, loss, None, rules)
        optimizer.step()
        model.zero_grad(set_to_none=True)
        return without, _recorded(model, second, loss, optimizer, rules)


def _made(make_optimizer: Callable[[Trained], Optimizer], model: nn.Module) -> Optimizer:
    """The optimizer of a model, without the hooks of a user, who wants to hear of a training's steps only."""
    optimizer = make_optimizer(trained_parameters(model))
    without_hooks(optimizer)
    return optimizer


def _recorded(model: nn.Module, batch: Any, loss: Loss, optimizer: Optimizer | None, rules: "_Rules") -> StepTrace:
    recorder = Recorder(model)
    with recorder:
        _step(model, batch, loss, optimizer, rules)
    return recorder.recording.trace


def _step(model: nn.Module, batch: Any, loss: Loss, optimizer: Optimizer | None, rules: "_Rules") -> None:
    with _META, rules.asked_for(), Overrides(rules.of):
        value = loss(model, batch)
    rules.end_forward()
    value.backward()
    del value
    if optimizer is not None:
        optimizer.step()


@contextmanager
def _telling() -> Iterator[None]:
    """What fails without data is told as such."""
    try:
        yield
    except TrimaranError:
        raise
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        raise InputError(
            f"this step cannot be traced without data: {_first_line(error)}. A model whose course depends on the "
            "values of its tensors needs a real step: record one with `Recorder`, or run it under "
            "`trimaran.virtual_memory`",
            code="trace.needs-data",
            error=type(error).__name__,
        ) from error


class _Rules:
    """Which functions run in another form."""

    def __init__(self, *, autocast: torch.dtype | None, attention: AttentionForm, layers: bool) -> None:
        self._dtype = autocast
        self._casting = Autocast(autocast) if autocast is not None else None
        self._attention = attention
        self._layers = layers

    def asked_for(self) -> AbstractContextManager[Any]:
        """Modules that ask whether autocast is on, as recurrent ones do, are told; meta tensors are not cast by it."""
        if self._dtype is None:
            return nullcontext()
        return torch.autocast("cpu", dtype=self._dtype, cache_enabled=False)

    def end_forward(self) -> None:
        """Let go of what a forward keeps."""
        if self._casting is not None:
            self._casting.end_forward()

    def of(self, name: str) -> Replacement | None:
        """What runs in the place of a function; None where it runs as it is."""
        if name == "scaled_dot_product_attention":
            return self._attend
        if name == "dropout" and self._attention != "cpu":
            return drop_out
        if self._layers and name in CELLS:
            return self._run_layers
        return self._casting.replacement(name) if self._casting is not None else None

    def _attend(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        args, kwargs = self._cast(args, kwargs)
        return attend(self._attention, func, args, kwargs)

    def _run_layers(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        args, kwargs = self._cast(args, kwargs)
        return run_layers(func, args, kwargs)

    def _cast(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        if self._casting is None:
            return args, kwargs
        cast: tuple[tuple[Any, ...], Mapping[str, Any]] = replaced(
            (args, dict(kwargs)), torch.Tensor, self._casting.cast
        )
        return cast


class _Undrawn(TorchFunctionMode):
    """Weights without values are not drawn: on meta tensors that costs more than a step."""

    def __torch_function__(
        self, func: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a function, unless all it does is to draw numbers that a meta tensor does not have."""
        if getattr(func, "__name__", "") in _DRAWS:
            tensor = args[0] if args else (kwargs or {}).get("tensor")
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                return tensor
        return func(*args, **(kwargs or {}))


def _model_on_meta(make_model: Callable[[], nn.Module]) -> nn.Module:
    """Make a model on meta tensors; one that reads values while it is made is made for real first."""
    try:
        with _META, _Undrawn():
            model = make_model()
    except (RuntimeError, NotImplementedError):
        model = make_model()
    return model.to(_META)


def _to_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_meta else torch.empty_like(tensor, device=_META)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(". ")
