"""Memory of this host that processes can still have."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def free_memory_bytes() -> int:
    """What this process can have without pushing others out [bytes].

    That is what the machine has to spare, and what the limits of the control groups around the process leave.

    Source:
        Linux, Documentation/filesystems/proc.rst, MemAvailable; Documentation/admin-guide/cgroup-v2.rst, memory.max.
    """
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return min([available, *limits_left(_GROUPS, _own_group())])


def limits_left(root: Path, group: str) -> Iterator[int]:
    """What a control group (version 2), and each one around it, may still take of the memory [bytes].

    Args:
        root: folder of all groups
        group: path of this one below it, such as "/user.slice/job"; not there, as in a container: those around it
    """
    folder = root / group.strip("/")
    while folder.is_relative_to(root):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
            most = int((folder / "memory.max").read_text())
            yield max(0, most - int((folder / "memory.current").read_text()) + _reclaimable_bytes(folder))
        folder = folder.parent


def _reclaimable_bytes(folder: Path) -> int:
    """Cached files that are given back when memory is asked for [bytes]."""
    with contextlib.suppress(OSError, ValueError):
        lines = (folder / "memory.stat").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    return 0


def _own_group() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return line.removeprefix("0::")
    return "/"
