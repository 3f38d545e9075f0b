"""A command whose user code ends the process, in whatever manner, never ends as if it had its result."""

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
