"""Autocast on meta tensors: torch's own looks at the device of a tensor, and has none for these.

    lower precision   products and convolutions: arguments are cast to it
    float32           functions that lose too much otherwise, such as losses, norms and exponentials
    widest            functions of several tensors, which must agree
    as they are       everything else

Casts of parameters are kept until the forward ends, so that a weight used twice is cast once.

Source:
    torch's documentation of autocast: its lists of operations on CUDA.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from trimaran.graph.trace.calls import replaced, tensors_in
from trimaran.graph.trace.overrides import Replacement

_LOWER = """
addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d
conv_transpose3d einsum gru gru_cell linalg_multi_dot linalg_vecdot linear lstm lstm_cell matmul mm mv multi_dot prelu
rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell scaled_dot_product_attention __matmul__ __rmatmul__
"""
_FLOAT32 = """
acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss cosine_similarity cross_entropy cumprod
cumsum dist erfinv exp expm1 frobenius_norm group_norm hinge_embedding_loss huber_loss kl_div l1_loss layer_norm
linalg_matrix_norm linalg_vector_norm log log10 log1p log2 log_softmax logsumexp margin_ranking_loss mse_loss
multi_margin_loss multilabel_margin_loss nll_loss norm nuclear_norm pdist poisson_nll_loss pow prod reciprocal renorm
rms_norm rsqrt sinh smooth_l1_loss soft_margin_loss softmax softmin softplus sum tan triplet_margin_loss
upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d
upsample_trilinear3d _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d
_upsample_nearest_exact3d __pow__ __rpow__
"""
_WIDEST = """
addcdiv addcmul atan2 bilinear cat cross dot grid_sample index_put scatter_add stack tensordot vdot
"""

LOWER = frozenset(_LOWER.split())
FLOAT32 = frozenset(_FLOAT32.split())
WIDEST = frozenset(_WIDEST.split())


class Autocast:
    """The rules of autocast for one forward.

    Args:
        dtype: the lower precision
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._casts: dict[torch.Tensor, torch.Tensor] = {}

    def end_forward(self) -> None:
        """Let go of the casts of parameters."""
        self._casts.clear()

    def replacement(self, name: str) -> Replacement | None:
        """What runs in the place of a function; None where it runs as it is."""
        if name in LOWER:
            return self._lower
        if name in FLOAT32:
            return _in_float32
        return _in_widest if name in WIDEST else None

    def cast(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor in the lower precision."""
        if not tensor.is_floating_point() or tensor.dtype in (self._dtype, torch.float64):
            return tensor
        if not (tensor.is_leaf and tensor.requires_grad):
            return tensor.to(self._dtype)
        if tensor not in self._casts:
            self._casts[tensor] = tensor.to(self._dtype)
        return self._casts[tensor]

    def _lower(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return func(*replaced(args, torch.Tensor, self.cast), **replaced(dict(kwargs), torch.Tensor, self.cast))


def _in_float32(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return _as(torch.float32, func, args, kwargs)


def _in_widest(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    dtypes = [tensor.dtype for tensor in tensors_in((args, dict(kwargs))) if tensor.is_floating_point()]
    return _as(max(dtypes, key=lambda dtype: dtype.itemsize), func, args, kwargs) if dtypes else func(*args, **kwargs)


def _as(dtype: torch.dtype, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() and tensor.itemsize < dtype.itemsize else tensor

    return func(*replaced(args, torch.Tensor, cast), **replaced(dict(kwargs), torch.Tensor, cast))
