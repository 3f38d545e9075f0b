"""The launcher of rehearsed ranks, with real processes and a worker that needs no torch."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import packaging
import pytest
from tests.raising import raises
from tests.rehearsal.rehearsing import rehearse_rank

from trimaran.base.errors import EnvironmentProblem
from trimaran.rehearsal import launch
from trimaran.rehearsal.launch import MARK, EndedRank, run_ranks
from trimaran.rehearsal.request import Gpu, RankRequest

ROOT = Path(__file__).parents[2]
WORKER = "tests.rehearsal.stand_in"
GPU = Gpu(
    name="NVIDIA H100 80GB HBM3",
    catalog_name="h100",
    memory_bytes=80 * 2**30,
    capability=(9, 0),
    multiprocessors=132,
)


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker of these tests can be imported."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def requests(
    folder: Path, code: str, *, world: int = 1, together: bool = False, seconds: float = 30.0
) -> list[RankRequest]:
    """One request a rank for a script."""
    folder.mkdir(exist_ok=True)
    (folder / "meeting").mkdir()
    script = folder / "train.py"
    script.write_text(textwrap.dedent(code))
    return [
        RankRequest(
            script=str(script),
            rank=rank,
            world=world,
            per_node=8,
            gpu=GPU,
            together=tuple(range(world)) if together else (rank,),
            meeting=str(folder / "meeting"),
            record=str(folder / f"rank{rank}.msgpack"),
            output=str(folder / f"rank{rank}.log"),
            most_seconds=seconds,
        )
        for rank in range(world)
    ]


def run(folder: Path, code: str, *, at_once: int = 2, **options: Any) -> list[EndedRank]:
    """Run a script as every rank."""
    return run_ranks(requests(folder, code, **options), folder=folder, at_once=at_once, worker=WORKER)


def marked() -> Iterator[int]:
    """Processes that a launcher has started, on the whole machine, of whatever launch of this test."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            mine = f"TEST={os.getpid()}".encode() in variables
            if mine and state != "Z" and any(one.startswith(f"{MARK}=".encode()) for one in variables):
                yield int(entry.name)


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process outlives its test."""
    monkeypatch.setenv("TEST", str(os.getpid()))
    yield
    until = time.monotonic() + 5.0
    while list(marked()) and time.monotonic() < until:
        time.sleep(0.05)
    assert list(marked()) == []


def test_every_rank_is_run_and_told_in_order(tmp_path: Path) -> None:
    said: list[tuple[int, int]] = []

    def progress(_: str, done: int, out_of: int) -> None:
        said.append((done, out_of))

    asked = requests(tmp_path / "run", "import os; print('I am', os.environ['RANK'])", world=3)
    found = run_ranks(
        asked,
        folder=tmp_path / "run",
        at_once=2,
        worker=WORKER,
        progress=lambda _, done, all_: said.append((done, all_)),
    )
    assert [one.record.rank for one in found] == [0, 1, 2]
    assert [one.printed.strip() for one in found] == ["I am 0", "I am 1", "I am 2"]
    assert [(one.status, one.record.end.how) for one in found] == [(0, "finished")] * 3
    assert said[-1] == (3, 3)


def test_ranks_that_wait_for_each_other_run_at_once_however_few_cores_there_are(tmp_path: Path) -> None:
    found = run(tmp_path / "run", "", world=3, together=True, at_once=1)
    assert [one.record.end.how for one in found] == ["finished"] * 3


def test_ranks_that_do_not_are_run_as_many_at_once_as_asked(tmp_path: Path) -> None:
    code = f"""
        import pathlib, time
        here = pathlib.Path({str(tmp_path)!r})
        one = here / f"running-{{time.monotonic_ns()}}"
        one.touch()
        print("now", len(list(here.glob("running-*"))))
        time.sleep(0.2)
        one.unlink()
    """
    found = run(tmp_path / "run", code, world=3, at_once=1)
    assert [one.printed.strip() for one in found] == ["now 1"] * 3


def test_ranks_that_must_run_at_once_are_refused_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others then run one after another."""
    monkeypatch.setattr(launch, "free_memory_bytes", lambda: 2 * launch.LEAST_RANK_BYTES)
    with raises("rehearse.too-many-at-once", EnvironmentProblem, ranks=3):
        run(tmp_path / "together", "", world=3, together=True)
    assert len(run(tmp_path / "apart", "", world=3)) == 3


def test_a_status_of_its_own_is_kept(tmp_path: Path) -> None:
    (found,) = run(tmp_path / "run", "raise SystemExit(7)")
    assert (found.record.end.how, found.record.end.status) == ("exit", 7)


def test_one_that_leaves_without_a_word_is_told_by_its_status_and_last_line(tmp_path: Path) -> None:
    (found,) = run(tmp_path / "run", "import os; print('going', flush=True); os._exit(9)")
    assert (found.status, found.overdue) == (9, False)
    assert (found.record.end.how, found.record.end.status, found.record.end.text) == ("killed", 9, "going")
    assert (found.record.world, found.record.memory_bytes) == (1, 80 * 2**30)


def test_one_that_is_killed_is_told_by_its_signal(tmp_path: Path) -> None:
    (found,) = run(tmp_path / "run", "import os; os.kill(os.getpid(), 9)")
    assert (found.status, found.record.end.how) == (-9, "killed")


def test_one_that_never_ends_and_catches_everything_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRACE_S", 0.3)
    code = """
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            try:
                while True: pass
            except BaseException: pass
    """
    (found,) = run(tmp_path / "run", code, seconds=0.5)
    assert found.overdue
    assert (found.status, found.record.end.how) == (-9, "seconds")
    assert 0.8 <= found.seconds < 5.0


@pytest.mark.parametrize("leaves_group", [False, True], ids=["forks", "daemon"])
def test_what_a_script_starts_ends_with_it(tmp_path: Path, leaves_group: bool) -> None:
    code = f"""
        import os, pathlib, time
        if os.fork() == 0:
            if {leaves_group}:
                os.setsid()
                if os.fork(): os._exit(0)
            pathlib.Path({str(tmp_path / "child")!r}).write_text(str(os.getpid()))
            time.sleep(600)
        while not pathlib.Path({str(tmp_path / "child")!r}).exists(): time.sleep(0.01)
    """
    (found,) = run(tmp_path / "run", code)
    assert found.record.end.how == "finished"
    child = int((tmp_path / "child").read_text())
    assert child not in set(marked())


def test_what_is_printed_is_bounded_and_its_end_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "MOST_PRINTED_BYTES", 2**20)
    code = """
        import time
        for _ in range(40):
            print("x" * 99_999, flush=True)
            time.sleep(0.02)
        time.sleep(0.3)
        print("the end")
    """
    (found,) = run(tmp_path / "run", code)
    assert found.printed.endswith("the end\n")
    assert (tmp_path / "run" / "rank0.log").stat().st_size < 3 * 2**20


def test_temporary_files_are_gone_when_the_ranks_have_ended(tmp_path: Path) -> None:
    (found,) = run(tmp_path / "run", "import tempfile; print(tempfile.mkstemp()[1])")
    made = Path(found.printed.strip())
    assert made.name.startswith("tmp")
    assert not made.parent.exists()


def test_variables_of_other_launchers_are_not_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "SLURM_PROCID"):
        monkeypatch.setenv(name, "5")
    monkeypatch.setenv("MY_OWN", "kept")
    (found,) = run(
        tmp_path / "run", "import os; print(sorted(k for k in os.environ if os.environ[k] in ('5', 'kept')))"
    )
    assert found.printed.strip() == "['MY_OWN']"


DRIVER = """
import sys
from pathlib import Path
from tests.rehearsal.test_launch import WORKER, requests
from trimaran.base.signals import Catcher, raise_interrupted
from trimaran.base.files import temporary_folder
from trimaran.rehearsal.launch import run_ranks
code = '''
import os, pathlib, time
if os.fork() == 0:
    os.setsid()
pathlib.Path({here!r}, f"up-{{os.getpid()}}").touch()
time.sleep(600)
'''
with Catcher(raise_interrupted), temporary_folder("launch-", inside=Path({here!r})) as folder:
    run_ranks(requests(folder, code, world=2), folder=folder, at_once=2, worker=WORKER)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda one: one.name)
def test_when_the_command_is_ended_so_are_the_ranks(tmp_path: Path, number: signal.Signals) -> None:
    """After SIGKILL only what the ranks themselves are is gone: nobody is left who would look for what they started."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER.format(here=str(tmp_path))],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + 20.0
    while len(list(tmp_path.glob("up-*"))) < 4:
        assert time.monotonic() < until
        time.sleep(0.02)
    driver.send_signal(number)
    assert driver.wait(10.0) != 0
    if number == signal.SIGKILL:
        until = time.monotonic() + 5.0
        while len(left := list(marked())) > 2 and time.monotonic() < until:
            time.sleep(0.02)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        # Two children that made sessions of their own; the ranks, which have theirs too, are gone.
        assert len(left) == 2
    else:
        assert list(marked()) == []
        assert list(tmp_path.glob("launch-*")) == []


def test_packages_that_lie_where_ours_does_come_after_those_of_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a virtual environment over which another one was made."""
    for name in ("packaging", "of_another"):
        (tmp_path / "root" / name).mkdir(parents=True)
        (tmp_path / "root" / name / "__init__.py").touch()
    monkeypatch.setattr(launch, "_ROOT", tmp_path / "root")
    (tmp_path / "train.py").write_text("import of_another, packaging; print(packaging.__file__)")
    rehearse_rank(tmp_path / "train.py", folder=tmp_path)
    assert (tmp_path / "output").read_text().strip() == packaging.__file__
