"""Workers that are new interpreters: what they get, and what is said where they cannot take it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

COUNTED = """
import multiprocessing, sys
import torch
from tests.unit.runtime.test_feed_workers import feed
from trimaran.program.feeding import Feeding

class Counted:
    def __init__(self):
        self.reads = multiprocessing.Value("i", 0)
        self.rows = [float(number) for number in range(100_000)]

    def __len__(self):
        return 12

    def __getitem__(self, index):
        with self.reads.get_lock():
            self.reads.value += 1
        return torch.tensor([self.rows[index]]), index
"""
GUARDED = """
if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    counted = Counted()
    own = feed(counted, Feeding(workers=1, ahead=1))
    print(*(share.whole()[1].tolist() for share in own.shares()))
    assert counted.reads.value >= 12
    own.close()
"""
UNGUARDED = """
multiprocessing.set_start_method(sys.argv[1], force=True)
next(feed(Counted(), Feeding(workers=1)).shares()).whole()
"""
ABSENT = """
if __name__ == "__main__":
    sys.modules["absent"] = sys.modules["__main__"]
    Counted.__module__ = "absent"
    multiprocessing.set_start_method(sys.argv[1])
    next(feed(Counted(), Feeding(workers=1)).shares()).whole()
"""


def run(script: str, method: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    path = folder / "script.py"
    path.write_text(COUNTED + script)
    return subprocess.run(
        [sys.executable, str(path), method],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.timeout(90)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_they_get_large_data_sets_and_what_they_share_with_others(method: str, tmp_path: Path) -> None:
    """A value of multiprocessing can only be handed to a process that is being started."""
    done = run(GUARDED, method, tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(int(number.strip("[],")) for number in done.stdout.split()) == list(range(12))


@pytest.mark.timeout(90)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_one_that_ends_while_it_imports_is_told(method: str, tmp_path: Path) -> None:
    """Its data set fills more than a pipe."""
    done = run(UNGUARDED, method, tmp_path)
    last = done.stderr.strip().splitlines()[-1]
    assert "ended with exit code 1" in last
    assert f'It had loaded nothing: started by "{method}"' in last
    assert "__main__" in last


@pytest.mark.timeout(90)
def test_a_data_set_whose_module_it_cannot_import_is_told(tmp_path: Path) -> None:
    done = run(ABSENT, "spawn", tmp_path)
    last = done.stderr.strip().splitlines()[-1]
    assert "a worker of rank 0: the data set did not arrive" in last
    assert "ModuleNotFoundError: No module named 'absent'" in last
