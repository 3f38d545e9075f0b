"""Starting ranks, and never leaving one behind.

Each behaviour is seen once with interpreters that are started as for a user. More of the same, and what a rank sends
once it runs, is seen with ranks that are forked, by the same code.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from tests.distributed import duties
from tests.distributed.parent import main_of_forks
from tests.forks import client as forks
from tests.raising import raises

from trimaran.base.errors import ExecutionError
from trimaran.launch.supervise import launch

ROOT = Path(__file__).parents[2]
# Long enough for a crowded machine, far shorter than what a rank that is left behind would take.
SOON_S = 15.0
# Enough for a rank to return or raise after it has reported.
FINISHED_S = 1.0


class Pids:
    """Collects the process ids that ranks report."""

    def __init__(self) -> None:
        self.files: list[int] = []

    def __call__(self, rank: int, event: Mapping[str, Any]) -> None:
        self.add(event["pids"])

    def add(self, pids: list[int]) -> None:
        self.files += [os.pidfd_open(pid) for pid in pids]

    def have_ended(self) -> bool:
        """Whether all end soon; waits for them, not for the time to pass."""
        ended = [bool(select.select([file], [], [], SOON_S)[0]) for file in self.files]
        for file in self.files:
            os.close(file)
        return bool(ended) and all(ended)


def test_results_come_back_by_rank(tmp_path: Path) -> None:
    """Each rank adds up 0 + 1 + 2 = 3."""
    assert launch(duties.add_ranks, ranks=3, log_dir=tmp_path) == [3.0, 3.0, 3.0]


def test_a_rank_knows_its_world_and_has_one_thread(tmp_path: Path) -> None:
    first, second = launch(duties.describe, ("hello",), ranks=2, log_dir=tmp_path, device="cpu")
    assert (first["rank"], second["rank"], second["size"], second["local_rank"], second["local_size"]) == (
        0,
        1,
        2,
        1,
        2,
    )
    assert (second["device"], second["backend"], second["word"], second["threads"]) == ("cpu", "gloo", "hello", 1)
    assert second["joined"] == 2
    # A data set may number its classes by the order of a set.
    assert first["order"] == second["order"]
    assert second["python_path"] == os.environ.get("PYTHONPATH")


def test_one_rank_is_alone_without_a_process_group(tmp_path: Path) -> None:
    (only,) = launch(duties.describe, ("hello",), ranks=1, log_dir=tmp_path, device="cpu")
    assert (only["size"], only["backend"], only["joined"]) == (1, "none", 1)


def test_variables_are_set_in_the_ranks(tmp_path: Path) -> None:
    (only,) = launch(duties.describe, ("",), ranks=1, log_dir=tmp_path, environment={"OMP_NUM_THREADS": "2"})
    assert only["threads"] == 2


def test_events_arrive_in_order(tmp_path: Path) -> None:
    seen: dict[int, list[object]] = {0: [], 1: []}
    forks.launch(
        duties.count, (3,), ranks=2, log_dir=tmp_path, on_event=lambda rank, event: seen[rank].append(event["number"])
    )
    assert seen == {0: [0, 1, 2], 1: [0, 1, 2]}


def test_an_error_of_ours_keeps_its_type_and_figures(tmp_path: Path) -> None:
    """Rank 0 waits in a collective that rank 1 never joins, and its complaint must not hide the cause."""
    with raises("test.refused") as caught:
        forks.launch(duties.refuse, (1,), ranks=2, log_dir=tmp_path)
    assert caught.value.figures == {"value": 7, "rank": 1}


def test_any_other_exception_comes_with_the_line_that_raised_and_the_log(tmp_path: Path) -> None:
    with raises("rank.raised", ExecutionError, match="ZeroDivisionError", rank=1) as caught:
        forks.launch(duties.stumble, (1,), ranks=2, log_dir=tmp_path)
    assert 'in stumble\n        raise ZeroDivisionError("too far")' in str(caught.value)
    assert f"The whole traceback is in {tmp_path / 'rank1.log'}" in str(caught.value)
    assert "so far, so good" in (tmp_path / "rank0.log").read_text()


def test_a_rank_that_leaves_ends_the_others(tmp_path: Path) -> None:
    pids = Pids()
    with raises("user.exited", match="SystemExit: 3", rank=0, exited_with=3):
        forks.launch(duties.leave, (0,), ranks=2, log_dir=tmp_path, on_event=pids)
    assert pids.have_ended()


@pytest.mark.parametrize(
    ("launched", "duty"),
    [(forks.launch, duties.die_in_collective), (launch, duties.die_beside_hanging)],
    ids=["in a collective", "beside a hanging one"],
)
def test_a_killed_rank_ends_the_others(tmp_path: Path, launched: Any, duty: Any) -> None:
    pids = Pids()
    with raises("rank.died", ExecutionError, match="SIGKILL", rank=1) as caught:
        launched(duty, (1,), ranks=2, log_dir=tmp_path, on_event=pids)
    assert (caught.value.figures["rank"], caught.value.figures["exit_code"]) == (1, -signal.SIGKILL)
    assert pids.have_ended()


@contextmanager
def new_parent(arguments: Sequence[str], folder: Path) -> Iterator[tuple[Any, IO[str]]]:
    """The process of `parent` as a script, whose ranks are new interpreters; and what it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.distributed.parent", *arguments],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        yield process, process.stdout  # type: ignore[misc]


@contextmanager
def forked_parent(arguments: Sequence[str], folder: Path) -> Iterator[tuple[Any, IO[str]]]:
    """The same in a fork, whose ranks are forks."""
    reading, writing = os.pipe()
    descriptor = forks.server().admit()
    with os.fdopen(reading) as printed, Path(os.devnull).open("r+b") as nothing:
        process = forks.server().fork(
            main_of_forks,
            *arguments,
            streams=(nothing.fileno(), writing, nothing.fileno()),
            descriptors=[descriptor],
            environment=os.environ | {"TMPDIR": str(folder)},
            folder=ROOT,
        )
        os.close(writing)
        os.close(descriptor)
        try:
            yield process, printed
        finally:
            process.end()


@pytest.mark.parametrize(
    ("start", "number", "arguments"),
    [
        (new_parent, signal.SIGINT, []),
        (new_parent, signal.SIGTERM, []),
        (forked_parent, signal.SIGKILL, []),
        (new_parent, signal.SIGKILL, ["return"]),
        (forked_parent, signal.SIGKILL, ["raise"]),
    ],
)
def test_ranks_end_with_their_parent(tmp_path: Path, start: Any, number: signal.Signals, arguments: list[str]) -> None:
    """Ctrl-C, asked to end, or killed: the ranks end, and so do what they had started, their folder and its logs.

    Also where all ranks have finished, and the parent, which is busy, has not heard of it.
    """
    pids = Pids()
    with start(arguments, tmp_path) as (parent, printed):
        for _ in range(2):
            pids.add([int(pid) for pid in printed.readline().split()])
        assert len(list(tmp_path.glob("*/rank?.log"))) == 2
        if arguments:
            time.sleep(FINISHED_S)
        os.kill(parent.pid, number)
        assert parent.wait(SOON_S) == -number
    assert len(pids.files) == (2 if arguments else 4)
    assert pids.have_ended()
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_is_stopped_ends_with_its_parent_too(tmp_path: Path) -> None:
    """It could not see that its parent is gone: the system continues it."""
    pids = Pids()
    with new_parent([], tmp_path) as (parent, printed):
        for _ in range(2):
            pids.add([int(pid) for pid in printed.readline().split()])
        children = [
            entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and _parent_of(entry) == parent.pid
        ]
        assert len(children) == 2
        for entry in children:
            os.kill(int(entry.name), signal.SIGSTOP)
        os.kill(parent.pid, signal.SIGKILL)
        assert parent.wait(SOON_S) == -signal.SIGKILL
    assert pids.have_ended()
    assert list(tmp_path.iterdir()) == []


def _parent_of(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def test_no_folder_stays_where_a_parent_is_killed_once_its_ranks_have_left(tmp_path: Path) -> None:
    with forked_parent(["leave"], tmp_path) as (parent, _):
        assert parent.wait(60) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_launches_at_the_same_time_do_not_collide(tmp_path: Path) -> None:
    results: dict[int, list[float]] = {}

    def run(number: int) -> None:
        results[number] = launch(duties.add_ranks, ranks=2, log_dir=tmp_path / str(number))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: [1.0, 1.0], 1: [1.0, 1.0]}


def test_no_port_is_open_outside_the_loopback_interface(tmp_path: Path) -> None:
    addresses = launch(duties.listening, ranks=2, log_dir=tmp_path, device="cpu")
    assert all(addresses)
    assert {address for rank in addresses for address in rank} <= {"127.0.0.1", "::1"}


def test_nothing_is_left_in_the_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    forks.launch(duties.add_ranks, ranks=2, log_dir=tmp_path)
    assert list(folder.iterdir()) == []


def test_a_function_that_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    with raises("launch.cannot-send"):
        launch(lambda world: None, ranks=1, log_dir=tmp_path)


def test_no_rank_at_all_is_refused(tmp_path: Path) -> None:
    with raises("launch.no-rank"):
        launch(duties.add_ranks, ranks=0, log_dir=tmp_path)
