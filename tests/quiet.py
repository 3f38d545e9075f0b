"""Tests that compare what a clock says are judged only while other programs leave them the cores.

The hooks are for tests with the mark `alone`. One whose assertion fails, also in its last run, is skipped as "machine
too busy: not judged" where others took more than `BUSY` of the cores since it began, or while a fixture that it shares
with other tests was made. On a quiet machine it fails. Exceptions other than an assertion always fail.
"""

import os
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

from trimaran.measure.others import BUSY, SpentTime, others_share, read_spent

SHORTEST_S = 1.0
"""A test that takes less is looked at together with what ran before it, from this long before its end [s].

The ticks of 10 ms that the kernel counts in are 0.01 of it.
"""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a process and its descendants have spent, with what they waited for of ended children [s]."""

    parent: int
    seconds: float


def read_processes() -> dict[int, Spent]:
    """All processes, by id.

    Source:
        proc_pid_stat(5): after the name in brackets, field 2 is the parent; 12 to 15 are utime, stime, cutime, cstime.
    """
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            ticks = sum(int(field) for field in fields[11:15])
            found[int(entry.name)] = Spent(int(fields[1]), ticks / os.sysconf("SC_CLK_TCK"))
    return found


def own_seconds(processes: dict[int, Spent], root: int) -> float:
    """What a process and all that descend from it have spent [s]."""
    children: dict[int, list[int]] = {}
    for pid, spent in processes.items():
        children.setdefault(spent.parent, []).append(pid)
    total, left = 0.0, [root]
    while left:
        pid = left.pop()
        total += processes[pid].seconds
        left += children.get(pid, [])
    return total


def read_clocks() -> SpentTime:
    """What has been spent until now, by the machine and by this process with all that it started and that still run."""
    spent = read_spent()
    return SpentTime(wall_s=spent.wall_s, machine_s=spent.machine_s, own_s=own_seconds(read_processes(), os.getpid()))


def share_since(begin: SpentTime) -> float:
    """The part of the cores that others took since a reading, or since one at least `SHORTEST_S` before now [0..1]."""
    now = read_clocks()
    before = [reading for reading in (*_begun, begin) if now.wall_s - reading.wall_s >= SHORTEST_S]
    return others_share(before[-1] if before else begin, now, cores=len(os.sched_getaffinity(0)))


_begun: list[SpentTime] = [read_clocks()]
"""When this module was imported, and when each test so far began."""
_fixtures: dict[object, float] = {}
"""The part of the cores that others took while a shared fixture was made."""


def _is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Note when a test begins."""
    if _is_alone(item):
        _begun.append(read_clocks())
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Note what others take while a fixture is made that later tests use, too."""
    if fixturedef.scope == "function" or not _is_alone(request._pyfuncitem):
        return (yield)
    before = read_clocks()
    try:
        return (yield)
    finally:
        _fixtures[fixturedef] = share_since(before)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Skip a test that fails in its last run on a busy machine."""
    try:
        return (yield)
    except AssertionError as failure:
        last = getattr(item, "execution_count", 1) > (item.config.getoption("reruns", None) or 0)
        if not _is_alone(item) or not last:
            raise
        share = busiest_share(item)
        if share <= BUSY:
            raise
        said = str(failure).partition("\n")[0]
        pytest.skip(f"machine too busy: not judged, as others took {share:.0%} of the cores; {said}")


def busiest_share(item: pytest.Item) -> float:
    """The most that others took since a test began, or while a fixture that it shares was made [0..1]."""
    made = (one for ones in item._fixtureinfo.name2fixturedefs.values() for one in ones)  # type: ignore[attr-defined]
    return max(share_since(_begun[-1]), *(_fixtures.get(one, 0.0) for one in made), 0.0)
