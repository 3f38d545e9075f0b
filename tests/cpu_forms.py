"""Steps on meta tensors in the forms that a CPU runs, so that they can be compared with steps that were run there."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from trimaran.graph.trace import meta


@contextmanager
def forms_of_a_cpu() -> Iterator[None]:
    """Attention is the fused kernel of a CPU, and dropout its plain form."""
    with mock.patch.multiple(meta, attend=_attend, drop_out=lambda func, args, kwargs: func(*args, **kwargs)):
        yield


def _attend(
    func: Any,
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
    """The CPU has no fused dropout; masks that are trained, such as relative positions, take the plain form there."""
    if query.dim() != 4:
        return func(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    mask = attn_mask
    if enable_gqa:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if dropout_p > 0 or (mask is not None and mask.requires_grad):
        return func(query, key, value, mask, dropout_p, is_causal, scale=scale)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale
    )[0]
