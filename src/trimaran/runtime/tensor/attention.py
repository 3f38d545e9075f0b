"""torch's attention modules on a share of their heads."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional

from trimaran.graph.sharding.drawing import Draw
from trimaran.runtime.tensor.draws import WholeDraws
from trimaran.runtime.tensor.edges import Edges

Weights = Sequence[torch.Tensor]


class Attention(nn.Module):
    """`nn.MultiheadAttention` of which each rank has some heads.

    Args:
        module: the user's, for all but its weights
        edges: how tensors come in and out
        count: of the weights that it is called with, so many are shared; the others are those of the user's module
    """

    def __init__(self, module: nn.MultiheadAttention, edges: Edges, count: int) -> None:
        super().__init__()
        self._count = count
        # Not as a child: its parameters are the user's model's.
        self.__dict__["_user"] = module
        self._edges = edges
        self._draws = WholeDraws(edges.group, Draw(right=-3, sections=(module.num_heads,)))

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        weights: Weights,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = False,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, None]:
        """The output of all heads."""
        module: nn.MultiheadAttention = self.__dict__["_user"]
        weights = weights[: self._count]
        entered = {id(tensor): self._edges.enter(tensor) for tensor in (query, key, value)}
        parts = [entered[id(tensor)] for tensor in (query, key, value)]
        if not module.batch_first:
            parts = [part.transpose(0, 1) for part in parts]
        causal = is_causal and key_padding_mask is None
        mask = None if causal else _mask(attn_mask, key_padding_mask, query.dtype)
        mixed = self._mixed(module, parts, weights, mask, causal)
        # [places, samples, features] in memory as torch's own: what draws for it draws in the order of memory.
        made = self._edges.leave(functional.linear(mixed, weights[-1]))
        if module.out_proj.bias is not None:
            made = made + module.out_proj.bias
        return (made.transpose(0, 1) if module.batch_first else made), None

    def _mixed(
        self,
        module: nn.MultiheadAttention,
        parts: Sequence[torch.Tensor],
        weights: Weights,
        mask: torch.Tensor | None,
        causal: bool,
    ) -> torch.Tensor:
        biases = weights[1].chunk(3) if len(weights) == 3 else (None, None, None)
        query, key, value = (
            functional.linear(part, weight, bias).unflatten(-1, (-1, module.head_dim)).transpose(1, 2)
            for part, weight, bias in zip(parts, weights[0].chunk(3), biases, strict=True)
        )
        dropout = module.dropout if module.training else 0.0
        with self._draws if dropout else nullcontext():
            mixed = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal
            )
        return mixed.permute(2, 0, 1, 3).flatten(2)


class EncoderLayer(nn.Module):
    """`nn.TransformerEncoderLayer` of which each rank has some heads and some features.

    Args:
        module: the user's, for all but its weights
        edges: how tensors come in and out
        counts: of the weights that it is called with, so many are those of its heads, and then of its features
    """

    def __init__(self, module: nn.TransformerEncoderLayer, edges: Edges, counts: tuple[int, int]) -> None:
        super().__init__()
        self.__dict__["_user"] = module
        self._edges = edges
        self._draws = WholeDraws(edges.group, Draw(right=-1, sections=(module.linear1.out_features,)))
        self._heads, self._all = counts[0], sum(counts)
        self._attention = Attention(module.self_attn, edges, self._heads)

    def forward(
        self,
        src: torch.Tensor,
        weights: Weights,
        src_mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        """The states after it."""
        module: nn.TransformerEncoderLayer = self.__dict__["_user"]

        def attended(states: torch.Tensor) -> torch.Tensor:
            found, _ = self._attention(
                states,
                states,
                states,
                weights,
                key_padding_mask=src_key_padding_mask,
                attn_mask=src_mask,
                is_causal=is_causal,
            )
            dropped: torch.Tensor = module.dropout1(found)
            return dropped

        if module.norm_first:
            states = src + attended(module.norm1(src))
            return states + self._dense(module, module.norm2(states), weights[self._heads : self._all])
        states = module.norm1(src + attended(src))
        result: torch.Tensor = module.norm2(states + self._dense(module, states, weights[self._heads : self._all]))
        return result

    def _dense(self, module: nn.TransformerEncoderLayer, states: torch.Tensor, weights: Weights) -> torch.Tensor:
        activation: Callable[[torch.Tensor], torch.Tensor] = module.activation
        inner = functional.linear(self._edges.enter(states), weights[0], weights[1] if len(weights) == 3 else None)
        inner = activation(inner)
        with self._draws if module.dropout.training and module.dropout.p else nullcontext():
            inner = module.dropout(inner)
        made = self._edges.leave(functional.linear(inner, weights[-1]))
        if module.linear2.bias is not None:
            made = made + module.linear2.bias
        result: torch.Tensor = module.dropout2(made)
        return result


def _mask(mask: torch.Tensor | None, padding: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """What is added to the scores: for True of torch's masks, minus infinity."""
    found = None if mask is None else _added(mask, dtype)
    if padding is None:
        return found
    keys = _added(padding, dtype)[:, None, None, :]
    return keys if found is None else found + keys


def _added(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, float("-inf"))
