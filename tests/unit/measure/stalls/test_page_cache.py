"""Files that are read are seen, and the host can be asked to forget them."""

import mmap
import os
from pathlib import Path

from trimaran.measure.stalls.page_cache import OpenedFiles, forget


def write(path: Path, nbytes: int) -> Path:
    with path.open("wb") as file:
        file.write(b"x" * nbytes)
        os.fsync(file.fileno())
    return path


def keeps_pages(path: Path) -> bool:
    """Whether files there live in memory alone."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    inside = [(folder, kind) for folder, kind in mounts if path.is_relative_to(folder)]
    return max(inside, key=lambda entry: len(entry[0]))[1] in ("tmpfs", "ramfs")


def test_files_that_are_opened_or_mapped_are_seen_and_code_is_not(tmp_path: Path) -> None:
    read, mapped, written, code = (tmp_path / name for name in ("read.bin", "mapped.bin", "written.bin", "code.py"))
    for path in (read, mapped, code):
        write(path, 10_000)
    files = OpenedFiles()
    with files.watching() as seen:
        read.read_bytes()
        code.read_bytes()
        written.write_bytes(b"result")
        with mapped.open("rb") as file:
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    after = tmp_path / "after.bin"
    write(after, 10)
    after.read_bytes()
    view.close()
    assert seen == {read, mapped}


def test_the_host_forgets_what_it_is_asked_to(tmp_path: Path) -> None:
    path = write(tmp_path / "data.bin", 1 << 20)
    path.read_bytes()
    found = forget([path, tmp_path / "gone.bin"])
    assert (found.files, found.nbytes) == (1, 1 << 20)
    if found.kept is not None:
        assert found.kept == 1.0 if keeps_pages(tmp_path) else found.kept < 0.1
    assert forget([]).kept is None
