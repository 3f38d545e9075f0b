"""What the simulator refuses, and that it says what and where."""

from dataclasses import replace
from typing import Any

import pytest
from tests.raising import raises
from tests.unit.simulator.building import (
    all_reduce,
    backward,
    costs,
    forward,
    program,
    receive,
    seconds,
    send,
    transfer,
)

from trimaran.pricing.types import ProgramCosts
from trimaran.program.types import Kind
from trimaran.simulator.engine import simulate


def test_an_instruction_without_a_cost_is_named() -> None:
    with raises("simulator.no-cost", match=r"ProgramCosts\.compute", instruction="r0/0F1"):
        simulate(program((forward(0, 0), forward(0, 1))), costs({forward(0, 0): 1.0}))


def test_a_transfer_without_a_cost_is_named() -> None:
    with raises("simulator.no-cost", match=r"ProgramCosts\.transfers", instruction="r0/0SEND_F0>1"):
        simulate(program((send(0, 1),), (receive(1, 0),)), costs({}))


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_duration_that_is_none_is_refused(value: float) -> None:
    with raises("simulator.bad-duration", instruction="r0/0F0"):
        simulate(program((forward(0),)), costs({forward(0): value}))


def test_ends_of_a_message_with_different_costs_are_refused() -> None:
    unequal = ProgramCosts(compute={}, transfers={send(0, 1).id: transfer(1.0), receive(1, 0).id: transfer(2.0)})
    with raises("simulator.transfer-costs-differ"):
        simulate(program((send(0, 1),), (receive(1, 0),)), unequal)


def test_a_send_without_a_receive_is_refused() -> None:
    with raises("program.illegal", match="r0/0SEND_F0>1", rule=8):
        simulate(program((send(0, 1),), ()), costs({send(0, 1): transfer(1.0)}))


def test_a_collective_that_a_member_leaves_out_is_refused() -> None:
    total = all_reduce(0, (0, 1))
    with raises("program.illegal", match="r0/AR#b0", rule=9):
        simulate(program((total,), ()), costs({total: transfer(1.0)}))


def test_kinds_that_do_not_belong_together_are_refused() -> None:
    total = all_reduce(0, (0, 1))
    other = replace(all_reduce(1, (0, 1)), kind=Kind.BROADCAST)
    with raises("program.illegal", match=r"r0/AR#b0.*\b0\b.*r1/BC#b0", rule=9):
        simulate(program((total,), (other,)), costs({total: transfer(1.0), other: transfer(1.0)}))


def test_after_something_that_is_not_there_is_refused() -> None:
    work = forward(0, after=("0B7",))
    with raises("simulator.unknown-predecessor", match=r"\b0\b", instruction="r0/0F0", after="0B7"):
        simulate(program((work,)), costs({work: 1.0}))


def test_collectives_that_hold_all_workers_and_wait_for_a_later_one_are_told() -> None:
    """Two are under way and wait for what is after the third, which waits for a worker."""
    group = (0, 1)
    lists = []
    for rank in group:
        third = all_reduce(rank, group, "b2")
        work = forward(rank, after=(third.token,))
        lists.append((*(all_reduce(rank, group, label, after=(work.token,)) for label in ("b0", "b1")), third, work))
    entries = {item: 1.0 if item.kind is Kind.FORWARD else transfer(1.0) for rank in lists for item in rank}
    first, third = (f"r0/AR#{label} = r1/AR#{label}" for label in ("b0", "b2"))
    with raises("program.deadlock", circle=(first, "r0/0F0", third)):
        simulate(program(*lists), costs(entries, at_once=2, host_blocks=False))
    assert simulate(program(*lists), costs(entries, at_once=3, host_blocks=False)).makespan_s == 3.0


@pytest.mark.parametrize("marks", [{}, {("r0/0B0", "b0"): 1.5}])
def test_a_mark_without_a_place_inside_is_refused(marks: dict[tuple[str, str], float]) -> None:
    work, total = backward(0), all_reduce(0, (0,), after=("0B0!b0",))
    with raises("simulator.mark-without-place", mark="r0/0B0!b0"):
        simulate(program((work, total)), costs({work: 1.0, total: transfer(1.0)}, marks=marks))


def test_the_same_id_twice_is_refused() -> None:
    with raises("simulator.instruction-twice", instruction="r0/0F0"):
        simulate(program((forward(0), forward(0))), ProgramCosts(compute={"r0/0F0": seconds(1.0)}))


def test_a_deadlock_names_who_waits_for_whom() -> None:
    """Rank 0 waits for the message of rank 1 before it sends its own, and rank 1 the other way round."""
    left = (receive(0, 1), forward(0, after=("0RECV_F0<1",)), send(0, 1, after=("0F0",)))
    right = (receive(1, 0), forward(1, after=("1RECV_F0<0",)), send(1, 0, after=("1F0",)))
    entries = {left[1]: 1.0, right[1]: 1.0, left[2]: transfer(1.0), right[2]: transfer(1.0)}
    with raises("program.deadlock", match="r0/0F0.*r1/1SEND_F0>0 = r0/0RECV_F0<1") as caught:
        simulate(program(left, right), costs(entries))
    circle: Any = caught.value.figures["circle"]
    assert set(circle) == {"r0/0F0", "r1/1F0", "r0/0SEND_F0>1 = r1/1RECV_F0<0", "r1/1SEND_F0>0 = r0/0RECV_F0<1"}
    assert circle[(circle.index("r0/0F0") + 1) % 4] == "r1/1SEND_F0>0 = r0/0RECV_F0<1"


def test_a_deadlock_behind_a_mark_is_found() -> None:
    """The backward waits for the all-reduce that its own mark issues."""
    work = backward(0, after=("AR#b0",))
    total = all_reduce(0, (0,), after=("0B0!b0",))
    with raises("program.deadlock", match="r0/AR#b0"):
        simulate(program((work, total)), costs({work: 1.0, total: transfer(1.0)}, marks={("r0/0B0", "b0"): 0.5}))
