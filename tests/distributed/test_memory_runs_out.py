"""A rank that runs out of memory says so, whether it was refused memory or the kernel has killed it."""

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.commands.hungry_jobs import ROOM
from tests.commands.running import trimaran
from tests.distributed import duties
from tests.forks.client import launch
from tests.raising import raises

from trimaran.base.errors import ExecutionError
from trimaran.launch.memory import Killings

MIB = 2**20
GROUPS = Path("/sys/fs/cgroup/memory")


def test_a_rank_that_is_refused_memory_says_how_much_it_had(tmp_path: Path) -> None:
    """Its address space may grow by 300 MiB, and it takes 50 MiB again and again."""
    with raises("memory.exhausted", ExecutionError, match="can't allocate memory", rank=1) as caught:
        launch(duties.fill_address_space, (1, 300 * MIB), ranks=2, log_dir=tmp_path)
    figures = caught.value.figures
    assert figures["limit"] == "address space of a process, ulimit -v"
    assert figures["room_bytes"] == pytest.approx(300 * MIB, rel=0.5)
    assert figures["limit_bytes"] - figures["used_bytes"] < 50 * MIB  # type: ignore[operator]
    assert "in fill_address_space" in str(caught.value)


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of version 1 whose processes may have 900 MiB together."""
    folder = GROUPS / f"trimaran-test-{uuid.uuid4().hex}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(900 * MIB))
    except OSError as error:
        pytest.skip(f"control groups cannot be made here: {error}")
    yield folder
    for pid in (folder / "cgroup.procs").read_text().split():
        (GROUPS / "cgroup.procs").write_text(pid)
    folder.rmdir()


# The kernel counts for the whole machine: another test that kills a rank meanwhile would take it for want of memory.
@pytest.mark.alone
def test_a_rank_that_the_kernel_killed_for_memory_is_told_from_one_that_was_killed_by_hand(
    tmp_path: Path, group: Path
) -> None:
    before = Killings.so_far()
    with raises("memory.exhausted", ExecutionError, match="the kernel has killed a process", rank=0) as caught:
        launch(duties.fill_group, (0, str(group)), ranks=2, log_dir=tmp_path)
    assert Killings.so_far().since(before)
    assert caught.value.figures["room_bytes"] > 0  # type: ignore[operator]
    with raises("rank.died", ExecutionError, match="SIGKILL", rank=0):
        launch(duties.die_in_collective, (0,), ranks=2, log_dir=tmp_path, on_event=lambda rank, event: None)
    assert not (group / "cgroup.procs").read_text()


@pytest.mark.sweep
@pytest.mark.timeout(600)
def test_a_training_that_runs_out_says_what_its_plan_needs_and_which_one_needs_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients and state of AdamW take 72 MiB; the address space may grow by 12 MiB, after freed heap is used up."""
    jobs = Path(__file__).parents[1] / "commands" / "hungry_jobs.py"
    pins = ("--devices", "2", "--strategy", "dp2", "--execution", "eager")
    done = trimaran("plan", f"{jobs}:hungry", *pins, "--output", "plan.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv(ROOM, "12")
    done = trimaran("train", f"{jobs}:hungry", "--plan", "plan.json", cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    text = " ".join(done.stderr.split())
    assert "ran out of memory" in text
    assert re.search(
        r"The plan dp2\S*( \S+)* needs \d+\.\d MiB on rank \d: parameters 24.0 MiB, gradients 24.0 MiB", text
    )
    assert re.search(r"trimaran (train|plan) \S+hungry --(strategy|memory)", text)
    (note,) = tmp_path.glob("runs/*/run.json")
    assert json.loads(note.read_text())["code"] == "memory.exhausted"
