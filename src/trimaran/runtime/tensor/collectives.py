"""Sums and gathers over the ranks that share tensors, with the gradients that go with them.

    into a region       whole, its gradient is summed        x ──▶ x             dx ◀── Σ dx
    out of a region     summed, its gradient is whole        Σ y ◀── y           dy ──▶ dy
    out of a head       gathered, its gradient is split      all ◀── mine        mine ◀── all
    parts into one      gathered, its gradient is scattered  all ◀── mine        Σ dx, mine ◀── all
    parts out of one    scattered, its gradient is gathered  Σ y, mine ◀── all   all ◀── mine

Outside of regions every rank has whole tensors (`WholeEdges`), its own samples (`SampleEdges`) or its own part of each
sequence (`SequenceEdges`). Inside, all ranks work on the same samples and sequences, each with its share of the
features.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from trimaran.base.errors import ExecutionError
from trimaran.graph.types import share_bounds
from trimaran.runtime.communication.channels import in_contact


class TensorGroup:
    """The ranks that share tensors, as one of them sees them.

    Args:
        process_group: of torch.distributed
        rank: of this process, in the world

    Attributes:
        size: number of ranks
        shard: number of this one
    """

    def __init__(self, process_group: Any, rank: int) -> None:
        self.process_group = process_group
        self.size = dist.get_world_size(process_group)
        self.shard = dist.get_rank(process_group)
        self._rank = rank

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks; it may take the place of the tensor."""
        whole = tensor.contiguous()
        with in_contact(self._rank, "a sum over the ranks that share tensors"):
            dist.all_reduce(whole, group=self.process_group)
        return whole

    def gather(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """The parts of all ranks, which have one size, joined along a dimension."""
        own = tensor.contiguous()
        parts = torch.empty((self.size * own.shape[0], *own.shape[1:]), dtype=own.dtype, device=own.device)
        with in_contact(self._rank, "a gather over the ranks that share tensors"):
            dist.all_gather_into_tensor(parts, own, group=self.process_group)
        return parts if dim == 0 else torch.cat(parts.chunk(self.size), dim)

    def scatter(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's part, along a dimension that divides, of the sum over the ranks."""
        parts = tensor.contiguous() if dim == 0 else torch.cat(tensor.chunk(self.size, dim))
        shape = (parts.shape[0] // self.size, *parts.shape[1:])
        own = torch.empty(shape, dtype=parts.dtype, device=parts.device)
        with in_contact(self._rank, "a scatter over the ranks that share tensors"):
            dist.reduce_scatter_tensor(own, parts, group=self.process_group)
        return own

    def bounds(self, size: int) -> tuple[int, int]:
        """First and last (exclusive) of this rank's share."""
        return share_bounds(size, self.size, self.shard)


class _SumGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: TensorGroup) -> torch.Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        # Autograd may still use the gradient: sum a copy.
        return ctx.group.sum(gradients[0].clone(memory_format=torch.contiguous_format)), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: TensorGroup) -> torch.Tensor:
        # Nothing else uses a product, so the sum may take its place.
        whole = group.sum(tensor)
        if whole is tensor:
            ctx.mark_dirty(tensor)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


class _GatherWhole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: TensorGroup, dim: int, size: int) -> torch.Tensor:
        ctx.bounds, ctx.dim = group.bounds(size), dim
        missing = -(-size // group.size) - tensor.shape[dim]
        padded = _padded(tensor, dim, missing)
        whole = group.gather(padded, dim)
        if whole.shape[dim] == size:
            return whole
        # No view: what reads it may write into it.
        return whole.narrow(dim, 0, size).clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        low, high = ctx.bounds
        return gradients[0].narrow(ctx.dim, low, high - low), None, None, None


class _GatherParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: TensorGroup, dim: int, most: int) -> torch.Tensor:
        ctx.group, ctx.dim, ctx.size = group, dim, tensor.shape[dim]
        return group.gather(_padded(tensor, dim, most - ctx.size), dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.group.scatter(gradients[0], ctx.dim).narrow(ctx.dim, 0, ctx.size), None, None, None


class _ScatterParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: TensorGroup, dim: int, size: int) -> torch.Tensor:
        ctx.group, ctx.dim = group, dim
        ctx.missing = tensor.shape[dim] // group.size - size
        own = group.scatter(tensor, dim)
        return own if not ctx.missing else own.narrow(dim, 0, size).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.group.gather(_padded(gradients[0], ctx.dim, ctx.missing), ctx.dim), None, None, None


def _padded(tensor: torch.Tensor, dim: int, missing: int) -> torch.Tensor:
    """The tensor with zeros behind it along a dimension."""
    if not missing:
        return tensor
    return nn.functional.pad(tensor, (0, 0) * (tensor.dim() - 1 - dim) + (0, missing))


def with_summed_gradient(tensor: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """A whole tensor, of whose gradient each rank makes a part."""
    entered: torch.Tensor = _SumGradient.apply(tensor, group) if tensor.requires_grad else tensor  # type: ignore[no-untyped-call]
    return entered


def summed(tensor: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    """The sum of what the ranks have made; it may take the place of this rank's."""
    whole: torch.Tensor = _Sum.apply(tensor, group)  # type: ignore[no-untyped-call]
    return whole


def gathered_whole(tensor: torch.Tensor, group: TensorGroup, dim: int, size: int) -> torch.Tensor:
    """The whole of a tensor of which this rank has a share; its gradient is whole on every rank.

    Args:
        tensor: the share
        group: shares it
        dim: that is split
        size: of the whole
    """
    whole: torch.Tensor = _GatherWhole.apply(tensor, group, dim % tensor.dim(), size)  # type: ignore[no-untyped-call]
    return whole


def gathered_parts(tensor: torch.Tensor, group: TensorGroup, dim: int, most: int) -> torch.Tensor:
    """The parts of all ranks, each padded to one size; each rank makes a part of the gradient of the whole.

    Args:
        tensor: this rank's part
        group: has the parts
        dim: along which they are joined
        most: size of a part
    """
    whole: torch.Tensor = _GatherParts.apply(tensor, group, dim, most)  # type: ignore[no-untyped-call]
    return whole


def scattered_parts(tensor: torch.Tensor, group: TensorGroup, dim: int, size: int) -> torch.Tensor:
    """This rank's part of the sum of what the ranks have made.

    Args:
        tensor: the parts of all, joined
        group: has the parts
        dim: along which they are joined
        size: of this rank's part without what pads it
    """
    own: torch.Tensor = _ScatterParts.apply(tensor, group, dim, size)  # type: ignore[no-untyped-call]
    return own


def take_share(tensor: torch.Tensor, dim: int, sections: Sequence[int], ranks: int, shard: int) -> torch.Tensor:
    """The share of one rank of each section of a dimension, joined.

    Example:
        >>> take_share(torch.arange(8), 0, (4, 4), 2, 1).tolist()
        [2, 3, 6, 7]
    """
    parts = []
    for section in tensor.split(list(sections), dim):
        low, high = share_bounds(section.shape[dim], ranks, shard)
        parts.append(section.narrow(dim, low, high - low))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


class Edges(Protocol):
    """How tensors come into regions and out of them.

    Attributes:
        group: shares what is inside
    """

    group: TensorGroup

    def enter(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor from outside, as the region reads it."""

    def leave(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the ranks have made together of their partial results, as others read it."""


class WholeEdges:
    """Every rank has whole tensors outside: gradients are summed on the way in, results on the way out.

    Args:
        group: shares what is inside
    """

    def __init__(self, group: TensorGroup) -> None:
        self.group = group

    def enter(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Edges`."""
        return with_summed_gradient(tensor, self.group)

    def leave(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Edges`."""
        return summed(tensor, self.group)


class SequenceEdges:
    """Every rank has its own part of each sequence outside: gathered on the way in, scattered on the way out.

    Args:
        group: shares what is inside
    """

    _DIM = 1

    def __init__(self, group: TensorGroup) -> None:
        self.group = group

    def enter(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Edges`."""
        return gathered_parts(tensor, self.group, self._DIM, tensor.shape[self._DIM])

    def leave(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Edges`."""
        return scattered_parts(tensor, self.group, self._DIM, tensor.shape[self._DIM] // self.group.size)


class SampleEdges:
    """Every rank has its own samples outside: gathered on the way in, and scattered to their ranks on the way out.

    The parts of the ranks are padded to one size; what pads them has zeros for gradients.

    Args:
        group: shares what is inside
        most: samples of a full microbatch of one rank

    Attributes:
        group: as given
        samples: of this rank, in the microbatch that came in last
    """

    def __init__(self, group: TensorGroup, most: int) -> None:
        self.group = group
        self._most = most
        self.samples = 0

    def enter(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Edges`."""
        if tensor.shape[0] > self._most:
            raise ExecutionError(
                f"a microbatch of {tensor.shape[0]} samples is larger than the {self._most} for which replicas share "
                "layers: keep to the global batch size of the job",
                samples=tensor.shape[0],
                most=self._most,
            )
        self.samples = tensor.shape[0]
        return gathered_parts(tensor, self.group, 0, self._most)

    def leave(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Edges`."""
        return scattered_parts(tensor, self.group, 0, self.samples)

    def gather_masks(self, own: torch.Tensor) -> torch.Tensor:
        """What the ranks have drawn, each for its own samples; zeros for what pads them."""
        return gathered_parts(own, self.group, 0, self._most)


# ---------------------------------------------------------------------------------------------------------------------
# Gradients of which each rank has made a part, added up as one


class PartialGradients:
    """Parameters of one data type whose gradients are summed together; it stands in the place of one parameter.

    Args:
        parameters: whole on every rank, used on its part of every sequence
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = list(parameters)

    @property
    def grad(self) -> torch.Tensor | None:
        """All gradients, flat; zeros for those that have none."""
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        return torch.cat([gradient.reshape(-1) for gradient in found])

    @grad.setter
    def grad(self, flat: torch.Tensor | None) -> None:
        """Gradients that are parts of one tensor; what has none keeps none, as on all these ranks."""
        if flat is None:
            return
        parts = flat.split([parameter.numel() for parameter in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            if parameter.grad is not None:
                parameter.grad = part.view_as(parameter)
