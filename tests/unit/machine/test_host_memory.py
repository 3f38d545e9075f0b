"""What a process may take of the host: not more than its control groups leave."""

from pathlib import Path

import pytest

from trimaran.base.system import count_in, groups_around, memory_left, memory_limit
from trimaran.machine import detect
from trimaran.machine.catalog import find_device, find_node, plain_node
from trimaran.machine.detect import free_memory_bytes, spare_host_bytes
from trimaran.machine.types import Machine

MIB, GIB = 2**20, 2**30


def write(folder: Path, most: str, current: int, inactive: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon {current}\ninactive_file {inactive}\n")


def limits_left(root: Path, group: str) -> list[int]:
    """What the groups that have a limit could still take."""
    return [left for left in map(memory_left, groups_around(root, group)) if left is not None]


def test_each_group_around_the_process_limits_it(tmp_path: Path) -> None:
    """8 GiB of which 3 are used, one by files that can go; 16 GiB around it, of which 4 are; the outermost has none."""
    write(tmp_path, "max", 40 * GIB)
    write(tmp_path / "slice", str(16 * GIB), 4 * GIB)
    write(tmp_path / "slice" / "job", str(8 * GIB), 3 * GIB, inactive=GIB)
    assert limits_left(tmp_path, "/slice/job") == [6 * GIB, 12 * GIB]


def test_groups_of_version_1_limit_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """512 MiB of which 200 are used, 100 of these by files that can go; the machine has more."""
    (tmp_path / "memory.limit_in_bytes").write_text(f"{512 * MIB}\n")
    (tmp_path / "memory.usage_in_bytes").write_text(f"{200 * MIB}\n")
    (tmp_path / "memory.stat").write_text(f"cache {150 * MIB}\ninactive_file 0\ntotal_inactive_file {100 * MIB}\n")
    assert (memory_limit(tmp_path), memory_left(tmp_path)) == (512 * MIB, 412 * MIB)
    monkeypatch.setattr(detect, "control_groups", lambda controller: iter([tmp_path]))
    assert free_memory_bytes() <= 412 * MIB


def test_figures_of_the_kernel_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       8 kB\nMemFree:        3 kB\n")
    (tmp_path / "events").write_text("oom 4\noom_kill 2\n")
    assert (count_in(tmp_path / "meminfo", "MemTotal"), count_in(tmp_path / "events", "oom_kill")) == (8, 2)
    assert count_in(tmp_path / "events", "max") is None
    assert count_in(tmp_path / "none", "max") is None


def test_in_a_container_the_outermost_group_is_its_own(tmp_path: Path) -> None:
    write(tmp_path, str(2 * GIB), GIB)
    assert limits_left(tmp_path, "/elsewhere/job") == [GIB]
    assert limits_left(tmp_path, "/") == [GIB]


def test_where_nothing_is_limited_nothing_is_left_out(tmp_path: Path) -> None:
    assert limits_left(tmp_path / "none", "/job") == []
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
