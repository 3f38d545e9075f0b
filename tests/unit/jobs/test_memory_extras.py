"""Estimates with modules in parts of the batch, and with a link to the host that others use too."""

from typing import Any

import pytest
import torch
from tests.raising import raises
from torch import nn
from torch.nn import functional

from trimaran.base.errors import InfeasibleError
from trimaran.base.job import Job
from trimaran.features.memory_fit.estimate import estimate_memory
from trimaran.graph.trace.live_bytes import live_kept
from trimaran.jobs.resolve import JobSource
from trimaran.jobs.synthetic import Field, SyntheticPairs, image
from trimaran.memory.minimum import minimum_memory
from trimaran.planning.tracing.meta_trace import JobTracer
from trimaran.program.json_files import to_plain
from trimaran.report.memory import MemoryEstimate, explanation_lines


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
    asked = {"device": "titan-x", "largest_batch": False} | asked
    return estimate_memory(Source(reference="chain"), **asked).estimate  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def below() -> str:
    """A budget of nine tenths of the floor."""
    found = _estimate(budget="100%")
    return f"{100 * 0.9 * found.minimum_memory_bytes / found.keep.peak_bytes:.3f}%"


@pytest.fixture(scope="module")
def parts(below: str) -> MemoryEstimate:
    """That budget, with nothing said of a split."""
    return _estimate(budget=below)


def test_a_budget_below_the_floor_is_kept_with_a_split_without_being_asked(parts: MemoryEstimate) -> None:
    assert parts.split is not None
    assert parts.minimum_memory_bytes <= parts.plan.peak_bytes <= parts.budget_bytes < parts.split.whole_minimum_bytes
    assert parts.plan.fits


def test_what_the_plan_is_compared_with_is_the_whole_step(parts: MemoryEstimate) -> None:
    """Everything kept, weights and the paper's policies know no split; plan, floor and limit are of the parts."""
    whole = _estimate(budget="100%")
    assert parts.split is not None
    assert (parts.keep, parts.kept_s, parts.weight_bytes) == (whole.keep, whole.kept_s, whole.weight_bytes)
    assert (parts.optimizer_bytes, parts.gradient_bytes) == (whole.optimizer_bytes, whole.gradient_bytes)
    for name in list(parts.policies)[:3]:
        line, same = parts.policies[name], whole.policies[name]
        assert (line.peak_bytes, line.mean_bytes, line.slowdown) == (same.peak_bytes, same.mean_bytes, same.slowdown)
    assert parts.split.whole_minimum_bytes == whole.minimum_memory_bytes > parts.minimum_memory_bytes
    assert parts.split.keep_peak_bytes != whole.keep.peak_bytes
    assert parts.plan.slowdown == pytest.approx(parts.plan.step_time_s / whole.kept_s - 1)
    assert parts.plan.step_time_s >= parts.lower_bound_s >= parts.split.kept_s > whole.kept_s
    assert parts.ratio_to_lower_bound == parts.plan.step_time_s / parts.lower_bound_s


def test_the_document_and_the_words_tell_the_two_steps_apart(parts: MemoryEstimate) -> None:
    assert parts.split is not None
    document = to_plain(parts)
    assert set(document["split"]) == {"name", "written", "whole_minimum_bytes", "kept_s", "keep_peak_bytes"}
    assert document["keep_peak_bytes"] == document["policies"]["none"]["peak_bytes"] == parts.keep.peak_bytes
    assert any(parts.split.name in line for line in explanation_lines(parts))
    assert parts.split.name in parts.plan.note
    assert "their forward once more" in parts.bottleneck


def test_the_split_is_the_one_whose_plan_is_fastest(below: str, parts: MemoryEstimate) -> None:
    """Others cost more or do not fit; still more parts of the same range are worth less than a thousandth."""
    assert parts.split is not None
    for other in (":0-4:2", ":0-4:4", ":0-4:8", ":0-5:2", ":0-6:4", ":1-4:8"):
        try:
            found = _estimate(budget=below, split=other)
        except InfeasibleError:
            continue
        assert parts.plan.step_time_s <= found.plan.step_time_s * 1.001, other


def test_the_refusal_without_a_split_names_the_split_that_helps(below: str, parts: MemoryEstimate) -> None:
    assert parts.split is not None
    for asked in ({"split": "none"}, {"policy": "all"}):
        with raises("memory.nothing-fits", InfeasibleError, match="--split") as caught:
            _estimate(budget=below, **asked)
        named = caught.value.figures["split"]
        assert named == parts.split.written
        assert f"--split {named}" in caught.value.message
    assert _estimate(budget=below, split=parts.split.written).plan.step_time_s == parts.plan.step_time_s


def test_a_budget_that_no_split_makes_possible_is_refused() -> None:
    with raises("memory.nothing-fits", InfeasibleError) as caught:
        _estimate(budget="1%")
    assert caught.value.figures["split"] is None


def test_the_policies_of_the_paper_take_no_split() -> None:
    with raises("memory.policy-takes-no-split", policy="all"):
        _estimate(budget="80%", policy="all", split=":0-4:2")


def test_batches_without_help_are_those_of_the_whole_step(below: str) -> None:
    """Of the whole step the last batch that fits does so with everything kept, and the next does not."""
    found = _estimate(budget=below, largest_batch=True)
    tracer = JobTracer(chain())
    most, planned = found.largest_batch_without_plan, found.largest_batch_ignoring_slowdown
    assert most is not None
    assert planned is not None
    kept = [int(live_kept(tracer.trace(samples)).max()) for samples in (most, most + 1)]
    assert kept[0] <= found.budget_bytes < kept[1]
    assert most < found.local_batch_size <= planned
    assert minimum_memory(tracer.trace(planned)).nbytes > found.budget_bytes


def test_a_share_is_of_the_whole_step() -> None:
    whole, found = _estimate(budget="80%"), _estimate(budget="80%", split=":0-4:2")
    assert (found.budget_bytes, found.keep) == (whole.budget_bytes, whole.keep)
    assert found.plan.slowdown > whole.plan.slowdown


def test_nothing_is_split_where_it_is_not_needed() -> None:
    found = _estimate(budget="80%", split="auto")
    assert found.split is None
    assert to_plain(found)["split"] is None


@pytest.mark.parametrize(
    ("split", "code", "figures"),
    [
        ("everything", "split.malformed", {"match": "MODULE:FIRST-LAST:PARTS"}),
        ("nowhere:0-1:2", "split.no-such-module", {"module": "nowhere"}),
    ],
)
def test_a_split_that_makes_no_sense_is_told(split: str, code: str, figures: dict[str, Any]) -> None:
    with raises(code, **figures):
        _estimate(split=split)


def test_a_shared_link_makes_plans_slower_and_moves_less() -> None:
    """Four devices on one link have a quarter of it each: plans turn from offloading to recomputing."""
    alone, shared = (_estimate(budget="70%", sharing=devices) for devices in (1, 4))
    assert shared.plan.slowdown > alone.plan.slowdown
    assert shared.plan.to_host_bytes <= alone.plan.to_host_bytes
    assert shared.offload_lower_bound_s > alone.offload_lower_bound_s
    assert (shared.kept_s, shared.minimum_memory_bytes) == (alone.kept_s, alone.minimum_memory_bytes)
    assert "4 devices on one link" in shared.device
