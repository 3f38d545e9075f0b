"""What becomes of a run whose workers crash."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PASSES = "def test_first(): pass\ndef test_second(): pass\n"
CRASHES = """
import os, pathlib
def test_before(): pass
def test_crashes_once():
    mark = pathlib.Path(__file__).with_suffix(".mark")
    if not mark.exists():
        mark.touch()
        os._exit(1)
def test_crashes_each_time(): os._exit(1)
def test_after(): pass
"""


def test_a_crash_costs_the_test_that_crashes(tmp_path: Path) -> None:
    """The first file is done when the only worker crashes; each test that crashes is run once more."""
    (tmp_path / "test_a.py").write_text(PASSES)
    (tmp_path / "test_b.py").write_text(CRASHES)
    (tmp_path / "test_c.py").write_text(PASSES)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.scheduling", "-p", "no:cacheprovider", "--reruns", "1"]
    command += ["-n", "1", "--dist", "loadfile", "--no-loadscope-reorder"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=60)
    *_, last = done.stdout.splitlines()
    ends = {end: int(count) for count, end in re.findall(r"(\d+) (failed|passed|rerun)", last)}
    assert ends == {"failed": 1, "passed": 7, "rerun": 2}
