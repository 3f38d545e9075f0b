import pytest
from tests.raising import raises
from tests.unit.pricing.kernels.shapes import convolution, elementwise, product, update, workload

from trimaran.graph.kernels.workload import Gradient, WorkKind
from trimaran.graph.types import Phase
from trimaran.machine.catalog import find_device
from trimaran.pricing.kernels.corrections import (
    Correction,
    KernelProfile,
    MeasuredStep,
    correction_from_profile,
    correction_from_steps,
    step_seconds,
)
from trimaran.pricing.kernels.estimate import estimate_step, kind_seconds, measured_step, optimizer_form
from trimaran.pricing.kernels.software import Software

PYTORCH = Software(year=2023.0)
STEP = workload(
    convolution(),
    elementwise(1_000_000),
    product(32, 4096, 4096, phase=Phase.BACKWARD),
    convolution(Gradient.WEIGHT),
    update(1_000_000),
)


def test_the_parts_of_a_step_add_up() -> None:
    found = estimate_step(STEP, find_device("v100"), PYTORCH)
    assert sum(found.work_s) == pytest.approx(found.seconds)
    assert len(found.work_s) == len(STEP.works)
    assert min(found.forward.seconds, found.backward.seconds, found.update.seconds) > 0
    assert found.forward.low < found.forward.seconds < found.forward.high


def test_a_step_is_no_shorter_than_host_or_device() -> None:
    found = estimate_step(STEP, find_device("h100"), PYTORCH)
    assert found.seconds >= max(found.host_s, found.device_s)


def test_many_small_kernels_are_bound_by_launches_and_large_ones_are_not() -> None:
    """1,000 kernels of 1,000 numbers: 8 kB each, nothing to a GPU; 10 of 50 million numbers are not."""
    small = workload(*(elementwise(1_000) for _ in range(1_000)))
    large = workload(*(elementwise(50_000_000) for _ in range(10)))
    assert estimate_step(small, find_device("v100"), PYTORCH).launch_bound
    assert not estimate_step(large, find_device("v100"), PYTORCH).launch_bound


def test_an_anchor_scales_the_whole_and_keeps_its_division() -> None:
    plain = estimate_step(STEP, find_device("v100"), PYTORCH)
    found = estimate_step(STEP, find_device("v100"), PYTORCH, anchor_s=3 * plain.seconds)
    assert found.seconds == pytest.approx(3 * plain.seconds)
    assert found.backward.seconds / found.seconds == pytest.approx(plain.backward.seconds / plain.seconds)
    assert found.forward.high / found.forward.seconds < plain.forward.high / plain.forward.seconds


@pytest.mark.parametrize("anchor_s", [0.0, -1.0, float("nan"), float("inf")])
def test_an_anchor_is_a_positive_time(anchor_s: float) -> None:
    with raises("estimate.bad-anchor"):
        estimate_step(STEP, find_device("v100"), PYTORCH, anchor_s=anchor_s)


def test_one_measured_step_moves_host_and_device_alike() -> None:
    """Measured twice the 0.1 s that are modelled: both factors are 2."""
    found = correction_from_steps([MeasuredStep(seconds=0.2, device_s=0.06, host_s=0.04, overlap=1.0)])
    assert (found.others, found.host) == (pytest.approx(2.0, rel=1e-3), pytest.approx(2.0, rel=1e-3))


def test_steps_of_several_batches_tell_host_and_device_apart() -> None:
    """Device 2 ms a sample, host 20 ms, nothing hidden; truly 3 ms and 40 ms."""
    steps = [
        MeasuredStep(seconds=0.040 + 0.003 * batch, device_s=0.002 * batch, host_s=0.020, overlap=1.0)
        for batch in (1, 8, 64)
    ]
    found = correction_from_steps(steps)
    assert (found.others, found.host) == (pytest.approx(1.5, rel=0.02), pytest.approx(2.0, rel=0.02))


def test_a_correction_reaches_the_estimate() -> None:
    v100 = find_device("v100")
    plain = estimate_step(STEP, v100, PYTORCH)
    measured = measured_step(STEP, v100, PYTORCH, 1.7 * plain.seconds)
    found = estimate_step(STEP, v100, PYTORCH, correction=correction_from_steps([measured]))
    assert found.seconds == pytest.approx(1.7 * plain.seconds, rel=1e-3)
    assert "measured step" in found.source


def test_no_step_and_an_impossible_one_are_refused() -> None:
    with raises("correction.no-steps"):
        correction_from_steps([])
    with raises("correction.bad-time"):
        correction_from_steps([MeasuredStep(seconds=-1.0, device_s=1.0, host_s=1.0, overlap=1.0)])


def test_a_profile_corrects_each_kind_by_itself() -> None:
    """Convolutions take twice what is modelled, products half; what the profile has not is moved as the sum is."""
    modelled = {WorkKind.CONVOLUTION: 0.010, WorkKind.PRODUCT: 0.010, WorkKind.POOLING: 0.001}
    seen = {WorkKind.CONVOLUTION: 0.020, WorkKind.PRODUCT: 0.005}
    profile = KernelProfile(kinds_s=seen, step_s=0.026, steps=3, source="a file")
    found = correction_from_profile(profile, modelled, host_s=0.001)
    assert found.kinds == {WorkKind.CONVOLUTION: pytest.approx(2.0), WorkKind.PRODUCT: pytest.approx(0.5)}
    assert (found.others, found.host) == (pytest.approx(1.25), 1.0)


def test_a_profile_of_something_else_is_refused() -> None:
    profile = KernelProfile(kinds_s={WorkKind.RECURRENT: 0.1}, step_s=0.1, steps=1, source="a file")
    with raises("correction.no-common-kernels"):
        correction_from_profile(profile, kind_seconds(STEP, estimate_step(STEP, find_device("v100"), PYTORCH)), 0.0)


def test_a_correction_of_a_kind_lengthens_that_kind_only() -> None:
    v100 = find_device("v100")
    plain = estimate_step(STEP, v100, PYTORCH)
    found = estimate_step(STEP, v100, PYTORCH, correction=Correction(kinds={WorkKind.PRODUCT: 2.0}, source="example"))
    before, after = kind_seconds(STEP, plain), kind_seconds(STEP, found)
    assert after[WorkKind.PRODUCT] > 1.8 * before[WorkKind.PRODUCT]
    assert after[WorkKind.CONVOLUTION] == pytest.approx(before[WorkKind.CONVOLUTION], rel=0.1)


def test_nothing_takes_no_time() -> None:
    assert step_seconds(0.0, 0.0, 2.0) == 0.0
    assert estimate_step(workload(), find_device("v100"), PYTORCH).seconds == 0.0


@pytest.mark.parametrize(
    ("software", "form"),
    [
        (Software(year=2021.0), "single"),
        (Software(year=2023.5), "grouped"),
        (Software(year=2021.0, libraries="apex"), "fused"),
        (Software(framework="tensorflow", year=2017.0), "fused"),
        (Software(framework="torch7", year=2016.0), "grouped"),
    ],
)
def test_frameworks_fuse_their_optimizers_or_not(software: Software, form: str) -> None:
    assert optimizer_form(software) == form


def test_a_fused_optimizer_reads_and_writes_once() -> None:
    """100 M parameters of SGD with momentum: 20 bytes of each, not 44."""
    step = workload(update(100_000_000))
    single, fused = (
        estimate_step(step, find_device("v100"), Software(year=2021.0, libraries=name)) for name in ("", "apex")
    )
    assert single.update.seconds / fused.update.seconds == pytest.approx(44 / 20, rel=0.05)
