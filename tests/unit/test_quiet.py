"""Which tests a busy machine leaves without a verdict."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.quiet import Spent, own_seconds, read_clocks

TESTS = """
import pytest, tests.quiet
tests.quiet.BUSY = {busy}

@pytest.mark.alone
def test_clock():
    assert 2 == 1

@pytest.mark.alone
def test_defect():
    raise ValueError("no clock says this")

@pytest.fixture(scope="module")
def shared():
    return 2

@pytest.mark.alone
def test_clock_of_a_fixture(shared):
    assert shared == 1

def test_other():
    assert 2 == 1

@pytest.mark.alone
def test_right():
    assert 1 == 1
"""
ROOT = Path(__file__).parents[2]


def outcomes(busy: float, folder: Path) -> tuple[dict[str, int], int]:
    """How many tests ended in each way, and of how many it is said that they are not judged."""
    (folder / "test_example.py").write_text(TESTS.format(busy=busy))
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\nmarkers = alone\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.quiet", "-p", "no:cacheprovider", "-rs", "--reruns", "1"]
    command += ["--only-rerun", "AssertionError"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, timeout=60)
    *_, last = done.stdout.splitlines()
    ends = {end: int(count) for count, end in re.findall(r"(\d+) (failed|passed|skipped|rerun)", last)}
    # Lines that say the same are told as one, with their number.
    skipped = re.findall(r"SKIPPED \[(\d+)\].*machine too busy: not judged", done.stdout)
    return ends, sum(map(int, skipped))


def test_a_clock_is_not_judged_on_a_busy_machine_and_all_else_is(tmp_path: Path) -> None:
    """Of four assertions and errors two are about clocks; each assertion is asked once more."""
    ends, unjudged = outcomes(-1.0, tmp_path)
    assert ends == {"failed": 2, "passed": 1, "skipped": 2, "rerun": 3}
    assert unjudged == 2


def test_a_clock_is_judged_on_a_quiet_machine(tmp_path: Path) -> None:
    ends, unjudged = outcomes(1e9, tmp_path)
    assert ends == {"failed": 4, "passed": 1, "rerun": 3}
    assert unjudged == 0


@pytest.mark.parametrize(("root", "expected"), [(10, 7.0), (12, 4.0), (1, 27.0)])
def test_what_descends_from_a_process_is_its_own(root: int, expected: float) -> None:
    """10 started 11 and 12, which started 13: 1 + 2 + 1.5 + 2.5; 20 is another's."""
    table = {1: (0, 0.0), 10: (1, 1.0), 11: (10, 2.0), 12: (10, 1.5), 13: (12, 2.5), 20: (1, 20.0)}
    assert own_seconds({pid: Spent(*one) for pid, one in table.items()}, root) == expected


WORK = "import time\nwhile time.process_time() < 0.5: pass\nprint('done', flush=True)\ninput()"


def test_a_child_that_still_runs_is_own() -> None:
    """It works until it has spent half a second, and then waits; ticks are 10 ms."""
    before = read_clocks().own_s
    with subprocess.Popen([sys.executable, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"done\n"
        while_it_waits = read_clocks().own_s
        child.communicate(b"\n")
    assert while_it_waits - before >= 0.48
    assert read_clocks().own_s >= while_it_waits - 0.02
