from collections import Counter
from typing import Any

import pytest
from tests.raising import raises

from trimaran.machine.catalog import (
    boxed,
    catalog,
    find_device,
    find_link,
    find_node,
    link_types,
    node_names,
    plain_node,
    read_line,
    squeezed,
)
from trimaran.machine.types import Link

OWN = ("nvlink", "xgmi")


@pytest.mark.parametrize("name", node_names())
def test_every_machine_reads_and_names_its_sources(name: str) -> None:
    node = find_node(name)
    assert node.source.strip()
    assert node.cpu_cores >= 1
    assert all(edge.link.source.strip() and edge.count >= 1 for edge in node.edges)


@pytest.mark.parametrize("name", node_names())
def test_no_device_has_more_links_than_it_has(name: str) -> None:
    """Counted over all edges of its own kind, also those to the host (POWER9) and to switches."""
    node = find_node(name)
    counted: Counter[str] = Counter()
    for edge in node.edges:
        if edge.link.kind in OWN:
            counted[edge.a] += edge.count
            counted[edge.b] += edge.count
    most = 11 if name == "mi250x-8" else 6 if name == "mi100-8" else node.device.links
    assert all(counted[f"gpu{number}"] <= most for number in range(node.devices))


@pytest.mark.parametrize("name", ["dgx1-v100", "dgx2", "dgx-a100", "hgx-h100", "hgx-h200", "hgx-b200", "gb200-nvl72"])
def test_boards_use_every_link(name: str) -> None:
    node = find_node(name)
    counted: Counter[str] = Counter()
    for edge in node.edges:
        if edge.link.kind in OWN:
            counted[edge.a] += edge.count
            counted[edge.b] += edge.count
    assert {counted[f"gpu{number}"] for number in range(node.devices)} == {node.device.links}


def test_names_and_aliases_lead_to_one_machine_each() -> None:
    names = [squeezed(alias) for name in node_names() for alias in (name, *find_node(name).aliases)]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_no_machine_is_called_as_a_device_is() -> None:
    """A label that names a P4 or an A2 does not mean the cloud's machines of that letter and number."""
    devices = {squeezed(name) for entry in catalog().values() for name in (entry.name, *entry.aliases)}
    machines = {squeezed(alias) for name in node_names() for alias in (name, *find_node(name).aliases)}
    assert not devices & machines


def test_people_say_machines_differently() -> None:
    said = ("DGX-1 V100", "dgx1_v100", "hgx1", "DGX-1V")
    assert {find_node(name).name for name in said} == {"dgx1-v100"}
    assert find_node("HGX H100").name == "dgx-h100"


def test_links_between_two_vertices_of_a_line() -> None:
    """`x2` counts parallel links; ranges join all with all, `in turn` deals out."""
    assert read_line("gpu0 gpu3 nvlink2 x2").count == 2
    assert len(read_line("gpu0-7 nvsw0-5 nvlink3 x2").pairs) == 48
    assert read_line("plx0-1 gpu0-3 pcie4x16 in turn").pairs == (
        ("plx0", "gpu0"),
        ("plx0", "gpu1"),
        ("plx1", "gpu2"),
        ("plx1", "gpu3"),
    )
    assert read_line("gpu0 gpu2,5 nvlink1").pairs == (("gpu0", "gpu2"), ("gpu0", "gpu5"))


@pytest.mark.parametrize(
    ("line", "code", "figures"),
    [
        ("gpu0 nvlink2", "link-line.malformed", {}),
        ("gpu0 gpu1 nvlink2 2", "link-line.malformed", {}),
        ("gpu0 card1 nvlink2", "link-line.bad-vertex", {"match": '"card1"'}),
        ("gpu0 gpu0 nvlink2", "link-line.joins-itself", {"match": "gpu0"}),
        ("gpu0 gpu3-1 nvlink2", "link-line.range-backwards", {}),
        ("plx0-2 gpu0-3 pcie3x16 in turn", "link-line.not-divisible", {}),
    ],
)
def test_a_line_of_another_form_is_refused(line: str, code: str, figures: dict[str, Any]) -> None:
    with raises(code, **figures):
        read_line(line)


def test_a_like_machine_keeps_what_it_does_not_say_and_drops_what_it_has_not() -> None:
    """p3.8xlarge is half of p3.16xlarge, which is a DGX-1 with another network: no link leads to devices 4 to 7."""
    half = find_node("p3.8xlarge")
    assert half.device.name == "v100-16gb"
    assert {end for edge in half.edges for end in (edge.a, edge.b) if end.startswith("gpu")} == {
        "gpu0",
        "gpu1",
        "gpu2",
        "gpu3",
    }
    assert not any(end.startswith("nic") for edge in half.edges for end in (edge.a, edge.b))
    assert half.network_cards is not None
    assert half.network_cards[1].name == "ethernet-10g"


def test_modules_sit_on_their_board_and_cards_in_a_box() -> None:
    assert plain_node(find_device("v100"), 8).name == "dgx1-v100"
    assert plain_node(find_device("v100"), 4).name == "4xv100-16gb"
    box = plain_node(find_device("rtx-3090"), 4)
    assert (box.name, box.devices, box.peer_access) == ("4xrtx-3090", 4, False)
    assert {edge.link.name for edge in box.edges} == {"pcie4x16"}


def test_a_box_has_the_slots_of_its_cards() -> None:
    assert {edge.link.name for edge in boxed(find_device("h100-pcie"), 2).edges} == {"pcie5x16"}
    assert {edge.link.name for edge in boxed(find_device("gtx-1080-ti"), 2).edges} == {"pcie3x16"}


def test_bridges_join_pairs() -> None:
    box = plain_node(find_device("rtx-2080-ti"), 4, bridged=True)
    bridges = {(edge.a, edge.b, edge.count) for edge in box.edges if edge.link.kind == "nvlink"}
    assert bridges == {("gpu0", "gpu1", 2), ("gpu2", "gpu3", 2)}


@pytest.mark.parametrize("link", link_types().values(), ids=lambda link: link.name)
def test_links_sustain_no_more_than_they_carry(link: Link) -> None:
    found = find_link(link.name)
    assert 0 < found.bytes_per_s <= found.raw_bytes_per_s
    assert 0 <= found.ring_bytes_per_s <= found.raw_bytes_per_s
    assert 0 < found.latency_s < 1e-3
    assert found.source.strip()


def test_every_device_names_a_known_link_and_slot() -> None:
    for device in catalog().values():
        assert not device.link or device.link in link_types()
        assert f"pcie{device.pcie_generation}x{device.pcie_lanes}" in link_types()
