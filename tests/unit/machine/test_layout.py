"""Ranks get devices so that what talks most sits closest."""

import itertools

import pytest
from tests.raising import raises

from trimaran.machine.find import find_machine
from trimaran.machine.rank_order import lay_out, node_talk, spread_over
from trimaran.machine.topology import pair

DGX = find_machine("dgx1-v100")


RATES = {(a, b): pair(DGX.node, a, b).bytes_per_s for a in range(8) for b in range(8) if a != b}


def slowness(order: tuple[int, ...], talk: dict[tuple[int, int], float]) -> float:
    return sum(nbytes / RATES[order[a], order[b]] for (a, b), nbytes in talk.items())


def test_two_rows_get_a_pair_with_two_links() -> None:
    """On a DGX-1 with V100, devices 0 and 3 are joined by two NVLinks, 0 and 1 by one."""
    talk = node_talk(pp=2, tp=1, dp=1, row_bytes=1.0, shard_bytes=0.0, replica_bytes=0.0)
    assert lay_out(DGX.node, 2, talk) == (0, 3)


def test_four_ranks_sit_as_well_as_any_permutation() -> None:
    talk = dict(node_talk(pp=2, tp=2, dp=1, row_bytes=1.0, shard_bytes=10.0, replica_bytes=0.0))
    best = min(slowness(order, talk) for order in itertools.permutations(range(8), 4))
    assert slowness(lay_out(DGX.node, 4, talk), talk) == pytest.approx(best)


def test_eight_ranks_sit_as_well_as_any_permutation() -> None:
    """Four pairs of shards: each pair can have two links, as all four such pairs of one perfect matching show."""
    talk = dict(node_talk(pp=1, tp=2, dp=4, row_bytes=0.0, shard_bytes=10.0, replica_bytes=1.0))
    found = lay_out(DGX.node, 8, talk)
    best = min(slowness(order, talk) for order in itertools.permutations(range(8)))
    assert slowness(found, talk) == pytest.approx(best)
    assert all(pair(DGX.node, *found[first : first + 2]).bytes_per_s > 40e9 for first in range(0, 8, 2))


def test_behind_a_switch_the_natural_order_is_as_good() -> None:
    talk = node_talk(pp=4, tp=2, dp=1, row_bytes=1.0, shard_bytes=10.0, replica_bytes=0.0)
    assert lay_out(find_machine("hgx-h100").node, 8, talk) == tuple(range(8))


def test_one_order_serves_all_nodes() -> None:
    assert spread_over(find_machine("dgx1-v100:2"), (0, 3), 4) == (0, 3, 8, 11)


def test_ordered_devices_are_those_of_the_machine() -> None:
    found = find_machine("dgx1-v100:2").allocate(2).ordered((0, 11))
    assert (found.numbers, found.hosts) == ((0, 11), (0, 1))


def test_a_device_that_is_not_there_is_refused() -> None:
    with raises("machine.bad-device-order", match=r"\b0\b.*\b7\b"):
        DGX.allocate(2).ordered((0, 8))


def test_more_devices_than_the_machine_has_are_refused_with_the_machine_to_ask_for() -> None:
    with raises("machine.too-few-devices", match='"dgx1-v100:3"'):
        DGX.allocate(17)
