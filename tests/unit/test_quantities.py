"""Quantities are read as people type them, and refused where they are not clear."""

from collections.abc import Callable

import pytest
from tests.raising import raises

from trimaran.base.errors import InputError
from trimaran.base.units import parse_bytes, parse_flops, parse_power, parse_rate, parse_seconds
from trimaran.networks.names import parse_network
from trimaran.planner.explanation.what_if import parse_change
from trimaran.planner.pins import parse_pins
from trimaran.planning.requests import parse_counts
from trimaran.program.strategy import read_recompute, read_strategy
from trimaran.simulator.allocator import Settings


@pytest.mark.parametrize("text", ["1Gbps", "1gbps", "1 Gbit/s", "1Gb/s", "1 Gbits/s", "125MB/s", "125 MBps", "1.25e8"])
def test_a_rate(text: str) -> None:
    assert parse_rate(text) == 125e6


@pytest.mark.parametrize(
    ("text", "nbytes"), [("80GB", 80 * 10**9), ("80gb", 80 * 10**9), ("80 GiB", 80 * 2**30), ("512 bytes", 512)]
)
def test_a_size(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["100us", "100 µs", "0.1ms", "1e-4"])
def test_a_duration(text: str) -> None:
    assert parse_seconds(text) == pytest.approx(1e-4)


def test_arithmetic_and_power() -> None:
    assert parse_flops("15.7TFLOPS") == parse_flops("15.7 TFLOP/s") == 15.7e12
    assert parse_power("0.3 kW") == 300.0


@pytest.mark.parametrize("text", ["1gb/s", "25", "1 Gb", "1 GT/s", "-1Gbps", "fast"])
def test_a_rate_that_is_not_clear_is_refused(text: str) -> None:
    """Lower-case "gb/s" may be bits or bytes; of a small number without a unit, the unit was forgotten."""
    with raises("quantity.malformed"):
        parse_rate(text)


def test_bits_are_no_size() -> None:
    with raises("quantity.malformed"):
        parse_bytes("80Gb")


def test_a_letter_alone_is_no_unit_of_a_size_and_both_that_it_may_be_are_told() -> None:
    with raises("quantity.malformed", match='write "10GiB" or "10GB"'):
        parse_bytes("10g")


@pytest.mark.parametrize("text", ["1h30", "1h30min", "1 h 30 m", "01h30"])
def test_hours_and_minutes(text: str) -> None:
    assert parse_seconds(text, needs_unit=True) == 5400.0


@pytest.mark.parametrize(
    "read",
    [
        lambda digits: parse_counts(digits, what="devices"),
        lambda digits: parse_counts(f"1..{digits}", what="devices"),
        lambda digits: parse_pins(keep=(f"layer4={digits}",)),
        lambda digits: parse_change(f"devices={digits}"),
        lambda digits: parse_network(f"vgg16:classes={digits}"),
        lambda digits: Settings.parse(f"max_split_size_mb:{digits}"),
        read_recompute,
        lambda digits: read_strategy(f"dp{digits}"),
        lambda digits: read_strategy(f"pp2 layers:{digits}"),
        lambda digits: read_strategy(f"pp2 layers:{digits}*1"),
    ],
)
@pytest.mark.parametrize("digits", ["9" * 5000, "²", "٣"])
def test_a_number_of_thousands_of_digits_or_of_other_digits_is_refused(
    read: Callable[[str], object], digits: str
) -> None:
    with pytest.raises(InputError):
        read(digits)


def test_operations_are_not_placed_on_millions_of_devices() -> None:
    with raises("strategy.impossible-degree"):
        read_strategy("placed9999999")
