"""Busy, waiting and empty time of devices, on the hand-made run of `runs`."""

import pytest
from tests import builders
from tests.graphs import boundaries, chain
from tests.unit.report.runs import PROGRAM, measured, predicted
from tests.unit.simulator.building import transfer

from trimaran.pricing.types import Cost, ProgramCosts, Transfer
from trimaran.program.lowering.lower import lower
from trimaran.program.types import Kind
from trimaran.report.breakdown import utilization
from trimaran.simulator.engine import simulate


def test_shares_of_a_prediction() -> None:
    """9 s. Rank 0 works 1 + 2 + 1.5 + 1 = 5.5 and waits for 0.5 + 0.5; rank 1 works 3.5, and 0.5 are exposed."""
    devices = utilization(PROGRAM, predicted())
    assert [(device.busy_s, device.exposed_s, device.bubble_s) for device in devices] == [
        (pytest.approx(5.5), pytest.approx(1.0), pytest.approx(2.5)),
        (pytest.approx(3.5), pytest.approx(0.5), pytest.approx(5.0)),
    ]
    assert devices[0].busy == pytest.approx(5.5 / 9)
    assert devices[0].wait == pytest.approx(1.0 / 9)
    assert devices[1].bubble == pytest.approx(5.0 / 9)


def test_shares_of_a_measurement_sum_to_one() -> None:
    for device in utilization(PROGRAM, measured(4), warmup=1):
        assert device.busy + device.wait + device.bubble == pytest.approx(1.0)


def test_a_measurement_is_the_mean_over_its_steps() -> None:
    """Rank 0 works 1 + 2 + 1.5 + 0.5 = 5 s in every step; messages flow for 2 s in which it does not work."""
    device = utilization(PROGRAM, measured(4), warmup=1)[0]
    assert device.busy_s == pytest.approx(5.0)
    assert device.exposed_s == pytest.approx(2.0)


@pytest.mark.parametrize("backward_s", [1.0, 2.0])
def test_the_bubble_of_an_interleaved_pipeline_is_its_closed_form(backward_s: float) -> None:
    """K = 2 devices with v = 2 segments each, M = 4 microbatches: (K - 1) / (v M + K - 1) = 1 / 9 on both.

    With 1 s and 1 s a device works 4 * 2 * 2 = 16 s of 18; with 1 s and 2 s, 24 s of 27.
    """
    strategy = builders.strategy(pp=2, chunks=2, schedule="interleaved", boundaries=boundaries(4), microbatches=4)
    program = lower(chain(4), strategy, batch=4)
    seconds = {Kind.FORWARD: 1.0, Kind.BACKWARD: backward_s}
    costs = {
        instruction: transfer(0.0) if instruction.communicates else seconds.get(instruction.kind, 0.0)
        for instruction in program
    }
    priced = ProgramCosts(
        compute={item.id: Cost(cost, cost, cost, "example") for item, cost in costs.items() if isinstance(cost, float)},
        transfers={item.id: cost for item, cost in costs.items() if isinstance(cost, Transfer)},
    )
    devices = utilization(program, simulate(program, priced))
    assert [device.bubble for device in devices] == pytest.approx([1 / 9, 1 / 9], rel=1e-12)
    assert [device.step_s for device in devices] == pytest.approx([9.0 * (1.0 + backward_s)] * 2, rel=1e-12)
