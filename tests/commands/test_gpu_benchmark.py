"""The benchmark on a GPU, on the CPU: the very same code, a few steps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.sweep
def test_it_runs_a_job_and_writes_what_it_found(tmp_path: Path) -> None:
    job = f"{ROOT / 'tests' / 'zoo.py'}:cnn"
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu" / "run.py"), "--device", "cpu", "--quick"]
    options = ["--jobs", job, "--larger", "2", "--executions", "eager", "--out", str(tmp_path)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert document["skipped"] == []
    assert document["environment"]["gpu"] is None
    small, large = document["cases"]
    assert large["batch"] == 2 * small["batch"]
    for case in (small, large):
        assert case["execution"] == "eager"
        assert all(case["step_s"][variant] > 0 for variant in ("recorded", "runtime", "by hand"))
        parts = {name: part["measured_s"] for name, part in case["parts"].items()}
        assert sum(parts.values()) - parts["step"] == pytest.approx(parts["step"], rel=1e-6)
        assert case["peak_bytes"]["predicted"] > 0
        assert case["peak_bytes"]["measured"] is None


def test_without_a_gpu_it_says_so() -> None:
    """It does not fall back to the CPU by itself."""
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu" / "run.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=_without_gpus())
    assert done.returncode == 1
    assert "sees no GPU" in done.stderr
    assert "Traceback" not in done.stderr


def _without_gpus() -> dict[str, str]:
    import os

    return {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
