"""Tensors in pieces: which rank writes which piece, and how a rank puts together what it needs from pieces of others.

A piece is what one rank has of a tensor: the whole, or some spans of it along one dim. So what was written under one
plan is read under any other: a rank reads from each piece the region that it needs.

    written    rank 0  ████████░░░░░░░░    rank 1  ░░░░░░░░████████         ZeRO on 2 ranks
    read       rank 0  █████░░░░░░░░░░░    1  ░░░░░█████░░░░░░    2  …      on 3

Copies of a piece are written once, by the rank with the fewest bytes so far. Every rank decides that from the same
list, so that nothing else is communicated.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from trimaran.base.errors import CorruptDataError, ExecutionError
from trimaran.base.precision import dtype_name
from trimaran.checkpoint_files.plain import dtype_named

What = tuple[str, str, str]
"""Kind of a tensor, name of the parameter or buffer that it belongs to, and a key, such as of the optimizer's state."""

Spans = tuple[tuple[int, int], ...]
"""Of a whole along one dim, each from low to below high, in the order in which a share has them."""

Region = tuple[slice, ...]
"""A box of a piece, with a slice for each dim."""


class PieceSource(Protocol):
    """Where pieces are read from.

    Attributes:
        name: for messages
    """

    name: str

    def form(self, rank: int, piece: str) -> tuple[tuple[int, ...], torch.dtype]:
        """Shape and dtype of a piece.

        Args:
            rank: that wrote it
            piece: its name, as `name_in_file` gives it

        Raises:
            CorruptDataError: there is no such piece
        """

    def read(self, rank: int, piece: str, region: Region) -> torch.Tensor:
        """A box of a piece, in host memory.

        Args:
            rank: that wrote it
            piece: its name
            region: of the piece

        Raises:
            CorruptDataError: it cannot be read
        """


class Area(NamedTuple):
    """Which part of a tensor a piece is.

    Attributes:
        dim: along which the spans lie; 0 of a whole
        spans: of the whole along it; None: all of it
    """

    dim: int = 0
    spans: Spans | None = None


WHOLE = Area()


class Piece(NamedTuple):
    """What one rank has of a tensor.

    Attributes:
        what: tensor it is of
        shape: of the whole
        dtype: of the tensor, without "torch."
        area: that it is
        spare: taken only where no rank has another one
        first: of copies the one of the lowest rank is taken, as of buffers, which differ between replicas
    """

    what: What
    shape: tuple[int, ...]
    dtype: str
    area: Area = WHOLE
    spare: bool = False
    first: bool = False

    @property
    def own_shape(self) -> tuple[int, ...]:
        """Of the piece."""
        return shape_of(self.shape, self.area)

    @property
    def nbytes(self) -> int:
        """Size of the piece [bytes]."""
        return math.prod(self.own_shape) * dtype_named(self.dtype, "a piece").itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A tensor of a checkpoint, and where its pieces are.

    Attributes:
        what: tensor it is
        shape: of the whole
        dtype: of the tensor, without "torch."
        pieces: rank that wrote each, and its area
    """

    what: What
    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[tuple[int, Area], ...] = field(default=())

    @property
    def nbytes(self) -> int:
        """Size of the whole [bytes]."""
        return math.prod(self.shape) * dtype_named(self.dtype, "a checkpoint").itemsize

    def to_plain(self) -> dict[str, Any]:
        """As JSON."""
        pieces: list[dict[str, Any]] = [
            {"rank": rank}
            if area.spans is None
            else {"rank": rank, "dim": area.dim, "spans": [list(span) for span in area.spans]}
            for rank, area in self.pieces
        ]
        kind, name, key = self.what
        return {"kind": kind, "name": name, "key": key, "shape": [*self.shape], "dtype": self.dtype, "pieces": pieces}

    @classmethod
    def from_plain(cls, plain: Any, source: str) -> "Entry":
        """From JSON.

        Args:
            plain: of `to_plain`
            source: where it was read, for the message

        Raises:
            CorruptDataError: of another form
        """
        try:
            found = cls(
                what=(str(plain["kind"]), str(plain["name"]), str(plain["key"])),
                shape=tuple(_size(one) for one in plain["shape"]),
                dtype=plain["dtype"],
                pieces=tuple((_size(one["rank"]), _area(one)) for one in plain["pieces"]),
            )
            dtype_named(found.dtype, source)
            for _, area in found.pieces:
                if area.spans is not None and not _fits(area, found.shape):
                    raise ValueError(area)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptDataError(
                f"{source}: this is no tensor of a checkpoint: {str(plain)[:120]!r}. It was damaged or edited: take "
                "another checkpoint",
                code="checkpoint.damaged-table",
                source=source,
            ) from error
        return found


def _size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(value)
    return value


def _area(plain: Mapping[str, Any]) -> Area:
    if "spans" not in plain:
        return WHOLE
    return Area(_size(plain["dim"]), tuple((_size(low), _size(high)) for low, high in plain["spans"]))


def _fits(area: Area, shape: Sequence[int]) -> bool:
    return area.dim < len(shape) and all(low <= high <= shape[area.dim] for low, high in area.spans or ())


def name_in_file(what: What) -> str:
    """The name of a tensor among those that one rank writes.

    Args:
        what: tensor it is

    Example:
        >>> name_in_file(("optimizer", "head.weight", "exp_avg")), name_in_file(("parameter", "head.weight", ""))
        ('optimizer/head.weight/exp_avg', 'parameter/head.weight')
    """
    return "/".join(part for part in what if part)


def entry_of(name: str, tensor: torch.Tensor) -> Entry:
    """The entry of a whole tensor, by its name in a file.

    Args:
        name: as `name_in_file` gives it
        tensor: whole

    Example:
        >>> entry_of("optimizer/head.weight/exp_avg", torch.zeros(2)).what
        ('optimizer', 'head.weight', 'exp_avg')
    """
    kind, _, rest = name.partition("/")
    owner, _, key = rest.partition("/")
    dtype = dtype_name(tensor.dtype)
    return Entry(what=(kind, owner, key), shape=tuple(tensor.shape), dtype=dtype, pieces=((0, WHOLE),))


def shape_of(shape: Sequence[int], area: Area) -> tuple[int, ...]:
    """The shape of a part of a tensor.

    Args:
        shape: of the whole
        area: that the part is

    Example:
        >>> shape_of((8, 6), Area(1, ((0, 1), (4, 6))))
        (8, 3)
    """
    if area.spans is None:
        return tuple(shape)
    own = sum(high - low for low, high in area.spans)
    return (*shape[: area.dim], own, *shape[area.dim + 1 :])


# ---------------------------------------------------------------------------------------------------------------------
# Which rank writes which piece


class Writers(NamedTuple):
    """Who writes what.

    Attributes:
        entries: the tensors
        own: for each rank, which of its pieces it writes
    """

    entries: tuple[Entry, ...]
    own: tuple[frozenset[What], ...]


def share_out(said: Sequence[Sequence[Piece]]) -> Writers:
    """Give each piece to one of the ranks that have it.

    Args:
        said: what each rank has, by rank; of a tensor one piece a rank

    Raises:
        ExecutionError: pieces of a tensor are not of one shape and dtype, or together not the whole

    Example:
        >>> both = [Piece(("parameter", name, ""), (size,), "float32") for name, size in (("w", 4), ("b", 2))]
        >>> [sorted(name for _, name, _ in own) for own in share_out([both, both]).own]
        [['w'], ['b']]
    """
    holders: dict[What, dict[Area, list[int]]] = {}
    first: dict[What, Piece] = {}
    wanted: dict[What, bool] = {}
    for pieces in said:
        for piece in pieces:
            wanted[piece.what] = wanted.get(piece.what, True) and piece.spare
    for rank, pieces in enumerate(said):
        for piece in pieces:
            if piece.spare and not wanted[piece.what]:
                continue
            other = first.setdefault(piece.what, piece)
            if (piece.shape, piece.dtype) != (other.shape, other.dtype):
                raise ExecutionError(
                    f"the {' '.join(filter(None, piece.what))} is {other.dtype} of shape {other.shape} on one rank, "
                    f"and {piece.dtype} of shape {piece.shape} on rank {rank}: ranks must have the same state to save "
                    "it",
                    code="checkpoint.unlike-ranks",
                    rank=rank,
                )
            holders.setdefault(piece.what, {}).setdefault(piece.area, []).append(rank)
    loads = [0] * len(said)
    placed: dict[What, list[tuple[int, Area]]] = {}
    # The large ones first: the small ones then even out what ranks have.
    for what in sorted(holders, key=lambda one: (-first[one].nbytes, one)):
        areas = holders[what]
        if WHOLE in areas:
            areas = {WHOLE: areas[WHOLE]}
        _check_whole(first[what], areas)
        for area, ranks in areas.items():
            piece = first[what]._replace(area=area)
            if not piece.nbytes:
                continue
            rank = ranks[0] if piece.first else min(ranks, key=lambda one: (loads[one], one))
            loads[rank] += piece.nbytes
            placed.setdefault(what, []).append((rank, area))
    entries = tuple(
        Entry(what=what, shape=first[what].shape, dtype=first[what].dtype, pieces=tuple(placed.get(what, ())))
        for what in holders
    )
    own = tuple(
        frozenset(entry.what for entry in entries if any(one == rank for one, _ in entry.pieces))
        for rank in range(len(said))
    )
    return Writers(entries, own)


def _check_whole(piece: Piece, areas: Mapping[Area, Sequence[int]]) -> None:
    found = sum(math.prod(shape_of(piece.shape, area)) for area in areas)
    if found != math.prod(piece.shape):
        raise ExecutionError(
            f"the ranks have {found} of the {math.prod(piece.shape)} elements of the "
            f"{' '.join(filter(None, piece.what))}: their optimizers, or the gradients that they saw, are not alike",
            code="checkpoint.missing-shares",
            ranks=tuple(sorted({rank for ranks in areas.values() for rank in ranks})),
        )


# ---------------------------------------------------------------------------------------------------------------------
# What a rank needs, from the pieces


class Want(NamedTuple):
    """A tensor that is to be filled.

    Attributes:
        what: tensor it is of
        target: is filled in place; of the shape of its area
        area: of the whole that the target is
    """

    what: What
    target: torch.Tensor
    area: Area = WHOLE


def fill(want: Want, entry: Entry, source: PieceSource) -> None:
    """Put what is wanted of a tensor together.

    Args:
        want: it
        entry: of the tensor
        source: of the pieces

    Raises:
        CorruptDataError: a piece is not what the table says, or some are missing
    """
    found, name = 0, name_in_file(entry.what)
    for rank, area in entry.pieces:
        common = list(_common(entry.shape, want.area, area))
        if not common:
            continue
        form, expected = source.form(rank, name), (shape_of(entry.shape, area), dtype_named(entry.dtype, source.name))
        if form != expected:
            raise CorruptDataError(
                f"{source.name}: rank {rank} wrote {name} as {form[1]} of shape {form[0]}, and {expected[1]} of shape "
                f"{expected[0]} was expected: take another checkpoint",
                code="checkpoint.other-piece",
                source=source.name,
            )
        with torch.no_grad():
            for there, here in common:
                want.target[here].copy_(source.read(rank, name, there))
                found += math.prod(one.stop - one.start for one in here)
    if found != want.target.numel():
        raise CorruptDataError(
            f"{source.name} has {found} of the {want.target.numel()} elements of {name} that are needed: take another "
            "checkpoint",
            code="checkpoint.missing-pieces",
            source=source.name,
        )


def put(whole: torch.Tensor, entry: Entry, piece: torch.Tensor, area: Area) -> None:
    """Put a piece in its place in the whole.

    Args:
        whole: of the tensor
        entry: of the tensor
        piece: of it
        area: that the piece is
    """
    for there, here in _common(entry.shape, WHOLE, area):
        whole[here].copy_(piece[there])


def fill_from(source: PieceSource, wants: Sequence[Want], table: Mapping[What, Entry]) -> None:
    """Fill tensors one by one, each from the pieces that have some of it.

    Args:
        source: of the pieces
        wants: what is to be filled
        table: where the pieces of each tensor are

    Raises:
        CorruptDataError: a piece is not what the table says, or some are missing
    """
    for want in wants:
        fill(want, table[want.what], source)


def _common(shape: Sequence[int], wanted: Area, given: Area) -> Iterator[tuple[Region, Region]]:
    """What two areas have in common: where it lies in the given one, and where in the wanted one."""
    for wanted_from, wanted_to, wanted_at in _boxes(shape, wanted):
        for given_from, given_to, given_at in _boxes(shape, given):
            low = [max(pair) for pair in zip(wanted_from, given_from, strict=True)]
            high = [min(pair) for pair in zip(wanted_to, given_to, strict=True)]
            if all(one < other for one, other in zip(low, high, strict=True)):
                yield _region(low, high, given_from, given_at), _region(low, high, wanted_from, wanted_at)


def _boxes(shape: Sequence[int], area: Area) -> Iterator[tuple[list[int], list[int], list[int]]]:
    """The boxes of an area: their first corner in the whole, their last, and the first in the part."""
    zeros = [0] * len(shape)
    if area.spans is None:
        yield zeros, list(shape), zeros
        return
    at = 0
    for low, high in area.spans:
        start, stop, own = list(zeros), list(shape), list(zeros)
        start[area.dim], stop[area.dim], own[area.dim] = low, high, at
        yield start, stop, own
        at += high - low


def _region(low: Sequence[int], high: Sequence[int], start: Sequence[int], at: Sequence[int]) -> Region:
    return tuple(
        slice(place + one - first, place + other - first)
        for one, other, first, place in zip(low, high, start, at, strict=True)
    )
