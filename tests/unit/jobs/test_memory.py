"""Estimates of small networks on devices of the catalog; nothing is run and nothing is measured."""

import dataclasses
from typing import Any

import pytest
import torch
from tests.raising import raises
from torch import nn
from torch.nn import functional

from trimaran.base.errors import InfeasibleError
from trimaran.base.job import Job
from trimaran.features.memory_fit.estimate import MemoryStudy, estimate_memory
from trimaran.graph.trace.live_bytes import live_kept
from trimaran.jobs.resolve import JobSource
from trimaran.jobs.synthetic import Field, SyntheticPairs, image
from trimaran.memory.minimum import minimum_memory
from trimaran.planning.tracing.meta_trace import JobTracer


def chain() -> Job:
    """Eight convolutions of one size: what autograd keeps is many times what an operation needs."""
    layers = [layer for n in range(8) for layer in (nn.Conv2d(16 if n else 3, 16, 3, padding=1), nn.ReLU())]
    return Job(
        name="chain",
        model=lambda: nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
        loss=functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        dataset=lambda: SyntheticPairs(image(32), target=Field(below=10)),
        global_batch_size=128,
    )


class Source(JobSource):
    """The small network in the place of what a reference names."""

    def make(self) -> Job:
        return chain()


SOURCE = Source(reference="chain")


def _study(**asked: object) -> MemoryStudy:
    return estimate_memory(SOURCE, **{"device": "titan-x", "largest_batch": False} | asked)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def study() -> MemoryStudy:
    return _study(budget="75%", largest_batch=True)


def test_the_plan_holds_the_budget_between_floor_and_keep_peak(study: MemoryStudy) -> None:
    found = study.estimate
    assert found.minimum_memory_bytes <= found.plan.peak_bytes <= found.budget_bytes < found.keep.peak_bytes
    assert found.plan.fits
    assert not found.fits_without_plan


def test_a_share_is_of_what_autograd_alone_needs(study: MemoryStudy) -> None:
    found = study.estimate
    assert found.budget_bytes == int(0.75 * found.keep.peak_bytes)
    assert (found.card_bytes, found.context_bytes) == (None, 0)


def test_no_policy_is_faster_than_everything_kept_and_ours_not_than_the_limit(study: MemoryStudy) -> None:
    found = study.estimate
    assert all(line.slowdown >= 0 for line in found.policies.values())
    assert found.kept_s <= found.lower_bound_s <= found.plan.step_time_s
    assert found.ratio_to_lower_bound >= 1


def test_the_policies_come_in_the_order_of_the_paper_with_ours_last(study: MemoryStudy) -> None:
    assert [*study.estimate.policies] == ["none", "all", "conv", "dyn", "ours"]
    none = study.estimate.policies["none"]
    assert (none.peak_bytes, none.mean_bytes) == (study.estimate.keep_peak_bytes, study.estimate.keep_mean_bytes)
    assert (none.slowdown, none.fits) == (0.0, False)


def test_decisions_sum_to_what_is_moved(study: MemoryStudy) -> None:
    found = study.estimate
    moved = {
        decision: sum(line.nbytes for line in found.storages if line.decision == decision)
        for decision in ("offload", "recompute")
    }
    assert moved["recompute"] == found.plan.recomputed_bytes
    assert moved["offload"] >= found.plan.to_host_bytes
    assert moved["offload"] + moved["recompute"] > 0
    assert all(line.reason for line in found.storages)


def test_larger_batches_fit_with_more_help(study: MemoryStudy) -> None:
    found = study.estimate
    alone, planned, most = found.largest_batch_without_plan, found.largest_batch, found.largest_batch_ignoring_slowdown
    assert alone is not None
    assert planned is not None
    assert most is not None
    assert 0 < alone < found.local_batch_size
    assert alone <= planned <= most
    assert (found.largest_batch_slowdown or 0.0) <= (found.largest_batch_slowdown_limit or 0.0)


def test_the_largest_batches_are_those_of_real_traces(study: MemoryStudy) -> None:
    """What was found on a line through two traces is checked on the batch itself, and on one sample more."""
    found, tracer = study.estimate, JobTracer(chain())
    for most, need in (
        (found.largest_batch_without_plan, lambda trace: int(live_kept(trace).max())),
        (found.largest_batch_ignoring_slowdown, lambda trace: minimum_memory(trace).nbytes),
    ):
        assert most is not None
        budget = study.estimate.budget_bytes
        assert need(tracer.trace(most)) <= budget < need(tracer.trace(most + 1))


def test_the_step_for_a_viewer_is_that_of_the_plan(study: MemoryStudy) -> None:
    assert study.step.run.step_time_s == study.estimate.plan.step_time_s
    assert study.step.live.peak == study.estimate.plan.peak_bytes


def test_a_size_stands_for_a_card_less_its_context_and_the_workspace_of_products() -> None:
    """1 GiB less 0.4 GiB of context and 8.125 MiB is enough here."""
    found = _study(budget="1GiB").estimate
    assert found.card_bytes == 2**30
    assert found.budget_bytes == 2**30 - found.context_bytes - found.workspace_bytes
    assert found.fits_without_plan
    assert found.plan.slowdown == 0.0
    assert found.largest_batch is None


def test_without_a_budget_the_whole_card_is_there() -> None:
    found = _study().estimate
    assert found.card_bytes == 12 * 2**30


def test_another_policy_can_be_the_plan_that_is_shown() -> None:
    found = _study(budget="75%", policy="all").estimate
    assert found.plan == found.policies["all"]
    assert {line.decision for line in found.storages} == {"keep", "offload"}


def test_lower_precision_takes_less_memory_and_time() -> None:
    plain, low = (_study(device="h200", precision=one).estimate for one in ("fp32", "bf16"))
    assert low.keep.peak_bytes < plain.keep.peak_bytes
    assert low.kept_s < plain.kept_s
    tf32 = _study(device="h200", precision="tf32").estimate
    assert (tf32.keep.peak_bytes, tf32.keep.mean_bytes) == (plain.keep.peak_bytes, plain.keep.mean_bytes)
    assert tf32.kept_s < plain.kept_s


def test_below_the_floor_it_says_what_holds_it_and_the_ways_out() -> None:
    with raises("memory.nothing-fits", InfeasibleError) as caught:
        _study(budget="10%", split="none")
    figures = caught.value.figures
    assert figures["budget_bytes"] < figures["minimum_memory_bytes"]  # type: ignore[operator]
    floor = _study().estimate.minimum_memory_bytes
    assert figures["minimum_memory_bytes"] == floor


@pytest.mark.parametrize(
    ("asked", "code", "figures"),
    [
        ({"device": "titan"}, "device.unknown", {"match": '"titan-x"', "device": "titan"}),
        ({"budget": "12"}, "quantity.malformed", {"match": '"16 GiB"', "text": "12"}),
        ({"budget": "150%"}, "budget.bad-share", {"match": r"\b100\b"}),
        ({"budget": "24GiB"}, "device.budget-exceeds-memory", {"match": r"12\.0 GiB.*24\.0 GiB"}),
        ({"precision": "tf32"}, "device.precision-unsupported", {"precision": "tf32"}),
        ({"precision": "fp8"}, "precision.not-priced", {"precision": "fp8"}),
    ],
)
def test_wrong_requests_are_told(asked: dict[str, str], code: str, figures: dict[str, Any]) -> None:
    with raises(code, **figures):
        _study(**asked)


class Undecided(nn.Module):
    """Its path depends on its data."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.left(x) if x.sum() > 0 else self.right(x)


def test_a_model_that_looks_at_values_cannot_be_traced() -> None:
    job = dataclasses.replace(
        chain(), model=Undecided, dataset=lambda: SyntheticPairs(Field(shape=(8,)), target=Field(below=2))
    )
    with raises("trace.needs-data"):
        JobTracer(job).trace(4)
