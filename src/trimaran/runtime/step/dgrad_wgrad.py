"""Deferred weight gradients (wgrad) of linear layers and convolutions.

A backward computes two products at each such layer: the gradient of its input (dgrad), which the stage before waits
for, and the gradient of its weight (wgrad), which is not needed before the update. Under `Deferred.recording` the
layers of a forward run as functions whose backward computes the first and notes the second; `Deferred.run` computes
those:

    I   dx3 ─▶ dx2 ─▶ dx1 ─▶ send              B = I and W; norms, embeddings and recurrent layers, whose gradients
    W                         dw3 dw2 dw1          come out of one computation, are in I as a whole

Between the two, only a layer's input and the gradient of its output are kept: I frees what other operations had saved.
Weights are the same objects and the products the same kernels, so gradients differ from those of a backward in one
piece only by the order of sums, where a weight is used several times.

Left to autograd, and so in I: weights that are no leaves (parametrized ones), that have hooks, or that are not plain
tensors; layers called by other functions than torch's. A function of `LAYERS` returns None for such a call.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, deferred: "Deferred", x: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.deferred, ctx.weight, ctx.bias = deferred, weight, bias
        return functional.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (x,), (dy,) = ctx.saved_tensors, gradients
        weight, bias = ctx.weight, ctx.bias

        def products() -> list[torch.Tensor]:
            rows = dy.reshape(-1, dy.shape[-1])
            found = [(rows.t() @ x.reshape(-1, x.shape[-1])).to(weight.dtype)]
            if bias is not None:
                found.append(rows.sum(0).to(bias.dtype))
            return found

        ctx.deferred.note((weight,) if bias is None else (weight, bias), products)
        return None, dy @ weight.to(dy.dtype) if ctx.needs_input_grad[1] else None, None, None


class _ConvolutionGradients(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, deferred: "Deferred", x: torch.Tensor, weight: Any, bias: Any, options: tuple[Any, ...]
    ) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.deferred, ctx.weight, ctx.bias, ctx.options = deferred, weight, bias, options
        result: torch.Tensor = torch.convolution(
            x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype), *options
        )
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (x,), (dy,) = ctx.saved_tensors, gradients
        weight, bias, options = ctx.weight, ctx.bias, ctx.options

        def product(*wanted: bool) -> Any:
            sizes = None if bias is None else list(bias.shape)
            return torch.ops.aten.convolution_backward(dy, x, weight.to(dy.dtype), sizes, *options, list(wanted))

        def products() -> list[torch.Tensor]:
            if bias is None:
                return [product(False, True, False)[1].to(weight.dtype)]
            _, of_weight, of_bias = product(False, True, True)
            return [of_weight.to(weight.dtype), of_bias.to(bias.dtype)]

        ctx.deferred.note((weight,) if bias is None else (weight, bias), products)
        return None, product(True, False, False)[0] if ctx.needs_input_grad[1] else None, None, None, None


def _linear(deferred: "Deferred", x: torch.Tensor, weight: Any, bias: Any = None) -> torch.Tensor | None:
    if not _can_wait(weight, bias):
        return None
    x = _as_autocast(x)
    with torch.autocast(x.device.type, enabled=False):
        result: torch.Tensor = _Linear.apply(deferred, x, weight, bias)  # type: ignore[no-untyped-call]
    return result


def _convolution(dims: int, *names: str) -> Callable[..., torch.Tensor | None]:
    """A convolution over some dimensions; its options have these names, in the order of its arguments."""

    def convolution(
        deferred: "Deferred", x: torch.Tensor, weight: Any, bias: Any = None, *given: Any, **named: Any
    ) -> torch.Tensor | None:
        options = {**_DEFAULTS, **dict(zip(names, given, strict=False)), **named}
        if isinstance(options["padding"], str) or not _can_wait(weight, bias) or x.dim() != dims + 2:
            return None
        x = _as_autocast(x)
        stride, padding, dilation, output_padding = (
            _each(options[name], dims) for name in ("stride", "padding", "dilation", "output_padding")
        )
        arguments = (stride, padding, dilation, names == _TRANSPOSED, output_padding, options["groups"])
        with torch.autocast(x.device.type, enabled=False):
            result: torch.Tensor = _ConvolutionGradients.apply(deferred, x, weight, bias, arguments)  # type: ignore[no-untyped-call]
        return result

    return convolution


_DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0, "groups": 1}
_FORWARD = ("stride", "padding", "dilation", "groups")
_TRANSPOSED = ("stride", "padding", "output_padding", "groups", "dilation")


def _can_wait(weight: Any, bias: Any) -> bool:
    return all(
        type(tensor) is nn.Parameter and tensor.requires_grad and not tensor._backward_hooks
        for tensor in (weight, bias)
        if tensor is not None
    )


def _as_autocast(x: torch.Tensor) -> torch.Tensor:
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def _each(value: Any, dims: int) -> list[int]:
    values = [value] * dims if isinstance(value, int) else list(value)
    return values * dims if len(values) == 1 else values


LAYERS: dict[Any, Callable[..., torch.Tensor | None]] = {
    functional.linear: _linear,
    torch.ops.aten.linear.default: _linear,
    functional.conv1d: _convolution(1, *_FORWARD),
    functional.conv2d: _convolution(2, *_FORWARD),
    functional.conv3d: _convolution(3, *_FORWARD),
    functional.conv_transpose1d: _convolution(1, *_TRANSPOSED),
    functional.conv_transpose2d: _convolution(2, *_TRANSPOSED),
    functional.conv_transpose3d: _convolution(3, *_TRANSPOSED),
    torch.ops.aten.conv1d.default: _convolution(1, *_FORWARD),
    torch.ops.aten.conv2d.default: _convolution(2, *_FORWARD),
    torch.ops.aten.conv3d.default: _convolution(3, *_FORWARD),
    torch.ops.aten.conv_transpose1d.default: _convolution(1, *_TRANSPOSED),
    torch.ops.aten.conv_transpose2d.input: _convolution(2, *_TRANSPOSED),
    torch.ops.aten.conv_transpose3d.input: _convolution(3, *_TRANSPOSED),
}
"""Functions that defer weight gradients, by the functions of torch that they replace."""


_Gradients = Callable[[], Sequence[torch.Tensor]]


class Deferred:
    """The weight gradients that one forward of a segment defers until after its backward for the inputs."""

    def __init__(self) -> None:
        self._noted: list[tuple[tuple[nn.Parameter, ...], _Gradients]] = []

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those whose gradients are deferred, once for each use."""
        return [parameter for parameters, _ in self._noted for parameter in parameters]

    def recording(self) -> AbstractContextManager[object]:
        """A block in which the gradients of layers' weights are deferred; the forward runs inside it."""
        return _Mode(self)

    def note(self, parameters: tuple[nn.Parameter, ...], gradients: _Gradients) -> None:
        """Defer the gradients of some parameters.

        Args:
            parameters: whose
            gradients: makes one a parameter
        """
        self._noted.append((parameters, gradients))

    def run(self, arrived: Callable[[nn.Parameter], None]) -> None:
        """Add the deferred gradients to those of the parameters; afterwards nothing is kept.

        Args:
            arrived: told of each parameter after the last of its gradients
        """
        left = Counter(map(id, self.parameters))
        self._noted.reverse()
        with torch.no_grad():
            while self._noted:
                parameters, gradients = self._noted.pop()
                for parameter, gradient in zip(parameters, gradients(), strict=True):
                    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
                    left[id(parameter)] -= 1
                    if not left[id(parameter)]:
                        arrived(parameter)


class _Mode(TorchFunctionMode):
    def __init__(self, deferred: Deferred) -> None:
        super().__init__()
        self._deferred = deferred

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        layer = LAYERS.get(func)
        options = dict(kwargs or {})
        if layer is not None and torch.is_grad_enabled():
            given = [options.pop("input")] if "input" in options else []
            args = (*given, *args)
            result = layer(self._deferred, *args, **options)
            if result is not None:
                return result
        return func(*args, **options)
