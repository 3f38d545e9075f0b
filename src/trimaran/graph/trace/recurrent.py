"""Recurrent layers on meta tensors as a library of a GPU runs them: a call a layer, not operations for every step.

    forward            x [steps, batch, input], hx, cx, weights   ->  output, hy, cy, reserve
    backward_input     grad [steps, batch, state], hx, cx, weights, reserve  ->  gradients of x, hx, cx
    backward_weight    x, hx, output, weights, reserve            ->  gradients of the weights

The reserve is what the library keeps for the backward: gates and the new cell of every step. Between layers dropout
runs as one operation. Packed sequences, whose lengths are values, run step by step as torch runs them without a device.

Source:
    cuDNN's API for recurrent networks: one call for the gradients of data, one for those of weights.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from trimaran.graph.trace.dropout import drop_out
from trimaran.graph.trace.recurrent_names import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, GATES, NAMESPACE

CELLS: Mapping[str, str] = {"lstm": "lstm", "gru": "gru", "rnn_tanh": "rnn", "rnn_relu": "rnn"}
"""Functions of torch that run whole layers, and the cell of each."""

_RETAINED = {"lstm": 6, "gru": 5, "rnn": 1}
"""Numbers kept for the backward by step, sample and unit: gates, the state before the output, and its activation."""

_LIBRARY = torch.library.Library(NAMESPACE, "DEF")


def run_layers(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`torch.lstm` and its like, layer by layer.

    Args:
        func: torch's own function
        args: its arguments by place
        kwargs: its arguments by name
    """
    name = func.__name__
    states = (args[1] if len(args) > 1 else None) if name == "lstm" else [args[1]] if len(args) > 1 else None
    if kwargs or len(args) != 9 or not isinstance(states, tuple | list) or not isinstance(args[2], tuple | list):
        return func(*args, **kwargs)  # packed
    x, _, weights, _, layers, dropout, trains, bidirectional, batch_first = args
    x = x.transpose(0, 1) if batch_first else x
    directions = 1 + bool(bidirectional)
    each = len(weights) // (layers * directions) * directions
    last: list[list[Tensor]] = []
    for layer in range(layers):
        if layer and dropout and trains:
            x = drop_out(torch.dropout, (x, dropout, True), {})
        own = [state[layer * directions : (layer + 1) * directions] for state in states]
        cx = own[1] if name == "lstm" else None
        out: tuple[Tensor, ...] = _Layer.apply(  # type: ignore[no-untyped-call]
            CELLS[name], x, own[0], cx, *weights[layer * each : (layer + 1) * each]
        )
        x = out[0]
        last.append(list(out[1:3] if name == "lstm" else out[1:2]))
    ends = [torch.cat(parts) if layers > 1 else parts[0] for parts in zip(*last, strict=True)]
    return (x.transpose(0, 1) if batch_first else x, *ends)


class _Layer(torch.autograd.Function):
    """One layer, of one or both directions."""

    @staticmethod
    def forward(ctx: Any, cell: str, x: Tensor, hx: Tensor, cx: Tensor | None, *weights: Tensor) -> tuple[Tensor, ...]:
        output, hy, cy, reserve = _call(cell, FORWARD)(x, hx, cx, list(weights))
        ctx.cell, ctx.has_cx = cell, cx is not None
        ctx.save_for_backward(x, hx, *([cx] if cx is not None else []), output, reserve, *weights)
        ctx.set_materialize_grads(False)
        return output, hy, cy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        x, hx, *rest = ctx.saved_tensors
        cx = rest.pop(0) if ctx.has_cx else None
        output, reserve, *weights = rest
        grad = grads[0] if grads[0] is not None else torch.zeros_like(output)
        # It runs also where nobody wants the gradient of the input: those of the weights need what it leaves.
        given = _call(ctx.cell, BACKWARD_INPUT)(grad, hx, cx, weights, reserve)
        wanted = ctx.needs_input_grad[1:4]
        of_x = [part if needed else None for part, needed in zip(given, wanted, strict=True)]
        of_weights: Sequence[Tensor | None] = [None] * len(weights)
        if any(ctx.needs_input_grad[4:]):
            of_weights = _call(ctx.cell, BACKWARD_WEIGHT)(x, hx, output, weights, reserve)
        return None, *of_x, *of_weights


def _call(cell: str, part: str) -> Any:
    return getattr(getattr(torch.ops, NAMESPACE), f"{cell}_{part}")


def _define(cell: str) -> None:
    """Operations that give shapes, and nothing else."""
    states = "Tensor hx, Tensor? cx, Tensor[] weights"
    _LIBRARY.define(f"{cell}_{FORWARD}(Tensor x, {states}) -> (Tensor, Tensor, Tensor, Tensor)")
    _LIBRARY.define(f"{cell}_{BACKWARD_INPUT}(Tensor grad, {states}, Tensor reserve) -> (Tensor, Tensor, Tensor)")
    _LIBRARY.define(
        f"{cell}_{BACKWARD_WEIGHT}(Tensor x, Tensor hx, Tensor output, Tensor[] weights, Tensor reserve) -> Tensor[]"
    )

    def forward(x: Tensor, hx: Tensor, cx: Tensor | None, weights: list[Tensor]) -> tuple[Tensor, ...]:
        steps, batch, _ = x.shape
        directions, _, state = hx.shape
        hidden = weights[0].shape[0] // GATES[cell]
        reserve = x.new_empty(_RETAINED[cell] * steps * batch * directions * hidden)
        ends = torch.empty_like(hx), torch.empty_like(hx if cx is None else cx)
        return x.new_empty(steps, batch, directions * state), *ends, reserve

    def backward_input(
        grad: Tensor, hx: Tensor, cx: Tensor | None, weights: list[Tensor], reserve: Tensor
    ) -> tuple[Tensor, ...]:
        steps, batch, _ = grad.shape
        of_cell = torch.empty_like(hx if cx is None else cx)
        return grad.new_empty(steps, batch, weights[0].shape[1]), torch.empty_like(hx), of_cell

    def backward_weight(x: Tensor, hx: Tensor, output: Tensor, weights: list[Tensor], reserve: Tensor) -> list[Tensor]:
        return [torch.empty_like(weight) for weight in weights]

    for part, meaning in ((FORWARD, forward), (BACKWARD_INPUT, backward_input), (BACKWARD_WEIGHT, backward_weight)):
        _LIBRARY.impl(f"{cell}_{part}", meaning, "Meta")


for _cell in GATES:
    _define(_cell)
