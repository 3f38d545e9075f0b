"""A command whose user code ends the process, in whatever manner, never ends as if it had its result."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

JOB = """
import os, sys
def fault():
    {how}
class Data:
    def __len__(self):
        return 8
    def __getitem__(self, number):
        fault()
if {at_import}:
    fault()
def make():
    fault()
"""
WAYS = ["sys.exit(0)", "sys.exit('x')", "os._exit(0)", "os._exit(7)", "raise KeyboardInterrupt"]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("at_import", [True, False], ids=["import", "factory"])
def test_a_job_that_ends_the_process_is_wrong_input(tmp_path: Path, how: str, at_import: bool) -> None:
    (tmp_path / "job.py").write_text(JOB.format(how=how, at_import=at_import))
    words = [sys.executable, "-m", "trimaran", "check", "job.py:make"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "job.py" in done.stderr


@pytest.mark.parametrize(("words", "code"), [(["jobs"], 4), (["plan", "no-such-job"], 2)])
def test_a_stream_that_cannot_be_written_keeps_the_exit_code(words: list[str], code: int) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "trimaran", *words], stdout=full, stderr=full, check=False)
    assert done.returncode == code


INTERRUPTED_IN = [
    "importlib",
    "trimaran.base",
    "trimaran.base.errors",
    "trimaran.base.outcome",
    "trimaran.base.signals",
]
COMMAND = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.modules.pop({name!r}, None)
sys.meta_path.insert(0, Finder())
from trimaran.__main__ import main
sys.argv = ["trimaran", "jobs"]
main()
"""


@pytest.mark.parametrize("name", INTERRUPTED_IN)
def test_a_command_that_is_interrupted_while_it_is_imported_ends_quietly(tmp_path: Path, name: str) -> None:
    (tmp_path / "trimaran").write_text(COMMAND.format(name=name))
    done = subprocess.run([sys.executable, tmp_path / "trimaran"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "trimaran: interrupted\n")


@pytest.mark.parametrize(("file", "default"), [("own.py", True), ("trimaran", False)])
def test_a_script_that_imports_trimaran_keeps_its_signals(tmp_path: Path, file: str, default: bool) -> None:
    """Of the command one that is ignored, as with nohup, stays so."""
    (tmp_path / file).write_text("import signal, trimaran\nprint(signal.getsignal(signal.SIGINT))\n")
    before = None if default else lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
    done = subprocess.run(
        [sys.executable, tmp_path / file], capture_output=True, text=True, check=True, preexec_fn=before
    )
    assert done.stdout.strip() == str(signal.default_int_handler if default else signal.SIG_IGN)
