import math

import pytest

from trimaran.pricing.kernels.constants import constants


def test_every_constant_is_a_positive_number() -> None:
    assert all(value > 0 and math.isfinite(value) for value in constants().values())


@pytest.mark.parametrize("kind", ["product", "elementwise", "optimizer", "normalization", "copy"])
def test_no_kind_sustains_more_than_the_bandwidth(kind: str) -> None:
    assert constants()[f"memory.{kind}"] < 1.0


@pytest.mark.parametrize("left_out", ["device", "network"])
@pytest.mark.parametrize(("family", "most"), [("single_gpu_time", 0.12), ("dp_throughput", 0.15)])
def test_devices_and_networks_left_out_of_the_fit_are_predicted(left_out: str, family: str, most: float) -> None:
    """Median errors that the fit wrote beside its constants; a fit that is worse is not to be kept."""
    assert constants()[f"error.{left_out}_left_out_{family}.median"] <= most
