"""What other programs take of the cores beside something that is timed."""

import os
import subprocess
import sys
import time

import pytest

from trimaran.measure.others import BUSY, Others, SpentTime, busy_note, others_share, read_spent

TICK_S = 0.01


def test_what_is_not_own_is_others():
    """Of 2 cores over 10 s (20 s) the machine spent 17 s, this program 15 s: 2 / 20."""
    before = SpentTime(wall_s=0.0, machine_s=100.0, own_s=5.0)
    after = SpentTime(wall_s=10.0, machine_s=117.0, own_s=20.0)

    assert others_share(before, after, cores=2) == pytest.approx(0.1)


def test_own_work_counts_for_this_program_and_for_the_machine():
    before, start_s = read_spent(), time.process_time()
    while time.process_time() - start_s < 0.2:
        pass
    after = read_spent()

    own_s = after.own_s - before.own_s
    assert own_s >= 0.2 - TICK_S
    # The machine counts in ticks, on each core.
    assert after.machine_s - before.machine_s > own_s - 10 * TICK_S


def test_a_program_that_spins_beside_is_seen_and_told():
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        others = Others()
        time.sleep(1.0)
        share = others.share()
    finally:
        other.kill()
        other.wait()

    assert share is not None
    cores = len(os.sched_getaffinity(0))
    assert share > 0.3 / cores  # it may have to share its core
    assert busy_note(max(share, 1.01 * BUSY)).startswith("other programs took")


def test_where_the_system_does_not_tell_nothing_is_said(monkeypatch: pytest.MonkeyPatch):
    def hidden(*_: object, **__: object) -> str:
        raise PermissionError("/proc/stat")

    monkeypatch.setattr("pathlib.Path.read_text", hidden)

    assert Others().share() is None
    assert busy_note(None) == ""
