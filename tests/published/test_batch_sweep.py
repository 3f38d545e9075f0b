"""One device at many batches: two or three measured steps correct the model for all others."""

import pytest

from trimaran.machine.catalog import find_device
from trimaran.planning.tracing.workloads import workload
from trimaran.pricing.kernels.estimate import estimate_step
from trimaran.pricing.kernels.software import Software
from trimaran_studies.reproduce.batch_sweep import IMAGES_PER_S, SOURCE, sweep_errors


@pytest.mark.parametrize("network", sorted(IMAGES_PER_S))
def test_three_measured_batches_give_the_others_within_ten_percent(network: str) -> None:
    for batch, error in sweep_errors(network, known=(2, 16, 128), asked=tuple(IMAGES_PER_S[network])).items():
        assert error == pytest.approx(0.0, abs=0.10), (batch, SOURCE)


def test_one_measured_batch_gives_larger_ones_within_ten_percent() -> None:
    """From 32 images on the device is the limit, and its error is that of the curves alone."""
    errors = sweep_errors("resnet50", known=(64,), asked=(32, 128))
    assert errors == pytest.approx({32: 0.0, 128: 0.0}, abs=0.10)


def test_lenet_is_bound_by_launches_and_vgg_is_not() -> None:
    """LeNet's 40-odd kernels of 64 digits of 28 × 28 are too small for a V100; 64 photographs in VGG-16 are not."""
    device, software = find_device("v100"), Software(year=2020.0)
    assert estimate_step(workload("digits", batch=64), device, software).launch_bound
    assert not estimate_step(workload("vgg16", batch=64), device, software).launch_bound
