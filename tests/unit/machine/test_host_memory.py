"""What a process may take of the host: not more than its control groups leave."""

from pathlib import Path

from trimaran.machine.detect import free_memory_bytes, limits_left

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
