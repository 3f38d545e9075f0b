from pathlib import Path
from typing import Any

import pytest
from tests.raising import raises

from trimaran.machine.find import find_machine
from trimaran.machine.types import MOST_NODES, Leaves


@pytest.mark.parametrize(
    ("text", "node", "devices", "nodes", "fabric"),
    [
        ("dgx1-v100", "dgx1-v100", 8, 1, None),
        ("DGX-1 V100:4", "dgx1-v100", 8, 4, (4, "ib-edr")),
        ("dgx1-v100:4@ethernet-25g", "dgx1-v100", 8, 4, (1, "ethernet-25g")),
        ("dgx1-v100:2@4x ib-hdr", "dgx1-v100", 8, 2, (4, "ib-hdr")),
        ("dgx1-v100@ethernet-25g", "dgx1-v100", 8, 1, None),
        ("8xv100", "dgx1-v100", 8, 1, None),
        ("4x rtx-3090", "4xrtx-3090", 4, 1, None),
        ("4x RTX 3090:2", "4xrtx-3090", 4, 2, (1, "ethernet-10g")),
        ("titan-x", "1xtitan-x", 1, 1, None),
        ("h200", "hgx-h200", 8, 1, None),
        ("hgx-h100:512", "dgx-h100", 8, 512, (8, "ib-ndr")),
        ("p3.16xlarge", "p3.16xlarge", 8, 1, None),
    ],
)
def test_forms_of_names(text: str, node: str, devices: int, nodes: int, fabric: tuple[int, str] | None) -> None:
    found = find_machine(text)
    joined = found.fabric and (found.fabric[0], found.fabric[1].name)
    assert (found.node.name, found.node.devices, found.nodes, joined) == (node, devices, nodes, fabric)
    assert found.devices == devices * nodes


@pytest.mark.parametrize(
    ("text", "code", "figures"),
    [
        ("dgx1-v10", "machine.unknown", {"match": '"dgx1-v100"', "machine": "dgx1-v10"}),
        ("voodoo", "machine.unknown", {"match": "`trimaran catalog machines`"}),
        ("dgx1-v100:x", "machine.bad-node-count", {"match": '"dgx1-v100:4".*"x"'}),
        ("dgx1-v100:0", "machine.bad-node-count", {"match": '"dgx1-v100:4".*"0"'}),
        ("dgx1-v100:2@ib-edrr", "link.unknown", {"match": '"ib-edr"', "link": "ib-edrr"}),
        ("12x v100", "machine.too-many-devices-on-node", {"match": r"\b8\b NVIDIA.*V100 SXM2 \b16\b", "devices": 12}),
        ("0xv100", "machine.no-device", {"match": '"8xv100-16gb"'}),
        ("3x voodoo", "device.unknown", {"device": "voodoo"}),
        ("missing.toml", "file.unreadable", {"match": r"missing\.toml"}),
    ],
)
def test_what_is_no_machine_is_told(text: str, code: str, figures: dict[str, Any]) -> None:
    with raises(code, **figures):
        find_machine(text)


def test_a_file_of_ones_own_may_be_taken_several_times(tmp_path: Path) -> None:
    path = tmp_path / "rack.toml"
    path.write_text('[[nodes]]\nname = "mine"\nlike = "dgx1-v100"\nnetwork = "1 ethernet-25g"\nsource = "bought so"\n')
    assert find_machine(str(path)).nodes == 1
    found = find_machine(f"{path}:3")
    assert (found.nodes, found.fabric and found.fabric[1].name) == (3, "ethernet-25g")


@pytest.mark.parametrize(
    ("text", "fabric", "leaves"),
    [
        ("dgx-h100:64@nodes_per_leaf=16", (8, "ib-ndr"), Leaves(nodes=16)),
        (
            "dgx-h100:64@4x ib-hdr, nodes_per_leaf=16, oversubscription=3:2",
            (4, "ib-hdr"),
            Leaves(nodes=16, oversubscription=1.5),
        ),
        ("dgx-h100:64@rails", (8, "ib-ndr"), Leaves(nodes=MOST_NODES, by_rail=True)),
        (
            "dgx-h100:64@oversubscription=4,rails,nodes_per_leaf=32",
            (8, "ib-ndr"),
            Leaves(nodes=32, oversubscription=4.0, by_rail=True),
        ),
        ("dgx-h100@rails", None, None),
    ],
)
def test_what_cards_are_connected_to_follows_the_at_sign(
    text: str, fabric: tuple[int, str] | None, leaves: Leaves | None
) -> None:
    found = find_machine(text)
    assert (found.fabric and (found.fabric[0], found.fabric[1].name)) == fabric
    assert found.leaves == leaves


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("leaf=2", "leaves.unknown-word"),
        ("nodes_per_leaf=0", "leaves.bad-node-count"),
        ("nodes_per_leaf=2,oversubscription=1:2", "leaves.bad-oversubscription"),
        ("nodes_per_leaf=2,oversubscription=x", "leaves.bad-oversubscription"),
        ("nodes_per_leaf=2,oversubscription=1:0", "leaves.bad-oversubscription"),
        ("nodes_per_leaf=2,oversubscription=nan", "leaves.bad-oversubscription"),
        ("oversubscription=2", "leaves.needs-node-count"),
        ("rails=maybe", "leaves.bad-rails"),
        ("ib-hdr,ib-ndr", "machine.bad-fabric"),
        ("ib-hdr,,rails", "machine.bad-fabric"),
        ("rails,rails", "machine.word-twice"),
    ],
)
def test_what_means_nothing_after_the_at_sign_is_refused(end: str, code: str) -> None:
    with raises(code):
        find_machine(f"dgx-h100:4@{end}")


def test_rails_need_links_between_the_devices_of_a_node() -> None:
    with raises("leaves.rails-need-links", node="4xrtx-3090"):
        find_machine("4xrtx-3090:4@4 ib-hdr,rails")
