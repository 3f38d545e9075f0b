"""Which files a data set reads, and how to make the host forget them.

Linux keeps what was read from files in memory (the page cache), so that a second pass over the data does not show what
the first one cost. `posix_fadvise(POSIX_FADV_DONTNEED)` asks it to let go of one file; any process that may read the
file may ask. It keeps pages that are mapped or not yet written, and `mincore` says what it kept. Which files there are
is seen from two sides: Python's audit event "open", and what the process holds open or mapped; a library that opens and
closes a file in C between two looks is not seen.

Source:
    Linux man-pages: posix_fadvise(2), mincore(2); Python, sys.addaudithook.
"""

import contextlib
import ctypes
import mmap
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG

_CODE = (".py", ".pyc", ".pyi", ".so", ".pth")
_SYSTEM = ("/proc/", "/sys/", "/dev/")
_MOST_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """Files that the host was asked to forget.

    Attributes:
        files: how many
        nbytes: of them together [bytes]
        kept: share of their bytes that the host still had in memory afterwards; None: it does not say
    """

    files: int = 0
    nbytes: int = 0
    kept: float | None = None


class OpenedFiles:
    """The regular files that this process opens for reading, while `watching`.

    An audit hook cannot be taken off, so it lives as long as the process and does nothing most of the time.
    """

    def __init__(self) -> None:
        self._paths: set[str] | None = None
        sys.addaudithook(self._hear)

    @contextlib.contextmanager
    def watching(self) -> Iterator[set[Path]]:
        """A block in which opened files are noted.

        Yields:
            A set that holds, once the block has ended, the files that were opened in it, and those that the process
            holds open or mapped at its end and did not before.
        """
        found: set[Path] = set()
        before = held_files()
        noted: set[str] = set()
        self._paths = noted
        try:
            yield found
        finally:
            self._paths = None
            found |= {path for path in map(Path, noted) if _is_data(path)} | (held_files() - before)

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event != "open" or self._paths is None:
            return
        path, _, flags = arguments
        if isinstance(path, str) and isinstance(flags, int) and flags & os.O_ACCMODE == os.O_RDONLY:
            # Absolute at once: the process may go elsewhere.
            self._paths.add(os.path.abspath(path))  # noqa: PTH100 nothing is to be looked up here


def forget(paths: Iterable[Path]) -> Forgotten:
    """Ask the host to let go of what it has of some files in memory, and look what it kept.

    Args:
        paths: regular files; those that cannot be opened are passed over
    """
    if not hasattr(os, "posix_fadvise"):
        return Forgotten()
    files = nbytes = resident = looked_at = 0
    for path in sorted(paths):
        with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            files, nbytes = files + 1, nbytes + size
            kept = _resident_bytes(file.fileno(), size)
            if kept is not None:
                resident, looked_at = resident + kept, looked_at + min(size, _MOST_BYTES)
    return Forgotten(files=files, nbytes=nbytes, kept=resident / looked_at if looked_at else None)


def _resident_bytes(descriptor: int, size: int) -> int | None:
    """How much of a file is in memory [bytes]; of a very large one, of its first part."""
    size = min(size, _MOST_BYTES)
    if not size:
        return 0
    try:
        with mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY) as mapped:
            pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
            start = ctypes.c_char.from_buffer(mapped)
            try:
                address = ctypes.c_void_p(ctypes.addressof(start))
                failed = ctypes.CDLL(None, use_errno=True).mincore(address, ctypes.c_size_t(size), pages)
            finally:
                # It would keep the mapping from being closed.
                del start
    except (OSError, ValueError, AttributeError):
        return None
    if failed:
        return None
    return min(size, sum(page & 1 for page in bytes(pages)) * mmap.PAGESIZE)


def held_files() -> set[Path]:
    """Regular files, other than code, that this process has open or mapped."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(entry.path))  # noqa: PTH115 of what may be no path
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith("/"):
                found.add(fields[5])
    return {path for path in map(Path, found) if _is_data(path)}


def _is_data(path: Path) -> bool:
    name = str(path)
    if not name.startswith("/") or name.startswith(_SYSTEM) or path.suffix in _CODE or ".so." in path.name:
        return False
    try:
        return S_ISREG(path.stat().st_mode)
    except OSError:
        return False
