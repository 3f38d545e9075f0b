"""Saves that are stopped at every operation, that lose the power there, and whose disk fails or is full there.

Each case is a save by one to four ranks on a simulated disk. After it, the newest checkpoint whose commit had returned
can be opened and has every byte, or the one that was being saved can, whole; two more saves work, and leave exactly two
checkpoints and nothing else. Every test prints how many cases it went through.
"""

import errno
import itertools
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.simulated_disk import SimulatedDisk, SimulatedProcess, Stopped, Turns

from trimaran.base.errors import CorruptDataError, EnvironmentProblem, InputError, TrimaranError
from trimaran.checkpoint_files.commit import MARKER, Checkpoint, Draft, Fault, FileEntry, Store

FOLDER = Path("/simulated/runs/digits/checkpoints")
LATER = 10_000
"""Steps of the saves that follow a fault start here."""


def content(step: int, rank: int) -> list[bytes]:
    """What a rank writes: three pieces."""
    return [f"step {step} of rank {rank}, piece {piece}; ".encode() * (piece + 1) for piece in range(3)]


@dataclass
class Job:
    """A training of several ranks, one process each.

    Attributes:
        disk: of all
        processes: of the ranks
        acknowledged: the newest step whose commit returned
        attempted: the step that is being saved, or was
        others_go_on: when a rank stops, the others do what they would do next
    """

    disk: SimulatedDisk
    processes: list[SimulatedProcess]
    acknowledged: int | None = None
    attempted: int | None = None
    others_go_on: bool = False
    errors: list[TrimaranError] = field(default_factory=list)

    def save(self, step: int, *, prune: bool = True) -> None:
        """Save as a training does: begin, write on every rank, agree, commit, prune."""
        self.attempted = step
        drafts: dict[int, Draft] = {}
        try:
            store = Store(FOLDER, disk=self.processes[0])
            drafts[0] = store.begin(step, ranks=len(self.processes))
            entries = self._write(drafts, step)
            if len(entries) < len(self.processes):
                drafts[0].abandon()
                return
            drafts[0].commit(entries, {"state.json": {"step": step}}, {"ranks": len(self.processes)})
            self.acknowledged = step
            if self.disk.after is not None:
                self.disk.after()
            if prune:
                store.prune()
        except Stopped:
            self._end()
        except TrimaranError as error:
            self.errors.append(error)

    def _write(self, drafts: dict[int, Draft], step: int) -> list[FileEntry]:
        written: dict[int, FileEntry] = {}

        def write(rank: int) -> None:
            try:
                if rank:
                    drafts[rank] = Store(FOLDER, disk=self.processes[rank]).join(drafts[0].name)
                pieces = content(step, rank)
                written[rank] = drafts[rank].write(
                    f"rank{rank}.safetensors", pieces, size=sum(len(piece) for piece in pieces)
                )
            except Stopped:
                self._end()
            except TrimaranError as error:
                self.errors.append(error)

        ranks = range(len(self.processes))
        if self.disk.turns is None:
            for rank in ranks:
                write(rank)
        else:
            self.disk.turns.run([lambda rank=rank: write(rank) for rank in ranks])
        return [written[rank] for rank in sorted(written)]

    def _end(self) -> None:
        if not self.others_go_on:
            for process in self.processes:
                process.stop()


def job_on(disk: SimulatedDisk, ranks: int, acknowledged: int | None, **faults: Any) -> Job:
    """A job whose ranks have no faults, but for `faults` of rank 0."""
    return Job(disk, [disk.process(**faults if rank == 0 else {}) for rank in range(ranks)], acknowledged)


def check(disk: SimulatedDisk, acknowledged: int | None, attempted: int | None) -> int | None:
    """The step that a process goes on from, after it was compared byte by byte."""
    damaged: dict[str, list[str]] = {}

    def on_damage(name: str, faults: Sequence[Fault]) -> None:
        damaged[name] = [fault.file for fault in faults]

    try:
        store = Store(FOLDER, disk=disk.process())
        found = store.open_newest(on_damage)
        store.settle(found)
    except (InputError, CorruptDataError) as error:
        found, none = None, error
    if found is None:
        assert none.code in ("checkpoint.none", "checkpoint.all-damaged")
        assert acknowledged is None, f"step {acknowledged} was committed, and is lost: {none}"
    else:
        assert found.step in (acknowledged, attempted)
        assert found.document("state.json") == {"step": found.step}
        for rank in range(found.contents["ranks"]):
            whole = b"".join(content(found.step, rank))
            assert disk.find(found.path_of(f"rank{rank}.safetensors")).data == whole
    # A marker that the power cut in half is named; nothing else may be.
    assert damaged in ({}, {f"step-{attempted or 0:08d}": [MARKER]})
    return None if found is None else found.step


def go_on(disk: SimulatedDisk, ranks: int, acknowledged: int | None, attempted: int | None) -> None:
    """Save twice more, without a fault: the second one survives any loss of power, and no garbage is left."""
    store = Store(FOLDER, disk=disk.process())
    for found in store._marked():
        # Older ones too are whole, or have no marker any more.
        assert found.name == f"step-{attempted:08d}" or (isinstance(found, Checkpoint) and not store.verify(found))
    job = job_on(disk, ranks, acknowledged)
    for step in (LATER, LATER + 1):
        job.save(step)
        assert job.errors == []
        assert check(disk, step, step) == step
    names = disk.find(FOLDER).entries
    store = Store(FOLDER, disk=disk.process())
    assert sorted(names) == sorted(found.name for found in store.committed())
    assert len(names) == 2
    assert all(store.verify(found) == [] for found in store.committed())
    for lost in disk.without_power(16, random.Random(0)):
        check(lost, LATER + 1, None)


def saved(ranks: int, steps: int) -> tuple[SimulatedDisk, int | None]:
    """A disk with committed checkpoints of the steps 1, 2, ...; the newest of them."""
    disk = SimulatedDisk()
    disk.process().make_directory(Path("/simulated"))
    disk.process().sync_directory(Path("/"))
    job = job_on(disk, ranks, None)
    for step in range(1, steps + 1):
        job.save(step)
    assert job.errors == []
    return disk, job.acknowledged


def after_a_crash(ranks: int, steps: int, stop_at: int) -> tuple[SimulatedDisk, int | None]:
    """The same, and what a save left that was stopped, and not removed yet."""
    disk, acknowledged = saved(ranks, steps)
    job = job_on(disk, ranks, acknowledged, stop_at=stop_at, half=True)
    job.save(99)
    step = check(disk, acknowledged, 99)
    return disk.restarted(), step


def operations(disk: SimulatedDisk, ranks: int, acknowledged: int | None) -> list[int]:
    """How many operations a save takes that change something, on each rank."""
    job = job_on(disk.restarted(), ranks, acknowledged)
    job.save(100)
    assert job.errors == []
    return [process.done for process in job.processes]


def situations(ranks: int, crash: int | None) -> Iterator[tuple[SimulatedDisk, int | None]]:
    """A first save, a second, and a third, which prunes; or saves after one that was stopped at an operation."""
    if crash is None:
        for steps in (0, 1, 2):
            yield saved(ranks, steps)
    else:
        for steps in (0, 2):
            yield after_a_crash(ranks, steps, crash)


def stopped_cases(ranks: int, crash: int | None, *, orders: list[int | None]) -> int:
    cases = 0
    for disk, acknowledged in situations(ranks, crash):
        for rank, count in enumerate(operations(disk, ranks, acknowledged)):
            for stop_at, half, others, order in itertools.product(range(count), (False, True), (False, True), orders):
                machine = disk.restarted()
                machine.turns = None if order is None else Turns(order)
                job = job_on(machine, ranks, acknowledged)
                job.others_go_on = others
                job.processes[rank].stop_at, job.processes[rank].half = stop_at, half
                job.save(100)
                assert job.processes[rank].stopped or order is not None
                machine.turns = None
                left = machine.restarted()
                go_on(left, ranks, check(left, job.acknowledged, 100), 100)
                cases += 1
    return cases


def powerless_cases(
    ranks: int, crash: int | None, *, orders: list[int | None], most: int, further: int
) -> tuple[int, int]:
    """Cases, and how many of these were all combinations of their moment rather than drawn ones."""
    cases = complete = 0
    draw = random.Random(20)
    for disk, acknowledged in situations(ranks, crash):
        for order in orders:
            machine = disk.restarted()
            job = job_on(machine, ranks, acknowledged)

            def lose_power(machine: SimulatedDisk = machine, job: Job = job) -> None:
                nonlocal cases, complete
                complete += machine.combinations() if machine.combinations() <= most else 0
                for lost in machine.without_power(most, draw):
                    step = check(lost, job.acknowledged, job.attempted)
                    if cases % further == 0:
                        go_on(lost, ranks, step, job.attempted)
                    cases += 1

            machine.turns = None if order is None else Turns(order)
            machine.after = lose_power
            job.save(100)
            assert job.errors == []
    return cases, complete


def failing_cases(ranks: int, crash: int | None, *, numbers: list[int]) -> int:
    cases = 0
    for disk, acknowledged in situations(ranks, crash):
        for rank, count in enumerate(operations(disk, ranks, acknowledged)):
            for fail_at, number, again in itertools.product(range(count), numbers, (False, True)):
                machine = disk.restarted()
                job = job_on(machine, ranks, acknowledged)
                faulty = job.processes[rank]
                faulty.fail_at, faulty.fail_with, faulty.again = fail_at, number, again
                job.save(100)
                assert faulty.failed
                assert all(isinstance(error, EnvironmentProblem) for error in job.errors)
                codes = {error.code for error in job.errors}
                assert codes <= {"checkpoint.no-space", "checkpoint.unwritable"}
                left = machine.restarted()
                step = check(left, job.acknowledged, 100)
                if job.acknowledged != 100 and not again:
                    # The process that had the error removed all that it had written, unless removing is what failed.
                    assert step == job.acknowledged
                    assert job.errors
                go_on(left, ranks, step, 100)
                cases += 1
    return cases


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Writes a line to the terminal, also of a test that passes."""

    def write(line: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{line}\n")

    return write


@pytest.mark.parametrize("crash", [None, pytest.param(16, marks=pytest.mark.sweep)])
def test_a_save_that_is_stopped_anywhere_loses_no_commit(crash: int | None, say: Callable[[str], None]) -> None:
    cases = stopped_cases(2, crash, orders=[None])
    say(f"{cases} cases of 2 ranks, each operation of each rank: all went on")
    assert cases > 300


@pytest.mark.parametrize("crash", [*(pytest.param(crash, marks=pytest.mark.sweep) for crash in (None, 16)), 24])
def test_a_save_that_loses_the_power_anywhere_loses_no_commit(crash: int | None, say: Callable[[str], None]) -> None:
    cases, complete = powerless_cases(2, crash, orders=[1], most=64, further=7)
    say(f"{cases} cases, {complete} of them every combination of their moment, the others drawn: all went on")
    assert cases > 1000


def test_a_disk_that_is_full_anywhere_loses_no_commit(say: Callable[[str], None]) -> None:
    cases = failing_cases(2, None, numbers=[errno.ENOSPC])
    say(f"{cases} cases, each operation of each rank: all went on")
    assert cases > 200


EVERY = "TRIMARAN_EVERY_CRASH" in os.environ
"""All cases, which take hours; else some of them."""

RANKS = pytest.mark.parametrize("ranks", [1, 2, 3, 4] if EVERY else [2, 3])
CRASHES = pytest.mark.parametrize("crash", [None, *range(0, 40, 3)] if EVERY else [None, 12, 27])

UNSETTLED = pytest.mark.parametrize("crash", [None, *range(0, 40, 3)] if EVERY else [None, 12, 24, 30])
"""Those of a loss of power: at 24 and at 30 a save is stopped between the marker and its sync."""


@pytest.mark.sweep
@pytest.mark.timeout(590)
@RANKS
@CRASHES
def test_every_stop_after_every_crash(ranks: int, crash: int | None, say: Callable[[str], None]) -> None:
    cases = stopped_cases(ranks, crash, orders=[None, 1])
    say(f"{cases} cases of {ranks} ranks: all went on")


@pytest.mark.sweep
@pytest.mark.timeout(590)
@RANKS
@UNSETTLED
def test_every_loss_of_power_after_every_crash(ranks: int, crash: int | None, say: Callable[[str], None]) -> None:
    cases, complete = powerless_cases(ranks, crash, orders=[None, 1, 2], most=128, further=17)
    say(f"{cases} cases of {ranks} ranks, {complete} of them every combination of their moment: all went on")


@pytest.mark.sweep
@pytest.mark.timeout(590)
@RANKS
@CRASHES
def test_every_error_after_every_crash(ranks: int, crash: int | None, say: Callable[[str], None]) -> None:
    cases = failing_cases(ranks, crash, numbers=[errno.ENOSPC, errno.EDQUOT, errno.EIO])
    say(f"{cases} cases of {ranks} ranks: all went on")
