"""One illegal program a rule, each made from a legal one by one change."""

import dataclasses
from collections.abc import Callable

import pytest
from tests import builders
from tests.graphs import chain
from tests.raising import raises

from trimaran.base.errors import InputError
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.rules.check import check_program
from trimaran.program.types import Instruction, Kind, Mark, Program

HYBRID = builders.strategy(dp=2, pp=2, boundaries=("op0",), microbatches=2)
Change = Callable[[list[Instruction]], list[Instruction]]


def hybrid() -> Program:
    return lower(chain(2, buffers=True), HYBRID, batch=8)


def on_rank(program: Program, rank: int, change: Change) -> Program:
    ranks = list(program.ranks)
    ranks[rank] = tuple(change(list(ranks[rank])))
    return dataclasses.replace(program, ranks=tuple(ranks))


def edit(token: str, **changes: object) -> Change:
    return lambda listed: [
        dataclasses.replace(instruction, **changes) if instruction.token == token else instruction  # type: ignore[arg-type]
        for instruction in listed
    ]


def drop(token: str) -> Change:
    return lambda listed: [instruction for instruction in listed if instruction.token != token]


def move(token: str, before: str) -> Change:
    def change(listed: list[Instruction]) -> list[Instruction]:
        (moved,) = (instruction for instruction in listed if instruction.token == token)
        rest = [instruction for instruction in listed if instruction.token != token]
        at = [instruction.token for instruction in rest].index(before)
        return [*rest[:at], moved, *rest[at:]]

    return change


def broken_rule(program: Program) -> int:
    with pytest.raises(InputError) as caught:
        check_program(program)
    number = caught.value.figures["rule"]
    assert isinstance(number, int)
    return number


def test_what_lower_makes_is_legal() -> None:
    check_program(hybrid())


def test_rule_1_an_instruction_in_the_list_of_another_rank() -> None:
    assert broken_rule(on_rank(hybrid(), 0, edit("0F0", rank=1))) == 1


def test_rule_1_a_token_twice() -> None:
    assert broken_rule(on_rank(hybrid(), 0, lambda listed: [*listed, listed[-1]])) == 1


def test_rule_1_a_program_without_ranks() -> None:
    with raises("program.empty", match=r"\b1\b.*\b0\b"):
        check_program(Program(ranks=(), segments=1, microbatches=1))


@pytest.mark.parametrize("name", ["0F9", "0F1", "0B1!b9"])
def test_rule_3_waiting_for_what_is_missing_later_or_no_mark(name: str) -> None:
    """0F0 waits for a step that does not exist, or for a later one; the update for a mark that 0B1 does not have."""
    waiting = "U" if "!" in name else "0F0"
    assert broken_rule(on_rank(hybrid(), 0, edit(waiting, after=(name,)))) == 3


@pytest.mark.parametrize(
    ("token", "changes"),
    [
        ("0F0", {"segment": 7}),
        ("0F0", {"peer": 1, "peer_segment": 1}),
        ("0SEND_F0>1", {"peer": 0}),
        ("0SEND_F0>1", {"peer": None}),
        ("0SEND_F0>1", {"peer": 9}),
        ("0AR#b0", {"group": (0,)}),
        ("0AR#b0", {"group": (2, 0)}),
        ("0AR#b0", {"group": (1, 2)}),
        ("0AR#b0", {"group": ()}),
        ("U", {"group": (0, 2)}),
        ("U", {"nbytes": -1}),
        ("U", {"stream": "a b"}),
        ("0F0", {"marks": (Mark(name="m", op="op0"), Mark(name="m", op="op0"))}),
    ],
)
def test_rule_2_a_field_that_does_not_fit_its_kind(token: str, changes: dict[str, object]) -> None:
    assert broken_rule(on_rank(hybrid(), 0, edit(token, **changes))) == 2


def test_rule_4_a_backward_is_missing() -> None:
    """Without its sends, marks and those that wait for them, so that nothing else is wrong first."""
    program = lower(chain(2), builders.strategy(microbatches=2), batch=2)
    program = on_rank(program, 0, edit("U", after=()))
    assert broken_rule(on_rank(program, 0, drop("0B1"))) == 4


def test_rule_4_a_backward_before_its_forward() -> None:
    program = lower(chain(2), builders.strategy(), batch=2)
    assert broken_rule(on_rank(program, 0, move("0B0", before="0F0"))) == 4


def test_rule_4_a_segment_on_fewer_replicas() -> None:
    """Rank 3 alone loses all that it does, so that segment 1 is on one rank and segment 0 on two."""
    assert broken_rule(on_rank(hybrid(), 3, lambda _: [])) == 4


def test_rule_4_training_and_evaluation_mixed() -> None:
    program = lower_evaluation(chain(2), builders.strategy(microbatches=2), batch=2)
    assert broken_rule(on_rank(program, 0, edit("0EV1", kind=Kind.FORWARD))) == 4


def test_rule_5_a_forward_that_does_not_wait_for_its_receive() -> None:
    assert broken_rule(on_rank(hybrid(), 1, edit("1F1", after=("IN1",)))) == 5


def test_rule_5_a_send_that_does_not_wait_for_its_step() -> None:
    assert broken_rule(on_rank(hybrid(), 0, edit("0SEND_F0>1", after=()))) == 5


def test_rule_5_a_send_of_nothing() -> None:
    assert broken_rule(on_rank(hybrid(), 1, edit("1SEND_B0>0", kind=Kind.SEND_BACKWARD, segment=0, after=()))) == 5


def test_rule_6_a_microbatch_that_is_not_exchanged() -> None:
    """Both ends of a message are gone, so the channel still matches; only microbatch 0 lacks what 1 has."""
    program = on_rank(on_rank(hybrid(), 0, drop("0SEND_F0>1")), 1, drop("1RECV_F0<0"))
    program = on_rank(program, 1, edit("1F0", after=("IN0", "1BC#buffers")))
    assert broken_rule(program) == 6


def test_rule_7_a_load_that_nothing_reads() -> None:
    assert broken_rule(on_rank(hybrid(), 0, edit("0F1", after=()))) == 7


def test_rule_8_sends_and_receives_in_another_order() -> None:
    assert broken_rule(on_rank(hybrid(), 1, move("1RECV_F1<0", before="1RECV_F0<0"))) == 8


def test_rule_8_a_send_without_a_receive() -> None:
    """Every microbatch loses its receive, so that rule 6 is kept."""
    program = on_rank(on_rank(hybrid(), 1, drop("1RECV_F0<0")), 1, drop("1RECV_F1<0"))
    program = on_rank(program, 1, edit("1F0", after=("IN0", "1BC#buffers")))
    program = on_rank(program, 1, edit("1F1", after=("IN1",)))
    assert broken_rule(program) == 8


def test_rule_8_unequal_bytes() -> None:
    program = on_rank(hybrid(), 1, edit("1RECV_F0<0", nbytes=1))
    assert broken_rule(on_rank(program, 1, edit("1RECV_F1<0", nbytes=1))) == 8


def test_rule_9_members_of_a_group_in_another_order() -> None:
    program = lower(chain(2), builders.strategy(dp=2, bucket_bytes=50), batch=4)
    assert broken_rule(on_rank(program, 1, move("0AR#b1", before="0AR#b0"))) == 9


def test_rule_9_unequal_bytes() -> None:
    assert broken_rule(on_rank(hybrid(), 2, edit("0AR#b0", nbytes=1))) == 9


def test_rule_9_a_member_that_is_missing() -> None:
    program = on_rank(hybrid(), 3, drop("AR#loss"))
    assert broken_rule(on_rank(program, 3, edit("U", after=("1B1", "1AR#b0")))) == 9


def test_rule_10_a_mark_that_nothing_waits_for() -> None:
    program = hybrid()
    for rank in (0, 2):
        program = on_rank(program, rank, edit("0AR#b0", after=("0B1",)))
    assert broken_rule(program) == 10


def test_rule_11_a_reduction_over_ranks_of_another_segment() -> None:
    """The reduction of segment 0 over ranks 0 and 1, on both of them."""
    program = hybrid()
    moved = next(instruction for instruction in program.ranks[0] if instruction.token == "0AR#b0")
    moved = dataclasses.replace(moved, group=(0, 1))
    program = on_rank(program, 0, edit("0AR#b0", group=(0, 1)))
    program = on_rank(
        program, 1, lambda listed: [*listed[:-1], dataclasses.replace(moved, rank=1, after=()), listed[-1]]
    )
    program = on_rank(program, 2, drop("0AR#b0"))
    program = on_rank(program, 2, edit("0B1", marks=()))
    assert broken_rule(on_rank(program, 2, edit("U", after=("0B1", "AR#loss")))) == 11


def test_rule_12_no_update() -> None:
    assert broken_rule(on_rank(hybrid(), 0, drop("U"))) == 12


def test_rule_12_an_update_before_a_backward() -> None:
    program = lower(chain(2), builders.strategy(microbatches=2), batch=2)
    program = on_rank(program, 0, edit("U", after=("0B0",)))
    assert broken_rule(on_rank(program, 0, move("U", before="IN1"))) == 12


def test_rule_12_an_update_that_does_not_wait_for_a_reduction() -> None:
    assert broken_rule(on_rank(hybrid(), 0, edit("U", after=("0B1", "AR#loss")))) == 12


def test_rule_12_an_update_that_waits_for_reductions_through_the_clipping_is_legal() -> None:
    check_program(lower(chain(2), HYBRID, batch=8, clip=True))


def test_rule_12_an_evaluation_updates_nothing() -> None:
    program = lower_evaluation(chain(2), builders.strategy(), batch=2)
    update = Instruction(kind=Kind.UPDATE, rank=0)
    assert broken_rule(on_rank(program, 0, lambda listed: [*listed, update])) == 12


def circle() -> Program:
    """Rank 1 sends its first gradient only after its second forward, and rank 0 waits for it before that forward."""
    program = lower(chain(2), builders.strategy(pp=2, boundaries=("op0",), microbatches=2), batch=2)
    return on_rank(program, 0, edit("0F1", after=("IN1", "0RECV_B0<1")))


def test_rule_13_a_program_that_waits_for_itself() -> None:
    assert broken_rule(circle()) == 13


def test_rule_13_writes_the_circle_out() -> None:
    with raises("program.illegal", match="r0/0F1 waits for r0/0RECV_B0<1", rule=13) as caught:
        check_program(circle())
    message = str(caught.value)
    assert "r0/0SEND_F1>1 meets r1/1RECV_F1<0" in message or "r1/1RECV_F1<0 meets r0/0SEND_F1>1" in message


def test_rule_13_counts_a_host_that_blocks() -> None:
    """Rank 0 lists its send after its backward, which needs what rank 1 makes of it: fine only if a host runs ahead."""
    program = lower(chain(2), builders.strategy(pp=2, boundaries=("op0",)), batch=2)
    assert broken_rule(on_rank(program, 0, move("0SEND_F0>1", before="U"))) == 13


def test_a_fault_is_drawn_with_an_arrow_at_it() -> None:
    program = lower(chain(2), builders.strategy(pp=2, boundaries=("op0",)), batch=2)
    with pytest.raises(InputError) as caught:
        check_program(on_rank(program, 1, edit("1F0", after=("IN0",))))
    assert str(caught.value).split("\n") == [
        "illegal program, rule 5: r1/1F0 needs r1/1RECV_F0<0",
        "       rank 0             rank 1",
        "     0 0RECV_B0<1  ->   0 1RECV_F0<0",
        "     1 IN0              1 IN0",
        "     2 0F0         ->   2 1F0",
        "     3 0SEND_F0>1       3 AR#loss",
        "     4 AR#loss          4 1B0",
        "     5 0B0              5 1SEND_B0>0",
        "     6 U                6 U",
        "List 1RECV_F0<0 before it, and name it in its `after`.",
    ]


def large() -> Program:
    """9 ranks of 63 instructions: loads, forwards and backwards of 20 microbatches, and three more."""
    return lower(chain(2), builders.strategy(dp=9, microbatches=20), batch=180)


def test_of_a_large_program_only_what_is_around_the_fault_is_drawn() -> None:
    """Forward 10 is at position 31 of rank 5, forward 19 at 58: a column each, a head and nine positions."""
    with pytest.raises(InputError) as caught:
        check_program(on_rank(large(), 5, edit("0F10", after=("0F19",))))
    grid = str(caught.value).split("\n")[1:-1]
    assert grid[0].split() == ["rank", "5", "rank", "5"]
    assert len(grid) == 10
    assert grid[5].split() == ["->", "31", "0F10", "->", "58", "0F19"]


def test_a_large_program_without_a_segment_is_refused() -> None:
    """There is nothing to point at, and the program is too large to be drawn whole."""
    assert broken_rule(dataclasses.replace(large(), segments=2)) == 4


def homed() -> Program:
    return lower(chain(2), builders.strategy(dp=2, bucket_bytes=50, sync="p2p"), batch=8)


@pytest.mark.parametrize(
    ("token", "changes"),
    [
        ("AR#loss", {"root": 0}),
        ("0RD#b0", {"root": 2}),
    ],
)
def test_rule_2_a_root_where_none_belongs_or_outside_of_the_group(token: str, changes: dict[str, object]) -> None:
    assert broken_rule(on_rank(homed(), 0, edit(token, **changes))) == 2


def test_rule_9_members_that_mean_different_roots() -> None:
    assert broken_rule(on_rank(homed(), 0, edit("0RD#b0", root=1))) == 9


def test_rule_12_an_update_that_does_not_wait_for_what_comes_to_a_home() -> None:
    assert broken_rule(on_rank(homed(), 0, edit("U", after=("0B0", "0RD#b0", "AR#loss")))) == 12


def test_rule_14_weights_that_do_not_come_back() -> None:
    program = homed()
    for rank in range(2):
        program = on_rank(program, rank, drop("0BC#b1"))
    assert broken_rule(program) == 14


def test_rule_14_weights_that_come_from_another_rank() -> None:
    program = homed()
    for rank in range(2):
        program = on_rank(program, rank, edit("0BC#b1", root=0))
    assert broken_rule(program) == 14


def test_rule_14_weights_that_come_back_before_the_update() -> None:
    assert broken_rule(on_rank(homed(), 1, edit("0BC#b1", after=("0B0",)))) == 14
