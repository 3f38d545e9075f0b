"""How much of the machine other programs take while something is timed.

A step of two ranks on two cores ends with the slower one, so whatever else runs lengthens it; with a step of
one rank there is a core left. A low priority does not keep a program off where each session is a scheduling group of
its own (`kernel.sched_autogroup_enabled`): niceness counts only within a group.
"""

import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trimaran.base.progress import Progress
from trimaran.base.system import allowed_cores

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentTime:
    """What has been spent until now.

    Attributes:
        wall_s: on the wall's clock [s]
        machine_s: by the cores of this process together on anything, other virtual machines among it [s]
        own_s: by this process and those of its children that have ended [s]
    """

    wall_s: float
    machine_s: float
    own_s: float


def read_spent() -> SpentTime:
    """What has been spent until now.

    Where the kernel accounts interrupts apart (`CONFIG_IRQ_TIME_ACCOUNTING`), they count for the machine and for no
    process. Those of the ranks' own messages are then taken for others, whose part is an upper bound. Elsewhere they
    count for the process that they interrupt as well.

    Source:
        proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal, in ticks, since the machine started.
    """
    import resource

    allowed = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    ticks = [[int(field) for field in line[1:9]] for line in lines if line[0] in allowed]
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return SpentTime(
        wall_s=time.perf_counter(),
        machine_s=sum(sum(core[:3]) + sum(core[5:]) for core in ticks) / os.sysconf("SC_CLK_TCK"),
        own_s=sum(usage.ru_utime + usage.ru_stime for usage in used),
    )


BUSY = 0.1
"""Part of the cores that others may take before a measured time is called that of a busy machine [0..1].

One program that keeps a core busy takes 0.5 of two cores, 0.25 of four and 0.125 of eight. Services of an idle machine
take less than 0.02.
"""


class Others:
    """What other programs take of this process's cores from now on."""

    def __init__(self) -> None:
        self._before = _spent_if_told()

    def share(self) -> float | None:
        """Their part until now [0..1]; None where the system does not tell. Children that still run count as others."""
        now = _spent_if_told()
        if self._before is None or now is None:
            return None
        return others_share(self._before, now, cores=allowed_cores())


def _spent_if_told() -> SpentTime | None:
    """None where there is no such file, or it may not be read: some containers do not show it."""
    try:
        return read_spent() if sys.platform == "linux" else None
    except OSError:
        return None


def busy_note(share: float | None) -> str:
    """What to say of times that were measured while other programs ran; empty where they took little.

    Args:
        share: their part of the cores [0..1]; None: not known

    Example:
        >>> busy_note(0.04), busy_note(0.43)[:42]
        ('', 'other programs took 43 % of the cores: mea')
    """
    if share is None or share <= BUSY:
        return ""
    return (
        f"other programs took {share:.0%} of the cores: measured times are longer for it, and say little of the "
        "prediction, which is for a machine that does nothing else"
    ).replace("%", " %")


SETTLING = "TRIMARAN_SETTLE"
"""Variable with the most that is waited for other programs to end before costs are measured [s]; commands wait 10 s."""

_WINDOW_S = 0.5


def settling_s() -> float:
    """Most that is waited [s]; 0 where nothing asks for it."""
    try:
        return max(0.0, float(os.environ.get(SETTLING, "0")))
    except ValueError:
        return 0.0


def settle(
    *,
    limit_s: float,
    share: Callable[[], float | None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> float | None:
    """Wait until other programs take little of the cores, as after an installation, and no longer than a limit.

    Args:
        limit_s: most that is waited [s]
        share: their part of the cores over the next moments [0..1]; None where it is not known
        clock: that says how long was waited [s]

    Returns:
        Their part of the cores when the wait ended; None: not known.
    """
    look = share or _share_now
    end_s = clock() + limit_s
    found = look()
    while found is not None and found > BUSY and clock() < end_s:
        found = look()
    return found


def await_idle_cores(progress: Progress) -> None:
    """Wait before costs are measured until other programs take little, as long as `SETTLING` says; warn if they do not.

    Args:
        progress: told that it waits
    """
    progress("waiting for other programs", 0, 0)
    limit_s = settling_s()
    if limit_s and (note := unsettled_note(settle(limit_s=limit_s))):
        _LOG.warning(note)


def _share_now() -> float | None:
    others = Others()
    time.sleep(_WINDOW_S)
    return others.share()


def unsettled_note(share: float | None) -> str:
    """What to say of costs that are measured while other programs run; empty where they take little.

    Args:
        share: their part of the cores [0..1]; None: not known
    """
    if share is None or share <= BUSY:
        return ""
    return (
        f"other programs take {100 * share:.0f} % of the cores while costs are measured: predictions may be wrong; "
        "`trimaran doctor --measure JOB` measures again, when the machine is idle"
    )


def others_share(before: SpentTime, after: SpentTime, *, cores: int) -> float:
    """The part of the cores that others took between two readings [0..1].

    Args:
        before: at the start
        after: at the end, when the children that were started meanwhile have ended
        cores: of the machine

    Example:
        >>> start = SpentTime(wall_s=0.0, machine_s=100.0, own_s=5.0)
        >>> others_share(start, SpentTime(wall_s=10.0, machine_s=117.0, own_s=20.0), cores=2)
        0.1
    """
    spent_s = (after.machine_s - before.machine_s) - (after.own_s - before.own_s)
    return max(0.0, spent_s) / (cores * (after.wall_s - before.wall_s))
