"""A training that workers feed, for ever: as a job, and as a script with a loop of its own (`python FILE PLAN`)."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tests import zoo
from tests.distributed.signalled_jobs import say_step
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, get_worker_info

import trimaran

PIDS = "TRIMARAN_TEST_PIDS"
"""Names the folder in which each worker leaves a file with its number."""


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if get_worker_info() is not None and PIDS in os.environ:
            Path(os.environ[PIDS], str(os.getpid())).touch()
        # Large enough that a batch is not sent through a pipe.
        return torch.full((4096,), index / 64), torch.zeros(1)


def make_job() -> trimaran.Job:
    return trimaran.Job(
        name="fed",
        model=lambda: nn.Linear(4096, 1),
        loss=functional.mse_loss,
        optimizer=zoo.sgd,
        dataset=Rows,
        global_batch_size=8,
        epochs=1_000_000,
        on_step=say_step,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    session = trimaran.init(make_job(), plan=sys.argv[1])
    for batch in session.batches():
        session.step(batch)
        Path(f"steps{session.rank}").write_text(str(session.steps))
        time.sleep(0.02)
