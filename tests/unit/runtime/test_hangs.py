"""Who holds the others up, and how long that may take; with a clock that is given."""

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trimaran.base.errors import ExecutionError
from trimaran.launch.activity import (
    ACTIVITY,
    LEAST_S,
    MEDIANS,
    OTHER_S,
    PAUSES,
    STEP,
    Activity,
    ActivityWatch,
    HangLimits,
    Note,
    Stacks,
    collective_timeout,
    opened,
    process_state,
    stacks_of,
)

AT = os.getpid()
COMPILES = Stacks(lines=("    job.py:1, in forward",), compiles=True)
COMPUTES = Stacks(lines=("    job.py:1, in forward",))
IN_COLLECTIVE = Stacks(in_communication=True)
OWN_COLLECTIVE = Stacks(lines=("    job.py:7, in loss",), in_communication=True, from_user=True)


def beat(
    started: int,
    *,
    steps: int = 10,
    phase: str = STEP,
    waits: str = "",
    ranks: tuple[int, ...] = (),
    entered: tuple[str, ...] = (),
    steps_begun: int | None = None,
) -> Note:
    return Note(
        phase=phase,
        steps=steps,
        doing="0F0",
        written=f"{phase} {steps}".encode(),
        started=started,
        waits=waits,
        ranks=ranks,
        entered=entered if not waits or waits in entered else (*entered, waits),
        steps_begun=steps + 1 if steps_begun is None else steps_begun,
    )


class Ranks:
    """Ranks of a launch whose clock is turned by hand; all are this process, which runs."""

    def __init__(self, count: int, limits: HangLimits) -> None:
        self.now = 100.0
        self.count = count
        self.watch = ActivityWatch([AT] * count, limits, self.now, self.ask)
        self.beats: dict[int, Note] = {}
        self.stacks = dict.fromkeys(range(count), COMPUTES)
        self.asked = 0
        self.steps = 0

    def ask(self, ranks: Sequence[int]) -> dict[int, Stacks]:
        self.asked += len(ranks)
        return {rank: stacks for rank, stacks in self.stacks.items() if rank in ranks}

    def pass_time(self, seconds: float) -> ExecutionError | None:
        """Look every half a second, with a beat each second; the error, where there is one."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            for rank, note in self.beats.items():
                self.watch.hear(rank, replace(note, beats=int(self.now)), self.now)
            found = self.watch.look(range(self.count), self.now)
            if found is not None:
                return found
        return None

    def take_steps(self, steps: int, step_s: float) -> None:
        """Of all ranks, two instructions each."""
        for _ in range(steps):
            for part in range(2):
                self.beats = {rank: beat(2 * self.steps + part, steps=self.steps) for rank in range(self.count)}
                assert self.pass_time(step_s / 2) is None
            self.steps += 1


def test_the_limit_is_20_median_steps_but_no_less_than_30_s() -> None:
    """Steps of 1 s: 20 s, so 30 s. Steps of 4 s: 80 s."""
    for step_s, limit_s in ((1.0, LEAST_S), (4.0, 4.0 * MEDIANS)):
        ranks = Ranks(2, HangLimits())
        ranks.take_steps(12, step_s)
        assert ranks.pass_time(limit_s - 5.0) is None
        found = ranks.pass_time(15.0)
        assert found is not None
        assert found.figures["limit_s"] == pytest.approx(limit_s, rel=0.1)


def test_a_pause_that_a_step_has_made_before_is_no_hang_when_it_comes_again() -> None:
    """Steps of 1 s with one pause of 25 s, as of a recompilation: the limit is 75 s from then on."""
    ranks = Ranks(2, HangLimits())
    ranks.take_steps(12, 1.0)
    assert ranks.pass_time(25.0) is None
    ranks.take_steps(12, 1.0)
    assert ranks.pass_time(25.0 * PAUSES - 5.0) is None
    assert ranks.pass_time(15.0) is not None


def test_what_others_wait_for_outside_a_step_is_no_pause_of_a_step() -> None:
    """Rank 1 writes a file for a minute; rank 0, which waits for it, is heard first."""
    ranks = Ranks(2, HangLimits())
    ranks.take_steps(6, 1.0)
    ranks.beats[1] = beat(1000, steps=6, phase="Job.on_step")
    assert ranks.pass_time(60.0) is None
    ranks.take_steps(6, 1.0)
    found = ranks.pass_time(LEAST_S + 5.0)
    assert found is not None
    assert found.figures["limit_s"] == LEAST_S


@pytest.mark.parametrize("step_s", [None, 60.0])
def test_the_first_steps_of_a_run_that_goes_on_may_take_long_too(step_s: float | None) -> None:
    """Its steps are counted on from the checkpoint; the first one compiles."""
    ranks = Ranks(2, HangLimits(step_s=step_s))
    ranks.steps = 1000
    ranks.beats = {rank: beat(1, steps=1000, steps_begun=1) for rank in range(2)}
    assert ranks.pass_time(OTHER_S - 10.0) is None
    ranks.take_steps(6, 1.0)
    assert ranks.pass_time((step_s or OTHER_S * PAUSES) + 10.0) is not None


@pytest.mark.parametrize("step_s", [None, 5.0])
def test_a_later_step_that_compiles_again_may_take_long_too(step_s: float | None) -> None:
    """As for the last batch of an epoch, which is smaller."""
    ranks = Ranks(2, HangLimits(step_s=step_s))
    ranks.take_steps(12, 1.0)
    ranks.beats[0] = beat(1000, steps=12, waits="0AR#b0", ranks=(0, 1))
    ranks.stacks[1] = COMPILES
    assert ranks.pass_time(OTHER_S - 60.0) is None
    ranks.stacks[1] = COMPUTES
    found = ranks.pass_time(30.0)
    assert found is not None
    assert found.figures["ranks"] == [1]


def stacks_here(thread: int) -> Stacks:
    return stacks_of({0: (AT, calls_of_this_process(), (thread,))})[0]


@functools.cache
def calls_of_this_process() -> int:
    return opened(AT, *ACTIVITY.share())[1]


def test_a_thread_in_torch_compile_is_seen_there_and_not_in_what_it_compiled() -> None:
    seen: dict[str, Stacks] = {}

    def backend(module: Any, _: object) -> Any:
        seen["compiling"] = stacks_here(threading.get_native_id())

        def run(*arguments: Any) -> Any:
            seen["running"] = stacks_here(threading.get_native_id())
            return module.forward(*arguments)

        return run

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    torch.compile(double, backend=backend)(torch.ones(2))
    assert seen["compiling"].compiles
    assert not seen["running"].compiles


def test_a_thread_is_looked_at_while_it_runs() -> None:
    def run_on() -> None:
        numbers.append(threading.get_native_id())
        while not done.is_set():
            sum(numbers)

    numbers: list[int] = []
    done = threading.Event()
    thread = threading.Thread(target=run_on)
    thread.start()
    try:
        while not numbers:
            time.sleep(0.001)
        for _ in range(5):
            found = stacks_here(numbers[0])
            assert any("in run_on" in line for line in found.lines)
            assert found.innermost
    finally:
        done.set()
        thread.join()
    assert stacks_here(numbers[0]).innermost == ()


NOTES = """
import os, sys, threading, time
from trimaran.launch.activity import ACTIVITY
print(*ACTIVITY.share(), flush=True)
def elsewhere():
    time.sleep(60)
threading.Thread(target=elsewhere, name="other", daemon=True).start()
ACTIVITY.steps = 7
with ACTIVITY.during("step"), ACTIVITY.waiting("0AR#b0", (0, 2)):
    time.sleep(60)
"""


def test_what_another_process_does_is_seen_while_it_runs_and_after_it_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(NOTES)
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        page, calls = opened(process.pid, *map(int, process.stdout.readline().split()))
        end = time.monotonic() + 30
        while not Note.read(page).threads and time.monotonic() < end:
            time.sleep(0.05)
        note = Note.read(page)
        assert (note.phase, note.steps, note.steps_begun, note.waits) == (STEP, 7, 1, "0AR#b0")
        assert (list(note.ranks), list(note.entered)) == ([0, 2], ["0AR#b0"])
        assert note.resident_bytes > 2**20
        stacks = stacks_of({3: (process.pid, calls, (process.pid, *note.threads))})[3]
        assert any("in elsewhere" in line for line in stacks.lines)
        process.send_signal(signal.SIGSTOP)
        assert stacks_of({3: (process.pid, calls, (process.pid,))})[3] == Stacks()
    finally:
        process.kill()
        process.communicate()
    assert Note.read(page).steps == 7
    os.close(calls)


def test_beats_of_any_length_stand_on_the_page_whole() -> None:
    activity = Activity()
    activity.begun = [f"0AR#b{number}" for number in range(10_000)]
    activity.waits = ("0AR#b9999", ())
    for beats in range(3):
        activity.write(beats)
        assert Note.read(activity.page).beats == beats
        assert "0AR#b9999" in Note.read(activity.page).entered


def test_the_first_steps_may_take_as_long_as_anything_else() -> None:
    ranks = Ranks(2, HangLimits())
    ranks.take_steps(2, 1.0)
    assert ranks.pass_time(OTHER_S - 10.0) is None
    found = ranks.pass_time(30.0)
    assert found is not None
    assert found.figures["limit_s"] == OTHER_S


def test_a_limit_that_is_given_holds_from_the_first_step_on() -> None:
    ranks = Ranks(2, HangLimits(step_s=5.0))
    ranks.take_steps(2, 1.0)
    assert ranks.pass_time(4.0) is None
    assert ranks.pass_time(4.0) is not None


@pytest.mark.parametrize("phase", ["starting", "evaluation", "Job.on_step", "writing the weights"])
def test_what_is_no_step_may_take_long(phase: str) -> None:
    ranks = Ranks(2, HangLimits(step_s=5.0, other_s=300.0))
    ranks.take_steps(5, 1.0)
    ranks.beats = {rank: beat(1000, steps=5, phase=phase) for rank in range(2)}
    assert ranks.pass_time(295.0) is None
    assert ranks.pass_time(15.0) is not None


def test_ranks_in_a_step_wait_as_long_as_the_one_that_is_elsewhere_may_take() -> None:
    """Rank 0 writes a file in a callback; the others are in the next step, one of them in a library's collective."""
    ranks = Ranks(3, HangLimits(step_s=5.0, other_s=300.0))
    ranks.take_steps(5, 1.0)
    ranks.beats = {
        0: beat(1000, steps=5, phase="Job.on_step"),
        1: beat(1000, steps=5, waits="0AR#b0"),
        2: beat(1000, steps=5),
    }
    ranks.stacks[2] = IN_COLLECTIVE
    assert ranks.pass_time(295.0) is None
    found = ranks.pass_time(15.0)
    assert found is not None
    assert found.figures["ranks"] == [0]


def test_without_a_limit_only_a_stopped_process_is_a_hang() -> None:
    ranks = Ranks(2, HangLimits(step_s=5.0, other_s=None))
    ranks.beats = {rank: beat(1, phase="starting", steps=0) for rank in range(2)}
    assert ranks.pass_time(5000.0) is None


def test_time_in_which_this_process_was_kept_from_looking_does_not_count() -> None:
    """As where it is stopped with Ctrl-Z for an hour."""
    ranks = Ranks(2, HangLimits(step_s=5.0))
    ranks.take_steps(5, 1.0)
    ranks.now += 3600.0
    assert ranks.pass_time(4.0) is None
    ranks.take_steps(5, 1.0)
    assert ranks.pass_time(8.0) is not None


def test_a_rank_that_goes_on_after_it_was_asked_is_no_hang() -> None:
    ranks = Ranks(2, HangLimits(step_s=5.0))
    ranks.take_steps(5, 1.0)
    del ranks.stacks[1]
    ranks.beats[1] = beat(1000, steps=5, phase="evaluation")
    assert ranks.pass_time(20.0) is None
    assert ranks.asked
    ranks.beats = {rank: beat(5000, steps=5) for rank in range(2)}
    assert ranks.pass_time(4.0) is None


def stuck(count: int, beats: dict[int, Note], stacks: dict[int, Stacks]) -> ExecutionError:
    ranks = Ranks(count, HangLimits(step_s=5.0))
    ranks.take_steps(10, 1.0)
    ranks.beats = beats
    ranks.stacks |= stacks
    found = ranks.pass_time(20.0)
    assert found is not None
    return found


def test_the_culprit_is_the_one_that_waits_for_nobody() -> None:
    found = stuck(
        3,
        {0: beat(99, waits="0AR#b0", ranks=(0, 1, 2)), 1: beat(99), 2: beat(99, waits="2RECV_F0<1", ranks=(1,))},
        {},
    )
    assert found.figures["ranks"] == [1]
    assert "Rank 0 waits for 0AR#b0 of step 10, with rank 1, 2" in found.message
    assert "Rank 2 waits for 2RECV_F0<1 of step 10, with rank 1" in found.message
    assert "job.py:1, in forward" in found.message


def test_a_rank_that_waits_inside_a_library_is_no_culprit() -> None:
    found = stuck(2, {0: beat(99), 1: beat(99)}, {0: IN_COLLECTIVE})
    assert found.figures["ranks"] == [1]


def test_where_all_wait_the_culprit_is_the_one_that_the_users_code_has_made_wait() -> None:
    found = stuck(2, {0: beat(99, waits="0AR#b0", ranks=(0, 1)), 1: beat(99)}, {1: OWN_COLLECTIVE})
    assert found.figures["ranks"] == [1]
    assert "job.py:7, in loss" in found.message


def test_where_all_wait_the_culprit_is_the_one_that_has_not_entered_what_another_waits_for() -> None:
    """Ranks 0 and 2 wait for b1; rank 1 waits for b0, which the others have done."""
    found = stuck(
        3,
        {
            0: beat(99, waits="0AR#b1", ranks=(0, 1, 2)),
            1: beat(99, waits="0AR#q0", ranks=(1,)),
            2: beat(99, waits="0AR#b1", ranks=(0, 1, 2)),
        },
        {},
    )
    assert found.figures["ranks"] == [1]


def test_where_all_have_entered_what_they_wait_for_nobody_is_blamed() -> None:
    found = stuck(2, {rank: beat(99, waits="0AR#b0", ranks=(0, 1)) for rank in range(2)}, {})
    assert found.figures["ranks"] == [0, 1]
    assert "have all entered what they wait for" in found.message


def test_a_rank_that_is_a_step_behind_is_the_culprit() -> None:
    found = stuck(
        2,
        {0: beat(99, steps=10, waits="0AR#b0", ranks=(0, 1)), 1: beat(99, steps=9, waits="0AR#b0", ranks=(0, 1))},
        {},
    )
    assert found.figures["ranks"] == [1]


@given(count=st.integers(2, 6), free=st.sets(st.integers(0, 5), min_size=1))
def test_whoever_waits_for_nobody_is_named_and_nobody_else(count: int, free: set[int]) -> None:
    free = {rank % count for rank in free}
    beats = {rank: beat(99) if rank in free else beat(99, waits="0AR#b0") for rank in range(count)}
    assert stuck(count, beats, {}).figures["ranks"] == sorted(free)


def test_the_state_of_a_process_is_read_whatever_its_name() -> None:
    assert process_state(AT) in ("R", "S")
    assert process_state(2**22 + 1) == ""


def test_collectives_outlast_the_watch() -> None:
    assert collective_timeout(None) == collective_timeout(HangLimits())
    assert collective_timeout(HangLimits()) > OTHER_S
    assert collective_timeout(HangLimits(step_s=4000.0)) > 4000.0
