"""Programs that need more memory than a device has."""

from pathlib import Path

import pytest
from tests.raising import raises
from tests.unit.simulator.building import backward, costs, forward, program

from trimaran.base.errors import InfeasibleError
from trimaran.simulator.memory_check import check_memory

STEPS = (forward(0, 0), forward(0, 1), backward(0, 0), backward(0, 1))
MEMORY = {
    "r0/0F0": (100, 0),
    "r0/0F1": (100, 0),
    "r0/0B0": (30, 130),
    "r0/0B1": (30, 130),
}
COSTS = costs(dict.fromkeys(STEPS, 1.0), memory=MEMORY, resident_bytes=(1000,))


def test_a_program_that_fits_is_simulated() -> None:
    """1000 resident, 100 for each of two microbatches, 30 beside them in a backward: 1230 at most."""
    assert check_memory(program(STEPS), COSTS, [1230]).makespan_s == 4.0


def test_an_overflow_is_drawn_with_what_lives_then() -> None:
    drawn = {"instruction": "r0/0B0", "rank": 0, "peak_bytes": 1230, "memory_bytes": 1229}
    with raises("simulator.out-of-memory", InfeasibleError, **drawn) as caught:
        check_memory(program(STEPS), COSTS, [1229])
    message = str(caught.value)
    assert "1000 B parameters" in message
    assert "130 B of microbatch 0" in message
    assert "100 B of microbatch 1" in message
    assert "->   2 0B0" in message


def test_the_page_about_programs_shows_it() -> None:
    page = (Path(__file__).parents[3] / "docs" / "program.md").read_text(encoding="utf-8")
    with pytest.raises(InfeasibleError) as caught:
        check_memory(program(STEPS), COSTS, [1100])
    assert str(caught.value) in page


def test_a_device_whose_memory_is_not_known_is_not_checked() -> None:
    check_memory(program(STEPS), COSTS, [])
