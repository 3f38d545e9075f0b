"""Workers that are new interpreters: what they get, and what is said where they cannot take it."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from tests.forks.commands import run_command

ROOT = Path(__file__).parents[3]

COUNTED = """
import multiprocessing, os, signal, sys
import torch
from tests.unit.runtime.test_feed_workers import feed
from trimaran.program.strategy import Feeding

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
KILLED = """
class Killed(Counted):
    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    next(feed(Killed(), Feeding(workers=1)).shares()).whole()
"""
SERVER_ENDS = """
if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    multiprocessing.set_forkserver_preload(["broken"])
    next(feed(Counted(), Feeding(workers=1)).shares()).whole()
"""
MANY_TENSORS = """
if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    counted = Counted()
    counted.tensors = [torch.zeros(1) for _ in range(300)]
    next(feed(counted, Feeding(workers=1)).shares()).whole()
"""


def run(script: str, method: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """The script, in a fork: its workers are new interpreters."""
    path = folder / "script.py"
    path.write_text(COUNTED + script)
    return run_command(
        str(path),
        method,
        folder=folder,
        environment={"PYTHONPATH": f"{ROOT}:{folder}"},
        timeout_s=60,
        be=be_script,
    )


def be_script(descriptor: int, path: str, method: str) -> None:
    sys.argv = [path, method]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


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
    """Its data set fills more than a pipe. A server imports the main module too, in newer Pythons."""
    done = run(UNGUARDED, method, tmp_path)
    last = done.stderr.strip().splitlines()[-1]
    assert re.search("ended with exit code 1|the process that forks worker 0 of this rank has ended", last)
    assert f'It had loaded nothing: started by "{method}"' in last
    assert "__main__" in last


@pytest.mark.timeout(90)
def test_a_data_set_whose_module_it_cannot_import_is_told(tmp_path: Path) -> None:
    done = run(ABSENT, "spawn", tmp_path)
    last = done.stderr.strip().splitlines()[-1]
    assert "a worker of rank 0: the data set did not arrive" in last
    assert "ModuleNotFoundError: No module named 'absent'" in last


@pytest.mark.timeout(90)
def test_one_that_is_killed_in_its_first_batch_is_not_said_to_have_been_importing(tmp_path: Path) -> None:
    last = run(KILLED, "spawn", tmp_path).stderr.strip().splitlines()[-1]
    assert "was killed by SIGKILL" in last
    assert "take less memory" in last
    assert "It had loaded nothing" not in last


@pytest.mark.timeout(90)
def test_a_server_that_ends_before_it_forks_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('at import')")
    last = run(SERVER_ENDS, "forkserver", tmp_path).stderr.strip().splitlines()[-1]
    assert "ExecutionError: the process that forks worker 0 of this rank has ended" in last
    assert 'It had loaded nothing: started by "forkserver"' in last


@pytest.mark.timeout(90)
def test_a_data_set_of_more_open_files_than_a_server_takes_is_told(tmp_path: Path) -> None:
    last = run(MANY_TENSORS, "forkserver", tmp_path).stderr.strip().splitlines()[-1]
    assert 'InputError: the data set cannot be sent to workers, which start by "forkserver" here: ValueError' in last
