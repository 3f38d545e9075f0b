"""How much work an operation is: floating-point operations and bytes.

Counted are matrix products, convolutions, attention and recurrent cells, twice the multiplications; everything else has
0, as its time is that of its bytes. The formulas are torch's own where it has one for the operation.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from trimaran.graph.trace.geometry import element_bytes
from trimaran.graph.trace.recurrent_names import RECURRENT

Formula = Callable[..., float]


def flops_of(op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> float:
    """Floating-point operations of a call [FLOP].

    Source:
        torch.utils.flop_counter for the operations that it knows.
    """
    packet = op._overloadpacket
    formula = OWN.get(str(op._schema.name)) or flop_registry.get(packet)
    if formula is None:
        return 0.0
    return float(formula(*args, **kwargs, out_val=out))


def bytes_of(inputs: Iterable[torch.Tensor], outputs: Iterable[torch.Tensor]) -> int:
    """Bytes that a call reads and writes [bytes]."""
    return sum(map(element_bytes, inputs)) + sum(map(element_bytes, outputs))


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> float:
    return float(sdpa_flop_count(query.shape, *_with_heads(query, key, value)))


def _attention_backward(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> float:
    return float(sdpa_backward_flop_count(grad.shape, query.shape, *_with_heads(query, key, value)))


def _with_heads(query: torch.Tensor, *tensors: torch.Tensor) -> list[tuple[int, ...]]:
    """Shapes [batch, heads, length, size] with as many heads as the query has: torch 2.11's formulas want that."""
    heads = query.shape[1]
    return [(tensor.shape[0], heads, *tensor.shape[2:]) for tensor in tensors]


def _recurrent_layer(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, *_: Any, **__: Any) -> float:
    """A layer over time: each step multiplies its input and its state by a matrix. `x` is [time, batch, size]."""
    steps = math.prod(x.shape[:-1])
    return 2.0 * steps * (w1.numel() + w2.numel())


def _recurrent_layer_backward(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, *_: Any, **__: Any) -> float:
    return 2.0 * _recurrent_layer(x, w1, w2)


def _recurrent_stack(x: torch.Tensor, weights: list[torch.Tensor], *_: Any, **__: Any) -> float:
    elements: int = sum(weight.numel() for weight in weights if weight.dim() == 2)
    return 2.0 * math.prod(x.shape[:-1]) * elements


def _recurrent_stack_backward(x: torch.Tensor, weights: list[torch.Tensor], *_: Any, **__: Any) -> float:
    return 2.0 * _recurrent_stack(x, weights)


def _recurrent_call(x: torch.Tensor, *args: Any, **_: Any) -> float:
    """Any part of a layer: each multiplies every row by every matrix."""
    weights = next(arg for arg in args if isinstance(arg, list | tuple))
    elements: int = sum(weight.numel() for weight in weights if weight.dim() == 2)
    return 2.0 * math.prod(x.shape[:-1]) * elements


_KERNELS = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")

OWN: dict[str, Formula] = {
    **{name.replace(".", "::"): _recurrent_call for name in RECURRENT},
    **{f"aten::_scaled_dot_product_{kernel}": _attention for kernel in _KERNELS},
    **{f"aten::_scaled_dot_product_{kernel}_backward": _attention_backward for kernel in _KERNELS},
    "aten::mkldnn_rnn_layer": _recurrent_layer,
    "aten::mkldnn_rnn_layer_backward": _recurrent_layer_backward,
    "aten::_cudnn_rnn": _recurrent_stack,
    "aten::_cudnn_rnn_backward": _recurrent_stack_backward,
}
