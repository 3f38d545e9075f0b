"""A user's own loop, alone and in a world that something else started.

Once that is torchrun. Otherwise processes are forked with the variables that torchrun sets, as to start it, and new
interpreters, takes longer than the loop.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.jobs import make_job
from tests.distributed.own_loop import main
from tests.distributed.reference import train_plainly
from tests.forks.client import server
from tests.forks.server import capture_all
from tests.forks.world import run_world

import trimaran

ROOT = Path(__file__).parents[2]
STEPS = 6


def run_under_torchrun(folder: Path, job: str, stages: int, processes: int) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    subprocess.run(
        [sys.executable, *launcher, "-m", "tests.distributed.own_loop", job, str(stages), str(STEPS), str(folder)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=100,
    )


def run_in_forks(folder: Path, job: str, stages: int, processes: int) -> None:
    server().call(capture_all, [job])
    run_world(main, job, stages, STEPS, str(folder), processes=processes, folder=folder)


def told_by(folder: Path, processes: int) -> list[dict[str, Any]]:
    """What each process of the loop wrote."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("run", "job", "stages"),
    [(run_under_torchrun, "dictionary", 2), (run_in_forks, "cnn_ragged", 1), (run_in_forks, "unet_fp64", 2)],
    ids=["torchrun-dictionary-2", "cnn_ragged-1", "unet_fp64-2"],
)
def test_a_loop_in_a_world_equals_one_process(
    run: Callable[[Path, str, int, int], None], job: str, stages: int, tmp_path: Path
) -> None:
    """Losses to 1e-10. Batches are joined from microbatches for the loop, and cut again by the step."""
    run(tmp_path, job, stages, 2)
    told = told_by(tmp_path, 2)
    plain = train_plainly(make_job(job), STEPS, replicas=2 // stages, microbatches=2)
    assert [(rank["rank"], rank["size"]) for rank in told] == [(0, 2), (1, 2)]
    assert told[0]["losses"] == told[1]["losses"] == pytest.approx(plain.losses, abs=1e-10)
    assert all(rank["reads"] for rank in told)


@pytest.mark.timeout(120)
def test_a_loop_alone_equals_one_process(tmp_path: Path) -> None:
    run_in_forks(tmp_path, "gpt_fp64", 1, processes=1)
    (told,) = told_by(tmp_path, 1)
    assert told["losses"] == pytest.approx(train_plainly(make_job("gpt_fp64"), STEPS, microbatches=2).losses, abs=1e-10)


@pytest.mark.timeout(120)
def test_ranks_between_the_ends_of_a_pipeline_get_empty_batches(tmp_path: Path) -> None:
    run_in_forks(tmp_path, "unet_fp64", 3, processes=3)
    told = told_by(tmp_path, 3)
    assert [(rank["reads"], rank["parts"]) for rank in told] == [(True, 2), (False, 0), (True, 2)]


def take_late(folder: str) -> None:
    """A loop of one's own, whose loss has a term over the batch from its fourth call on."""
    calls = 0

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        own = torch.nn.functional.cross_entropy(output, target)
        return own + 0.5 * output.mean().square() if calls > 3 else own

    data = torch.utils.data.TensorDataset(torch.randn(48, 6), torch.arange(48) % 3)
    job = trimaran.Job(
        model=lambda: torch.nn.Linear(6, 3),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=lambda: data,
        global_batch_size=8,
    )
    torch.manual_seed(1)
    session, told = trimaran.init(job), ""
    try:
        for batch in session.batches():
            session.step(batch)
    except trimaran.TrimaranError as error:
        told = error.code
    (Path(folder) / f"{session.rank}.json").write_text(json.dumps({"told": told, "steps": session.steps}))
    with suppress(trimaran.TrimaranError):
        session.close()


@pytest.mark.timeout(120)
def test_what_begins_late_in_a_loop_is_noticed_at_the_next_power_of_two(tmp_path: Path) -> None:
    """No trial is made of a loop: its steps 0, 1, 2, 4, ... are compared with one process."""
    run_world(take_late, str(tmp_path), processes=2, folder=tmp_path)
    assert [(one["told"], one["steps"]) for one in told_by(tmp_path, 2)] == [("verify.differs", 5)] * 2
