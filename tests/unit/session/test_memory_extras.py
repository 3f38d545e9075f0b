"""Estimates with modules in parts of the batch, and with a link to the host that others use too."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from trimaran.errors import InfeasibleError, InputError
from trimaran.job import Job
from trimaran.report.memory import MemoryEstimate
from trimaran.report.memory_document import memory_document
from trimaran.report.memory_views import explanation_lines
from trimaran.session.jobs import JobSource
from trimaran.session.memory import MemoryRequest, estimate_memory
from trimaran.session.synthetic import Field, SyntheticPairs, image


def chain() -> Job:
    """The first two convolutions have maps four times as large as the others, so that they hold the floor alone."""
    layers = [layer for n in range(8) for layer in (nn.Conv2d(16 if n else 3, 16, 3, padding=1), nn.ReLU())]
    layers.insert(4, nn.MaxPool2d(2))
    return Job(
        name="chain",
        model=lambda: nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
        loss=functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        dataset=lambda: SyntheticPairs(image(64), target=Field(below=10)),
        global_batch_size=128,
    )


class Source(JobSource):
    """The small network in the place of what a reference names."""

    def make(self) -> Job:
        return chain()


def _estimate(**asked: object) -> MemoryEstimate:
    request = MemoryRequest(**({"device": "titan-x", "largest_batch": False} | asked))  # type: ignore[arg-type]
    return estimate_memory(Source(reference="chain"), request).estimate


@pytest.fixture(scope="module")
def below() -> str:
    """A budget of nine tenths of the floor."""
    found = _estimate(budget="100%")
    return f"{100 * 0.9 * found.floor_bytes / found.keep.peak_bytes:.3f}%"


def test_a_budget_below_the_floor_is_kept_with_a_split(below: str) -> None:
    found = _estimate(budget=below, split="auto")
    assert found.split is not None
    assert found.floor_bytes <= found.plan.usage.peak_bytes <= found.budget_bytes < found.split.floor_bytes
    assert found.plan.fits


def test_the_price_of_a_split_is_against_the_whole_step(below: str) -> None:
    """The forward of the split range runs once more, which the slowdown of the plan alone does not show."""
    found, whole = _estimate(budget=below, split="auto"), _estimate(budget="100%")
    assert found.split is not None
    assert (found.split.kept_s, found.split.keep_peak_bytes) == (whole.kept_s, whole.keep.peak_bytes)
    assert found.whole_slowdown == pytest.approx(found.plan.step_time_s / whole.kept_s - 1)
    assert found.whole_slowdown > found.plan.slowdown
    assert memory_document(found)["split"]["slowdown"] == found.whole_slowdown
    assert any(found.split.name in line for line in explanation_lines(found))


def test_the_refusal_names_the_split_that_helps(below: str) -> None:
    with pytest.raises(InfeasibleError, match="--split ") as caught:
        _estimate(budget=below)
    named = caught.value.figures["split"]
    assert isinstance(named, str)
    assert f"--split {named}, with which the floor is" in caught.value.message
    assert _estimate(budget=below, split=named).plan.fits


def test_a_share_is_of_the_whole_step(below: str) -> None:
    whole, found = _estimate(budget="80%"), _estimate(budget="80%", split=":0-4:2")
    assert found.budget_bytes == whole.budget_bytes
    assert found.keep.peak_bytes < whole.keep.peak_bytes


def test_nothing_is_split_where_it_is_not_needed() -> None:
    found = _estimate(budget="80%", split="auto")
    assert found.split is None
    assert memory_document(found)["split"] is None


@pytest.mark.parametrize(
    ("split", "says"), [("everything", "MODULE:FIRST-LAST:PARTS"), ("nowhere:0-1:2", "no module 'nowhere'")]
)
def test_a_split_that_makes_no_sense_is_told(split: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        _estimate(split=split)


def test_a_shared_link_makes_plans_slower_and_moves_less() -> None:
    """Four devices on one link have a quarter of it each: plans turn from offloading to recomputing."""
    alone, shared = (_estimate(budget="70%", sharing=devices) for devices in (1, 4))
    assert shared.plan.slowdown > alone.plan.slowdown
    assert shared.plan.to_host_bytes <= alone.plan.to_host_bytes
    assert shared.offload_bound_s > alone.offload_bound_s
    assert (shared.kept_s, shared.floor_bytes) == (alone.kept_s, alone.floor_bytes)
    assert "4 devices on one link" in shared.device
