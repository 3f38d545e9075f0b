"""Which devices multiply in 8 bits, and at which rate, against data sheets."""

import pytest
from tests.raising import raises

from trimaran.machine.catalog import find_device

SHEETS = {
    "h100": 1979e12,  # as in stas00/ml-engineering, compute/accelerator/README.md, dense
    "h200": 1979e12,
    "b200": 4500e12,
    "l40s": 733e12,
    "mi300x": 2614.9e12,  # as in torch/_inductor/analysis/device_info.py, and AMD's data sheet of the MI325X
    "mi325x": 2614.9e12,
    "mi355x": 5033.2e12,  # AMD's data sheet: 5.0 PFLOP/s
    "rtx-4090": 330.3e12,  # with sums in 32 bits: half of the 660.6 of the Ada white paper
}


@pytest.mark.parametrize("name", SHEETS)
def test_a_device_computes_in_8_bits_at_twice_its_rate_in_16(name: str) -> None:
    device = find_device(name)
    device.check_computes("fp8")
    assert 2 * device.compute["bf16"].flops_per_s == pytest.approx(SHEETS[name], rel=0.015)


@pytest.mark.parametrize("name", ["a100-80gb", "v100", "mi250x", "mi100", "rtx-3090"])
def test_an_older_one_does_not(name: str) -> None:
    with raises("device.precision-unsupported", device=find_device(name).name):
        find_device(name).check_computes("fp8")
