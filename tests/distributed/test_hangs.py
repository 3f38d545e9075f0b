"""A rank that is stuck is named, with its process, its instruction and the line of the user's code."""

import os
import re
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.distributed import hanging
from tests.forks.client import launch
from tests.raising import raises

from trimaran.base.errors import ExecutionError
from trimaran.base.timeline import Timeline
from trimaran.launch.activity import HangLimits
from trimaran.report.slow_rank import find_slow_ranks

# Far more than a rank needs to be asked, to answer, and to be ended, on a crowded machine.
SOON_S = 30.0
LIMIT_S = 3.0
MANY = 100_000


class Clock:
    """Notes when ranks were heard last, and their processes."""

    def __init__(self) -> None:
        self.last_s = time.monotonic()
        self.pids: dict[int, int] = {}

    def __call__(self, rank: int, event: Mapping[str, Any]) -> None:
        self.last_s = time.monotonic()
        if "pids" in event:
            self.pids[rank] = event["pids"][0]

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self.last_s

    def assert_all_gone(self) -> None:
        for pid in self.pids.values():
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


@pytest.mark.parametrize(
    ("fault", "state", "told"),
    [
        ("loop", "R", "in loop_for_ever\n        "),
        ("stopped", "T", "is stopped by a signal"),
        ("interpreter", "S", "it does not answer"),
        ("collective", None, "in wait_alone\n        dist.barrier()"),
    ],
)
def test_the_rank_that_is_stuck_in_a_step_is_named(tmp_path: Path, fault: str, state: str | None, told: str) -> None:
    clock = Clock()
    with raises("rank.hangs", ExecutionError, rank=1, ranks=[1], step=hanging.STUCK_AT, instruction="0F0") as caught:
        launch(
            hanging.train_and_stick,
            (hanging.plain_run(MANY), fault, 1),
            ranks=2,
            log_dir=tmp_path,
            on_event=clock,
            hang=HangLimits(step_s=LIMIT_S),
        )
    assert LIMIT_S <= clock.silent_s < LIMIT_S + SOON_S
    message = str(caught.value)
    assert told in message
    assert f"process {clock.pids[1]} " in message
    assert re.search(rf"Rank 0 waits for \S+ of step {hanging.STUCK_AT}, with rank 1\n", message)
    if state is not None:
        assert caught.value.figures["state"] == state
    clock.assert_all_gone()


def test_in_a_pipeline_the_stage_that_is_stuck_is_named_and_not_those_that_wait_for_it(tmp_path: Path) -> None:
    with raises("rank.hangs", ExecutionError, rank=0, ranks=[0]) as caught:
        launch(
            hanging.train_and_stick,
            (hanging.plain_run(MANY, dp=1, pp=2), "loop", 0),
            ranks=2,
            log_dir=tmp_path,
            hang=HangLimits(step_s=LIMIT_S),
        )
    assert "Rank 1 waits for 1RECV_F0<0" in str(caught.value)


def test_a_rank_that_is_stopped_before_the_first_step_is_named_within_the_limit_of_a_step(tmp_path: Path) -> None:
    clock = Clock()
    with raises("rank.hangs", ExecutionError, match="A stopped process goes on with kill -CONT", rank=1, state="T"):
        launch(
            hanging.stop_before_training,
            (1,),
            ranks=2,
            log_dir=tmp_path,
            on_event=clock,
            hang=HangLimits(step_s=LIMIT_S, other_s=None),
        )
    clock.assert_all_gone()


@pytest.mark.sweep
def test_a_long_pause_between_steps_and_a_long_evaluation_are_no_hang(tmp_path: Path) -> None:
    """Both take three times the limit of a step."""
    run = hanging.plain_run(8)
    first, second = launch(
        hanging.be_slow_elsewhere, (run, 3 * LIMIT_S), ranks=2, log_dir=tmp_path, hang=HangLimits(step_s=LIMIT_S)
    )
    assert len(first) == 8
    assert first == second


def test_a_rank_that_goes_on_in_time_is_no_hang(tmp_path: Path) -> None:
    """Stopped and continued, each time for less than the limit, by the parent."""
    stopped: list[int] = []
    pids: dict[int, int] = {}

    def on_event(rank: int, event: Mapping[str, Any]) -> None:
        if "pids" in event:
            pids[rank] = event["pids"][0]
        elif rank == 1 and event["step"] in (3, 6):
            os.kill(pids[1], signal.SIGSTOP)
            time.sleep(LIMIT_S / 3)
            os.kill(pids[1], signal.SIGCONT)
            stopped.append(event["step"])

    launch(
        hanging.train_and_stick,
        (hanging.plain_run(10), "none", -1),
        ranks=2,
        log_dir=tmp_path,
        on_event=on_event,
        hang=HangLimits(step_s=LIMIT_S),
    )
    assert stopped == [3, 6]


def test_without_a_watch_the_rank_that_waits_says_for_whom(tmp_path: Path) -> None:
    """As under torchrun, where there is no parent: a collective ends after its time-out."""
    with raises("rank.lost-peer", ExecutionError, rank=0, peers=[1], waited_for="0AR#b0", step=hanging.STUCK_AT):
        launch(
            hanging.train_and_stick,
            (hanging.plain_run(MANY), "stopped", 1),
            ranks=2,
            log_dir=tmp_path,
            hang=None,
            timeout_s=LIMIT_S,
        )


class Hindrance:
    """Stops and continues the process of one rank, again and again, so that it runs for a third of the time."""

    def __init__(self, hindered: int) -> None:
        self._hindered = hindered
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, rank: int, event: Mapping[str, Any]) -> None:
        if rank == self._hindered and "pids" in event:
            self._thread = threading.Thread(target=self._hinder, args=(event["pids"][0],))
            self._thread.start()

    def _hinder(self, pid: int) -> None:
        while not self._ended.is_set():
            try:
                os.kill(pid, signal.SIGSTOP)
                self._ended.wait(0.02)
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                return
            self._ended.wait(0.01)

    def end(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()


@pytest.mark.alone
def test_a_rank_that_runs_for_a_third_of_the_time_is_named_and_the_others_are_not(tmp_path: Path) -> None:
    """Found with the hindrance on either rank, and nobody without it."""
    run = hanging.plain_run(240)
    (calm, _) = launch(hanging.train_recorded, (run,), ranks=2, log_dir=tmp_path)
    assert find_slow_ranks(calm, Timeline([]), warmup=5) == ()
    for hindered in (0, 1):
        hindrance = Hindrance(hindered)
        try:
            timeline = launch(hanging.train_recorded, (run,), ranks=2, log_dir=tmp_path, on_event=hindrance)[0]
        finally:
            hindrance.end()
        found = find_slow_ranks(timeline, Timeline([]), warmup=5)
        assert [(one.rank, one.compared_with) for one in found] == [(hindered, (1 - hindered,))]
        assert found[0].ratio > 1.5
