"""`trimaran catalog machines` lists machines, draws one, and reads those of others."""

import json
from pathlib import Path

import pytest
from tests.commands.running import trimaran

MATRIX = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"


def test_the_list_names_machines_with_their_devices(tmp_path: Path) -> None:
    machines = json.loads(trimaran("clusters", "--json", cwd=tmp_path).stdout)["machines"]
    devices = {machine["name"]: (machine["devices"], machine["device"]) for machine in machines}
    assert devices["dgx1-v100"] == (8, "v100-16gb")
    assert devices["gb200-nvl72"] == (72, "gb200")


def test_the_list_fits_80_columns(tmp_path: Path) -> None:
    printed = trimaran("clusters", cwd=tmp_path).stdout
    assert "dgx-h100" in printed
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= 80


def test_a_machine_is_drawn_with_pairs_tree_rings_and_sources(tmp_path: Path) -> None:
    printed = trimaran("clusters", "dgx1-p100", cwd=tmp_path).stdout
    assert "gpu0    X  NV1  NV1  NV1  NV1 SYS* SYS* SYS*" in printed
    assert "    gpu0, gpu1  pcie3x16" in printed
    assert any(line.split()[:4] == ["5", "1", "5.60", "GB/s"] for line in printed.splitlines())
    assert "uuudown/Tartan" in printed
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= 80


def test_json_has_what_is_drawn(tmp_path: Path) -> None:
    document = json.loads(trimaran("clusters", "dgx1-v100:4", "--json", cwd=tmp_path).stdout)
    machine = document["machine"]
    assert document["schema_version"] == 1
    assert (machine["nodes"], machine["fabric"]) == (4, "4 x ib-edr")
    assert sum(pair["links"] == 0 for pair in machine["pairs"]) == 12
    assert {ring["devices"]: ring["kind"] for ring in machine["rings"]}[5] == "staged"


def test_devices_are_listed(tmp_path: Path) -> None:
    devices = json.loads(trimaran("clusters", "--devices", "--json", cwd=tmp_path).stdout)["devices"]
    found = next(device for device in devices if device["name"] == "h200")
    assert found["multiprocessors"] == 132
    assert found["source"]


def test_an_imported_node_is_kept_and_drawn_again(tmp_path: Path) -> None:
    (tmp_path / "topo.txt").write_text(MATRIX)
    kept = trimaran("clusters", "--import", "topo.txt", "--device", "rtx-a6000", "--toml", cwd=tmp_path)
    (tmp_path / "mine.toml").write_text(kept.stdout)
    again = json.loads(trimaran("clusters", "mine.toml", "--json", cwd=tmp_path).stdout)["machine"]
    assert (again["name"], again["pairs"][0]["links"]) == ("topo", 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dgx1-v10",), '"dgx1-v100"'),
        (("bad.toml",), "bad.toml: devices[0].memory"),
        (("--import", "bad.txt", "--device", "v100"), "bad.txt: line 2, column GPU1"),
    ],
)
def test_mistakes_end_with_their_place_and_code_2(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "bad.toml").write_text('[[devices]]\nname = "a"\nmemory = "16"\nsource = "b"\n')
    (tmp_path / "bad.txt").write_text(MATRIX.replace("NV4", "NVX", 1))
    done = trimaran("clusters", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr


SECOND_KIND = """
[machine]
node = "new"
nodes = 2
[[nodes]]
name = "new"
like = "dgx-h100"
source = "s"
[[nodes]]
name = "old"
like = "dgx1-v100"
source = "s"
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "lenet", "--cluster", "mixed.toml"),
        ("plan", "llama3:8b", "--cluster", "mixed.toml:16"),
        ("explain", "lenet", "--cluster", "mixed.toml"),
        ("simulate", "lenet", "--cluster", "mixed.toml"),
        ("scale", "lenet", "--cluster", "mixed.toml", "--batch", "64"),
        ("crossover", "inception_v3", "--cluster", "mixed.toml", "--curve", "inception-v3"),
        ("clusters", "mixed.toml"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_no_command_leaves_a_second_kind_of_node_out(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "mixed.toml").write_text(SECOND_KIND, encoding="utf-8")
    done = trimaran(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert 'none of "old"' in done.stderr
    assert 'nodes = { "new" = 2, "old" = 1 }' in done.stderr


def test_leaves_and_kinds_are_drawn(tmp_path: Path) -> None:
    (tmp_path / "mixed.toml").write_text(
        '[machine]\nnodes = { "dgx-a100" = 1, "dgx-h100" = 3 }\nrails = true\n', encoding="utf-8"
    )
    found = json.loads(trimaran("clusters", "mixed.toml", "--json", cwd=tmp_path).stdout)["machine"]
    assert found["kinds"] == {"dgx-a100": 1, "dgx-h100": 3}
    assert (found["name"], found["nodes"], found["leaves"]["by_rail"]) == ("dgx-a100", 4, True)
    drawn = trimaran("clusters", "dgx-h100:64@nodes_per_leaf=16,oversubscription=2:1", cwd=tmp_path).stdout
    assert "16 nodes a leaf, 2:1 above it" in " ".join(drawn.split())


@pytest.mark.parametrize(
    "command",
    [
        ("price", "llama3:8b", "--batch", "24", "--strategy", "dp24"),
        ("scale", "lenet", "--local-batch", "8", "--devices", "24"),
        ("crossover", "lenet", "--local-batch", "8", "--devices", "8,16"),
        ("plan", "llama3:8b", "--batch", "24"),
    ],
    ids=lambda command: command[0],
)
def test_nodes_of_several_kinds_are_said_to_count_as_the_slowest(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "rack.toml").write_text(
        '[machine]\nnodes = { "dgx-h100" = 2, "dgx-a100" = 1 }\nfabric = "8 ib-hdr"\n', encoding="utf-8"
    )
    done = trimaran(*command, "--cluster", "rack.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "of 2 dgx-h100 and 1 dgx-a100 all count as dgx-a100" in done.stderr
