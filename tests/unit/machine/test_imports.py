from pathlib import Path
from typing import Any

import pytest
from tests.raising import raises

from trimaran.base.errors import EnvironmentProblem
from trimaran.machine.catalog import find_device, find_link
from trimaran.machine.find import find_machine
from trimaran.machine.machine_files import import_node, node_text, read_machine
from trimaran.machine.nccl_topology import node_from_xml
from trimaran.machine.nvidia_smi_topology import node_from_matrix
from trimaran.machine.rings import ring_bandwidth
from trimaran.machine.topology import pair, pairs

MESH = """user@server:~$ nvidia-smi topo -m
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tmlx5_0\tmlx5_1\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV1\tNV2\tNV1\tSYS\tSYS\tSYS\tNV2\tNODE\tSYS\t0-23,48-71\t0
GPU1\tNV1\t X \tNV1\tNV2\tSYS\tSYS\tNV2\tSYS\tNODE\tSYS\t0-23,48-71\t0
GPU2\tNV2\tNV1\t X \tNV2\tSYS\tNV1\tSYS\tSYS\tPIX\tSYS\t0-23,48-71\t0
GPU3\tNV1\tNV2\tNV2\t X \tNV1\tSYS\tSYS\tSYS\tPIX\tSYS\t0-23,48-71\t0
GPU4\tSYS\tSYS\tSYS\tNV1\t X \tNV2\tNV2\tNV1\tSYS\tNODE\t24-47,72-95\t1
GPU5\tSYS\tSYS\tNV1\tSYS\tNV2\t X \tNV1\tNV2\tSYS\tNODE\t24-47,72-95\t1
GPU6\tSYS\tNV2\tSYS\tSYS\tNV2\tNV1\t X \tNV1\tSYS\tPIX\t24-47,72-95\t1
GPU7\tNV2\tSYS\tSYS\tSYS\tNV1\tNV2\tNV1\t X \tSYS\tPIX\t24-47,72-95\t1
mlx5_0\tNODE\tNODE\tPIX\tPIX\tSYS\tSYS\tSYS\tSYS\t X \tSYS\t\t
mlx5_1\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\tPIX\tPIX\tSYS\t X \t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
"""
"""A cube mesh of V100, numbered otherwise than in a DGX-1. Its links: Oneflow-Inc/DLPerf, report of HugeCTR."""

SWITCHED = """        GPU0    GPU1    GPU2    GPU3    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV12    NV12    NV12    PXB     0-55,112-167    0               N/A
GPU1    NV12     X      NV12    NV12    PXB     0-55,112-167    0               N/A
GPU2    NV12    NV12     X      NV12    SYS     56-111,168-223  1               N/A
GPU3    NV12    NV12    NV12     X      SYS     56-111,168-223  1               N/A
NIC0    PXB     PXB     SYS     SYS      X
"""


LAST = "GPU3    NV12    NV12    NV12     X      SYS     56-111,168-223  1               N/A\n"


def test_a_mesh_with_its_devices_numbered_otherwise() -> None:
    """The same board as a DGX-1: 12 pairs without links, six rings of eight; two devices and a card a switch."""
    node = node_from_matrix(MESH, find_device("v100-32gb"), file="topo.txt", network=find_link("ib-edr"))
    assert (node.devices, node.network_cards) == (8, (2, find_link("ib-edr")))
    assert sum(not one.links for one in pairs(node)) == 12
    assert len(ring_bandwidth(node, range(8)).rings) == 6
    assert pair(node, 0, 7).links == 2
    assert pair(node, 0, 4).route.vertices == ("gpu0", "cpu0", "cpu1", "gpu4")
    below = {edge.b for edge in node.edges if edge.a == "plx0"}
    assert below == {"gpu2", "gpu3", "nic0"}


def test_more_links_than_a_device_has_mean_a_switch() -> None:
    """Three pairs of twelve links are 36; an A100 has twelve."""
    node = node_from_matrix(SWITCHED, find_device("a100"), file="topo.txt")
    assert pair(node, 0, 3).kind == "switch"
    assert len(ring_bandwidth(node, range(4)).rings) == 12
    assert node.network_cards is None
    assert "1 cards for the network are left out" in node.caveat


def test_sockets_are_told_by_affinity_where_all_pairs_have_links() -> None:
    node = node_from_matrix(SWITCHED, find_device("a100"), file="topo.txt")
    assert {(edge.a, edge.b) for edge in node.edges if edge.b.startswith("gpu") and edge.a.startswith("cpu")} == {
        ("cpu1", "gpu2"),
        ("cpu1", "gpu3"),
    } | {(edge.a, edge.b) for edge in node.edges if edge.a == "cpu0" and edge.b.startswith("gpu")}


def test_bridged_pairs_of_cards_are_joined_directly() -> None:
    text = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV4\tSYS\nGPU1\tNV4\tX\tSYS\nGPU2\tSYS\tSYS\tX\n"
    node = node_from_matrix(text, find_device("rtx-a6000"), file="topo.txt")
    assert [(pair(node, a, b).kind, pair(node, a, b).links) for a, b in ((0, 1), (0, 2))] == [
        ("links", 4),
        ("socket", 0),
    ]


@pytest.mark.parametrize(
    ("right", "wrong", "code", "figures"),
    [
        (
            "GPU2    NV12    NV12 ",
            "GPU2    NV12    NVX  ",
            "smi-matrix.unknown-connection",
            {"match": r"\b4\b.*NODE", "column": "GPU1"},
        ),
        (
            "GPU2    NV12    NV12 ",
            "GPU2    NV12    NV4  ",
            "smi-matrix.not-symmetric",
            {"match": r'\b4\b.*"NV4".*\b3\b.*"NV12"', "column": "GPU1"},
        ),
        (
            "GPU2    NV12    NV12     X ",
            "GPU2    NV12    NV12    NV12",
            "smi-matrix.device-to-itself",
            {"match": r'\b4\b.*"NV12"', "row": "GPU2", "column": "GPU2"},
        ),
        (LAST, "", "smi-matrix.missing-row", {"row": "GPU3"}),
        (LAST, "GPU3    NV12    NV12\n", "smi-matrix.wrong-column-count", {"match": r"\b2\b", "line": 5}),
        ("GPU0    GPU1", "CPU0    CPU1", "smi-matrix.no-header", {"match": "GPU0"}),
    ],
)
def test_a_mistake_in_a_matrix_is_answered_with_line_and_column(
    right: str, wrong: str, code: str, figures: dict[str, Any]
) -> None:
    assert right in SWITCHED
    with raises(code, **figures):
        node_from_matrix(SWITCHED.replace(right, wrong, 1), find_device("a100"), file="topo.txt")


def test_links_of_a_device_that_has_none_are_refused() -> None:
    with raises("smi-matrix.device-without-nvlink", match=r'GPU1.*"NV12".*NVIDIA GeForce.*\b4090\b'):
        node_from_matrix(SWITCHED, find_device("rtx-4090"), file="topo.txt")


def _gpu(bus: str, number: int, links: str, *, speed: str = "8.0 GT/s PCIe", pci: str = "0x1db1") -> str:
    return (
        f'<pci busid="{bus}" class="0x030200" vendor="0x10de" device="{pci}" link_speed="{speed}" link_width="16">'
        f'<gpu dev="{number}" sm="70" rank="{number}" gdr="1">{links}</gpu></pci>'
    )


def _link(bus: str, count: int, kind: str = "0x030200") -> str:
    return f'<nvlink target="{bus}" count="{count}" tclass="{kind}"/>'


XML = "\n".join(
    [
        '<system version="1">',
        '<cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="79">',
        '<pci busid="0000:04:00.0" class="0x060400" link_speed="8.0 GT/s PCIe" link_width="16">',
        _gpu("0000:06:00.0", 0, _link("0000:07:00.0", 2) + _link("0000:86:00.0", 1)),
        _gpu("0000:07:00.0", 1, _link("0000:06:00.0", 2)),
        '<pci busid="0000:05:00.0" class="0x020700" link_speed="8.0 GT/s PCIe" link_width="16">',
        '<nic><net name="mlx5_0" dev="0" speed="100000" port="1" guid="0x1" maxconn="131072" gdr="1"/></nic>',
        "</pci></pci></cpu>",
        '<cpu numaid="1" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="79">',
        _gpu("0000:86:00.0", 2, _link("0000:06:00.0", 1)),
        "</cpu></system>",
    ]
)


def test_a_topology_of_nccl() -> None:
    node = node_from_xml(XML, file="topo.xml")
    assert (node.device.name, node.devices) == ("v100-16gb", 3)
    assert node.network_cards == (1, find_link("ib-edr"))
    assert [(found.kind, found.links) for found in (pair(node, 0, 1), pair(node, 0, 2), pair(node, 1, 2))] == [
        ("links", 2),
        ("links", 1),
        ("socket", 0),
    ]
    assert ("cpu0", "cpu1", "qpi-9.6") in {(edge.a, edge.b, edge.link.name) for edge in node.edges}
    assert ("plx0", "nic0", "ib-edr") in {(edge.a, edge.b, edge.link.name) for edge in node.edges}


def test_links_to_a_bus_that_is_no_device_lead_to_switches() -> None:
    switch = _link("0000:d0:00.0", 2, "0x068000") + _link("0000:d1:00.0", 4, "0x068000")
    text = (
        '<system><cpu numaid="0">'
        + _gpu("0000:06:00.0", 0, switch, pci="0x20b0", speed="16 GT/s")
        + _gpu("0000:07:00.0", 1, switch, pci="0x20b0", speed="16 GT/s")
        + "</cpu></system>"
    )
    node = node_from_xml(text, file="topo.xml")
    assert pair(node, 0, 1).kind == "switch"
    assert {(edge.b, edge.count) for edge in node.edges if edge.a == "gpu0"} == {("nvsw0", 2), ("nvsw1", 4)}


def test_slots_and_cards_that_the_catalog_does_not_list_are_shares_of_those_it_does() -> None:
    """Eight lanes of PCIe 3.0 are half of sixteen; 600 Gb/s is one and a half times NDR."""
    text = XML.replace('link_width="16"', 'link_width="4"', 1).replace('speed="100000"', 'speed="600000"')
    node = node_from_xml(text, file="topo.xml")
    uplink = next(edge.link for edge in node.edges if (edge.a, edge.b) == ("cpu0", "plx0"))
    assert uplink.bytes_per_s == pytest.approx(find_link("pcie3x16").bytes_per_s / 4)
    assert node.network_cards is not None
    assert node.network_cards[1].bytes_per_s == pytest.approx(1.5 * find_link("ib-ndr").bytes_per_s)


def test_a_slot_whose_speed_is_not_said_is_the_devices() -> None:
    node = node_from_xml(XML.replace('link_speed="8.0 GT/s PCIe"', 'link_speed=""'), file="topo.xml")
    assert "slots whose speed is not said" in node.caveat
    assert {edge.link.name for edge in node.edges if edge.b.startswith("gpu") and edge.a[0] in "cp"} == {"pcie3x16"}


@pytest.mark.parametrize(
    ("right", "wrong", "code", "figures"),
    [
        ('count="2"', 'count="two"', "nccl-topology.wrong-value", {"line": 4, "key": "count", "value": "two"}),
        (
            'target="0000:86:00.0"',
            'target="0000:99:00.0"',
            "nccl-topology.wrong-value",
            {"line": 4, "key": "target"},
        ),
        (
            'link_speed="8.0 GT/s PCIe"',
            'link_speed="fast"',
            "nccl-topology.wrong-value",
            {"match": '"16 GT/s"', "line": 3, "key": "link_speed"},
        ),
        (
            'speed="100000"',
            'speed="-1"',
            "nccl-topology.wrong-value",
            {"match": r"Mb/s.*\b100000\b", "line": 7, "key": "speed", "value": "-1"},
        ),
        ('busid="0000:07:00.0"', 'busid="0000:06:00.0"', "nccl-topology.wrong-value", {"line": 5, "key": "busid"}),
        ('device="0x1db1"', 'device="0xffff"', "nccl-topology.unknown-pci-number", {"match": '"0xffff"', "line": 4}),
        ("</system>", "", "xml.malformed", {"line": 11}),
        ("system", "graph", "xml.wrong-root", {"match": r"\b1\b.*<system>.*<graph>"}),
        (
            ' target="0000:07:00.0"',
            "",
            "nccl-topology.missing-value",
            {"match": "<nvlink>", "key": "target", "line": 4},
        ),
    ],
)
def test_a_mistake_in_a_topology_is_answered_with_its_line(
    right: str, wrong: str, code: str, figures: dict[str, Any]
) -> None:
    assert right in XML
    text = XML.replace(right, wrong) if right == "system" else XML.replace(right, wrong, 1)
    with raises(code, **figures):
        node_from_xml(text, file="topo.xml")


def test_a_topology_without_devices_is_refused() -> None:
    with raises("nccl-topology.no-gpu", match="<gpu>"):
        node_from_xml('<system><cpu numaid="0"/></system>', file="topo.xml")


def test_devices_that_a_cloud_leaves_to_nccl_are_told_by_class() -> None:
    """Files of clouds have slots alone; links of modules then go to switches, which is said."""
    speed = 'link_speed="16 GT/s" link_width="16"'
    slots = "".join(f'<pci busid="000{number}:00:00.0" class="0x030200" {speed}/>' for number in (1, 2))
    bridge = f'<pci busid="ffff:ff:01.0" class="0x060400" {speed}>{slots}</pci>'
    text = f'<system><cpu numaid="0">{bridge}</cpu></system>'
    node = node_from_xml(text, file="topo.xml", device=find_device("a100-40gb"))
    assert (node.devices, pair(node, 0, 1).kind) == (2, "switch")
    assert "go to switches" in node.caveat


def test_what_was_imported_can_be_kept_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "server.txt"
    path.write_text(MESH)
    node = import_node(path, "v100-32gb", "ib-edr")
    again = read_machine(node_text(node), file="again.toml").node
    assert node.name == again.name == "server"
    assert set(again.edges) == set(node.edges)


def test_a_matrix_does_not_say_its_device(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(MESH)
    with raises("smi-matrix.needs-device", match="--device"):
        import_node(path)


def _fake_driver(folder: Path, name: str) -> None:
    """An `nvidia-smi` that prints a name, or the matrix above."""
    (folder / "topo.txt").write_text(SWITCHED)
    program = folder / "nvidia-smi"
    program.write_text(f'#!/bin/sh\nif [ "$1" = topo ]; then cat {folder}/topo.txt; else echo "{name}"; fi\n')
    program.chmod(0o755)


def test_this_machine_is_what_its_driver_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_driver(tmp_path, "NVIDIA A100-SXM4-40GB")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    node = find_machine("here").node
    assert (node.device.name, node.devices, pair(node, 0, 3).kind) == ("a100-40gb", 4, "switch")
    assert node.cpu_cores >= 1


def test_without_a_driver_or_with_an_unknown_device_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with raises("nvidia-smi.cannot-run", EnvironmentProblem, match="--query-gpu=name"):
        find_machine("here")
    _fake_driver(tmp_path, "Voodoo 5")
    with raises("nvidia-smi.unknown-device", EnvironmentProblem, match='"Voodoo 5"'):
        find_machine("here")


@pytest.mark.parametrize(
    ("near", "cores"),
    [
        (("0-23,48-71", "24-47,72-95"), 48),
        (("0-55,112-167", "56-111,168-223"), 112),
        (("0-31", "32-63"), 64),
        (("0-15,32-47", "0-15,32-47"), 16),
        (("0,4", "1,5"), 2),
        (("0-2,4", "3"), 5),
        (("N/A", "N/A"), 1),
        (("9-3", ""), 1),
    ],
)
def test_the_host_has_the_cores_near_its_devices(near: tuple[str, str], cores: int) -> None:
    """Of "0-23,48-71" the second run is the second threads of 24 cores."""
    matrix = (
        f"\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV12\t{near[0]}\t0\nGPU1\tNV12\t X \t{near[1]}\t1\n"
    )
    node = node_from_matrix(matrix, find_device("a100-80gb"), file="topo.txt")
    assert node.cpu_cores == cores
    assert node_from_matrix(matrix, find_device("a100-80gb"), file="topo.txt", cores=7).cpu_cores == 7
