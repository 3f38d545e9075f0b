"""Ray Train on two workers, as docs/torchrun.md says: the same training as one process."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.documents import ROOT

import trimaran

pytest.importorskip("ray.train.torch")

EXAMPLE = ROOT / "examples" / "ray_train.py"


@pytest.mark.timeout(300)
def test_workers_of_ray_train_what_one_process_does(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_V2_ENABLED": "1"}
    command = [sys.executable, str(EXAMPLE), str(folder)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    session = trimaran.init(runpy.run_path(str(EXAMPLE))["make_job"]())
    for batch in session.batches():
        session.step(batch)
    alone = session.weights()
    session.close()
    for name, weight in load_file(folder / "model.safetensors").items():
        torch.testing.assert_close(weight, alone[name], rtol=1e-3, atol=1e-5)
