"""Lengths of a constraint program in whole ticks."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.placement.exact import TICKS, Model
from trimaran.placement.problem import PlacementNode, PlacementProblem, Wire, flatten
from trimaran.placement.solve import place


def fork(bytes_per_s: float, devices: int = 2) -> PlacementProblem:
    """Two branches of 2 s and 1 s, forward and backward alike, between a node and a join of 1 s each."""
    lengths = [1.0, 2.0, 1.0, 1.0]
    pairs = [(a, b) for a in range(devices) for b in range(devices) if a != b]
    return PlacementProblem(
        nodes=tuple(
            PlacementNode(name=f"n{number}", forward_s=length, backward_s=length, nbytes=8.0, backward_nbytes=8.0)
            for number, length in enumerate(lengths)
        ),
        edges=((0, 1), (0, 2), (1, 3), (2, 3)),
        memory_bytes=(math.inf,) * devices,
        wires={pair: Wire(bytes_per_s=bytes_per_s) for pair in pairs},
    )


@given(st.floats(0.0, 1e300), st.floats(0.0, 1e300))
def test_a_length_is_rounded_down_and_no_longer_than_just_past_the_horizon(one: float, other: float) -> None:
    model = Model(flatten(fork(8.0)), horizon_s=10.0)
    short, long = sorted((one, other))
    assert 0 <= model.ticks(short) <= model.ticks(long) <= TICKS + 1
    assert model.ticks(short) * model.tick_s <= short * (1 + 1e-9)


def test_whole_ticks_stay_whole() -> None:
    """A tenth of the horizon is 419,430.4 ticks; the horizon itself is all of them, whatever its last bit says."""
    model = Model(flatten(fork(8.0)), horizon_s=10.0)
    assert model.ticks(1.0) == 419_430
    assert model.ticks(10.0 * (1 - 2**-53)) == TICKS
    assert model.ticks(math.inf) == TICKS + 1


@pytest.mark.parametrize("bytes_per_s", [1e-300, 1e-6])
def test_a_wire_that_nothing_can_cross_in_time_leaves_all_on_one_device(bytes_per_s: float) -> None:
    """8 bytes at 1e-300 B/s take 8e300 s, which is no number of ticks: five seconds forward, five backward, serial."""
    answer = place(fork(bytes_per_s), time_limit_s=5)
    assert len(set(answer.device_of.values())) == 1
    assert answer.makespan_s == pytest.approx(10.0)
