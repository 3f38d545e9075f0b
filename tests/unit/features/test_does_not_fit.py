"""What does not fit is said first, with the largest batch that does; nothing is advised past memory."""

import re
from dataclasses import replace

import pytest
from tests import builders
from tests.raising import raises

from trimaran.base.errors import InfeasibleError
from trimaran.features.memory_fit.estimate import estimate_memory
from trimaran.features.scaling import predict_scaling
from trimaran.machine.find import find_machine
from trimaran.planner.explanation.contrast import dissect
from trimaran.planner.explanation.remedies import remedies_for
from trimaran.planner.problem import assess
from trimaran.planning.data_parallel_job import DataParallelJob
from trimaran.program.json_files import to_plain
from trimaran.report.memory import memory_page
from trimaran.report.page.study import drawing_of
from trimaran.report.scaling import ScalingStudy

_TOO_MANY = 1 << 22


@pytest.fixture(scope="module")
def study() -> ScalingStudy:
    return predict_scaling("lenet", cluster="dgx1-v100", devices=(1, 8), local_batch=_TOO_MANY)


def page(study: ScalingStudy) -> str:
    return str(study)


def test_the_largest_batch_that_fits_is_found_and_the_next_one_does_not(study: ScalingStudy) -> None:
    (short,) = study.does_not_fit
    assert short.devices == (1, 8)
    assert not short.fitting
    assert short.needed_bytes > short.card_bytes
    job = DataParallelJob(reference="lenet", machine=find_machine("dgx1-v100"))
    worst = 8
    assert job.memory_at(short.largest, worst).fits
    assert not job.memory_at(short.largest + 1, worst).fits
    assert [row.fits for row in study.rows] == [False, False, True, True]
    assert {row.local_batch_size for row in study.rows if row.fits} == {short.largest}
    assert to_plain(study)["does_not_fit"][0]["largest"] == short.largest


def test_the_verdict_comes_first_and_what_does_not_fit_has_no_throughput(study: ScalingStudy) -> None:
    (short,) = study.does_not_fit
    first, *rest = page(study).splitlines()
    assert "does not fit" in first
    assert str(short.largest) in page(study)
    assert f"batch {_TOO_MANY}" not in "".join(line for line in rest if line.startswith("nccl, batch"))
    assert max(map(len, rest)) <= 80
    # The verdict alone says it.
    assert drawing_of(study).count(str(_TOO_MANY)) == 1


def test_where_not_even_one_sample_fits_there_is_no_legend(study: ScalingStudy) -> None:
    (short,) = study.does_not_fit
    none = replace(
        study,
        rows=tuple(row for row in study.rows if not row.fits),
        does_not_fit=(replace(short, largest=0),),
        advice=(),
    )
    shown = page(none)
    assert "Not even one sample fits" in " ".join(shown.split())
    assert "FP+BP" not in shown


def test_scale_never_advises_a_batch_past_memory(study: ScalingStudy) -> None:
    (short,) = study.does_not_fit
    for remedy in study.advice:
        assert remedy.setting.get("local_batch_size", 0) <= short.largest
    small = predict_scaling("lenet", cluster="dgx1-v100", devices=(8,), local_batch=8)
    assert any(remedy.id == "larger-batch" for remedy in small.advice)


def test_explain_never_advises_a_batch_past_memory() -> None:
    given = builders.problem()
    plan = assess(builders.strategy(dp=2), given)
    free = remedies_for(plan, dissect(plan, given).parts, given)
    assert any(remedy.id == "larger-batch" for remedy in free)
    tight = builders.problem(memory_bytes=max(plan.peak_bytes))
    held = remedies_for(plan, dissect(plan, tight).parts, tight)
    assert not any(remedy.id == "larger-batch" for remedy in held)


def test_parts_of_the_memory_sum_to_its_peak() -> None:
    found = estimate_memory("digits", device="titan-x", batch=64, largest_batch=False).estimate
    assert sum(found.parts_bytes.values()) == found.keep.peak_bytes
    assert len(found.parts_bytes) == 5
    assert min(found.parts_bytes.values()) >= 0
    assert found.parts_bytes["parameters and buffers"] == found.weight_bytes
    assert any(section.id == "purposes" for section in memory_page(found).sections)
    assert to_plain(found)["parts_bytes"] == found.parts_bytes


def test_the_model_state_is_named_where_it_does_not_fit_and_sharding_is_offered() -> None:
    """Context and workspace leave 0.4 MiB of this card; parameters, gradients and optimizer state take 1.8 MiB."""
    with raises("memory.nothing-fits", InfeasibleError) as caught:
        estimate_memory("digits", device="titan-x", batch=1, budget="428160KiB", largest_batch=False)
    figures = caught.value.figures
    parts = sum(figures[name] for name in ("parameter_bytes", "gradient_bytes", "optimizer_bytes"))
    assert figures["budget_bytes"] < figures["state_bytes"] <= parts
    assert figures["sharding_devices"] >= 2
    assert re.search(r"trimaran plan digits --cluster \S+ --devices \d", caught.value.message)
    # Of a batch whose activations alone do not fit, whatever shards the state: the devices are those for one sample.
    says = "which shard that state, with a batch of 1 on each"
    with raises("memory.nothing-fits", InfeasibleError, match=says) as many:
        estimate_memory("digits", device="titan-x", batch=4096, budget="428160KiB", largest_batch=False)
    assert many.value.figures["sharding_devices"] == figures["sharding_devices"]
