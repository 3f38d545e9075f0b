"""Our orders are those of torch, which accepts them.

torch's schedules are made in this process: a stage is only asked for its numbers.
"""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.graphs import read_order
from torch import nn
from torch.distributed.pipelining import schedules

from trimaran.program.lowering.schedules import (
    Order,
    gpipe,
    interleaved,
    one_forward_one_backward,
    zero_bubble,
)


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


def tokens(rows: Iterable[Iterable[Any]]) -> list[list[str]]:
    """Steps of compute by their names; a bubble has none, and sums of gradients follow from a strategy."""
    named = [[str(getattr(step, "token", step)) for step in row if step is not None] for row in rows]
    return [[name for name in row if "REDUCE" not in name] for row in named]


def test_our_gpipe_is_that_of_torch() -> None:
    assert tokens(torch_rows(schedules.ScheduleGPipe, ranks=4, microbatches=8)) == tokens(gpipe(4, 8))


def test_our_1f1b_is_that_of_torch() -> None:
    """All rows but the last are compared: torch 2.13 numbers the forwards of the last stage from 1 in this listing
    (`3F1,3B0,3F2,3B1,...`), though it runs them from 0.
    """
    rows = torch_rows(schedules.Schedule1F1B, ranks=4, microbatches=8)
    assert tokens(rows)[:-1] == tokens(one_forward_one_backward(4, 8))[:-1]


@pytest.mark.parametrize(("ranks", "microbatches", "chunks"), [(2, 4, 2), (4, 8, 3), (3, 4, 2), (4, 6, 2)])
def test_our_interleaved_order_is_that_of_torch(ranks: int, microbatches: int, chunks: int) -> None:
    """Also where the microbatches are no multiple of the stages: they go round in groups of another size."""
    rows = torch_rows(
        schedules.ScheduleInterleaved1F1B, ranks=ranks, microbatches=microbatches, segments_per_rank=chunks
    )
    assert tokens(rows) == tokens(interleaved(ranks, microbatches, chunks))


@pytest.mark.parametrize(
    "order",
    [gpipe(3, 4), one_forward_one_backward(3, 4), zero_bubble(3, 4), read_order("0F0,0I0,0W0\n1F0,1I0,1W0\n")],
)
def test_torch_accepts_our_orders(order: Order) -> None:
    actions = {rank: [schedules._Action.from_str(step.token) for step in row] for rank, row in enumerate(order)}
    microbatches = 1 + max(step.microbatch for row in order for step in row)
    mapping = schedules._validate_schedule(actions, len(order), len(order), microbatches)
    assert mapping == {rank: rank for rank in range(len(order))}
