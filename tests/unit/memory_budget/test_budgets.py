"""A size without a unit is not taken for bytes where nobody means these, in a program as on a command line."""

import pytest
from tests.raising import raises

import trimaran
from trimaran.base.units import parse_memory
from trimaran.memory_budget.options import parse_budget


@pytest.mark.parametrize("size", [12, 80, 999_999, "12", "0.5"])
def test_a_number_that_is_no_size_is_refused_with_what_gib_are_written_as(size: int | str) -> None:
    for ask in (
        parse_budget,
        parse_memory,
        trimaran.virtual_memory,
        lambda size: trimaran.estimate_memory("lenet", device="titan-x", budget=size),
        lambda size: trimaran.plan("lenet", cluster="titan-x", memory=size),
        lambda size: trimaran.rehearse(["train.py"], cluster="dgx-h100", memory=size),
    ):
        with raises("quantity.malformed", match=f"{size}GiB"):
            ask(size)


def test_a_size_in_bytes_is_still_one() -> None:
    assert parse_budget(12 * 2**30) == parse_budget("12GiB")
    assert parse_memory(2**30) == parse_memory("1 GiB")
    assert parse_budget("300kB").nbytes == 300_000
