"""A step of half a second on four devices with 32 samples each, in the units of sources."""

import dataclasses

import pytest
from tests.unit.studies.validation.rows import published

from trimaran_studies.facts.sizes import published_sizes, sized_workload
from trimaran_studies.validation.intervals import ScalingWidth, StepWidth, deviation, interval
from trimaran_studies.validation.measurement import figure_of, step_of
from trimaran_studies.validation.setups import understand
from trimaran_studies.validation.steps import scaling_baselines

COMMON = {"model": "vgg16", "gpu": "V100", "n_gpus": "4", "batch_per_gpu": "32", "precision": "FP32"}


@pytest.mark.parametrize(
    ("unit", "value"),
    [
        ("images/s", 256.0),
        ("Throughput - FP32", 256.0),
        ("steps/s", 8.0),
        ("Throughput - FP32 [mol/ms]", 0.256),
        ("tokens/s/GPU", 64.0),
        ("ms", 500.0),
        ("s", 0.5),
    ],
)
def test_a_step_in_a_unit_and_back(unit: str, value: float) -> None:
    """4 x 32 samples in half a second are 256 a second; steps of four devices are 4 / 0.5 a second together."""
    row = published(unit=unit, **COMMON)
    setup = understand(row)
    assert figure_of(row, setup, 0.5) == pytest.approx(value, rel=1e-12)
    assert step_of(row, setup, value, devices=setup.devices) == pytest.approx(0.5, rel=1e-12)


def test_one_devices_rate_is_that_of_its_own_batch() -> None:
    """One device that makes 64 samples a second takes half a second for its 32."""
    row = published(unit="images/s", **COMMON)
    assert step_of(row, understand(row), 64.0, devices=1) == pytest.approx(0.5, rel=1e-12)


def test_items_and_microbatches_count() -> None:
    row = published(unit="tokens/s", **COMMON)
    setup = dataclasses.replace(understand(row), items_per_sample=10, accumulation=2)
    assert figure_of(row, setup, 1.0) == pytest.approx(4 * 32 * 10 * 2, rel=1e-12)


def test_rules_beside_ours() -> None:
    """100 on one device: 800 on eight, and 800 / (1 + 0.025 x 3) = 744.19."""
    found = scaling_baselines(100.0, 8)
    assert found["linear"] == 800.0
    assert found["log2"] == pytest.approx(744.19, abs=0.01)


def test_an_interval_reaches_farther_to_the_slow_side() -> None:
    """Slow is less of a rate and more of a time; both ends are factors, so a rate's interval is that of its time."""
    low, high = interval(100.0, 0.1, time=False)
    assert 100 / low >= high / 100 > 1
    quick, long = interval(0.01, 0.1, time=True)
    assert (quick, long) == (pytest.approx(1 / high), pytest.approx(1 / low))


def test_deviations_of_parts() -> None:
    """The curves' 0.1 doubled; a tenth of the step at 0.4 beside a base of 0.03: sqrt(0.0009 + 0.0016) = 0.05."""
    assert StepWidth(factor=2.0, least=0.05).deviation(0.1) == pytest.approx(0.2)
    assert StepWidth(factor=2.0, least=0.5).deviation(0.1) == 0.5
    assert ScalingWidth(base=0.03, slope=0.4).deviation(0.1) == pytest.approx(0.05)


def test_a_measured_step_leaves_only_what_devices_add() -> None:
    modelled = deviation("dp_throughput", own=0.1, share=0.1, known=True)
    anchored = deviation("dp_throughput", own=None, share=0.1, known=True)
    assert 0 < anchored < modelled
    assert deviation("dp_throughput", own=None, share=0.1, known=False) >= anchored


def test_a_network_of_known_size_has_its_parameters_and_work() -> None:
    """Weights of all its tensors, and three times the forward's work, as a chain of products has it."""
    for size in published_sizes():
        whole = sized_workload(size.name, batch=2, precision="fp32", split=False)
        elements = sum(gradient.elements for gradient in whole.gradients)
        assert elements == pytest.approx(size.parameters + size.split_parameters, rel=0.02), size.name
        products = sum(work.flops for work in whole.works if work.kind == "product")
        assert products == pytest.approx(3 * 2 * size.forward_flops, rel=1e-9), size.name


def test_a_divided_layer_is_not_exchanged() -> None:
    whole, split = (
        sized_workload("insightface-r100-85742", batch=1, precision="fp32", split=split) for split in (False, True)
    )
    assert whole.gradient_bytes - split.gradient_bytes == 4 * 43_900_000
