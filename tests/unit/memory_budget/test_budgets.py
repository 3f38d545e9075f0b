"""A size without a unit is not taken for bytes where nobody means these, in a program as on a command line."""

import pytest
import torch
from tests.raising import raises

import trimaran
from trimaran.base.errors import InfeasibleError
from trimaran.base.units import parse_bytes, parse_memory
from trimaran.memory_budget.options import parse_budget


@pytest.mark.parametrize("size", [12, 80, 999_999, "12", "0.5"])
def test_a_number_that_is_no_size_is_refused_with_what_gib_are_written_as(size: int | str) -> None:
    for ask in (
        parse_budget,
        parse_memory,
        trimaran.virtual_memory,
        lambda size: trimaran.virtual_memory("1GiB", host=size),
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


@pytest.mark.parametrize(("budget", "told"), [("12B", True), ("12kB", True), ("2MB", False)])
def test_a_budget_below_the_parameters_is_refused_with_what_they_take(budget: str, told: bool) -> None:
    """1024 x 1024 parameters of 4 bytes and their gradients take 8 MiB."""
    model = torch.nn.Linear(1024, 1024, bias=False)
    with raises("memory-plan.below-minimum", InfeasibleError) as caught, trimaran.virtual_memory(budget):
        for _ in range(5):
            model(torch.ones(2, 1024)).sum().backward()
            model.zero_grad()
    assert "take 8.0 MiB" in caught.value.message
    assert ('GiB are written "12GiB"' in caught.value.message) == told


def test_a_host_without_room_is_a_choice() -> None:
    assert trimaran.virtual_memory("1GiB", host=0) is not None
    assert parse_bytes(0) == parse_bytes("0B") == 0
