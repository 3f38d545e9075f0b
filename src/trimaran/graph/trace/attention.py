"""Attention on meta tensors, in the form that it takes on a device.

Without a device torch falls back on the plain form, which keeps the scores of every pair of tokens. A GPU runs a fused
kernel, which keeps one number for each row of them:

    flash      half precision, no mask
    efficient  any precision, any mask; also where flash was asked for and does not go
    cpu        the fused kernel of the CPU, to compare with a run there
    math       the plain form
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch

AttentionForm = Literal["flash", "efficient", "cpu", "math"]

_HALVES = (torch.float16, torch.bfloat16)
_LARGEST_HEAD = 256
"""Elements of a head that the flash kernels of a GPU take at most."""


def attend(form: AttentionForm, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """`scaled_dot_product_attention` in a given form.

    Args:
        form: which
        func: torch's own function
        args: its arguments by place
        kwargs: its arguments by name
    """
    return _attend(form, func, *args, **kwargs)


def _attend(
    form: AttentionForm,
    func: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if form == "math" or query.dim() != 4:
        return func(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    flash = form == "flash" and attn_mask is None and query.dtype in _HALVES and query.shape[-1] <= _LARGEST_HEAD
    if enable_gqa and not flash:  # flash reads fewer heads of keys and values as they are
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if form == "cpu":
        return _on_cpu(func, query, key, value, attn_mask, dropout_p, is_causal, scale)
    if flash:
        return torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
    bias = None if attn_mask is None else _bias(attn_mask, query, key)
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, query.requires_grad, dropout_p, is_causal, scale=scale
    )[0]


def _on_cpu(
    func: Callable[..., Any],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Any:
    """The CPU has no fused dropout; masks that are trained, such as relative positions, take the plain form there."""
    if dropout_p > 0 or (mask is not None and mask.requires_grad):
        return func(query, key, value, mask, dropout_p, is_causal, scale=scale)
    if mask is not None and mask.dtype == torch.bool:
        mask = _as_numbers(mask, query.dtype)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale
    )[0]


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    if mask.dtype == torch.bool:
        mask = _as_numbers(mask, query.dtype)
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _as_numbers(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), float("-inf"))
