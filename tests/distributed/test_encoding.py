"""Compression of gradients, measured on two ranks."""

from pathlib import Path

import pytest
from tests import builders
from tests.forks.client import launch

from trimaran.launch.world import World
from trimaran.measure.calibration.links import measure_curves, measure_encoding
from trimaran.pricing.gradient_compression import coding_keys, reduce_key
from trimaran.pricing.tables import Curve, CurveKey
from trimaran.program.gradients import Compression

METHODS = (Compression(method="bf16"), Compression(method="powersgd", rank=2))
SIZES = (4 * 1024, 4 * 1024 * 1024)


def _measure(world: World) -> dict[CurveKey, Curve]:
    keys = [key for method in METHODS if (key := reduce_key(method, 2)) is not None]
    return measure_encoding(world, METHODS, sizes=SIZES) | measure_curves(world, keys, sizes=SIZES)


@pytest.mark.alone
def test_encoding_decoding_and_sums_of_16_bits_are_measured_alike_on_all_ranks(tmp_path: Path) -> None:
    """A thousand times the bytes take longer, whatever the noise."""
    first, second = launch(_measure, (), ranks=2, log_dir=tmp_path, device="cpu", timeout_s=60)
    assert first == second
    assert set(first) == {builders.curve_key("AR bf16", 2), *(key for method in METHODS for key in coding_keys(method))}
    for curve in first.values():
        assert [size for size, _ in curve] == list(SIZES)
        assert all(0.0 < cost.low <= cost.seconds <= cost.high for _, cost in curve)
        assert curve[-1][1].seconds > 3 * curve[0][1].seconds
