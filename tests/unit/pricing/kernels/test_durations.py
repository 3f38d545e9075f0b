import dataclasses
from typing import Literal

import pytest
from tests.unit.pricing.kernels.shapes import convolution, elementwise, product

from trimaran.graph.kernels.workload import Gradient, Work, WorkKind
from trimaran.machine.catalog import find_device
from trimaran.machine.types import Device
from trimaran.pricing.kernels.columns import kernels
from trimaran.pricing.kernels.constants import architecture_of, constants, eager_bytes_per_s
from trimaran.pricing.kernels.durations import durations, setting
from trimaran.pricing.kernels.estimate import seconds_alone
from trimaran.pricing.kernels.software import Software

PYTORCH = Software(year=2023.0)


def _seconds(work: Work, device: Device, software: Software = PYTORCH, precision: str = "fp32") -> float:
    columns = kernels([work])
    return float(durations(columns, setting(columns, device, software, precision), constants())[0])


def test_no_kernel_is_faster_than_the_bandwidth_of_its_device() -> None:
    """100 M numbers read and written are 800 MB: 0.89 ms at the 900 GB/s of a V100, and some more."""
    seconds = _seconds(elementwise(100_000_000), find_device("v100"))
    assert 0.89e-3 < seconds < 1.4e-3


@pytest.mark.parametrize("name", ["h100", "a100-80gb", "v100", "mi300x"])
@pytest.mark.parametrize("kind", ["copy", "optimizer"])
def test_the_rate_of_eager_kernels_is_that_of_large_ones_by_themselves(
    name: str, kind: Literal["copy", "optimizer"]
) -> None:
    device, work = find_device(name), dataclasses.replace(elementwise(1_000_000_000), kind=WorkKind(kind))
    seconds = float(seconds_alone([work], device, PYTORCH)[0][0])
    assert work.nbytes / eager_bytes_per_s(device, kind) == pytest.approx(seconds, rel=0.01)


def test_a_large_product_comes_near_the_peak_and_not_above() -> None:
    """2 × 8192³ = 1.1 TFLOP take 70 ms at the 15.7 TFLOP/s of a V100; measured 0.82 to 0.95 of the peak."""
    seconds = _seconds(product(8192, 8192, 8192), find_device("v100"))
    assert 70e-3 < seconds < 88e-3


def test_tf32_is_for_devices_that_have_it() -> None:
    work = product(8192, 8192, 8192)
    assert _seconds(work, find_device("a100-80gb"), precision="tf32") < _seconds(work, find_device("a100-80gb")) / 3
    assert _seconds(work, find_device("v100"), precision="tf32") == _seconds(work, find_device("v100"))


def test_half_precision_without_tensor_cores_computes_as_float32_does() -> None:
    """A Titan X of 2015 saves traffic with float16, not operations: a large product takes nearly as long."""
    single, half = product(4096, 4096, 4096), product(4096, 4096, 4096, dtype="float16")
    device = find_device("titan-x")
    assert 0.85 < _seconds(half, device) / _seconds(single, device) < 1.0


def test_winograd_came_with_cudnn_5_and_not_for_kepler() -> None:
    """Direct convolutions stay below the peak; Winograd's, counted as direct ones, exceed it on a Titan X."""
    early, late = (
        Software(framework="torch7", year=2016.8, libraries=name, source="example") for name in ("cudnn-2", "cudnn-5.1")
    )
    work = convolution(size=56, batch=8)

    def share(name: str, software: Software) -> float:
        device = find_device(name)
        return work.flops / _seconds(work, device, software) / device.compute["fp32"].flops_per_s

    assert share("titan-x", early) < 1.0 < share("titan-x", late)
    assert share("k80", late) < 1.0


def test_the_weight_gradient_on_tensor_cores_was_slow_at_first() -> None:
    """DeepBench on V100: 0.14 of the peak with cuDNN 7.0, 0.64 with 7.6."""
    work = dataclasses.replace(convolution(Gradient.WEIGHT, channels=256), dtype="float16")
    v100 = find_device("v100")
    first, later = (
        _seconds(work, v100, Software(year=2020.0, libraries=name, channels_last=True))
        for name in ("cudnn-7.0", "cudnn-7.6")
    )
    assert first > 2.5 * later


def test_tensor_cores_want_channels_last() -> None:
    work = dataclasses.replace(convolution(channels=64, size=56), dtype="float16")
    first, last = (
        _seconds(work, find_device("v100"), Software(year=2021.0, channels_last=last)) for last in (False, True)
    )
    assert first > last


def test_a_library_that_unfolds_is_slower() -> None:
    work = convolution(size=56, batch=16)
    plain, unfolding = (
        Software(framework="torch7", year=2016.5, libraries=name, source="example") for name in ("cudnn-5.1", "nn")
    )
    assert _seconds(work, find_device("titan-x"), unfolding) > 1.5 * _seconds(work, find_device("titan-x"), plain)


def test_graphics_chips_of_ampere_have_constants_of_their_own() -> None:
    assert architecture_of(find_device("rtx-a6000")) == "ga10x"
    assert architecture_of(find_device("a100-pcie-40gb")) == "ampere"
    assert architecture_of(find_device("p100")) == "pascal"


@pytest.mark.parametrize("name", ["l4", "h100", "h200", "gh200", "t4", "m60", "titan-x-pascal", "p100-pcie", "mi300x"])
def test_a_device_that_is_in_no_training_figure_has_a_time(name: str) -> None:
    device = find_device(name)
    seconds = _seconds(product(4096, 4096, 4096), device)
    peak = device.compute["fp32"].flops_per_s
    assert 1.0 < seconds * peak / (2 * 4096**3) < 6.0
