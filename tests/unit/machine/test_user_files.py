import re
from pathlib import Path
from typing import Any

import pytest
from tests.raising import raises

from trimaran.machine.catalog import find_link, find_node, node_names
from trimaran.machine.find import find_machine
from trimaran.machine.machine_files import node_text, read_machine, read_machine_file
from trimaran.machine.topology import pair
from trimaran.machine.types import Leaves, Node

PAGE = Path(__file__).parents[3] / "docs" / "clusters.md"
_TOML = re.search(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
EXAMPLE = _TOML[1] if _TOML else ""


def test_the_example_of_the_documentation() -> None:
    machine = read_machine(EXAMPLE, file="rack.toml")
    node = machine.node
    assert (node.name, node.devices, machine.nodes, machine.devices) == ("builder", 4, 3, 12)
    assert machine.fabric == (2, find_link("ethernet-25g"))
    assert node.device.memory.nbytes == 16 * 2**30
    assert node.device.tensor_precisions == ("fp16",)
    assert node.device.compute["fp16"].flops_per_s == 76.7e12
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
    ('memory = "16 GiB"', 'memory = "16"', {"match": r'devices\[0\]\.memory.*GiB"', "value": "16"}),
    ('memory = "16 GiB"', "memory = 16", {"match": r'devices\[0\]\.memory.*GiB"', "value": 16}),
    ('memory = "16 GiB"', 'memory = "16 GB/s"', {"match": r'devices\[0\]\.memory.*GiB"', "value": "16 GB/s"}),
    ('memory = "16 GiB"', 'memory = "-16 GiB"', {"match": r"devices\[0\]\.memory", "value": "-16 GiB"}),
    ('memory = "16 GiB"', 'memmory = "16 GiB"', {"match": r'devices\[0\]\.memmory.*"memory"'}),
    ('memory = "16 GiB"\n', "", {"match": r'devices\[0\]\.memory.*"16 GiB"'}),
    ('"448 GB/s"', '"448 GiB"', {"match": r'devices\[0\]\.bandwidth.*"25 GB/s".*"1 Gb/s"', "value": "448 GiB"}),
    ('"19.2 TFLOP/s"', '"19.2 TB/s"', {"match": r"devices\[0\]\.compute\.fp32"}),
    ("fp32 =", "float23 =", {"match": r"devices\[0\]\.compute\.float23.*fp32"}),
    ('tensor = ["fp16"]', 'tensor = ["bf16"]', {"match": r'devices\[0\]\.tensor.*"bf16"'}),
    ('pcie = "4.0 x16"', 'pcie = "4.0"', {"match": r'devices\[0\]\.pcie.*x16"', "value": "4.0"}),
    ('power = "140 W"', 'power = "140"', {"match": r'devices\[0\]\.power.*"300 W"', "key": "power", "value": "140"}),
    ('source = "its data sheet"\n', "", {"match": r"devices\[0\]\.source"}),
    ('raw = "14 GB/s"', 'raw = "14 Gb/s"', {"match": r"links\[0\]\.sustained.*\b14\b Gb/s"}),
    ('latency = "9 us"', 'latency = "9"', {"match": r'links\[0\]\.latency.*"1\.5 us"', "value": "9"}),
    ("devices = 4", "devices = -4", {"match": r"nodes\[0\]\.devices.*\b1\b", "value": -4}),
    ("devices = 4", "devices = 5", {"match": r"nodes\[0\]\.links.*gpu4"}),
    ("gpu2-3 slot", "gpu2 slot", {"match": r"nodes\[0\]\.links.*gpu3.*cpu0, …"}),
    ('"plx0 gpu0-1 slot",', '"plx1 gpu0-1 slot",', {"match": r"nodes\[0\]\.links.*gpu0.*gpu2, gpu3"}),
    ("our-bridge x2", "nvlink9 x2", {"match": r'nodes\[0\]\.links\[4\].*"nvlink9".*"nvlink'}),
    ("gpu0 gpu1 bridge", "gpu0 gpu9 bridge", {"match": r"nodes\[0\]\.links\[3\].*gpu9.*\b4\b"}),
    ("cpu0 cpu1 xgmi-rome", "cpu0 xgmi-rome", {"match": r"nodes\[0\]\.links\[5\]"}),
    (
        '"example-card"  ',
        '"example-cart"  ',
        {"match": r"nodes\[0\]\.device", "key": "device", "value": "example-cart"},
    ),
    ("peer_access", "peer_acess", {"match": r'nodes\[0\]\.peer_acess.*"peer_access"'}),
    ("peer_access = false", 'peer_access = "no"', {"match": r"nodes\[0\]\.peer_access", "value": "no"}),
    ("nodes = 3", "nodes = 0", {"match": r"machine\.nodes.*\b1\b", "value": 0}),
    ("2 ethernet-25g", "2 ethernet-26g", {"match": r'machine\.fabric.*"ethernet-26g".*"ethernet-'}),
    ('node = "builder"', 'node = "bilder"', {"match": r'machine\.node.*"builder"', "key": "node", "value": "bilder"}),
    ("[[nodes]]", "[[node]]", {"match": '"nodes"', "key": "node"}),
]


@pytest.mark.parametrize(("right", "wrong", "figures"), BAD, ids=[wrong or right for right, wrong, _ in BAD])
def test_a_mistake_is_answered_with_its_place(right: str, wrong: str, figures: dict[str, Any]) -> None:
    assert right in EXAMPLE
    with raises("machine-file.wrong-value", file="rack.toml", **figures):
        read_machine(EXAMPLE.replace(right, wrong, 1), file="rack.toml")


def test_a_file_that_is_no_toml_is_told() -> None:
    with raises("file.not-toml", source="rack.toml"):
        read_machine(EXAMPLE.replace("[machine]", "[machine", 1), file="rack.toml")


def test_several_nodes_need_something_between_them() -> None:
    node = '[[nodes]]\nname = "a"\ndevice = "t4"\ndevices = 1\nlinks = ["cpu0 gpu0 slot"]\nsource = "b"\n'
    text = f"[machine]\nnodes = 2\n{node}"
    with raises("machine-file.wrong-value", match=r"machine\.fabric.*\b2\b"):
        read_machine(text, file="rack.toml")


def test_a_node_of_the_catalog_needs_no_table() -> None:
    said = '[machine]\nnode = "dgx-h100"\nnodes = 16\nnodes_per_leaf = 4\noversubscription = "4:1"\n'
    machine = read_machine(said, file="rack.toml")
    assert machine == find_machine("dgx-h100:16@nodes_per_leaf=4,oversubscription=4:1")
    with raises("machine-file.wrong-value", match="dgx-h1000"):
        read_machine(said.replace("h100", "h1000"), file="rack.toml")


def test_a_file_without_a_node_is_told_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text("")
    with raises("machine-file.no-nodes"):
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


@pytest.mark.parametrize(
    ("before", "after", "match"),
    [
        ("devices = 4", "devices = 1000000000", r"nodes\[0\]\.devices.*1,024"),
        ("devices = 4", "devices = 9223372036854775807", r"nodes\[0\]\.devices.*1,024"),
        ("gpu0", "gpu0-1000000000", r"nodes\[0\]\.links.*gpu0-1000000000"),
        ("gpu0", "gpu0-9999", r"nodes\[0\]\.links"),
        ("gpu0", "gpu" + "9" * 5000, r"nodes\[0\]\.links"),
        ("nodes = 3", "nodes = 1000000000", r"machine\.nodes.*100,000"),
    ],
)
def test_a_machine_that_nobody_has_is_refused_before_it_is_made(before: str, after: str, match: str) -> None:
    assert before in EXAMPLE
    with raises("machine-file.wrong-value", match=match):
        read_machine(EXAMPLE.replace(before, after, 1), file="rack.toml")


@pytest.mark.parametrize("figure", ["nan", "inf", "-inf"])
def test_a_figure_without_an_end_is_refused(figure: str) -> None:
    with raises("file.unusable-value", match=r"rack\.toml: \$\.nodes\[0\]\.devices"):
        read_machine(EXAMPLE.replace("devices = 4", f"devices = {figure}", 1), file="rack.toml")


def test_nodes_that_are_like_each_other_are_refused() -> None:
    nodes = [f'[[nodes]]\nname = "{a}"\nlike = "{b}"\nsource = "s"\n' for a, b in (("a", "b"), ("b", "a"))]
    with raises("machine-file.wrong-value", match=r"nodes\[\d\]\.like.*b is like a"):
        read_machine("[machine]\nnode = 'a'\n" + "".join(nodes), file="rack.toml")


TWO_KINDS = """
[machine]
nodes = { "dgx-h100" = 2, "dgx-a100" = 1 }
fabric = "8 ib-hdr"
"""


def test_nodes_of_several_kinds_count_as_the_slowest() -> None:
    machine = read_machine(TWO_KINDS, file="rack.toml")
    assert (machine.node.name, machine.nodes, machine.devices) == ("dgx-a100", 3, 24)
    assert machine.kinds == (("dgx-h100", 2), ("dgx-a100", 1))
    assert machine.kinds_text == "2 dgx-h100 and 1 dgx-a100"
    assert machine.node.device == find_machine("dgx-a100").node.device
    assert "2 dgx-h100 and 1 dgx-a100" in machine.node.title
    assert "all count as dgx-a100" in machine.node.caveat


def test_a_kind_is_slowest_only_if_it_is_in_everything() -> None:
    """An H200 has more memory than an H100, and nothing that is slower; a V100 with more memory than an A100 is not."""
    mixed = TWO_KINDS.replace("dgx-a100", "hgx-h200")
    assert read_machine(mixed, file="rack.toml").node.name == "dgx-h100"
    own = '[[nodes]]\nname = "large"\nlike = "dgx1-v100"\ndevice = "large-v100"\nsource = "s"\n'
    device = (
        '[[devices]]\nname = "large-v100"\nmemory = "90 GB"\n'
        'bandwidth = "900 GB/s"\ncompute = { fp32 = "15 TFLOP/s" }\n'
        'architecture = "volta"\npcie = "3.0 x16"\nprocessors = 80\ncache = "6 MiB"\npower = "300 W"\nsource = "s"\n'
        'links = "6 nvlink2"\n'
    )
    with raises("machine-file.no-slowest-node", match="memory"):
        read_machine(TWO_KINDS.replace('"dgx-h100"', '"large"') + own + device, file="rack.toml")
    # An MI300X has the higher peak, of which its products reach a smaller part.
    with raises("machine-file.no-slowest-node", match="dgx-h100 is ahead in bf16 as products reach it; mi300x-8"):
        read_machine(TWO_KINDS.replace("dgx-a100", "mi300x-8"), file="rack.toml")
    with raises("machine-file.no-slowest-node", match="4 devices, not 8"):
        read_machine(TWO_KINDS.replace("dgx-h100", "polaris"), file="rack.toml")


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ('{ "dgx-h100" = 0 }', r"machine\.nodes\.dgx-h100: .*at least 1"),
        ('{ "dgx-h10" = 2 }', r"machine\.nodes\.dgx-h10: unknown machine"),
        ("{}", r"machine\.nodes: "),
        ('{ "dgx-h100" = 60000, "dgx-a100" = 60000 }', r"machine\.nodes: .*100,000"),
    ],
)
def test_kinds_that_mean_nothing_are_answered_with_their_place(wrong: str, place: str) -> None:
    with raises("machine-file.wrong-value", match=place):
        read_machine(f"[machine]\nnodes = {wrong}\n", file="rack.toml")
    with raises("machine-file.wrong-value", key="node"):
        read_machine(TWO_KINDS + 'node = "dgx-h100"\n', file="rack.toml")


def test_other_names_of_a_kind_are_known() -> None:
    assert read_machine('[machine]\nnodes = { "DGX H100" = 2 }\n', file="rack.toml").node.name == "dgx-h100"


def test_a_second_kind_of_node_is_never_left_out_in_silence() -> None:
    other = '[[nodes]]\nname = "old"\nlike = "dgx1-v100"\nsource = "b"\n'
    first = '[machine]\nnode = "new"\nnodes = 4\n[[nodes]]\nname = "new"\nlike = "dgx-h100"\nsource = "b"\n'
    with raises("machine-file.second-node", node="old", match='nodes = { "new" = 4, "old" = 1 }'):
        read_machine(first + other, file="rack.toml")
    # A table that another one is like is used.
    both = first.replace('like = "dgx-h100"', 'like = "old"') + other
    assert read_machine(both, file="rack.toml").node.name == "new"


def test_the_number_of_nodes_of_several_kinds_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rack.toml"
    path.write_text(TWO_KINDS, encoding="utf-8")
    assert find_machine(str(path)).nodes == 3
    with raises("machine.several-kinds"):
        find_machine(f"{path}:4")


def test_a_file_says_its_leaves_and_a_fabric_for_more_nodes(tmp_path: Path) -> None:
    path = tmp_path / "rack.toml"
    path.write_text(
        '[machine]\nfabric = "2 ethernet-25g"\nnodes_per_leaf = 2\noversubscription = "2:1"\n'
        '[[nodes]]\nname = "a"\nlike = "dgx-a100"\nsource = "b"\n',
        encoding="utf-8",
    )
    machine = find_machine(f"{path}:8")
    assert machine.fabric is not None
    assert (machine.fabric[0], machine.fabric[1].name) == (2, "ethernet-25g")
    assert machine.leaves == Leaves(nodes=2, oversubscription=2.0)
    path.write_text(path.read_text(encoding="utf-8").replace('"2:1"', '"1:2"'), encoding="utf-8")
    with raises("machine-file.wrong-value", match=r"machine\.nodes_per_leaf|oversubscription"):
        find_machine(str(path))
