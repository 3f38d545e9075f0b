"""Operators of a CUDA build whose results a CPU build cannot tell.

A tensor without data needs, for each operator, a function that says what it makes. torch has one for nearly all; those
of this file are the rest that training asks for: statistics of synchronised batch norms, cuDNN's recurrent layers,
fused optimizers, a fused norm. The functions only make empty tensors of the right form.

Some layers take other operators on a GPU than on a CPU. `install` makes them take those of the GPU, so that what they
keep for the backward is what they keep there.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from trimaran.rehearsal.device.replaced import replace

_aten = torch.ops.aten

_library: torch.library.Library | None = None
"""Held for the rest of the process: what it registered goes with it."""

_GATES = {0: 1, 1: 1, 2: 4, 3: 3}
"""Matrices of a layer by cuDNN's mode: ReLU, tanh, LSTM, GRU."""

_KEPT = {0: 1, 1: 1, 2: 6, 3: 5}
"""Values of the carried size that a layer keeps for its backward per step, direction and row: the gates after their
nonlinearities and the states. cuDNN does not say what it reserves; this is what the derivative needs."""


def install() -> None:
    """Register the operators, and lead layers to those of the GPU. Once a process."""
    global _library
    library = _library = torch.library.Library("aten", "IMPL")
    for name, made in {
        "batch_norm_stats": _stats,
        "batch_norm_elemt": _like_input,
        "batch_norm_gather_stats": _gathered_stats,
        "batch_norm_gather_stats_with_counts": _gathered_stats,
        "batch_norm_backward_reduce": _reduced,
        "batch_norm_backward_elemt": _like_second,
        "batch_norm_update_stats": _updated_stats,
        "_cudnn_rnn": _rnn,
        "_cudnn_rnn_backward": _rnn_backward,
        "_thnn_fused_gru_cell": _gru_cell,
        "_thnn_fused_gru_cell_backward": _gru_cell_backward,
        "_masked_softmax": _like_input,
        "_masked_softmax_backward": _like_input,
        "_logcumsumexp": _like_input,
        "_standard_gamma_grad": _like_input,
        "_dirichlet_grad": _like_input,
        "_sample_dirichlet": _like_input,
        "binomial": _like_input,
        "_cummax_helper": _nothing,
        "_cummin_helper": _nothing,
        "_fused_adam_.tensor_lr": _nothing,
        "_fused_adamw_.tensor_lr": _nothing,
        "_fused_sgd_": _nothing,
        "_fused_sgd_.tensor_lr": _nothing,
        "_fused_adagrad_": _nothing,
        "_fused_adagrad_.tensor_lr": _nothing,
        "fake_quantize_per_tensor_affine_cachemask": _quantized,
        "fake_quantize_per_channel_affine_cachemask": _quantized,
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": _quantized,
        "_fake_quantize_learnable_per_tensor_affine": _like_input,
        "_fake_quantize_learnable_per_channel_affine": _like_input,
        "_aminmax": _extremes,
        "multi_margin_loss_backward": _like_second,
        "multilabel_margin_loss_backward": _like_second,
        "_ctc_loss_backward": _ctc_backward,
        "_conv_depthwise2d": _depthwise,
        "_grouped_mm": _grouped_product,
    }.items():
        library.impl(name, made, "Meta", allow_override=True)
    library.impl("_fused_rms_norm", _RmsNorm.call, "AutogradCUDA")
    for operator in (_aten.silu_backward.default, _aten.mish_backward.default):
        library.impl(operator.name(), _first_derivative(operator), "AutogradCUDA")
    for mode, name in enumerate(("rnn_relu", "rnn_tanh", "lstm", "gru")):
        replace(torch._VF, **{name: _recurrent(name, mode)})
    flatten = nn.RNNBase.flatten_parameters

    def flatten_parameters(layer: nn.RNNBase) -> None:
        """On the device cuDNN moves the weights into one block of the same size, which changes no sum."""
        if not any(weight.device.type == "cuda" for weight in layer._flat_weights if weight is not None):
            flatten(layer)

    replace(nn.RNNBase, flatten_parameters=flatten_parameters)


# ---------------------------------------------------------------------------------------------------------------------
# What operators make


def _accumulated(tensor: torch.Tensor) -> torch.dtype:
    """In which sums over a tensor are kept."""
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _like_input(first: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return torch.empty_like(first)


def _like_second(_: Any, second: torch.Tensor, *__: Any, **___: Any) -> torch.Tensor:
    return torch.empty_like(second)


def _quantized(first: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(first), torch.empty_like(first, dtype=torch.bool)


def _extremes(first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return first.new_empty(()), first.new_empty(())


def _stats(tensor: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    sizes = (tensor.shape[1],)
    kind = _accumulated(tensor)
    return tensor.new_empty(sizes, dtype=kind), tensor.new_empty(sizes, dtype=kind)


def _gathered_stats(tensor: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _stats(tensor, 0.0)


def _updated_stats(tensor: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _stats(tensor, 0.0)


def _reduced(
    gradient: torch.Tensor,
    tensor: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor | None,
    with_input: bool,
    with_weight: bool,
    with_bias: bool,
) -> tuple[torch.Tensor | None, ...]:
    sums = [torch.empty_like(mean), torch.empty_like(mean)] if with_input else [None, None]
    kind = weight.dtype if weight is not None else mean.dtype
    one = torch.empty_like(mean, dtype=kind) if with_weight else None
    other = torch.empty_like(mean, dtype=kind) if with_bias else None
    return (*sums, one, other)


def _gru_cell(
    gates: torch.Tensor, carried: torch.Tensor, state: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(state), state.new_empty((state.shape[0], 5 * state.shape[1]))


def _gru_cell_backward(gradient: torch.Tensor, workspace: torch.Tensor, biased: bool) -> tuple[Any, ...]:
    gates = (gradient.shape[0], 3 * gradient.shape[1])
    biases = [gradient.new_empty((gates[1],)) if biased else None for _ in range(2)]
    return gradient.new_empty(gates), gradient.new_empty(gates), torch.empty_like(gradient), *biases


def _ctc_backward(gradient: torch.Tensor, log_probabilities: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return torch.empty_like(log_probabilities)


def _grouped_product(
    one: torch.Tensor,
    other: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: Any = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Of any type: those without a fast kernel take one product a group."""
    if one.dim() == 2 and other.dim() == 2:
        groups = offs.shape[0] if offs is not None else 1
        sizes = [groups, one.shape[0], other.shape[1]]
    elif one.dim() == 2:
        sizes = [one.shape[0], other.shape[2]]
    elif other.dim() == 2:
        sizes = [one.shape[1], other.shape[1]]
    else:
        sizes = [one.shape[0], one.shape[1], other.shape[2]]
    return one.new_empty(sizes, dtype=out_dtype or one.dtype)


def _depthwise(
    tensor: torch.Tensor,
    weight: torch.Tensor,
    kernel: Sequence[int],
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
) -> torch.Tensor:
    made: torch.Tensor = _aten.convolution.default(
        tensor, weight, bias, stride, padding, dilation, False, [0, 0], tensor.shape[1]
    )
    return made


# ---------------------------------------------------------------------------------------------------------------------
# The norm of transformers, and derivatives of activation functions


def _rms_norm(
    tensor: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [*tensor.shape[: tensor.dim() - len(shape)], *[1] * len(shape)]
    out = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    return out, tensor.new_empty(rows, dtype=_accumulated(tensor))


def _first_derivative(operator: torch._ops.OpOverload) -> Any:
    """One kernel, as on a GPU; its parts where there is a further derivative."""

    def call(gradient: torch.Tensor, tensor: torch.Tensor) -> Any:
        if torch.is_grad_enabled() and (gradient.requires_grad or tensor.requires_grad):
            return operator.decompose(gradient, tensor)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(gradient, tensor)

    return call


IN_PLACE_OF_PARTS = {
    _aten._fused_rms_norm.default: _rms_norm,
    _aten.silu_backward.default: _like_input,
    _aten.mish_backward.default: _like_input,
}
"""Operators that a GPU has a kernel for and other devices take apart, with what makes their results. Source:
native_functions.yaml, those with a kernel for CUDA and one that is composed."""


class _RmsNorm(torch.autograd.Function):
    """On a GPU one kernel forth and one back, which keep the input and a scale per row; a CPU build takes it apart."""

    @staticmethod
    def call(tensor: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, eps: float | None) -> Any:
        """Under autograd's key."""
        return _RmsNorm.apply(tensor, list(shape), weight, eps)  # type: ignore[no-untyped-call]

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, shape: Any, weight: torch.Tensor | None, eps: Any) -> Any:
        """One kernel."""
        with torch._C._AutoDispatchBelowAutograd():
            out, scale = _aten._fused_rms_norm.default(tensor, shape, weight, eps)
        ctx.mark_non_differentiable(scale)
        ctx.save_for_backward(tensor, weight, scale)
        ctx.shape = shape
        return out, scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Any:
        """One kernel; its own derivative is not needed for training but by penalties, which then are refused."""
        tensor, weight, scale = ctx.saved_tensors
        mask = [ctx.needs_input_grad[0], weight is not None and ctx.needs_input_grad[2]]
        made = _aten._fused_rms_norm_backward.default(gradient, tensor, ctx.shape, scale, weight, mask)
        return made[0], None, made[1], None


# ---------------------------------------------------------------------------------------------------------------------
# Recurrent layers


def _recurrent(name: str, mode: int) -> Any:
    """`torch._VF.lstm` and its like: by cuDNN where the input is on the device."""
    plain = getattr(torch._C._VariableFunctions, name)

    def layer(*args: Any) -> Any:
        tensor = args[0]
        if tensor.device.type != "cuda":
            return plain(*args)
        packed = isinstance(args[3], (list, tuple))
        if packed:
            _, sizes, state, weights, biased, layers, dropout, training, both = args
            first, steps = False, [int(size) for size in sizes.tolist()]
        else:
            _, state, weights, biased, layers, dropout, training, both, first = args
            steps = []
        carried, cell = state if mode == 2 else (state, None)
        if torch.is_autocast_enabled("cuda"):
            kind = torch.get_autocast_dtype("cuda")
            tensor, carried = tensor.to(kind), carried.to(kind)
            cell = cell.to(kind) if cell is not None else None
            weights = [weight.to(kind) for weight in weights]
        directions = 2 if both else 1
        per_layer = len(weights) // (layers * directions)
        projected = per_layer - (4 if biased else 2) == 1
        size = weights[0].shape[0] // _GATES[mode]
        with torch._C._DisableAutocast():  # a CUDA build would have cuDNN lay out the weights anew
            out, last, last_cell, _, _ = torch._cudnn_rnn(
                tensor, weights, per_layer, weights[0].new_empty(0), carried, cell, mode, size,
                carried.shape[-1] if projected else 0, layers, first, dropout if training else 0.0, training, both,
                steps, None,
            )  # fmt: skip
        return (out, last, last_cell) if mode == 2 else (out, last)

    return layer


def _rnn(*arguments: Any) -> Any:
    """torch's, with what is kept for the backward, of which torch says that it is nothing."""
    out, last, last_cell, reserve, buffer = torch._meta_registrations._cudnn_rnn(*arguments)
    tensor, mode, size, layers, training, both = (arguments[place] for place in (0, 6, 7, 9, 12, 13))
    if training:
        rows = tensor.shape[0] if tensor.dim() == 2 else tensor.shape[0] * tensor.shape[1]
        kept = rows * layers * (2 if both else 1) * size * _KEPT[mode] * tensor.element_size()
        reserve = tensor.new_empty((kept,), dtype=torch.uint8)
    return out, last, last_cell, reserve, buffer


def _rnn_backward(
    tensor: torch.Tensor,
    weights: Sequence[torch.Tensor],
    per_layer: int,
    buffer: Any,
    carried: torch.Tensor,
    cell: torch.Tensor | None,
    *rest: Any,
) -> Any:
    wanted = rest[-1]
    return (
        torch.empty_like(tensor),
        torch.empty_like(carried),
        torch.empty_like(cell) if cell is not None else None,
        [torch.empty_like(weight) for weight in weights] if wanted[3] else [],
    )
