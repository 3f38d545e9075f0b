"""How tensors come into a region and out of it.

Between regions every rank has whole tensors (`WholeEdges`), its own samples (`SampleEdges`) or its own part of each
sequence (`SequenceEdges`). Inside, all ranks work on the same samples and sequences, each with its share of the
features.
"""

from typing import Protocol

import torch

from trimaran.errors import ExecutionError
from trimaran.runtime.tensor.sums import Group, gathered_parts, scattered_parts, summed, with_summed_gradient


class Edges(Protocol):
    """The way in and out of regions.

    Attributes:
        group: shares what is inside
    """

    group: Group

    def enter(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor from outside, as the region reads it."""

    def leave(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the ranks have made together of their partial results, as others read it."""


class WholeEdges:
    """Every rank has whole tensors outside: gradients are summed on the way in, results on the way out.

    Args:
        group: shares what is inside
    """

    def __init__(self, group: Group) -> None:
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
        dim: of sequences
    """

    def __init__(self, group: Group, dim: int = 1) -> None:
        self.group = group
        self._dim = dim

    def enter(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Edges`."""
        return gathered_parts(tensor, self.group, self._dim, tensor.shape[self._dim])

    def leave(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Edges`."""
        return scattered_parts(tensor, self.group, self._dim, tensor.shape[self._dim] // self.group.size)


class SampleEdges:
    """Every rank has its own samples outside: all samples are gathered on the way in, each goes home on the way out.

    The parts of the ranks are padded to one size; what pads them has zeros for gradients.

    Args:
        group: shares what is inside
        most: samples of a full microbatch of one rank

    Attributes:
        group: as given
        samples: of this rank, in the microbatch that came in last
    """

    def __init__(self, group: Group, most: int) -> None:
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
