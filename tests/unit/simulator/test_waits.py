"""Waiting for data: two loads of 1 s and two forwards of 2 s on each of two ranks take 6 s alone."""

import pytest

from trimaran.base.timeline import HOST
from trimaran.pricing.types import Cost, ProgramCosts
from trimaran.program.types import Instruction, Kind, Program
from trimaran.simulator.engine import simulate, with_waits


def _exact(seconds: float) -> Cost:
    return Cost(seconds, seconds, seconds, "by hand")


def _program() -> Program:
    def rank(number: int) -> tuple[Instruction, ...]:
        items = []
        for microbatch in range(2):
            load = Instruction(kind=Kind.LOAD, rank=number, microbatch=microbatch, stream=HOST)
            after = (load.token,)
            items += [load, Instruction(kind=Kind.FORWARD, rank=number, segment=0, microbatch=microbatch, after=after)]
        return tuple(items)

    return Program(ranks=(rank(0), rank(1)), segments=1, microbatches=2)


def _costs(program: Program, period: Cost | None) -> ProgramCosts:
    seconds = {Kind.LOAD: 1.0, Kind.FORWARD: 2.0}
    return ProgramCosts(compute={item.id: _exact(seconds[item.kind]) for item in program}, period=period)


@pytest.mark.parametrize(("period_s", "step_s"), [(5.0, 6.0), (6.0, 6.0), (8.5, 8.5)])
def test_a_step_takes_the_period_where_that_is_longer(period_s: float, step_s: float) -> None:
    program = _program()
    costs = with_waits(program, _costs(program, _exact(period_s)))
    assert simulate(program, costs).makespan_s == pytest.approx(step_s)
    assert costs.period is None


def test_the_first_load_of_each_rank_waits() -> None:
    program = _program()
    found = with_waits(program, _costs(program, _exact(8.0)))
    loads = {item.id: found.compute[item.id].seconds for item in program if item.kind == Kind.LOAD}
    assert loads == {"r0/IN0": 3.0, "r0/IN1": 1.0, "r1/IN0": 3.0, "r1/IN1": 1.0}


def test_the_wait_is_as_uncertain_as_the_period() -> None:
    """A period of 5 to 10 s beside 6 s: it waits for 0 to 4 s."""
    program = _program()
    found = with_waits(program, _costs(program, Cost(8.0, 5.0, 10.0, "by hand"))).compute["r0/IN0"]
    assert (found.low, found.seconds, found.high) == (1.0, 3.0, 5.0)


def test_without_a_period_nothing_changes() -> None:
    program = _program()
    costs = _costs(program, None)
    assert with_waits(program, costs) is costs
