"""Parts of a network whose work can be shared out over ranks: pure data, found by `graph.sharding`.

    whole ─▶ column ─▶ operations on a share ─▶ row ─▶ sum over the ranks ─▶ whole

A region starts at linear operations whose weights are split by output features, and ends at some that are split by
input features; in between every rank has its share of the features or heads. So there is one sum in the forward for
each end, and one in the backward for each tensor that comes in from outside. An embedding that is split by the entries
of its vocabulary is a region of its own, which ends in a sum; so is a classifier, which ends in a gather. Where a
network has no such pair, each linear layer and each convolution is a region that ends in a gather:

    whole ─▶ column ─▶ gather over the ranks ─▶ whole
"""

from dataclasses import dataclass
from typing import Literal

RegionKind = Literal["pair", "attention", "embedding", "head", "layer"]
"""What a region is. "pair": columns, then rows; "attention": both inside one module of torch's; "embedding" and "head":
by the entries of a vocabulary; "layer": a linear layer or a convolution by its outputs, which are gathered."""

GATHERED: frozenset[RegionKind] = frozenset({"head", "layer"})
"""Kinds of regions that end in a gather of what their columns make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How a parameter lies on the ranks that share a region.

    Attributes:
        parameter: its name (`Parameter.name`)
        dim: the dimension that is split
        sections: sizes of the parts of that dimension that are split each by itself, such as queries, keys and values
            in one matrix
    """

    parameter: str
    dim: int
    sections: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A tensor that every rank has whole, and of whose gradient each rank makes a part.

    Attributes:
        tensor: its name (`TensorSpec.name`), or that of a parameter
        op: the first operation of the region, in the order of the graph, that reads it
    """

    tensor: str
    op: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Operations that can be shared out together, or not at all.

    Attributes:
        kind: what it is
        columns: operations split by output features
        rows: operations split by input features, or by entries of an embedding: their outputs are summed
        inside: operations in between, which work on a share of their tensors
        entries: what comes in whole and wants a gradient
        splits: of the parameters
        units: the number of ranks must divide it; 0: any number, with uneven shares
        samples: all of its tensors are [samples, features] and each sample is by itself, so that replicas may share it
            too: they gather each other's samples in front of it
        draws: operations inside that draw random numbers in training, other ones for each share
    """

    kind: RegionKind
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    entries: tuple[Entry, ...] = ()
    splits: tuple[Split, ...] = ()
    units: int = 0
    samples: bool = False
    draws: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its first operation."""
        return (*self.columns, *self.rows)[0]

    def fits(self, ranks: int) -> bool:
        """Whether that many ranks can share it.

        Example:
            >>> Region(kind="pair", columns=("a",), rows=("b",), units=12).fits(8)
            False
        """
        if self.units:
            return self.units % ranks == 0
        if self.kind == "layer":
            # The last share is the smallest, and a convolution without channels is none.
            last = [share_bounds(sum(split.sections), ranks, ranks - 1) for split in self.splits]
            return all(low < high for low, high in last)
        return all(sum(split.sections) >= ranks for split in self.splits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What lies between regions, where each rank can have its own part of every sequence: norms, dropouts, sums.

    Results of regions come in scattered along the sequence in place of summed, and regions gather what they read.

    Attributes:
        ops: operations that work on parts of sequences
        sources: rows and embeddings whose results come in scattered
        partial: parameters of its operations and biases behind rows, of whose gradients each rank makes a part
        entries: whole tensors of which it takes a part, and that want a gradient
        exits: tensors that others read whole, each gathered behind the operation that makes it
        length: of the sequences; the number of ranks must divide it; 0: there is no stream
    """

    ops: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    entries: tuple[Entry, ...] = ()
    exits: tuple[Entry, ...] = ()
    length: int = 0


def share_bounds(size: int, ranks: int, rank: int) -> tuple[int, int]:
    """First and last (exclusive) of the share of a rank; shares differ where the size does not divide, as DTensor's.

    Args:
        size: of the whole
        ranks: that share it
        rank: one of them

    Example:
        >>> [share_bounds(10, 4, rank) for rank in range(4)]
        [(0, 3), (3, 6), (6, 9), (9, 10)]
    """
    most = -(-size // ranks)
    return min(rank * most, size), min((rank + 1) * most, size)
