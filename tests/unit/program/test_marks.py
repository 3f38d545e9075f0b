"""Marks at which an instruction stands still: what is legal, and what can never end."""

import dataclasses

import pytest
from tests.raising import raises

from trimaran.base.errors import InputError
from trimaran.program.rules.check import check_program
from trimaran.program.text import format_program, parse_program
from trimaran.program.types import ComputePoint, Inner, Instruction, Kind, Mark, Program, inner_marks

F0 = Mark(name="f0", op="fc1", waits_for="0AR0#f0")
F1 = Mark(name="f1", op="fc2", waits_for="0AR0#f1")


def summed(rank: int, label: str = "f0", **changes: object) -> Instruction:
    fields: dict[str, object] = {"after": (f"0F0!{label}",), "nbytes": 8, "group": (0, 1)}
    return Instruction(
        kind=Kind.ALL_REDUCE,
        rank=rank,
        segment=0,
        microbatch=0,
        stream="communication",
        label=label,
        **(fields | changes),  # type: ignore[arg-type]
    )


def forward(rank: int, *marks: Mark) -> Instruction:
    return Instruction(kind=Kind.FORWARD, rank=rank, segment=0, microbatch=0, marks=marks)


def backward(rank: int) -> Instruction:
    return Instruction(kind=Kind.BACKWARD, rank=rank, segment=0, microbatch=0)


def update(rank: int) -> Instruction:
    return Instruction(kind=Kind.UPDATE, rank=rank, after=("0B0",))


def program(*ranks: tuple[Instruction, ...]) -> Program:
    return Program(ranks=ranks, segments=1, microbatches=1, tp=2)


def both(*instructions: Instruction) -> Program:
    """The same on both ranks, with the rest of a step."""
    return program(
        *(
            tuple(dataclasses.replace(item, rank=rank) for item in (*instructions, backward(rank), update(rank)))
            for rank in (0, 1)
        )
    )


def test_a_step_may_stand_still_for_what_it_starts_itself() -> None:
    check_program(both(forward(0, F0, F1), summed(0), summed(0, "f1")))


def test_what_a_step_stands_still_for_may_be_listed_before_it() -> None:
    check_program(both(summed(0, after=()), forward(0, F0)))


def test_a_mark_may_wait_for_what_an_earlier_mark_has_started() -> None:
    """A gather that is started ahead: at u0 it starts, at u0.wait it is needed."""
    marks = (Mark(name="u0", op="fc1", before=True), Mark(name="u0.wait", op="fc2", before=True, waits_for="0AR0#u0"))
    check_program(both(forward(0, *marks), summed(0, "u0")))


def test_a_step_that_stands_still_before_it_starts_what_it_waits_for_never_ends() -> None:
    """It waits for f1 at its first mark, and starts f1 at its second."""
    first = dataclasses.replace(F0, waits_for="0AR0#f1")
    second = dataclasses.replace(F1, waits_for="")
    with raises("program.illegal", match="r0/0F0.*r0/0AR0#f1.*a mark", rule=13):
        check_program(both(forward(0, first, second), summed(0), summed(0, "f1")))


def test_members_that_stand_still_for_different_collectives_never_end() -> None:
    """Rank 0 waits for f0 and then starts f1; rank 1 the other way round: their group does f0 first."""
    one = (forward(0, F0, F1), summed(0), summed(0, "f1"), backward(0), update(0))
    other = (forward(1, F1, F0), summed(1), summed(1, "f1"), backward(1), update(1))
    with pytest.raises(InputError) as caught:
        check_program(program(one, other))
    assert caught.value.figures["rule"] == 13


@pytest.mark.parametrize(
    ("wrong", "rule", "words"),
    [
        (both(forward(0, dataclasses.replace(F0, waits_for="0AR0#f9")), summed(0)), 3, "no such instruction"),
        (both(forward(0, dataclasses.replace(F0, waits_for="0F0")), summed(0)), 3, "the instruction that it is in"),
        (both(forward(0, F0), summed(0, after=())), 3, "no mark"),
        (both(forward(0, F0, dataclasses.replace(F1, waits_for="")), summed(0)), 10, r"\b0 instructions"),
        (both(forward(0, F0), summed(0), summed(0, "f1", after=("0F0!f0",))), 10, r"\b2 instructions"),
    ],
)
def test_a_mark_that_waits_for_what_cannot_come_is_refused(wrong: Program, rule: int, words: str) -> None:
    with raises("program.illegal", match=words, rule=rule):
        check_program(wrong)


def test_only_steps_of_compute_have_marks() -> None:
    marked = dataclasses.replace(update(0), marks=(Mark(name="f0", op="fc1"),))
    alone = Program(ranks=((forward(0), backward(0), marked),), segments=1, microbatches=1)
    with raises("program.illegal", rule=2):
        check_program(alone)


def test_a_sum_over_other_ranks_than_those_that_share_a_row_is_refused() -> None:
    """Four ranks, two rows of shards: 0 and 1 share tensors, 0 and 2 hold the same; 0 and 3 neither."""
    ranks = tuple(
        (
            forward(rank, F0),
            summed(rank, group=(0, 3) if rank in (0, 3) else (1, 2)),
            backward(rank),
            update(rank),
        )
        for rank in range(4)
    )
    with raises("program.illegal", rule=11) as caught:
        check_program(program(*ranks))
    assert caught.value.figures["rule"] == 11


def test_the_text_form_has_marks_before_and_after_and_what_they_wait_for() -> None:
    before = Mark(name="u0", op="fc 1", before=True, waits_for="0AR0#f0")
    found = both(forward(0, before, F1), summed(0), summed(0, "f1"))
    text = format_program(found)
    assert text.startswith("program segments=1 microbatches=1 ranks=2 tp=2\n")
    assert 'marks=u0^"fc 1":0AR0#f0,f1@fc2:0AR0#f1' in text
    assert parse_program(text) == found


def test_a_collective_that_is_awaited_where_it_starts_has_one_mark() -> None:
    here, later = ComputePoint(op="fc1"), ComputePoint(op="fc2", before=True)
    one = Inner(label="f0", kind=Kind.ALL_REDUCE, axis="shards", nbytes=8, start=here, wait=here)
    two = Inner(label="u0", kind=Kind.ALL_GATHER, axis="replicas", nbytes=8, start=here, wait=later)
    three = Inner(label="s0", kind=Kind.REDUCE_SCATTER, axis="replicas", nbytes=8, start=here)
    assert inner_marks([one, two, three], 0, 2) == (
        Mark(name="f0", op="fc1", waits_for="0AR2#f0"),
        Mark(name="u0", op="fc1"),
        Mark(name="u0.wait", op="fc2", before=True, waits_for="0AG2#u0"),
        Mark(name="s0", op="fc1"),
    )
