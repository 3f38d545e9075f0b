"""Programs that a person has edited, beside the graph and the strategy that they are for."""

import dataclasses
from collections.abc import Callable

import pytest
from tests import builders
from tests.graphs import boundaries, chain, dag, lower_order, read_order
from tests.raising import raises

from trimaran.base.errors import InputError
from trimaran.program.lowering.lower import lower
from trimaran.program.rules.against_graph import check_against_graph
from trimaran.program.rules.check import check_program
from trimaran.program.strategy import Part, Strategy
from trimaran.program.types import Instruction, Kind, Program

GRAPH = chain(4, tied=[(0, 3)], skips=[(0, 2)], buffers=True)
HYBRID = builders.strategy(dp=2, pp=2, boundaries=("op1",), microbatches=2, bucket_bytes=50)
TIED = builders.strategy(pp=2, boundaries=("op1",), microbatches=2)

Change = Callable[[Instruction], Instruction | None]


def edited(program: Program, change: Change) -> Program:
    """Every instruction changed, or taken out with its name in what waited for it."""
    lost = {item.id for item in program if change(item) is None}
    ranks = []
    for instructions in program.ranks:
        kept = [made for item in instructions if (made := change(item)) is not None]
        ranks.append(
            tuple(
                dataclasses.replace(
                    item, after=tuple(name for name in item.after if f"r{item.rank}/{name}" not in lost)
                )
                for item in kept
            )
        )
    return dataclasses.replace(program, ranks=tuple(ranks))


def refusal(program: Program, strategy: Strategy = TIED, *, batch: int = 8) -> str:
    """The message of rule 15; the rules that see a program alone have nothing against it."""
    check_program(program)
    with pytest.raises(InputError) as caught:
        check_against_graph(program, GRAPH, strategy, batch=batch)
    assert caught.value.figures["rule"] == 15
    return str(caught.value)


def test_a_lowered_program_is_accepted() -> None:
    for strategy in (HYBRID, TIED):
        check_against_graph(lower(GRAPH, strategy, batch=8, clip=True), GRAPH, strategy, batch=8)


def test_a_lost_sum_of_a_shared_weight_is_drawn() -> None:
    found = refusal(edited(lower(GRAPH, TIED, batch=8), lambda item: None if item.label == "tie0" else item))
    assert "rank 0 has U compute after=0B1,AR#loss where" in found
    assert "has AR#tie0 communication group=0,1" in found
    assert "-> " in found


def test_a_shared_weight_that_is_updated_before_its_sum_has_ended_is_refused() -> None:
    """The update of rank 0 no longer waits for AR#tie0: already rule 12, which needs no graph."""
    program = edited(
        lower(GRAPH, TIED, batch=8),
        lambda item: (
            dataclasses.replace(item, after=tuple(name for name in item.after if name != "AR#tie0"))
            if item.kind is Kind.UPDATE
            else item
        ),
    )
    with raises("program.illegal", match="r0/AR#tie0", rule=12) as caught:
        check_program(program)
    assert caught.value.figures["rule"] == 12


def test_a_sum_that_does_not_wait_for_the_gradients_is_refused() -> None:
    program = edited(
        lower(GRAPH, TIED, batch=8), lambda item: dataclasses.replace(item, after=()) if item.label == "tie0" else item
    )
    assert "has AR#tie0 communication group=0,1 nbytes=40 after=0B1" in refusal(program)


def test_a_lost_activation_is_named() -> None:
    """Without the gradients of the message from segment 0 to segment 1."""
    program = edited(lower(GRAPH, TIED, batch=8), lambda item: None if "_B" in item.kind else item)
    assert "has 0RECV_B0<1 communication peer=1" in refusal(program)


def test_other_bytes_than_those_of_the_tensors_are_refused() -> None:
    """Two tensors of 4 bytes for each of 4 samples are 32 bytes."""
    program = edited(
        lower(GRAPH, TIED, batch=8),
        lambda item: dataclasses.replace(item, nbytes=16) if "_F" in item.kind else item,
    )
    assert "has 0SEND_F0>1 communication peer=1 nbytes=32" in refusal(program)


def test_a_bucket_that_is_never_reduced_is_refused() -> None:
    without = edited(
        lower(GRAPH, HYBRID, batch=8),
        lambda item: (
            None
            if item.label == "b1"
            else dataclasses.replace(item, marks=tuple(mark for mark in item.marks if mark.name != "b1"))
        ),
    )
    assert "where dp2 pp2" in refusal(without, HYBRID)


def test_a_bucket_that_is_sent_before_its_gradients_are_there_is_refused() -> None:
    """The marks of buckets are moved to an operation whose backward comes earlier."""
    program = edited(
        lower(GRAPH, HYBRID, batch=8),
        lambda item: dataclasses.replace(item, marks=tuple(dataclasses.replace(mark, op="op1") for mark in item.marks)),
    )
    assert "marks=b0@op1" in refusal(program, HYBRID)


def test_an_instruction_too_many_is_refused() -> None:
    program = lower(GRAPH, HYBRID, batch=8)
    loss = next(item for item in program if item.label == "loss")
    ranks = []
    for rank, instructions in enumerate(program.ranks):
        extra = dataclasses.replace(loss, rank=rank, after=(), label="extra")
        update = dataclasses.replace(instructions[-1], after=(*instructions[-1].after, "AR#extra"))
        ranks.append((extra, *instructions[:-1], update))
    assert "rank 0 has AR#extra" in refusal(dataclasses.replace(program, ranks=tuple(ranks)), HYBRID)


def test_a_segment_on_another_row_is_refused() -> None:
    swapped = lower_order(GRAPH, read_order("1F0,1F1,1B0,1B1\n0F0,0F1,0B0,0B1\n"), boundaries=("op1",), batch=8)
    assert "r0/1F0 is on row 0, and segment 1 belongs to row 1" in refusal(swapped)


def test_a_program_of_other_microbatches_is_refused() -> None:
    program = lower(GRAPH, dataclasses.replace(TIED, microbatches=4), batch=8)
    with raises("program.other-strategy", match=r"\b4\b.*\b2\b"):
        check_against_graph(program, GRAPH, TIED, batch=8)


def test_another_order_of_compute_is_welcome() -> None:
    """Backwards in reverse, which no schedule does: the same work, messages and sums."""
    order = read_order("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n")
    program = lower_order(GRAPH, order, boundaries=("op1",), batch=8)
    check_against_graph(program, GRAPH, TIED, batch=8)


@pytest.mark.parametrize(
    ("lowered", "named"), [("1f1b", "gpipe"), ("gpipe", "1f1b"), ("zero-bubble", "1f1b"), ("gpipe", "zero-bubble")]
)
def test_a_schedule_under_the_name_of_another_is_refused(lowered: str, named: str) -> None:
    strategy = dataclasses.replace(TIED, microbatches=4, schedule=lowered)
    program = lower(GRAPH, strategy, batch=8)
    found = refusal(program, dataclasses.replace(strategy, schedule=named))
    assert f'says schedule "{named}", and the order of the program is that of "{lowered}"' in found
    assert "-> " in found


def test_schedules_that_do_the_same_are_one() -> None:
    """One microbatch: GPipe and 1F1B are the same order."""
    strategy = dataclasses.replace(TIED, microbatches=1)
    check_against_graph(lower(GRAPH, strategy, batch=8), GRAPH, dataclasses.replace(strategy, schedule="1f1b"), batch=8)


def test_a_placement_that_loses_an_operation_is_refused() -> None:
    graph = dag([[], [0], [0], [1, 2]])
    parts = (
        Part(ops=("op0",), row=0),
        Part(ops=("op1",), row=0),
        Part(ops=("op2",), row=1),
        Part(ops=("op3", "loss"), row=0),
    )
    strategy = builders.strategy(pp=2, parts=parts)
    program = lower(graph, strategy, batch=2)
    lost = dataclasses.replace(strategy, parts=(parts[0], parts[2], parts[3]))
    with raises("parts.not-once", match="op1"):
        check_against_graph(program, graph, lost, batch=2)


def test_marks_of_several_segments_of_a_rank_are_compared() -> None:
    strategy = builders.strategy(
        dp=2, pp=2, chunks=2, schedule="interleaved", boundaries=boundaries(4), microbatches=2, bucket_bytes=1
    )
    check_against_graph(lower(GRAPH, strategy, batch=8), GRAPH, strategy, batch=8)
