"""PipeDream's schedule as a program: steps that overlap, and what is legal there."""

import dataclasses
from collections.abc import Callable

import pytest
from tests import builders
from tests.graphs import chain
from tests.raising import raises

from trimaran.base.errors import InputError
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.overlap import unroll
from trimaran.program.rules.against_graph import check_against_graph
from trimaran.program.rules.check import check_program
from trimaran.program.strategy import Strategy
from trimaran.program.text import format_program, parse_program
from trimaran.program.types import Instruction, Kind, Program

THREE = builders.strategy(pp=3, schedule="pipedream", boundaries=("op0", "op1"))


def made(strategy: Strategy = THREE) -> Program:
    return lower(chain(3), strategy, batch=8)


def test_each_stage_is_behind_by_the_stages_after_it() -> None:
    behind = [{one.kind: one.behind for one in rank} for rank in made().ranks]
    assert [found[Kind.BACKWARD] - found[Kind.FORWARD] for found in behind] == [2, 1, 0]
    assert [found[Kind.UPDATE] - found[Kind.BACKWARD] for found in behind] == [0, 0, 0]


def test_written_out_it_is_1f1b_that_is_never_flushed() -> None:
    """PipeDream's figure of four stages: as many forwards as stages are ahead, then one of each in turn."""
    strategy = builders.strategy(pp=4, schedule="pipedream", boundaries=("op0", "op1", "op2"))
    long = unroll(lower(chain(4), strategy, batch=8), 6)
    order = [[one.token for one in rank if one.kind in (Kind.FORWARD, Kind.BACKWARD)] for rank in long.ranks]
    assert " ".join(order[0]) == "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0B3 0B4 0B5"
    assert " ".join(order[1]) == "1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1B4 1B5"
    assert " ".join(order[3]) == "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5"
    updates = [[one.token for one in rank if one.kind is Kind.UPDATE] for rank in long.ranks]
    assert updates == [[f"U{number}" for number in range(6)]] * 4


def test_it_is_legal_and_files_keep_it() -> None:
    program = made()
    check_program(program)
    check_against_graph(program, chain(3), THREE, batch=8)
    assert parse_program(format_program(program)) == program
    assert lower_evaluation(chain(3), THREE, batch=8).behind == 0


Change = Callable[[Instruction], Instruction]


def changed(rank: int, kind: Kind, **fields: int) -> Program:
    program = made()
    edited = tuple(dataclasses.replace(one, **fields) if one.kind is kind else one for one in program.ranks[rank])  # type: ignore[arg-type]
    return dataclasses.replace(program, ranks=(*program.ranks[:rank], edited, *program.ranks[rank + 1 :]))


def rule_of(program: Program) -> object:
    with pytest.raises(InputError) as caught:
        check_program(program)
    return caught.value.figures["rule"]


def test_what_breaks_a_rule_is_refused() -> None:
    assert rule_of(changed(0, Kind.UPDATE, behind=-1)) == 2
    # Before what it waits for: an update, a backward before its message, a message before its forward.
    assert rule_of(changed(0, Kind.UPDATE, behind=1)) == 16
    assert rule_of(changed(0, Kind.BACKWARD, behind=0)) == 16
    assert rule_of(changed(0, Kind.FORWARD, behind=2)) == 16
    assert rule_of(dataclasses.replace(made(), microbatches=2)) == 16
    # After the backward of the next global batch, whose gradients it would take too.
    assert rule_of(changed(0, Kind.UPDATE, behind=3)) == 12


def test_an_update_of_each_microbatch_is_no_step_that_is_flushed() -> None:
    """What is legal for steps that overlap is not for one step of several microbatches."""
    assert rule_of(unroll(made(), 3)) == 12


def test_a_step_in_the_order_of_another_schedule_is_refused_by_its_graph() -> None:
    flushed = dataclasses.replace(THREE, schedule="1f1b")
    program = lower(chain(3), flushed, batch=8)
    with pytest.raises(InputError, match=r"where pp3 pipedream stale has .* behind=1"):
        check_against_graph(program, chain(3), THREE, batch=8)


def test_what_stages_at_different_updates_cannot_do_is_refused() -> None:
    with raises("strategy.stale-job"):
        lower(chain(3), THREE, batch=8, clip=True)
    for change in ({"microbatches": 2}, {"dp": 2}, {"execution": "compiled"}):
        with raises("strategy.stale-form"):
            lower(chain(3), dataclasses.replace(THREE, **change), batch=8)  # type: ignore[arg-type]
    with raises("strategy.stale-form"):
        lower(chain(3), builders.strategy(schedule="pipedream"), batch=8)
