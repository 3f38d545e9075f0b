"""A user's own loop, alone and under torchrun."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.jobs import make_job
from tests.distributed.reference import train_plainly

ROOT = Path(__file__).parents[2]
STEPS = 6


def run(folder: Path, job: str, stages: int, processes: int) -> list[dict[str, Any]]:
    """The loop of `own_loop`; what each process wrote."""
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []
    )
    subprocess.run(
        [sys.executable, *launcher, "-m", "tests.distributed.own_loop", job, str(stages), str(STEPS), str(folder)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=100,
    )
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("job", "stages"), [("cnn_ragged", 1), ("unet_fp64", 2), ("dictionary", 2)])
def test_a_loop_under_torchrun_equals_one_process(job: str, stages: int, tmp_path: Path) -> None:
    """Losses to 1e-10. Batches are joined from microbatches for the loop, and cut again by the step."""
    told = run(tmp_path, job, stages, processes=2)
    plain = train_plainly(make_job(job), STEPS, replicas=2 // stages, microbatches=2)
    assert [(rank["rank"], rank["size"]) for rank in told] == [(0, 2), (1, 2)]
    assert told[0]["losses"] == told[1]["losses"] == pytest.approx(plain.losses, abs=1e-10)
    assert all(rank["reads"] for rank in told)


@pytest.mark.timeout(120)
def test_a_loop_alone_equals_one_process(tmp_path: Path) -> None:
    (told,) = run(tmp_path, "gpt_fp64", 1, processes=1)
    assert told["losses"] == pytest.approx(train_plainly(make_job("gpt_fp64"), STEPS, microbatches=2).losses, abs=1e-10)


@pytest.mark.timeout(120)
def test_ranks_between_the_ends_of_a_pipeline_get_empty_batches(tmp_path: Path) -> None:
    told = run(tmp_path, "unet_fp64", 3, processes=3)
    assert [(rank["reads"], rank["parts"]) for rank in told] == [(True, 2), (False, 0), (True, 2)]
