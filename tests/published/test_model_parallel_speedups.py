"""Speedups of model parallelism on two V100 of a DGX-1, from estimates alone, against published ones.

Nothing is fitted to these: kernels, links and schedules are priced as everywhere else. Batches are those of the papers.

Source:
    Pal et al., "Optimizing Multi-GPU Parallelization Strategies for Deep Learning Training", arXiv:1907.13257, 2019:
    Inception-V3 by the placement of its branches 1.32, GNMT and BigLSTM in two stages of a pipeline 1.15 and 1.22.
"""

import dataclasses

import pytest
from tests import builders

from trimaran.planner.pins import Pins
from trimaran.planner.placed_network import place_for
from trimaran.planner.problem import assess_split
from trimaran.planner.space import unplaced
from trimaran.planning.answer.documents import plan_document
from trimaran.planning.answer.evidence import Simulated
from trimaran.planning.answer.results import Planned
from trimaran.planning.plan import make_plan
from trimaran.program.types import Kind

pytestmark = pytest.mark.published


def plan(reference: str, pins: Pins, *, devices: int = 2) -> Planned:
    found = make_plan(reference, builders.cluster_request(cluster="dgx1-v100", devices=devices, pins=pins))
    assert isinstance(found.evidence, Simulated)
    return found


@pytest.fixture(scope="module")
def inception() -> Planned:
    return plan("inception_v3", builders.pins(allow=("placement",)))


@pytest.mark.sweep
def test_branches_of_inception_on_two_devices(inception: Planned) -> None:
    document = plan_document(inception)
    chosen = document["chosen"]
    assert 1.2 <= chosen["speedup"] <= 1.45
    assert set(chosen["placement"].values()) == {0, 1}
    assert 0.0 <= chosen["gap"] < 1.0
    assert chosen["device_order"] == [0, 3]


@pytest.mark.sweep
def test_what_bounds_the_placement_is_said(inception: Planned) -> None:
    """However many devices there are, the longest chain stays; four devices can add little to two."""
    notes = " ".join(inception.notes)
    assert "the chain of operations" in notes
    assert "devices beyond the second find little to do" in notes


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("reference", "published"), [("gnmt", 1.15), ("biglstm", 1.22)])
def test_recurrent_networks_in_two_stages(reference: str, published: float, schedule: str) -> None:
    """Uneven stages, the bubble, small products at small microbatches, and gradients that are added up."""
    found = plan(reference, builders.pins(pp=2, schedule=schedule))  # type: ignore[arg-type]  # of the literal's own values
    assert found.simulated.speedup == pytest.approx(published, abs=0.1)
    assert found.chosen.strategy.segments == 2


@pytest.mark.sweep
def test_the_simulator_takes_as_long_as_the_solver_of_placements_said(inception: Planned) -> None:
    """Messages that queue on a link, and its curve in place of a straight line: within 2 %."""
    problem, chosen = inception.simulated.problem, inception.simulated.chosen
    strategy = dataclasses.replace(unplaced(builders.strategy(pp=2)), device_order=chosen.strategy.device_order)
    placed = place_for(strategy, problem)
    found = assess_split(placed.strategy, problem)
    backwards = {item.id for item in found.program if item.kind is Kind.BACKWARD}
    simulated_s = max(span.end_s for span in found.timeline.select() if span.instruction in backwards)
    assert simulated_s == pytest.approx(placed.answer.makespan_s, rel=0.02)
