"""What depends on the operating system: planning works on all, ranks are started on Linux alone."""

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from trimaran.base.errors import EnvironmentProblem

_MOMENT_S = 0.05

SUPPORTED_TORCH = ((2, 11), (2, 15))
"""Oldest and newest release of torch, as in pyproject.toml."""


PLAN_INSTEAD = "plan here for a target cluster (--cluster), and start this on Linux, as in WSL or a container"


def needs_linux(what: str, *, instead: str = PLAN_INSTEAD) -> None:
    """Refuse what is not possible, or was never tried, on another system.

    Args:
        what: needs it, such as "training on several processes"
        instead: what to do

    Raises:
        EnvironmentProblem: this is not Linux

    Example:
        >>> needs_linux("training")
    """
    if not sys.platform.startswith("linux"):
        raise EnvironmentProblem(
            f"{what} needs Linux, and this is {sys.platform}: {instead}",
            code="system.not-linux",
            platform=sys.platform,
        )


def reason_of(error: OSError) -> str:
    """Why the system has refused something, for people; where that is a limit of this process, which one.

    Example:
        >>> reason_of(OSError(errno.ENOENT, os.strerror(errno.ENOENT)))
        'No such file or directory'
    """
    reason = error.strerror or str(error) or type(error).__name__
    if error.errno not in _LIMITS or sys.platform == "win32":
        return reason
    import resource

    name, limited, free = _LIMITS[error.errno]
    most, _ = resource.getrlimit(getattr(resource, name))
    return f"{reason}: {free if most == resource.RLIM_INFINITY else limited.format(most)}"


_LIMITS = {
    errno.EFBIG: (
        "RLIMIT_FSIZE",
        "a file of this process may have {:,} bytes at most; raise that limit (ulimit -f)",
        "the file system takes no file of this size; take a folder on another one",
    ),
    errno.EMFILE: (
        "RLIMIT_NOFILE",
        "this process may have {:,} files open at once; raise that limit (ulimit -n)",
        "close other programs, or raise the limit of this machine",
    ),
}
"""Limits of a process that make a call fail: of `getrlimit`, what is said of it, and what where there is none."""


def allowed_cores() -> int:
    """Cores on which this process may run; a limit of its control group on their time does not count."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int:
    """Memory of this machine [bytes].

    Source:
        sysconf(3), _SC_PHYS_PAGES; Windows, GetPhysicallyInstalledSystemMemory.
    """
    if sys.platform == "win32":
        import ctypes

        kibibytes = ctypes.c_ulonglong()
        ctypes.windll.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kibibytes))
        return kibibytes.value * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def count_in(path: Path, name: str) -> int | None:
    """A figure of a file of the kernel that has a name and a figure a line; None: it is not there.

    Args:
        path: such as "/proc/meminfo"
        name: such as "MemTotal", in whose file a colon follows it
    """
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            known, _, figure = line.partition(" ")
            if known.rstrip(":") == name:
                return int(figure.split()[0])
    return None


def groups_around(outermost: Path, group: str) -> Iterator[Path]:
    """Folders of a control group, and of each one around it.

    Args:
        outermost: folder of all groups
        group: path of this one below it, such as "/user.slice/job"; not there, as in a container: those around it
    """
    folder = outermost / group.strip("/")
    while folder.is_relative_to(outermost):
        yield folder
        folder = folder.parent


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """Folders of the control group of this process, in version 2 or 1, and of those around it.

    Args:
        controller: of what it limits, "memory" or "cpu"
        root: of the file system
    """
    lines = ["0::/"]
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            yield from groups_around(root / "sys/fs/cgroup" / controllers, path)


def group_figure(group: Path, *names: str) -> int | None:
    """A figure of a control group; None: it has none, or no limit.

    Args:
        group: its folder
        names: of the file in version 2, and in version 1

    Source:
        Linux, Documentation/admin-guide/cgroup-v2.rst, memory.max; cgroup-v1/memory.rst.
    """
    for name in names:
        with suppress(OSError, ValueError):  # "max" is no number
            return int((group / name).read_text())
    return None


def memory_limit(group: Path) -> int | None:
    """Memory that a control group may have [bytes]; None: any.

    Args:
        group: its folder
    """
    return group_figure(group, "memory.max", "memory.limit_in_bytes")


def memory_left(group: Path) -> int | None:
    """Memory that a control group may still take [bytes]; None: any.

    Args:
        group: its folder
    """
    most = memory_limit(group)
    taken = group_figure(group, "memory.current", "memory.usage_in_bytes")
    if most is None or taken is None:
        return None
    # Cached files are given back when memory is asked for; in version 1 those of groups inside count apart.
    cached = count_in(group / "memory.stat", "total_inactive_file") or count_in(group / "memory.stat", "inactive_file")
    return max(0, most - taken + (cached or 0))


def c_function(name: str) -> Any | None:
    """A function of the C library that notes `errno`; None: this system has none of that name.

    Args:
        name: such as "prctl"

    Example:
        >>> c_function("no_function_of_c") is None
        True
    """
    import ctypes

    return None if sys.platform == "win32" else getattr(ctypes.CDLL(None, use_errno=True), name, None)


_SIGNAL_OF_PARENTS_DEATH = 1


def at_parents_death(name: str) -> Callable[[], None]:
    """What has the system send a process a signal when its parent, or the thread that started it, is gone.

    To be called in that process, also between fork and exec; on another system than Linux it does nothing.

    Args:
        name: of the signal, such as "SIGKILL"

    Source:
        prctl(2), PR_SET_PDEATHSIG
    """
    prctl = c_function("prctl")
    number = int(getattr(signal, name, 0))

    def ask() -> None:
        if prctl is not None:
            prctl(_SIGNAL_OF_PARENTS_DEATH, number)

    return ask


def open_flags(*names: str) -> int:
    """Flags for `os.open`: those of the names that the system has, and binary where it knows text.

    Args:
        names: such as "O_CREAT"

    Example:
        >>> open_flags("O_WRONLY", "O_CREAT") == os.O_WRONLY | os.O_CREAT
        True
    """
    flags = 0
    for name in (*names, "O_BINARY"):
        flags |= int(getattr(os, name, 0))
    return flags


def lock_file(descriptor: int, *, wait: bool, shared: bool = False) -> None:
    """Hold an open file until it is closed, against other processes that hold it by this function.

    Args:
        descriptor: of the file
        wait: until no other process holds it
        shared: others may hold it so too; on Windows they may not

    Raises:
        BlockingIOError: another process holds it, and `wait` is false
        OSError: its file system has no locks
    """
    if sys.platform == "win32":
        import msvcrt

        while True:
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
                return
            except PermissionError as error:
                if not wait:
                    raise BlockingIOError(error.errno, "another process holds it") from error
            time.sleep(_MOMENT_S)
    else:
        import fcntl

        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(descriptor, kind if wait else kind | fcntl.LOCK_NB)
