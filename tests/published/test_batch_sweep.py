"""One device at many batches: two or three measured steps correct the model for all others."""

import pytest

from trimaran.machine.catalog import find_device
from trimaran.planning.workloads import workload
from trimaran.pricing.kernels.corrections import correction_from_steps
from trimaran.pricing.kernels.estimate import estimate_step, measured_step
from trimaran.pricing.kernels.software import Software

SOURCE = "apache/mxnet: docs/faq/perf.md, training on V100 (p3.2xlarge), MXNet 1.2, float32"
IMAGES_PER_S = {
    "resnet50": {1: 34.54, 2: 65.01, 4: 113.49, 8: 174.81, 16: 251.22, 32: 298.51, 64: 343.19, 128: 363.69},
    "inception-v3": {1: 21.83, 2: 40.11, 4: 72.79, 8: 118.43, 16: 173.15, 32: 214.48, 64: 247.43, 128: 253.68},
}
MXNET = Software(framework="mxnet", year=2018.4, source=SOURCE)


@pytest.mark.parametrize("network", sorted(IMAGES_PER_S))
def test_three_measured_batches_give_the_others_within_ten_percent(network: str) -> None:
    measured, device = IMAGES_PER_S[network], find_device("v100")
    known = (2, 16, 128)
    correction = correction_from_steps(
        [measured_step(workload(network, batch=b), device, MXNET, b / measured[b]) for b in known]
    )
    for batch, rate in measured.items():
        found = estimate_step(workload(network, batch=batch), device, MXNET, correction=correction)
        assert batch / found.seconds == pytest.approx(rate, rel=0.10), (batch, SOURCE)


def test_one_measured_batch_gives_larger_ones_within_ten_percent() -> None:
    """From 32 images on the device is the limit, and its error is that of the curves alone."""
    measured, device = IMAGES_PER_S["resnet50"], find_device("v100")
    anchor = correction_from_steps([measured_step(workload("resnet50", batch=64), device, MXNET, 64 / measured[64])])
    for batch in (32, 128):
        found = estimate_step(workload("resnet50", batch=batch), device, MXNET, correction=anchor)
        assert batch / found.seconds == pytest.approx(measured[batch], rel=0.10)


def test_lenet_is_bound_by_launches_and_vgg_is_not() -> None:
    """LeNet's 40-odd kernels of 64 digits of 28 × 28 are too small for a V100; 64 photographs in VGG-16 are not."""
    device, software = find_device("v100"), Software(year=2020.0)
    assert estimate_step(workload("digits", batch=64), device, software).launch_bound
    assert not estimate_step(workload("vgg16", batch=64), device, software).launch_bound
