"""Programs with simulated compute and real messages, beside their simulation."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from tests import builders
from tests.forks.client import launch
from tests.graphs import boundaries, chain
from tests.raising import raises

from trimaran.base.timeline import COMMUNICATION, COMPUTE, Timeline
from trimaran.emulation.ranks import emulate_on_rank
from trimaran.pricing.types import Cost, ProgramCosts, Transfer
from trimaran.program.lowering.lower import lower
from trimaran.program.strategy import Strategy
from trimaran.program.types import Instruction, Kind, Mark, Program
from trimaran.simulator.engine import simulate

STEP_S = 0.02
STEPS = 4


def costs_of(program: Program) -> ProgramCosts:
    """Every step of compute takes 20 ms, and communication nothing."""
    nothing = Transfer(latency_s=0.0, flow_s=0.0, links=(), low=0.0, high=0.0, source="example")
    alone = [item for item in program if not item.communicates]
    seconds = {item.id: STEP_S if item.stream == COMPUTE and item.segment is not None else 0.0 for item in alone}
    return ProgramCosts(
        compute={name: Cost(value, value, value, "example") for name, value in seconds.items()},
        transfers={item.id: nothing for item in program if item.communicates},
        marks={(item.id, mark.name): 0.5 for item in program for mark in item.marks},
    )


def emulate(program: Program, folder: Path) -> Timeline:
    arguments = (program, costs_of(program), STEPS)
    timeline: Timeline = launch(emulate_on_rank, arguments, ranks=len(program.ranks), log_dir=folder, device="cpu")[0]
    return timeline


def least_disturbed_step(timeline: Timeline) -> float:
    """The shortest time from the end of a step to the end of the next one [s].

    Not from its first start: the last stages of a pipeline begin to wait for a step while the first end the one before.
    """
    ends = [max(span.end_s for span in timeline if span.step == number) for number in range(STEPS)]
    return min(end - before for before, end in itertools.pairwise(ends))


@pytest.mark.alone
@pytest.mark.parametrize(
    "strategy",
    [
        builders.strategy(pp=4, boundaries=boundaries(4), schedule="1f1b", microbatches=4),
        builders.strategy(dp=2, pp=2, boundaries=boundaries(2), schedule="gpipe", microbatches=4),
    ],
    ids=lambda strategy: strategy.name,
)
def test_four_ranks_on_few_cores_take_as_long_as_simulated(strategy: Strategy, tmp_path: Path) -> None:
    program = lower(chain(8), strategy, batch=32)
    predicted = simulate(program, costs_of(program)).makespan_s
    found = emulate(program, tmp_path)
    # Messages of some bytes take a little: the machine is shared, and a step has up to ten hops.
    assert predicted <= least_disturbed_step(found) + 1e-3 <= 1.25 * predicted + 5e-3
    assert {span.instruction for span in found if span.stream in (COMPUTE, COMMUNICATION)} >= {
        item.id for item in program if item.stream in (COMPUTE, COMMUNICATION)
    }


@pytest.mark.alone
def test_a_pause_stands_still_at_a_mark_that_waits(tmp_path: Path) -> None:
    """Rank 1 comes to its mark 20 ms later, and rank 0 cannot pass its own before."""

    def rank(number: int) -> tuple[Instruction, ...]:
        forward = Instruction(
            kind=Kind.FORWARD,
            rank=number,
            segment=0,
            microbatch=0,
            marks=(Mark(name="f0", op="op0", waits_for="0AR0#f0"),),
        )
        gather = Instruction(
            kind=Kind.ALL_REDUCE,
            rank=number,
            segment=0,
            microbatch=0,
            stream=COMMUNICATION,
            group=(0, 1),
            label="f0",
            nbytes=64,
            after=("0F0!f0",),
        )
        return forward, gather

    program = Program(ranks=(rank(0), rank(1)), segments=1, microbatches=1)
    costs = costs_of(program)
    late = dict(costs.compute)
    late["r1/0F0"] = late["r1/0F0"].scaled(3.0)
    arguments = (program, replace(costs, compute=late), STEPS)
    found: Timeline = launch(emulate_on_rank, arguments, ranks=2, log_dir=tmp_path, device="cpu")[0]
    last = {span.rank: span for span in found if span.step == STEPS - 1 and span.stream == COMPUTE}
    # Half of 60 ms until the mark of rank 1, then the other half of 20 ms.
    assert last[0].end_s - last[1].start_s == pytest.approx(2.0 * STEP_S, rel=0.15)


def test_a_program_of_another_size_is_refused(tmp_path: Path) -> None:
    program = lower(chain(4), builders.strategy(dp=2), batch=4)
    with raises("emulation.wrong-world-size", program=2):
        launch(emulate_on_rank, (program, costs_of(program), 1), ranks=1, log_dir=tmp_path, device="cpu")
