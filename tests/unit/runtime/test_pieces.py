"""Tensors that are cut in any manner are put together again in any other, and each piece has one writer."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.raising import raises

from trimaran.base.errors import CorruptDataError, ExecutionError
from trimaran.checkpoint_files.pieces import (
    WHOLE,
    Area,
    Entry,
    Piece,
    Region,
    Want,
    fill,
    name_in_file,
    put,
    shape_of,
    share_out,
)

WHAT = ("parameter", "weight", "")


class Written:
    """Pieces of one tensor, by the rank that wrote them.

    Args:
        whole: tensor
        areas: of each rank
    """

    name = "written"

    def __init__(self, whole: torch.Tensor, areas: Sequence[Area]) -> None:
        self.pieces = [cut(whole, area) for area in areas]

    def form(self, rank: int, piece: str) -> tuple[tuple[int, ...], torch.dtype]:
        assert piece == name_in_file(WHAT)
        return tuple(self.pieces[rank].shape), self.pieces[rank].dtype

    def read(self, rank: int, piece: str, region: Region) -> torch.Tensor:
        return self.pieces[rank][region]


def cut(whole: torch.Tensor, area: Area) -> torch.Tensor:
    if area.spans is None:
        return whole.clone()
    return torch.cat([whole.narrow(area.dim, low, high - low) for low, high in area.spans], area.dim)


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Area]:
    """How ranks share a tensor: each section of a dim in parts, of which some may be empty."""
    if not shape or draw(st.integers(0, 3)) == 0:
        return [WHOLE]
    dim = draw(st.integers(0, len(shape) - 1))
    ranks = draw(st.integers(1, 4))
    bounds = sorted({0, shape[dim], *draw(st.lists(st.integers(0, shape[dim]), max_size=2))})
    spans: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for low, high in pairwise(bounds) if shape[dim] else [(0, 0)]:
        most = -(-(high - low) // ranks)
        for rank in range(ranks):
            spans[rank].append((min(low + rank * most, high), min(low + (rank + 1) * most, high)))
    return [Area(dim, tuple(one)) for one in spans]


SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@given(st.data(), SHAPES)
def test_any_cut_is_put_together_in_any_other(data: st.DataObject, shape: tuple[int, ...]) -> None:
    before, after = data.draw(layouts(shape)), data.draw(layouts(shape))
    whole = torch.arange(math.prod(shape), dtype=torch.int32).reshape(shape)
    said = [[Piece(WHAT, shape, "int32", area)] for area in before]
    writers = share_out(said)
    (entry,) = writers.entries
    source = Written(whole, before)
    for area in after:
        target = torch.full(shape_of(shape, area), -1, dtype=torch.int32)
        fill(Want(WHAT, target, area), entry, source)
        assert torch.equal(target, cut(whole, area))
    gathered = torch.full(shape, -1, dtype=torch.int32)
    for rank, area in entry.pieces:
        put(gathered, entry, source.pieces[rank], area)
    assert torch.equal(gathered, whole)
    assert Entry.from_plain(entry.to_plain(), "here") == entry


@given(st.lists(st.tuples(st.integers(1, 1000), st.sets(st.integers(0, 3), min_size=1)), min_size=1, max_size=40))
def test_copies_are_written_once_and_evenly(held: list[tuple[int, set[int]]]) -> None:
    """No rank that could have taken a piece from another one has less by more than that piece."""
    pieces = [(Piece(("parameter", str(number), ""), (size,), "int8"), at) for number, (size, at) in enumerate(held)]
    said = [[piece for piece, ranks in pieces if rank in ranks] for rank in range(4)]
    writers = share_out(said)
    written = [what for own in writers.own for what in own]
    assert len(written) == len(set(written)) == len(held)
    for entry in writers.entries:
        ((rank, area),) = entry.pieces
        assert area == WHOLE
        assert rank in held[int(entry.what[1])][1]
    if all(ranks == {0, 1, 2, 3} for _, ranks in held):
        loads = [sum(held[int(name)][0] for _, name, _ in own) for own in writers.own]
        assert max(loads) - min(loads) <= max(size for size, _ in held)


def test_buffers_are_those_of_the_first_rank_and_spare_tensors_those_of_nobody_else() -> None:
    shape = (3,)
    buffer = Piece(("buffer", "mean", ""), shape, "float32", first=True)
    large = Piece(("parameter", "large", ""), (100,), "float32")
    spare = Piece(("parameter", "stage", ""), shape, "float32", spare=True)
    unused = Piece(("parameter", "unused", ""), shape, "float32", spare=True)
    trained = spare._replace(spare=False)
    writers = share_out([[large, buffer, spare, unused], [buffer, trained]])
    places = {entry.what[1]: entry.pieces for entry in writers.entries}
    assert places == {
        "large": ((0, WHOLE),),
        "mean": ((0, WHOLE),),
        "stage": ((1, WHOLE),),
        "unused": ((0, WHOLE),),
    }


def test_ranks_that_are_not_alike_are_named() -> None:
    half = Piece(WHAT, (4,), "float32", Area(0, ((0, 2),)))
    with raises("checkpoint.missing-shares", ExecutionError, match="2 of the 4 elements"):
        share_out([[half]])
    with raises("checkpoint.unlike-ranks", ExecutionError, match="float64"):
        share_out([[half], [half._replace(dtype="float64")]])


def test_pieces_that_are_not_as_the_table_says_are_named() -> None:
    whole = torch.arange(4.0)
    halves = [Area(0, ((0, 2),)), Area(0, ((2, 4),))]
    source = Written(whole, halves)
    entry = share_out([[Piece(WHAT, (4,), "float32", area)] for area in halves]).entries[0]
    want = Want(WHAT, torch.empty(4))
    fill(want, entry, source)
    assert torch.equal(want.target, whole)
    with raises("checkpoint.missing-pieces", CorruptDataError, match="2 of the 4"):
        fill(want, replace(entry, pieces=entry.pieces[:1]), source)
    source.pieces[1] = torch.zeros(3)
    with raises("checkpoint.other-piece", CorruptDataError, match="rank 1"):
        fill(want, entry, source)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [4, -1]},
        {"dtype": "float33"},
        {"pieces": [{"rank": True}]},
        {"pieces": [{"rank": 0, "dim": 2, "spans": [[0, 1]]}]},
        {"pieces": [{"rank": 0, "dim": 0, "spans": [[0, 9]]}]},
        {"pieces": None},
    ],
    ids=str,
)
def test_a_damaged_table_is_named(change: dict[str, object]) -> None:
    plain = Entry(what=WHAT, shape=(4,), dtype="float32", pieces=((0, WHOLE),)).to_plain()
    with pytest.raises(CorruptDataError, match="manifest"):
        Entry.from_plain(plain | change, "manifest.json")
