import pytest

from trimaran.machine.catalog import find_device, find_node, plain_node
from trimaran.machine.rings import best_tours, ring_bandwidth


def test_a_ring_of_five_collapses_because_the_fifth_has_one_link() -> None:
    """Devices 0 to 3 of a DGX-1 are all joined, 4 to 0 alone: a tour would have to come back over the same link."""
    four, five = (ring_bandwidth(find_node("dgx1-p100"), range(count)) for count in (4, 5))
    assert (four.kind, five.kind) == ("links", "staged")
    assert five.bytes_per_s < four.bytes_per_s / 9
    assert "from socket to socket" in five.slowest


def test_which_devices_are_chosen_matters() -> None:
    """0 and 3 have two links, 0 and 1 one, 0 and 5 none."""
    dgx = find_node("dgx1-v100")
    two, one, none = (ring_bandwidth(dgx, devices) for devices in ((0, 3), (0, 1), (0, 5)))
    assert two.bytes_per_s == 2 * one.bytes_per_s
    assert (one.kind, none.kind) == ("links", "staged")
    assert len(ring_bandwidth(dgx, (0, 1, 2, 3)).rings) == 4
    assert len(ring_bandwidth(dgx, (0, 1, 4, 5)).rings) == 2


def test_rings_use_no_direction_of_a_link_twice() -> None:
    dgx = find_node("dgx1-v100")
    found = ring_bandwidth(dgx, range(8))
    links = {frozenset((edge.a, edge.b)): edge.count for edge in dgx.edges if edge.link.kind == "nvlink"}
    used: dict[tuple[int, int], int] = {}
    for ring in found.rings:
        assert sorted(ring) == list(range(8))
        for step in zip(ring, (*ring[1:], ring[0]), strict=True):
            used[step] = used.get(step, 0) + 1
    assert len(found.rings) == 6
    assert all(count <= links[frozenset((f"gpu{a}", f"gpu{b}"))] for (a, b), count in used.items())


def test_four_that_are_all_joined_have_three_rings_by_halves() -> None:
    """Twelve directions, four a ring. Three whole rings do not exist; six that share each direction by two do."""
    tours, share, exact = best_tours((0, 1, 2, 3), {(a, b): 1 for a in range(4) for b in range(4) if a != b})
    assert (len(tours), share, exact) == (6, 0.5, True)


@pytest.mark.parametrize(("count", "tours"), [(3, 2), (5, 4), (6, 4), (7, 6), (8, 7)])
def test_all_joined_once_fall_apart_into_tours(count: int, tours: int) -> None:
    """n (n - 1) directions make n - 1 tours, except for n = 4 and 6 (Tillson, J. Combin. Theory B 29, 1980)."""
    devices = tuple(range(count))
    found, share, exact = best_tours(devices, {(a, b): 1 for a in devices for b in devices if a != b})
    assert (len(found), share, exact) == (tours, 1.0, True)


def test_behind_switches_there_are_as_many_rings_as_links() -> None:
    for name, links in (("dgx2", 6), ("dgx-a100", 12), ("hgx-h100", 18), ("gb200-nvl72", 18)):
        node = find_node(name)
        assert len(ring_bandwidth(node, range(node.devices)).rings) == links


def test_one_device_has_no_ring() -> None:
    assert ring_bandwidth(find_node("dgx2"), (3,)).bytes_per_s == 0


def test_staged_steps_behind_one_switch_share_its_uplink() -> None:
    """Two cards without peer access: both steps go up and down the uplink, so each has half of 0.74 x 12.2e9 B/s."""
    found = ring_bandwidth(plain_node(find_device("rtx-2080-ti"), 2), (0, 1))
    assert found.kind == "staged"
    assert found.bytes_per_s == pytest.approx(0.74 * 12.2e9 / 2)


def test_bridged_pairs_alone_have_their_bridge_and_larger_groups_the_slots() -> None:
    box = plain_node(find_device("rtx-3090"), 4, bridged=True)
    assert ring_bandwidth(box, (0, 1)).kind == "links"
    assert ring_bandwidth(box, range(4)).bytes_per_s < ring_bandwidth(box, (0, 1)).bytes_per_s / 3
