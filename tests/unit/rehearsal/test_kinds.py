"""Which ranks are rehearsed by default, and which rehearsed rank stands for each of the others."""

from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.base.errors import InputError
from trimaran.rehearsal.kinds import (
    MOST_RANKS,
    Axis,
    affordable,
    choose_ranks,
    describe_place,
    find_axes,
    parse_ranks,
    represent,
    stand_ins,
)
from trimaran.rehearsal.record import Collective, EventMark, Group, Record


def mesh(sizes: dict[str, int]) -> list[tuple[str, list[tuple[int, ...]]]]:
    """The groups of a row-major mesh, by dimension."""
    names, shape = list(sizes), list(sizes.values())
    strides = [1] * len(shape)
    for dim in reversed(range(len(shape) - 1)):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    found = []
    for dim, name in enumerate(names):
        others = [range(size) if other != dim else (0,) for other, size in enumerate(shape)]
        starts = [sum(i * s for i, s in zip(index, strides, strict=True)) for index in product(*others)]
        found.append((name, [tuple(start + strides[dim] * i for i in range(shape[dim])) for start in starts]))
    return found


def record(rank: int, sizes: dict[str, int], *, sends: str = "", own_only: bool = False) -> Record:
    """The record of a rank that has made a mesh, and sends messages on one dimension of it."""
    world = 1
    for size in sizes.values():
        world *= size
    made, groups = [], {}
    for name, ranks in mesh(sizes):
        made += [(one, 0) for one in ranks if not own_only or rank in one]
        mine = next(one for one in ranks if rank in one)
        groups[name] = Group(name=name, ranks=mine, description=f"mesh_{name}", order=0, lines=0)
    collectives = []
    if sends:
        one = Collective(
            operation="send", reduction="", group=sends, inputs=(), outputs=(), nbytes=8, peer=1, stream=0,
            asynchronous=False, coalesced=-1, sizes=(), lines=0, module=0, part="forward",
        )  # fmt: skip
        collectives.append(one)
    return Record(
        rank=rank,
        world=world,
        per_node=8,
        device="h100",
        memory_bytes=80 * 2**30,
        script=["train.py"],
        groups=groups,
        made_groups=made,
        collectives=collectives,
    )


@pytest.mark.parametrize("own_only", [False, True], ids=["all groups seen", "own groups seen"])
def test_a_mesh_of_three_dimensions_has_every_stage_and_both_ends_of_each_axis(own_only: bool) -> None:
    """16 stages × 8 replicas × 8 shards."""
    axes = find_axes([record(0, {"pp": 16, "dp": 8, "tp": 8}, own_only=own_only)])
    assert [(axis.size, len(axis.groups), axis.staged) for axis in axes] == [
        (1024, 1, False),
        (16, 64, True),
        (8, 128, False),
        (8, 128, False),
    ]
    chosen = choose_ranks(1024, axes)
    stages = [64 * stage for stage in range(16)]
    # Rank 0's ends: 7 on tp, 56 on dp. Those of the last rank: 1016 on tp, 967 on dp, 63 on pp.
    assert chosen == tuple(sorted({*stages, 7, 56, 1016, 967, 63, 1023}))


def test_where_it_is_affordable_every_stage_has_two_members_of_each_group() -> None:
    """16 stages × 8 replicas × 8 shards, of a script of few events and of one of many."""
    cheap, dear = (record(0, {"pp": 16, "dp": 8, "tp": 8}) for _ in range(2))
    axes = find_axes([cheap])
    chosen = set(choose_ranks(1024, axes, affordable([cheap])))
    assert len(chosen) == 50
    for stage in range(0, 1024, 64):
        for axis in axes[2:]:
            assert len(chosen & set(axis.group_of(stage))) == 2, (stage, axis.name)
    dear.events = [EventMark(0, 0)] * 200_000
    assert affordable([dear]) == MOST_RANKS
    assert len(choose_ranks(1024, axes, affordable([dear]))) == 22
    # 30 ranks: those that are always there, and two more at four stages.
    assert len(choose_ranks(1024, axes, 30)) == 30


def test_ranks_that_exchange_objects_are_few_as_they_run_at_once() -> None:
    one = record(0, {"pp": 16, "dp": 8}, sends="pp")
    assert affordable([one]) > MOST_RANKS
    one.collectives = [msgspec.structs.replace(one.collectives[0], operation="send_object")]
    assert affordable([one]) == MOST_RANKS


def test_two_dimensions_have_their_four_corners() -> None:
    assert choose_ranks(64, find_axes([record(0, {"dp": 8, "tp": 8})])) == (0, 7, 56, 63)


def test_one_dimension_has_its_two_ends() -> None:
    assert choose_ranks(1024, find_axes([record(0, {"dp": 1024})])) == (0, 1023)


def test_an_axis_on_which_messages_are_sent_is_one_of_stages() -> None:
    plain, sent = (find_axes([record(0, {"a": 4, "b": 8}, sends=sends)]) for sends in ("", "a"))
    assert [axis.staged for axis in plain] == [False, False, False]
    assert [axis.staged for axis in sent] == [False, True, False]
    assert set(choose_ranks(32, sent)) == {0, 8, 16, 24, 7, 15, 23, 31}


def test_messages_in_the_group_of_all_ranks_lead_from_stage_to_stage() -> None:
    """Rank 0 sends to rank 8 of 32: four stages of eight ranks; of a thousand neighbours not each is a stage."""
    one = record(0, {"pp": 4, "dp": 8}, sends="pp")
    everyone = Group(name="0", ranks=tuple(range(32)), description="default_pg", order=0, lines=0)
    one.made_groups, one.groups = [], {"0": everyone}
    one.collectives = [msgspec.structs.replace(one.collectives[0], group="0", peer=8)]
    axes = find_axes([one])
    assert [(axis.size, len(axis.groups), axis.staged) for axis in axes] == [(32, 1, False), (4, 8, True)]
    assert {0, 8, 16, 24} <= set(choose_ranks(32, axes))
    one.world = 1024
    one.groups = {"0": msgspec.structs.replace(everyone, ranks=tuple(range(1024)))}
    one.collectives = [msgspec.structs.replace(one.collectives[0], peer=1)]
    assert choose_ranks(1024, find_axes([one])) == (0, 1023)


def test_a_rank_whose_neighbours_are_not_rehearsed_takes_the_messages_of_those_that_are() -> None:
    """16 stages × 64: rank 1023 hears rank 896 speak to rank 960 in place of rank 959."""
    axes = find_axes([record(0, {"pp": 16, "dp": 64})])
    chosen = choose_ranks(1024, axes)
    assert stand_ins(1023, axes, chosen)[959] == (896, 960)
    assert stand_ins(64, axes, chosen) == {}


def test_groups_made_in_turn_are_told_apart() -> None:
    """Each group of stages is followed by one of its two ends, as in Megatron."""
    made = []
    for first in range(4):
        stages = tuple(range(first, 16, 4))
        made += [(stages, 0), ((stages[0], stages[-1]), 0)]
    one = record(0, {"x": 16})
    one.made_groups = made
    axes = find_axes([one])
    assert [(axis.size, len(axis.groups)) for axis in axes] == [(16, 1), (4, 4), (2, 4)]
    assert axes[2].position(5) is None


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(2, 5), min_size=1, max_size=4),
    staged=st.booleans(),
)
def test_every_axis_has_a_group_with_two_rehearsed_members_and_every_rank_a_representative(
    sizes: list[int], staged: bool
) -> None:
    named = {("pp" if staged and not dim else f"d{dim}"): size for dim, size in enumerate(sizes)}
    axes = find_axes([record(0, named)])
    world = axes[0].size
    chosen = choose_ranks(world, axes)
    assert {0, world - 1} <= set(chosen)
    for axis in axes:
        assert max(len(set(group) & set(chosen)) for group in axis.groups) >= 2
    stands = represent(world, axes, chosen)
    assert sorted(stands) == list(range(world))
    assert set(stands.values()) == set(chosen)
    assert all(stands[rank] == rank for rank in chosen)
    for axis in axes:
        if axis.staged:
            assert all(axis.position(rank) == axis.position(of) for rank, of in stands.items())


def test_ranks_between_are_like_first_ones_and_ends_like_ends() -> None:
    axes = find_axes([record(0, {"dp": 4, "tp": 4})])
    stands = represent(16, axes, (0, 3, 12, 15))
    assert {stands[rank] for rank in (1, 2, 4, 5, 10)} == {0}
    assert (stands[7], stands[13], stands[14]) == (3, 12, 12)


def test_where_only_some_ranks_are_rehearsed_the_nearest_stands() -> None:
    axes = find_axes([record(0, {"pp": 4, "dp": 4})])
    assert set(represent(16, axes, [5]).values()) == {5}
    # Both stand between on the same axis: each stands for itself.
    assert [represent(16, axes, [1, 2])[rank] for rank in (1, 2)] == [1, 2]


def test_a_place_is_told_in_the_words_of_the_script() -> None:
    axes = find_axes([record(0, {"pp": 4, "dp": 2, "tp": 8})])
    assert describe_place(17, axes) == "pp 1 of 4, dp 0 of 2, tp 1 of 8"
    assert describe_place(3, [Axis("", (tuple(range(8)),))]) == ""


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("kinds", None), ("all", (0, 1, 2, 3)), ("3,0", (0, 3)), ("1-3", (1, 2, 3)), (" 0 , 2..3 ", (0, 2, 3))],
)
def test_ranks_are_read(text: str, ranks: tuple[int, ...] | None) -> None:
    assert parse_ranks(text, 4) == ranks


@pytest.mark.parametrize(
    ("text", "code"),
    [("some", "rehearse.bad-ranks"), ("", "rehearse.bad-ranks"), ("0,,1", "rehearse.bad-ranks"),
     ("-1", "rehearse.bad-ranks"), ("4", "rehearse.no-such-rank"), ("3-1", "rehearse.no-such-rank")],
)  # fmt: skip
def test_ranks_that_are_none_are_refused(text: str, code: str) -> None:
    with pytest.raises(InputError) as told:
        parse_ranks(text, 4)
    assert told.value.code == code
