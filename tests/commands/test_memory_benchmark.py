"""The benchmark of memory, on the CPU: the very same code, narrow networks, a few steps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = [sys.executable, str(ROOT / "benchmarks" / "memory" / "run.py")]


@pytest.mark.sweep
def test_it_runs_arms_in_processes_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--quick", "--cases", "resnet50-tf32", "--out", str(tmp_path)]
    done = _run(*options, "--arms", "ours", "vdnn_all")
    assert done.returncode == 0, done.stderr
    oracle, ours, vdnn = json.loads((tmp_path / "memory.json").read_text())["rows"]
    assert oracle["likeness"]["equal"]
    for row in (ours, vdnn):
        assert row["status"] == "ok", row
        assert row["likeness"]["equal"], row
        assert row["losses"] == oracle["losses"]
        assert row["to_device_bytes"] > 0 or row["recomputed_bytes"] > 0
    assert ours["held"]
    assert ours["phase"] == "run"
    assert ours["peak_bytes"] <= 0.9 * oracle["peak_bytes"]
    again = _run(*options, "--arms", "ours", "vdnn_all", "checkpoint", "--resume")
    assert again.returncode == 0, again.stderr
    rows = json.loads((tmp_path / "memory.json").read_text())["rows"]
    assert rows[:3] == [oracle, ours, vdnn]
    assert rows[3]["arm"] == "checkpoint"


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    """It does not fall back to the CPU by itself."""
    done = _run("--out", str(tmp_path))
    assert done.returncode == 1
    assert "sees no GPU" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def _run(*options: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("OUT", None)
    return subprocess.run([*RUN, *options], capture_output=True, text=True, timeout=110, check=False, env=environment)
