"""What depends on the operating system: planning works on all, ranks are started on Linux alone."""

import os
import sys
import time
from typing import Any

from trimaran.base.errors import EnvironmentProblem

_MOMENT_S = 0.05


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
