"""Closed forms of collectives against arithmetic by hand."""

import pytest
from tests import builders
from tests.raising import raises

from trimaran.pricing.collectives.formulas import (
    bus_factor,
    chain_time,
    double_tree_time,
    hierarchical_times,
    nvls_time,
    ring_time,
)
from trimaran.pricing.collectives.parameter_servers import (
    byteps_time,
    colocated_server_time,
    owner_loads,
    star_time,
)

LINK = builders.link(bytes_per_s=1e9, latency_s=0.5)
BARE = builders.link(bytes_per_s=1e9)


@pytest.mark.parametrize(
    ("op", "seconds"),
    [
        ("all_reduce", 3.0 + 1.5),  # 6 hops of 0.5 s, 2 * 3/4 GB
        ("all_gather", 1.5 + 0.75),
        ("reduce_scatter", 1.5 + 0.75),
        ("all_to_all", 1.5 + 0.75),
        ("broadcast", 1.5 + 1.0),
        ("reduce", 1.5 + 1.0),
    ],
)
def test_rings_of_four(op: str, seconds: float) -> None:
    """4 ranks, 1 GB, 1 GB/s, 0.5 s a hop."""
    assert ring_time(op, 1e9, ranks=4, link=LINK) == pytest.approx(seconds)


def test_a_message_is_its_latency_and_its_bytes() -> None:
    assert ring_time("send_recv", 2e9, ranks=2, link=LINK) == pytest.approx(2.5)


def test_a_chain_fills_and_then_every_turn_delivers() -> None:
    """4 ranks, 5 parts: 3 hops for the first and 4 turns for the others, each 0.5 s + 0.2 s."""
    assert chain_time(1e9, ranks=4, chunks=5, link=LINK) == pytest.approx(7 * 0.7)


def test_trees() -> None:
    """9 ranks are 4 levels: 8 hops of 0.5 s; a rank takes in 1.5 GB of one tree and 0.5 GB of the other."""
    assert double_tree_time(1e9, ranks=9, link=LINK) == pytest.approx(4.0 + 2.0)


def test_a_hierarchy_has_three_parts() -> None:
    """4 devices a node: 3/4 GB inside, then 2 * 1/2 of a quarter between 2 nodes, then 3/4 GB again."""
    inside = builders.link(bytes_per_s=10e9)
    parts = hierarchical_times(1e9, per_node=4, nodes=2, inside=inside, between=BARE)
    assert parts == pytest.approx((0.075, 0.25, 0.075))


def test_switches_that_add_are_so_many_times_a_ring() -> None:
    """A ring of 1,000 sends nearly 2 GB; with 2 devices twice as fast, 1 GB takes half a second and the call."""
    assert ring_time("all_reduce", 1e9, ranks=1000, link=BARE) == pytest.approx(1.998)
    assert nvls_time(1e9, ranks=2, ring=BARE, gain=2.0, call_s=0.25) == pytest.approx(0.75)


def test_an_all_reduce_by_a_ring_moves_two_n_minus_one_over_n() -> None:
    """2(n-1)M/(nB) with n = 8, M = 4 GB, B = 1 GB/s: 7 s."""
    assert ring_time("all_reduce", 4e9, ranks=8, link=BARE) == pytest.approx(7.0)
    assert colocated_server_time(4e9, workers=8, bytes_per_s=1e9) == pytest.approx(7.0)


def test_byteps_lies_between_a_ring_and_one_buffer() -> None:
    """2n(n-1)M / ((n^2 + kn - 2k)B), n = 8, k = 4: 112 / (64 + 32 - 8) = 112/88 s."""
    times = [byteps_time(1e9, workers=8, servers=spare, bytes_per_s=1e9) for spare in (0, 4, 8)]
    assert times == pytest.approx([1.75, 112 / 88, 1.0])


def test_a_star_with_equal_homes_moves_a_rings_bytes() -> None:
    ring = ring_time("all_reduce", 8e9, ranks=8, link=BARE)
    assert star_time([1e9] * 8, devices=8, bytes_per_s=1e9) == pytest.approx(8 * ring / 8)


def test_one_huge_tensor_is_what_a_star_is_bad_at() -> None:
    """All of 8 GB into one of 8 devices 7 times and out 7 times: 112 s, 8 times the ring's 14 s."""
    assert star_time([8e9], devices=8, bytes_per_s=1e9) == pytest.approx(112.0)
    assert ring_time("all_reduce", 8e9, ranks=8, link=BARE) == pytest.approx(14.0)


def test_many_small_tensors_cost_a_star_its_calls() -> None:
    """100 tensors of 1 kB on 4 devices: 25 at each home, 2 * 3 copies of each, 10 us + 1 us a copy: 1.65 ms."""
    assert star_time([1e3] * 100, devices=4, bytes_per_s=1e9, call_s=1e-5) == pytest.approx(0.00165)
    assert [count for _, count in owner_loads([1.0] * 100, 4)] == [25, 25, 25, 25]


def test_what_makes_no_sense_is_refused() -> None:
    with raises("collective.unknown-operation", op="all_sum"):
        bus_factor("all_sum", 2)
    with raises("collective.no-rank", ranks=0):
        bus_factor("all_reduce", 0)
    with raises("parameter-server.bad-spare-count", match=r"\b0\b.*\b2\b.*\b2\b", servers=3):
        byteps_time(1.0, workers=2, servers=3, bytes_per_s=1.0)
