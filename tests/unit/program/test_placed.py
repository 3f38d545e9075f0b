"""Placements: parts of a network on the rows of a replica."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from tests import builders
from tests.graphs import TENSOR_BYTES, dag
from tests.raising import raises

from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.lowering.partition import routes_of, segment_ops
from trimaran.program.rules.check import check_program
from trimaran.program.rules.fits_graph import check_strategy, stretches
from trimaran.program.strategy import Part, Strategy
from trimaran.program.types import Instruction, Kind, Program

# A stem, two branches, a head; the first branch is read twice on the other row.
#
#     0 ── 1 ── 3 ──┐
#     └─── 2 ── 4 ──┴ 5      4 reads 1 and 2
GRAPH = dag([[], [0], [0], [1], [1, 2], [1, 3, 4]])


def parts(rows: Sequence[int], graph: int = 6) -> tuple[Part, ...]:
    """Every operation a part of its own, the last one with the loss."""
    made = [Part(ops=(f"op{number}",), row=row) for number, row in enumerate(rows)]
    return (*made[:-1], dataclasses.replace(made[-1], ops=(f"op{graph - 1}", "loss")))


TWO = builders.strategy(pp=2, parts=parts([0, 0, 1, 0, 1, 1]))


def find(program: Program, rank: int, token: str) -> Instruction:
    return next(instruction for instruction in program.ranks[rank] if instruction.token == token)


def tokens(program: Program, rank: int) -> list[str]:
    return [instruction.token for instruction in program.ranks[rank]]


def test_a_tensor_goes_once_to_a_row_that_reads_it_twice() -> None:
    """What operation 1 makes is read by 4 and 5, both on row 1: one message, to 4, which 5 waits for too."""
    program = lower(GRAPH, TWO, batch=2)
    check_program(program)
    assert [token for token in tokens(program, 0) if token.startswith("1SEND")] == ["1SEND_F0>4"]
    assert find(program, 0, "1SEND_F0>4").nbytes == 2 * TENSOR_BYTES
    assert "4RECV_F0<1" in find(program, 1, "5F0").after


def test_its_gradient_comes_back_once_when_all_that_read_it_have_added_theirs() -> None:
    program = lower(GRAPH, TWO, batch=2)
    back = find(program, 1, "4SEND_B0>1")
    assert back.after == ("5B0", "4B0")
    assert tokens(program, 1).index("4SEND_B0>1") > tokens(program, 1).index("4B0")


def test_each_row_runs_its_parts_in_the_order_of_the_strategy() -> None:
    strategy = dataclasses.replace(TWO, backward_order=(5, 3, 4, 2, 1, 0))
    program = lower(GRAPH, strategy, batch=2)
    computed = [[token for token in tokens(program, rank) if token[1:2] in ("F", "B")] for rank in (0, 1)]
    assert computed == [["0F0", "1F0", "3F0", "3B0", "1B0", "0B0"], ["2F0", "4F0", "5F0", "5B0", "4B0", "2B0"]]


def test_a_receive_is_posted_before_the_work_that_runs_while_its_message_is_made() -> None:
    """Row 1 computes operation 2 while row 0 computes operation 1, whose result it then needs for operation 4."""
    listed = tokens(lower(GRAPH, TWO, batch=2), 1)
    assert listed.index("4RECV_F0<1") < listed.index("2F0")


def test_several_microbatches_overlap_and_no_row_keeps_more_of_them_than_there_are_rows() -> None:
    """Row 0 has two microbatches under way while row 1 works on the first of them, and never three."""
    program = lower(GRAPH, dataclasses.replace(TWO, microbatches=6), batch=6)
    check_program(program)
    assert [most_under_way(instructions) for instructions in program.ranks] == [2, 1]


def most_under_way(instructions: Sequence[Instruction]) -> int:
    """Microbatches between their first forward and their last backward, at most."""
    spans = {}
    for position, item in enumerate(instructions):
        if item.kind in (Kind.FORWARD, Kind.BACKWARD):
            first, _ = spans.get(item.microbatch, (position, position))
            spans[item.microbatch] = first, position
    return max(
        sum(first <= position <= last for first, last in spans.values()) for position in range(len(instructions))
    )


def test_an_evaluation_runs_the_same_parts() -> None:
    program = lower_evaluation(GRAPH, dataclasses.replace(TWO, microbatches=2), batch=4)
    check_program(program)
    assert [token for token in tokens(program, 0) if "EV" in token] == ["0EV0", "1EV0", "3EV0", "0EV1", "1EV1", "3EV1"]


def test_what_is_carried_names_the_first_reader_and_all_readers() -> None:
    found = routes_of(GRAPH, segment_ops(GRAPH, TWO), TWO.rows)
    named = {(one.producer, one.consumer): ([spec.name for spec in one.tensors], one.readers) for one in found}
    assert named == {
        (0, 2): (["t0"], (2,)),
        (1, 4): (["t1"], (4, 5)),
        (3, 5): (["t3"], (5,)),
    }


def test_parts_that_share_a_weight_across_rows_sum_its_gradients() -> None:
    program = lower(dag([[], [0], [1]], tied=[(0, 2)]), builders.strategy(pp=2, parts=parts([0, 1, 1], 3)), batch=2)
    assert find(program, 0, "AR#tie0").group == (0, 1)


def test_replicas_of_a_placement_reduce_each_part_over_its_own_ranks() -> None:
    program = lower(GRAPH, dataclasses.replace(TWO, dp=2), batch=4)
    check_program(program)
    assert find(program, 2, "3AR#b0").group == (0, 2)
    assert find(program, 3, "4AR#b0").group == (1, 3)


def test_operations_between_two_cuts_are_one_stretch() -> None:
    graph = dataclasses.replace(GRAPH, split_points=("op1", "op3"))
    assert stretches(graph) == (("op0", "op1"), ("op2", "op3"), ("op4", "op5", "loss"))


@pytest.mark.parametrize(
    ("strategy", "code", "figures"),
    [
        (builders.strategy(pp=2, parts=parts([0, 0, 1, 0, 1, 1])[:-1]), "parts.not-once", {"match": "op5"}),
        (
            builders.strategy(pp=2, parts=(*TWO.parts, Part(ops=("op2",), row=0))),
            "parts.not-once",
            {"match": "op2"},
        ),
        (builders.strategy(pp=3, parts=TWO.parts), "parts.empty-row", {"match": r"\b2\b"}),
        (builders.strategy(pp=2, parts=parts([0, 0, 1, 0, 2, 1])), "parts.empty-row", {"pp": 2}),
        (builders.strategy(pp=2, parts=(*TWO.parts, Part(ops=(), row=0))), "parts.not-in-graph-order", {"part": 6}),
        (builders.strategy(pp=2, parts=(Part(ops=("op9",), row=0),)), "parts.unknown-operation", {"op": "op9"}),
        (dataclasses.replace(TWO, boundaries=("op1",)), "parts.with-boundaries", {}),
        (dataclasses.replace(TWO, backward_order=(0, 1)), "parts.bad-backward-order", {"match": r"\b6\b"}),
        (
            dataclasses.replace(TWO, backward_order=(0, 1, 2, 3, 4, 5)),
            "parts.gradient-not-ready",
            {"match": r"\b0\b.*\b1\b"},
        ),
        (
            builders.strategy(pp=2, parts=(TWO.parts[1], TWO.parts[0], *TWO.parts[2:])),
            "parts.reads-later-part",
            {"match": r'\b0\b.*"t0".*\b1\b'},
        ),
        (
            builders.strategy(pp=2, parts=(Part(ops=("op1", "op0"), row=0), *TWO.parts[2:])),
            "parts.not-in-graph-order",
            {},
        ),
    ],
)
def test_parts_that_do_not_cover_the_graph_or_cannot_run_are_refused(
    strategy: Strategy, code: str, figures: dict[str, Any]
) -> None:
    with raises(code, **figures):
        check_strategy(GRAPH, strategy, batch=4)


def test_operations_that_must_stay_together_are_not_separated() -> None:
    graph = dataclasses.replace(GRAPH, split_points=tuple(cut for cut in GRAPH.split_points if cut != "op1"))
    with raises("parts.in-place-split", match='"op1".*"op2"'):
        check_strategy(graph, TWO, batch=4)


def test_two_parts_that_need_each_other_are_refused() -> None:
    """0 and 2 in one part, 1 between them in another: neither can run first."""
    graph = dag([[], [0], [1], [2]])
    crossed = (Part(ops=("op0", "op2"), row=0), Part(ops=("op1",), row=1), Part(ops=("op3", "loss"), row=1))
    with raises("parts.reads-later-part"):
        check_strategy(graph, builders.strategy(pp=2, parts=crossed), batch=2)
