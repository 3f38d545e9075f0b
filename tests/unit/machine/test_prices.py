"""Prices as users write them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.raising import raises

from trimaran.machine.find import find_machine
from trimaran.machine.prices import Price, parse_price

NODE = """
[[nodes]]
name = "box"
like = "pcie-4"
device = "v100-pcie"
source = "ours"
{price}
[machine]
nodes = 2
fabric = "1 ethernet-25g"
{own}
"""


@pytest.mark.parametrize(
    "text",
    [
        "3",
        "3 USD",
        "USD/hour",
        "3 USD/day",
        "-3 USD/node-hour",
        "3 /node-hour",
        "x",
        "",
        "0 USD/node-hour",
        "24,48 USD/node-hour",
    ],
)
def test_what_is_no_price_is_refused(text: str) -> None:
    with raises("price.malformed"):
        parse_price(text)


@given(amount=st.floats(0.01, 1e4), per=st.sampled_from(["device-hour", "node-hour"]))
def test_a_price_is_read_as_it_is_written(amount: float, per: str) -> None:
    price = Price(amount=float(f"{amount:.4f}"), currency="EUR", per=per)  # type: ignore[arg-type]  # drawn
    assert parse_price(f"{price.amount:.4f} EUR/{per}") == price


def test_a_node_is_paid_whole() -> None:
    """Nine devices of nodes of eight are two nodes: 2 × 24 for an hour."""
    price = parse_price("24 USD/node-hour")
    assert price.of(9, 3600.0, node_devices=8) == 48.0
    assert price.of(8, 3600.0, node_devices=8) == 24.0
    assert parse_price("3 USD/device-hour").of(9, 3600.0, node_devices=8) == 27.0


def test_a_cluster_file_has_a_price_of_its_node_or_of_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "rack.toml"
    path.write_text(NODE.format(price='price = "8 EUR/node-hour"', own=""))
    assert find_machine(str(path)).node.price == Price(amount=8.0, currency="EUR", per="node-hour")
    path.write_text(NODE.format(price='price = "8 EUR/node-hour"', own='price = "1.5 EUR/device-hour"'))
    assert find_machine(str(path)).node.price == Price(amount=1.5, currency="EUR", per="device-hour")
    path.write_text(NODE.format(price="", own=""))
    assert find_machine(str(path)).node.price is None


def test_a_wrong_price_names_its_place(tmp_path: Path) -> None:
    path = tmp_path / "rack.toml"
    path.write_text(NODE.format(price='price = "cheap"', own=""))
    with raises("machine-file.wrong-value", match="rack.toml", key="price"):
        find_machine(str(path))


def test_nobody_s_price_is_built_in() -> None:
    assert find_machine("dgx1-v100:8").node.price is None
