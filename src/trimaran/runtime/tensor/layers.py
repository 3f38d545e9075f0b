"""Layers of a rewritten flow: those of the user on a share of their weights."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional

from trimaran.graph.sharding.layers import ConvolutionCall
from trimaran.graph.sharding.random_numbers import Draw
from trimaran.runtime.tensor.collectives import Edges, TensorGroup, gathered_whole, take_share
from trimaran.runtime.tensor.random_numbers import WholeDraws


class EnterRegion(nn.Module):
    """A tensor comes into a region.

    Args:
        edges: of the region
    """

    def __init__(self, edges: Edges) -> None:
        super().__init__()
        self._edges = edges

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as the region reads it."""
        return self._edges.enter(tensor)


class TakeShare(nn.Module):
    """This rank's share of a tensor that every rank has whole.

    Args:
        group: shares it
        dim: that is split
        sections: of it that are split each by itself
    """

    def __init__(self, group: TensorGroup, dim: int, sections: Sequence[int]) -> None:
        super().__init__()
        self._group, self._dim, self._sections = group, dim, tuple(sections)

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its share of each section, joined."""
        return take_share(tensor, self._dim, self._sections, self._group.size, self._group.shard)


class GatherWhole(nn.Module):
    """The whole of a tensor of which each rank has a part, for what reads it whole.

    Args:
        group: has the parts
        dim: that is split
        size: of the whole
        order: its dimensions as they lie in memory in one process; None: as they are numbered
    """

    def __init__(self, group: TensorGroup, dim: int, size: int, order: tuple[int, ...] | None) -> None:
        super().__init__()
        self._group, self._dim, self._size, self._order = group, dim, size, order

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        """The whole tensor; its gradient is whole on every rank."""
        whole, order = gathered_whole(tensor, self._group, self._dim, self._size), self._order
        if order is None or len(order) != whole.dim():
            return whole
        # What draws random numbers for it draws in the order of memory.
        return whole.permute(order).contiguous().permute([order.index(dim) for dim in range(whole.dim())])


class Column(nn.Module):
    """A linear layer of which each rank makes some of the outputs.

    Args:
        out_dim: dimension of the matrix that is that of the output
    """

    def __init__(self, out_dim: int) -> None:
        super().__init__()
        self._out_dim = out_dim

    def forward(self, tensor: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The share of the outputs."""
        return functional.linear(tensor, weight if self._out_dim == 0 else weight.t(), bias)


class RowParallelLinear(nn.Module):
    """A linear layer of which each rank takes some of the inputs; their products are summed.

    Args:
        edges: of its region
        out_dim: dimension of the matrix that is that of the output
    """

    def __init__(self, edges: Edges, out_dim: int) -> None:
        super().__init__()
        self._edges, self._out_dim = edges, out_dim

    def forward(self, tensor: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The output."""
        whole = self._edges.leave(functional.linear(tensor, weight if self._out_dim == 0 else weight.t()))
        return _biased(whole, bias)


def _biased(whole: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """With the bias of its layer, in the precision in which the layer computes: under autocast not that of the bias."""
    return whole if bias is None else whole + bias.to(whole.dtype)


class Head(nn.Module):
    """A linear layer of which each rank makes some of the outputs, which are then gathered.

    Args:
        group: shares it
        out_dim: dimension of the matrix that is that of the output
        size: number of outputs
    """

    def __init__(self, group: TensorGroup, out_dim: int, size: int) -> None:
        super().__init__()
        self._group, self._out_dim, self._size = group, out_dim, size

    def forward(self, tensor: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """All outputs."""
        made = functional.linear(tensor, weight if self._out_dim == 0 else weight.t(), bias)
        return gathered_whole(made, self._group, -1, self._size)


class ChannelParallelConvolution(nn.Module):
    """A convolution of which each rank makes some of the channels, which are then gathered.

    Args:
        group: shares it
        convolution: whole
    """

    def __init__(self, group: TensorGroup, convolution: ConvolutionCall) -> None:
        super().__init__()
        self._group, self._operation = group, convolution.operation
        self._dim, self._size = convolution.channel_dim, convolution.channels
        # Several groups are dealt out with the channels that they read; one reads all channels.
        self._apart = convolution.groups > 1
        groups = convolution.groups // group.size if self._apart else 1
        self._options = {**convolution.options, "groups": groups}

    def forward(self, tensor: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """All channels."""
        if self._apart:
            low, high = self._group.bounds(tensor.shape[self._dim])
            tensor = tensor.narrow(self._dim, low, high - low)
        made = self._operation(tensor, weight, bias, **self._options)
        return gathered_whole(made, self._group, self._dim, self._size)


class Lookup(nn.Module):
    """An embedding of which each rank has some rows; it gives zeros for those of others.

    Args:
        edges: how its results come out
        size: rows of the whole
        padding: number of the row that has no gradient; -1: none
    """

    def __init__(self, edges: Edges, size: int, padding: int) -> None:
        super().__init__()
        self._edges = edges
        self._low, self._high = edges.group.bounds(size)
        self._padding = padding - self._low if self._low <= padding < self._high else None

    def forward(self, numbers: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The rows of these numbers."""
        elsewhere = (numbers < self._low) | (numbers >= self._high)
        own = (numbers - self._low).masked_fill(elsewhere, 0)
        found = functional.embedding(own, weight, self._padding)
        return self._edges.leave(found.masked_fill(elsewhere.unsqueeze(-1), 0))


# ---------------------------------------------------------------------------------------------------------------------
# torch's attention modules on a share of their heads


Weights = Sequence[torch.Tensor]


class Attention(nn.Module):
    """`nn.MultiheadAttention` of which each rank has some heads.

    Args:
        module: the user's, for all but its weights
        edges: how tensors come in and out
        count: number of shared weights among those that it is called with; the others are those of the user's module
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
        made = _biased(self._edges.leave(functional.linear(mixed, weights[-1])), module.out_proj.bias)
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


class ParallelEncoderLayer(nn.Module):
    """`nn.TransformerEncoderLayer` of which each rank has some heads and some features.

    Args:
        module: the user's, for all but its weights
        edges: how tensors come in and out
        counts: of the weights that it is called with, the number of those of its heads, and then of its features
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
        made = _biased(self._edges.leave(functional.linear(inner, weights[-1])), module.linear2.bias)
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
