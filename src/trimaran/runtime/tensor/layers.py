"""What stands in a rewritten flow in place of the user's layers: the same layers on a share of their weights."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from trimaran.graph.sharding.convolutions import Convolution
from trimaran.runtime.tensor.edges import Edges
from trimaran.runtime.tensor.sums import Group, gathered_whole, take_share


class Enter(nn.Module):
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

    def __init__(self, group: Group, dim: int, sections: Sequence[int]) -> None:
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

    def __init__(self, group: Group, dim: int, size: int, order: tuple[int, ...] | None) -> None:
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


class Row(nn.Module):
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
        return whole if bias is None else whole + bias


class Head(nn.Module):
    """A linear layer of which each rank makes some of the outputs, which are then gathered.

    Args:
        group: shares it
        out_dim: dimension of the matrix that is that of the output
        size: number of outputs
    """

    def __init__(self, group: Group, out_dim: int, size: int) -> None:
        super().__init__()
        self._group, self._out_dim, self._size = group, out_dim, size

    def forward(self, tensor: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """All outputs."""
        made = functional.linear(tensor, weight if self._out_dim == 0 else weight.t(), bias)
        return gathered_whole(made, self._group, -1, self._size)


class Channels(nn.Module):
    """A convolution of which each rank makes some of the channels, which are then gathered.

    Args:
        group: shares it
        convolution: whole
    """

    def __init__(self, group: Group, convolution: Convolution) -> None:
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
