"""What is said of arguments of a wrong class."""

import pytest
from tests.raising import raises

import trimaran
from trimaran.base.errors import InputError


@pytest.mark.parametrize("pins", [{"rank_order": "tp,pp,dp"}, {"forbid": "pp"}, {"keep": "layer4=1"}])
def test_a_text_in_the_place_of_a_sequence_is_no_sequence_of_characters(pins: dict[str, str]) -> None:
    """`rank_order="tp,pp,dp"` was refused as the order "t,p,,,p,p,,,d,p"."""
    with raises("argument.wrong-class", InputError, match=f"{next(iter(pins))} must be tuple"):
        trimaran.plan("llama3:8b", cluster="dgx-h100", batch=64, pins=trimaran.Pins(**pins))  # type: ignore[arg-type]


def test_a_price_is_made_by_what_the_package_offers() -> None:
    target = trimaran.TargetRequest(tokens=1e9, price=trimaran.parse_price("3 USD/device-hour"))
    planned = trimaran.plan("llama3:8b", cluster="dgx-h100", batch=64, target=target)
    assert "USD" in str(planned)
