"""What a process may take of the host: not more than its control groups leave."""

from pathlib import Path

import pytest

from trimaran.machine import detect
from trimaran.machine.catalog import find_device, find_node, plain_node
from trimaran.machine.detect import free_memory_bytes, limits_left, spare_host_bytes
from trimaran.machine.types import Machine

GIB = 2**30


def write(folder: Path, most: str, current: int, inactive: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon {current}\ninactive_file {inactive}\n")


def test_each_group_around_the_process_limits_it(tmp_path: Path) -> None:
    """8 GiB of which 3 are used, one by files that can go; 16 GiB around it, of which 4 are; the outermost has none."""
    write(tmp_path, "max", 40 * GIB)
    write(tmp_path / "slice", str(16 * GIB), 4 * GIB)
    write(tmp_path / "slice" / "job", str(8 * GIB), 3 * GIB, inactive=GIB)
    assert list(limits_left(tmp_path, "/slice/job")) == [6 * GIB, 12 * GIB]


def test_in_a_container_the_outermost_group_is_its_own(tmp_path: Path) -> None:
    write(tmp_path, str(2 * GIB), GIB)
    assert list(limits_left(tmp_path, "/elsewhere/job")) == [GIB]
    assert list(limits_left(tmp_path, "/")) == [GIB]


def test_where_nothing_is_limited_nothing_is_left_out(tmp_path: Path) -> None:
    assert list(limits_left(tmp_path / "none", "/job")) == []
    assert free_memory_bytes() > 0


def test_the_processes_of_a_machine_share_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 GiB free: four fifths are 64 GiB, of which each of four processes has 16."""
    monkeypatch.setattr(detect, "free_memory_bytes", lambda: 80 * GIB)
    assert [spare_host_bytes(processes) for processes in (1, 4)] == [64 * GIB, 16 * GIB]
    assert spare_host_bytes() == 64 * GIB
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert spare_host_bytes() == 32 * GIB


def test_devices_in_use_share_the_room_on_their_host() -> None:
    """A DGX-1 has 512 GiB: 409.6 for one device, an eighth of that for each of eight, and for ten on two nodes."""
    node = find_node("dgx1-v100")
    room = int(0.8 * 512 * GIB)
    assert (node.host_room(1), node.host_room(8)) == (room, room // 8)
    two = Machine(node=node, nodes=2).allocate()
    assert [two.host_room(ranks) for ranks in (1, 4, 8, 10, 16)] == [room // each for each in (1, 4, 8, 8, 8)]
    box = plain_node(find_device("titan-x"), 1)
    assert (box.host_memory_bytes, box.host_room(1)) == (64 * GIB, int(51.2 * GIB))
