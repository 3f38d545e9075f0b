"""Ranks that run out of memory: how that is seen, and what is known of the memory then.

    the rank is refused memory    torch, numpy or Python raise: of a GPU, of an address space that is limited, of a
                                  machine that promises no more than it has
    the kernel kills the rank     there is no exception. The kernel counts what it kills for want of memory, by control
                                  group and in all; the parent compares the count with that at the start

A plan may have the rest of a limit, without what the interpreter and the libraries take: the *room* of a rank.
"""

import errno
import re
from dataclasses import dataclass
from pathlib import Path

from trimaran.base.errors import ExecutionError
from trimaran.base.system import control_groups, count_in, memory_limit
from trimaran.base.units import format_bytes
from trimaran.base.user_errors import summary, user_lines
from trimaran.launch.activity import ACTIVITY, STEP, memory_bytes

# Texts of torch and of C libraries where the host has no memory; those of CUDA have a class.
_REFUSED = re.compile(r"can't allocate memory|cannot allocate memory|not enough memory|std::bad_alloc", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The most memory that something lets processes have.

    Attributes:
        name: for people
        nbytes: the most [bytes]
        used_bytes: of it by now [bytes]
        before_bytes: of it before the job was made: by the interpreter and libraries, and by other processes [bytes]
    """

    name: str
    nbytes: int
    used_bytes: int
    before_bytes: int

    @property
    def room_bytes(self) -> int:
        """What is left for the job [bytes]."""
        return max(0, self.nbytes - self.before_bytes)


def ran_out(error: BaseException) -> BaseException | None:
    """The exception that says that memory has run out: this one, or one that it was raised from; None: there is none.

    Example:
        >>> ran_out(MemoryError("too large"))
        MemoryError('too large')
        >>> ran_out(ValueError("too large")) is None
        True
    """
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        if isinstance(one, MemoryError) or type(one).__name__ == "OutOfMemoryError":
            return one
        if isinstance(one, OSError) and one.errno == errno.ENOMEM:
            return one
        if isinstance(one, RuntimeError) and _REFUSED.search(str(one)):
            return one
        one = one.__cause__ or one.__context__
    return None


def refused_memory(rank: int, error: BaseException) -> ExecutionError:
    """The error of a rank that was refused memory, made in its own process.

    Args:
        rank: which
        error: from `ran_out`
    """
    limit = _device_limit() if type(error).__name__ == "OutOfMemoryError" else _host_limit()
    where = f"in {ACTIVITY.doing} of step {ACTIVITY.steps}" if ACTIVITY.phase == STEP else f"in: {ACTIVITY.phase}"
    told = "\n".join([f"rank {rank} ran out of memory {where}: {summary(error)}", *user_lines(error)])
    return exhausted(told, rank, limit)


def exhausted(told: str, rank: int, limit: Limit | None) -> ExecutionError:
    """The error of a rank that ran out of memory.

    Args:
        told: what was seen
        rank: which
        limit: that it ran into; None: it is not known
    """
    figures: dict[str, object] = {}
    if limit is not None:
        told += (
            f"\nOf {format_bytes(limit.nbytes)} ({limit.name}) {format_bytes(limit.used_bytes)} were taken, "
            f"{format_bytes(limit.before_bytes)} of them before the job was made: it has "
            f"{format_bytes(limit.room_bytes)}"
        )
        figures = {
            "limit": limit.name,
            "limit_bytes": limit.nbytes,
            "used_bytes": limit.used_bytes,
            "before_bytes": limit.before_bytes,
            "room_bytes": limit.room_bytes,
        }
    return ExecutionError(told, code="memory.exhausted", rank=rank, **figures)


def _device_limit() -> Limit | None:
    import torch

    if not torch.cuda.is_available():
        return None
    try:
        free, total = torch.cuda.mem_get_info()
    except RuntimeError:  # the error of the device before this one is what is told
        return None
    reserved = torch.cuda.memory_reserved()
    # What is neither free nor this process's cache: the context of CUDA, and other processes.
    return Limit(name="memory of the GPU", nbytes=total, used_bytes=total - free, before_bytes=total - free - reserved)


def _host_limit() -> Limit | None:
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        return Limit(
            name="address space of a process, ulimit -v",
            nbytes=most,
            used_bytes=memory_bytes()[1],
            before_bytes=ACTIVITY.before_bytes[1],
        )
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Processes that the kernel kills


@dataclass(frozen=True, slots=True, kw_only=True)
class Killings:
    """How many processes the kernel has killed so far, because memory had run out.

    Attributes:
        in_group: in the control group of this process or one around it; None: it does not count there
        in_all: on this machine; None: it does not count
    """

    in_group: int | None
    in_all: int | None

    @classmethod
    def so_far(cls) -> "Killings":
        """By now."""
        events = (
            folder / name for folder in control_groups("memory") for name in ("memory.events", "memory.oom_control")
        )
        counts = [count for path in events if (count := count_in(path, "oom_kill")) is not None]
        return cls(in_group=sum(counts) if counts else None, in_all=count_in(Path("/proc/vmstat"), "oom_kill"))

    def since(self, before: "Killings") -> bool:
        """Whether there have been any since then.

        Args:
            before: at an earlier moment
        """
        if self.in_group is not None and before.in_group is not None and self.in_group > before.in_group:
            return True
        return self.in_all is not None and before.in_all is not None and self.in_all > before.in_all


def group_limit() -> tuple[str, int] | None:
    """Name and size of the least memory that a control group around this process, or the machine, lets it have."""
    found = [
        (limit, f"control group {folder.relative_to('/sys/fs/cgroup')}")
        for folder in control_groups("memory")
        if (limit := memory_limit(folder)) is not None
    ]
    total = count_in(Path("/proc/meminfo"), "MemTotal")
    if total is not None:
        found.append((total * 1024, "machine"))
    return None if not found else (min(found)[1], min(found)[0])
