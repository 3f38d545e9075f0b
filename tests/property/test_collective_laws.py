"""Laws of the costs of collectives."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests import builders

from trimaran.machine.find import find_machine
from trimaran.pricing.collectives.algorithms import algorithms, collective_cost
from trimaran.pricing.collectives.formulas import OPERATIONS, ring_time
from trimaran.pricing.collectives.links import DeviceGroup
from trimaran.pricing.collectives.prediction import GRID, constants, prior_time

MACHINES = ("dgx1-p100", "dgx1-v100", "dgx-a100", "hgx-h200", "8xl4", "8xrtx-4090")
OPS = st.sampled_from(OPERATIONS)
SIZES = st.integers(min_value=0, max_value=2**34)


@given(op=OPS, small=SIZES, more=SIZES, machine=st.sampled_from(MACHINES), devices=st.integers(2, 8))
def test_more_bytes_never_take_less_time(op: str, small: int, more: int, machine: str, devices: int) -> None:
    found = find_machine(machine)
    first = collective_cost(op, small, machine=found, devices=devices)
    second = collective_cost(op, small + more, machine=found, devices=devices)
    assert second.seconds >= first.seconds * (1 - 1e-9)
    assert 0 < first.low < first.seconds < first.high


@given(
    op=OPS,
    devices=st.integers(2, 64),
    kind=st.sampled_from(["nvswitch", "nvlink", "pcie", "host", "virtual"]),
    rate=st.floats(1e9, 1e12),
    faster=st.floats(1.0, 10.0),
)
def test_a_faster_link_never_takes_longer(op: str, devices: int, kind: str, rate: float, faster: float) -> None:
    """By physics, over all sizes; what measurements add depends on the kind of link, not on its rate."""
    slow = DeviceGroup(
        devices=devices,
        kind=kind,
        generation=4.0,
        ring_bytes_per_s=rate,
        exchange_bytes_per_s=rate,  # type: ignore[arg-type]
    )
    fast = replace(slow, ring_bytes_per_s=rate * faster, exchange_bytes_per_s=rate * faster)
    known = constants()["prior"]
    times = [prior_time(op, GRID, group, "stream", known, year=2024.0) for group in (slow, fast)]
    assert np.all(times[1] <= times[0] * (1 + 1e-9))


@given(op=OPS, nbytes=SIZES, ranks=st.integers(2, 100), rate=st.floats(1e6, 1e12), latency=st.floats(0, 1e-3))
def test_a_ring_is_no_faster_than_its_bytes(op: str, nbytes: int, ranks: int, rate: float, latency: float) -> None:
    """Every rank has to send at least half the buffer."""
    assert ring_time(op, nbytes, ranks=ranks, link=builders.link(bytes_per_s=rate, latency_s=latency)) >= (
        nbytes / 2 / rate * (1 - 1e-9)
    )


@given(op=OPS, nbytes=st.integers(1, 2**32), machine=st.sampled_from(MACHINES), devices=st.integers(2, 8))
def test_the_winner_of_a_library_is_the_cost(op: str, nbytes: int, machine: str, devices: int) -> None:
    found = find_machine(machine)
    candidates = algorithms(op, nbytes, machine=found, devices=devices)
    times = [one.seconds for one in candidates]
    cost = collective_cost(op, nbytes, machine=found, devices=devices)
    assert times == sorted(times)
    assert np.isclose(min(one.seconds for one in candidates if one.library), cost.seconds, rtol=1e-9)
