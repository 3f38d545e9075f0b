from dataclasses import replace

import pytest
from tests.raising import raises

from trimaran.machine.catalog import find_device, find_link, find_node, plain_node
from trimaran.machine.topology import (
    host_bandwidth,
    pair,
    pairs,
    relays,
    share_evenly,
    shared_uplinks,
)
from trimaran.machine.types import Edge

DGX1 = find_node("dgx1-v100")


def test_twelve_of_28_pairs_of_a_dgx1_have_no_nvlink() -> None:
    """Each device has four neighbours of seven: 8 x 3 / 2 = 12 pairs without."""
    assert len(pairs(DGX1)) == 28
    assert tuple((one.a, one.b) for one in pairs(DGX1) if not one.links) == (
        (0, 5), (0, 6), (0, 7), (1, 4), (1, 6), (1, 7), (2, 4), (2, 5), (2, 7), (3, 4), (3, 5), (3, 6),
    )  # fmt: skip


def test_links_of_a_dgx1_are_those_that_mxnet_prints() -> None:
    """3: two links, 2: one link, 1: PCIe (apache/mxnet, src/kvstore/gpu_topology.h)."""
    printed = ("02233111", "20321311", "23031121", "32301112", "31110223", "13112032", "11212303", "11123230")
    for found in pairs(DGX1):
        assert {"3": 2, "2": 1, "1": 0}[printed[found.a][found.b]] == found.links


def test_a_copy_without_links_goes_over_both_sockets_and_is_staged() -> None:
    """0.74 of a slot's 12.4e9 B/s is 9.2e9, as two P100 without access to each other were measured."""
    found = pair(DGX1, 0, 5)
    assert (found.kind, found.peer, found.links) == ("socket", False, 0)
    assert found.route.vertices == ("gpu0", "plx0", "cpu0", "cpu1", "plx2", "gpu5")
    assert found.bytes_per_s == pytest.approx(9.18e9, rel=0.01)


def test_relays_are_the_shortest_ways_over_links() -> None:
    assert [route.vertices for route in relays(DGX1, 0, 5)] == [("gpu0", "gpu1", "gpu5"), ("gpu0", "gpu4", "gpu5")]
    assert relays(DGX1, 0, 5)[0].bytes_per_s == pytest.approx(21.3e9)


def test_two_links_copy_twice_as_fast_as_one() -> None:
    assert pair(DGX1, 0, 3).bytes_per_s == 2 * pair(DGX1, 0, 1).bytes_per_s


def test_through_switches_every_link_counts() -> None:
    """18 links of 22e9 B/s."""
    found = pair(find_node("hgx-h200"), 2, 7)
    assert (found.kind, found.links, found.bytes_per_s) == ("switch", 18, pytest.approx(396e9))
    assert all(one.links for one in pairs(find_node("dgx2")))


def test_geforce_copies_are_staged_even_behind_one_switch() -> None:
    box = plain_node(find_device("rtx-2080-ti"), 2)
    assert (pair(box, 0, 1).kind, pair(box, 0, 1).peer) == ("pcie", False)
    older = plain_node(find_device("gtx-1080-ti"), 2)
    assert pair(older, 0, 1).peer
    assert pair(older, 0, 1).bytes_per_s > pair(box, 0, 1).bytes_per_s


def test_peer_access_ends_at_the_socket() -> None:
    box = plain_node(find_device("a100-pcie-80gb"), 8)
    assert (pair(box, 0, 3).kind, pair(box, 0, 3).peer) == ("root", True)
    assert (pair(box, 0, 4).kind, pair(box, 0, 4).peer) == ("socket", False)


def test_two_devices_behind_one_switch_share_its_uplink() -> None:
    """Alone 12.4e9 B/s; 0 and 2 are behind different switches; 0 and 1 have half each."""
    assert host_bandwidth(DGX1, [0]) == {0: 12.4e9}
    assert host_bandwidth(DGX1, [0, 2]) == {0: 12.4e9, 2: 12.4e9}
    assert host_bandwidth(DGX1, [0, 1]) == {0: 6.2e9, 1: 6.2e9}
    assert [users for _, users in shared_uplinks(DGX1)] == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_what_one_cannot_use_is_left_to_the_others() -> None:
    """An uplink of 12.4e9 B/s, one flow held to 2.4e9 by its own slot: the other has the 10e9 that are left."""
    link = find_link("pcie3x16")
    up = Edge(a="cpu0", b="plx0", link=link)
    slow = Edge(a="plx0", b="gpu0", link=replace(link, name="narrow", bytes_per_s=2.4e9))
    fast = Edge(a="plx0", b="gpu1", link=link)
    assert share_evenly({0: (up, slow), 1: (up, fast)}) == {0: 2.4e9, 1: pytest.approx(10e9)}


@pytest.mark.parametrize(
    ("devices", "code"),
    [
        ((0, 8), "machine.no-such-device"),
        ((-1, 2), "machine.no-such-device"),
        ((3, 3), "machine.device-named-twice"),
    ],
)
def test_devices_that_a_node_has_not_are_refused(devices: tuple[int, int], code: str) -> None:
    with raises(code, match="dgx1-v100"):
        pair(DGX1, *devices)
