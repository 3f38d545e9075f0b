import re
from pathlib import Path

import pytest

from trimaran.cluster.links import find_link
from trimaran.cluster.machines import Node
from trimaran.cluster.node_text import node_text
from trimaran.cluster.plain_machines import find_node, node_names
from trimaran.cluster.topology import pair
from trimaran.cluster.user_files import read_machine, read_machine_file
from trimaran.errors import InputError

PAGE = Path(__file__).parents[3] / "docs" / "clusters.md"
_TOML = re.search(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
EXAMPLE = _TOML[1] if _TOML else ""


def test_the_example_of_the_documentation() -> None:
    machine = read_machine(EXAMPLE, file="rack.toml")
    node = machine.node
    assert (node.name, node.devices, machine.nodes, machine.devices) == ("builder", 4, 3, 12)
    assert machine.fabric == (2, find_link("ethernet-25g"))
    assert node.device.memory.nbytes == 16 * 2**30
    assert node.device.tensor_dtypes == ("float16",)
    assert node.device.compute["float16"].flops_per_s == 76.7e12
    assert not node.peer_access
    # 4 links of 12.9e9 B/s; two of the user's own; nothing across sockets
    assert pair(node, 0, 1).bytes_per_s == pytest.approx(51.6e9)
    assert pair(node, 2, 3).bytes_per_s == pytest.approx(25e9)
    assert pair(node, 1, 2).kind == "socket"


def test_what_is_not_said_of_a_device_is_assumed_with_its_source() -> None:
    device = read_machine(EXAMPLE, file="rack.toml").node.device
    assert device.copies.to_host_bytes_per_s == 26.1e9
    assert "assumed" in device.copies.source
    assert device.bandwidth.fraction == 0.81
    assert device.bandwidth.source.startswith("its data sheet; share: large elementwise work 0.81")


BAD = [
    ('memory = "16 GiB"', 'memory = "16"', 'devices[0].memory: expected a size such as "16 GiB", got "16"'),
    ('memory = "16 GiB"', "memory = 16", 'devices[0].memory: expected a size such as "16 GiB", got 16'),
    ('memory = "16 GiB"', 'memory = "16 GB/s"', 'devices[0].memory: expected a size such as "16 GiB", got "16 GB/s"'),
    ('memory = "16 GiB"', 'memory = "-16 GiB"', 'devices[0].memory: expected a size such as "16 GiB", got "-16 GiB"'),
    ('memory = "16 GiB"', 'memmory = "16 GiB"', 'devices[0].memmory: unknown key; did you mean "memory"?'),
    ('memory = "16 GiB"\n', "", 'devices[0].memory: missing; expected a size such as "16 GiB"'),
    ('"448 GB/s"', '"448 GiB"', 'devices[0].bandwidth: expected a rate such as "25 GB/s" or "1 Gb/s", got "448 GiB"'),
    ('"19.2 TFLOP/s"', '"19.2 TB/s"', "devices[0].compute.float32: expected arithmetic per second such as"),
    ("float32 =", "float23 =", 'devices[0].compute.float23: unknown key; did you mean "float32"?'),
    ('tensor = ["float16"]', 'tensor = ["bfloat16"]', 'devices[0].tensor: expected dtypes of compute, got "bfloat16"'),
    ('pcie = "4.0 x16"', 'pcie = "4.0"', 'devices[0].pcie: expected a slot such as "4.0 x16", got "4.0"'),
    ('power = "140 W"', 'power = "140"', 'devices[0].power: expected a power such as "300 W", got "140"'),
    ('source = "its data sheet"\n', "", "devices[0].source: missing; expected a text"),
    ('raw = "14 GB/s"', 'raw = "14 Gb/s"', "links[0].sustained: expected no more than raw, 14 Gb/s"),
    ('latency = "9 us"', 'latency = "9"', 'links[0].latency: expected a duration such as "1.5 us", got "9"'),
    ("devices = 4", "devices = -4", "nodes[0].devices: expected a whole number of at least 1, got -4"),
    ("devices = 4", "devices = 5", "nodes[0].links: gpu4 is joined to nothing: a link is missing"),
    ("gpu2-3 slot", "gpu2 slot", "nodes[0].links: no way leads from gpu3 to the host (cpu0, …): a link is missing"),
    ('"plx0 gpu0-1 slot",', '"plx1 gpu0-1 slot",', "nodes[0].links: no way leads from gpu0 to gpu2, gpu3"),
    ("our-bridge x2", "nvlink9 x2", 'nodes[0].links[4]: unknown link "nvlink9"; did you mean "nvlink'),
    ("gpu0 gpu1 bridge", "gpu0 gpu9 bridge", 'nodes[0].links[3]: "gpu0 gpu9 bridge" names a device past the last of 4'),
    ("cpu0 cpu1 xgmi-rome", "cpu0 xgmi-rome", "nodes[0].links[5]: expected a line such as"),
    ('"example-card"  ', '"example-cart"  ', 'nodes[0].device: unknown device "example-cart"; did you mean'),
    ("peer_access", "peer_acess", 'nodes[0].peer_acess: unknown key; did you mean "peer_access"?'),
    ("peer_access = false", 'peer_access = "no"', 'nodes[0].peer_access: expected true or false, got "no"'),
    ("nodes = 3", "nodes = 0", "machine.nodes: expected a whole number of at least 1, got 0"),
    ("2 ethernet-25g", "2 ethernet-26g", 'machine.fabric: unknown link "ethernet-26g"; did you mean "ethernet-'),
    ('node = "builder"', 'node = "bilder"', 'machine.node: unknown node "bilder"; did you mean "builder"?'),
    ("[machine]", "[machine", "not TOML: Expected ']'"),
    ("[[nodes]]", "[[node]]", 'node: unknown key; did you mean "nodes"?'),
]


@pytest.mark.parametrize(("right", "wrong", "message"), BAD, ids=[wrong or right for right, wrong, _ in BAD])
def test_a_mistake_is_answered_with_its_place(right: str, wrong: str, message: str) -> None:
    assert right in EXAMPLE
    with pytest.raises(InputError) as caught:
        read_machine(EXAMPLE.replace(right, wrong, 1), file="rack.toml")
    assert caught.value.message.startswith("rack.toml: ")
    assert message in caught.value.message


def test_several_nodes_need_something_between_them() -> None:
    node = '[[nodes]]\nname = "a"\ndevice = "t4"\ndevices = 1\nlinks = ["cpu0 gpu0 slot"]\nsource = "b"\n'
    text = f"[machine]\nnodes = 2\n{node}"
    with pytest.raises(InputError, match=r"machine\.fabric: missing; expected what joins 2 nodes"):
        read_machine(text, file="rack.toml")


def test_a_file_without_a_node_is_told_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text("")
    with pytest.raises(InputError, match=r"nodes: missing; expected at least one table headed \[\[nodes\]\]"):
        read_machine_file(path)


def _same(one: Node, other: Node) -> bool:
    def key(node: Node) -> list[tuple[str, str, str, int, float]]:
        return sorted((edge.a, edge.b, edge.link.name, edge.count, edge.bytes_per_s) for edge in node.edges)

    return (one.device, one.devices, one.peer_access, one.network_cards, key(one)) == (
        other.device, other.devices, other.peer_access, other.network_cards, key(other),
    )  # fmt: skip


@pytest.mark.parametrize("name", node_names())
def test_a_node_written_and_read_again_is_the_same(name: str) -> None:
    node = find_node(name)
    again = read_machine(node_text(node), file="again.toml").node
    assert again.device == node.device
    assert _same(node, again)
