"""Orders of torch load here, and ours there.

torch's schedules are made in this process: a stage is only asked for its numbers.
"""

from types import SimpleNamespace
from typing import Any

import pytest
from tests import builders
from tests.graphs import boundaries, chain
from tests.raising import raises
from torch import nn
from torch.distributed.pipelining import schedules

from trimaran.program.lowering.lower import lower_order
from trimaran.program.lowering.schedules import (
    Order,
    evaluation_order,
    gpipe,
    interleaved,
    one_forward_one_backward,
    zero_bubble,
)
from trimaran.program.rules.check import check_program
from trimaran.program.text import format_order, parse_order


def torch_rows(schedule: type, *, ranks: int, microbatches: int, segments_per_rank: int = 1) -> list[list[Any]]:
    """The order that torch makes, a row a rank."""
    stages = [
        SimpleNamespace(
            num_stages=ranks * segments_per_rank,
            group_size=ranks,
            group_rank=0,
            stage_index=number * ranks,
            is_first=False,
            is_last=False,
            has_backward=True,
            submod=nn.Identity(),
            stage_index_to_group_rank={},
        )
        for number in range(segments_per_rank)
    ]
    single = issubclass(schedule, schedules.PipelineScheduleSingle)
    made = schedule(stages[0] if single else stages, microbatches, loss_fn=lambda *_: None)
    return [made.pipeline_order[rank] for rank in range(ranks)]


def as_csv(rows: list[list[Any]]) -> str:
    """As torch's `_dump_csv` writes it: a bubble is an empty cell."""
    return "".join(",".join("" if action is None else str(action) for action in row) + "\r\n" for row in rows)


def test_our_gpipe_is_that_of_torch() -> None:
    assert parse_order(as_csv(torch_rows(schedules.ScheduleGPipe, ranks=4, microbatches=8))) == gpipe(4, 8)


def test_our_1f1b_is_that_of_torch() -> None:
    """All rows but the last are compared: torch 2.13 numbers the forwards of the last stage from 1 in this listing
    (`3F1,3B0,3F2,3B1,...`), though it runs them from 0.
    """
    rows = torch_rows(schedules.Schedule1F1B, ranks=4, microbatches=8)
    ours = one_forward_one_backward(4, 8)
    for row, steps in zip(rows[:-1], ours[:-1], strict=True):
        assert [str(action) for action in row if "REDUCE" not in str(action)] == [step.token for step in steps]


@pytest.mark.parametrize(("ranks", "microbatches", "chunks"), [(2, 4, 2), (4, 8, 3), (3, 4, 2), (4, 6, 2)])
def test_our_interleaved_order_is_that_of_torch(ranks: int, microbatches: int, chunks: int) -> None:
    """Also where the microbatches are no multiple of the stages: they go round in groups of another size."""
    rows = torch_rows(
        schedules.ScheduleInterleaved1F1B, ranks=ranks, microbatches=microbatches, segments_per_rank=chunks
    )
    assert parse_order(as_csv(rows)) == interleaved(ranks, microbatches, chunks)


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.ScheduleInterleaved1F1B,
        schedules.ScheduleInterleavedZeroBubble,
        schedules.ScheduleZBVZeroBubble,
        schedules.ScheduleLoopedBFS,
        schedules.ScheduleDualPipeV,
    ],
)
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8)])
def test_orders_with_several_segments_a_rank_become_legal_programs(
    schedule: type, ranks: int, microbatches: int
) -> None:
    rows = torch_rows(schedule, ranks=ranks, microbatches=microbatches, segments_per_rank=2)
    program = lower_order(
        chain(2 * ranks, skips=[(0, 3)]),
        parse_order(as_csv(rows)),
        boundaries=boundaries(2 * ranks),
        batch=2 * microbatches,
        dp=2,
    )
    check_program(program)
    assert (program.segments, program.microbatches, len(program.ranks)) == (2 * ranks, microbatches, 2 * ranks)


def test_an_imported_order_keeps_its_steps() -> None:
    rows = torch_rows(schedules.ScheduleInterleavedZeroBubble, ranks=2, microbatches=4, segments_per_rank=2)
    order = parse_order(as_csv(rows))
    wanted = [[str(action) for action in row if action is not None] for row in rows]
    assert [[step.token for step in steps] for steps in order] == wanted


@pytest.mark.parametrize(
    "order",
    [gpipe(3, 4), one_forward_one_backward(3, 4), zero_bubble(3, 4), parse_order("0F0,0I0,0W0\n1F0,1I0,1W0\n")],
)
def test_torch_accepts_our_orders(order: Order) -> None:
    cells = [line.split(",") for line in format_order(order).splitlines()]
    actions = {rank: [schedules._Action.from_str(cell) for cell in row] for rank, row in enumerate(cells)}
    microbatches = 1 + max(step.microbatch for row in order for step in row)
    mapping = schedules._validate_schedule(actions, len(order), len(order), microbatches)
    assert mapping == {rank: rank for rank in range(len(order))}


def test_what_we_write_reads_back() -> None:
    order = one_forward_one_backward(3, 5)
    assert parse_order(format_order(order)) == order


def test_the_halves_of_an_overlapped_step_are_taken_one_after_the_other() -> None:
    (row,) = parse_order("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n")
    assert [step.token for step in row] == ["0F0", "0F1", "0B0", "0B1"]


@pytest.mark.parametrize("cell", ["0SEND_F0", "0X0", "F0", "0F", "forward", "0UNSHARD"])
def test_a_cell_that_is_no_step_is_refused_with_its_place(cell: str) -> None:
    with raises("torch-pipelining.bad-cell", match=r"order\.csv", row=1, column=1):
        parse_order(f"0F0,0B0\n1F0,{cell}\n", source="order.csv")


def test_an_incomplete_order_is_refused() -> None:
    with raises("order.missing-step", step="0B1"):
        parse_order("0F0,0F1,0B0\n")


def test_an_empty_file_is_refused() -> None:
    with raises("order.empty-row"):
        parse_order("\n")


def test_an_evaluation_has_no_form_in_torch() -> None:
    with raises("torch-pipelining.no-evaluation", match="torch's.*0EV0"):
        format_order(evaluation_order(builders.strategy()))
