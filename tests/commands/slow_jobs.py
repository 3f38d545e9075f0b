"""A job whose items are waited for, `slow_jobs.py:reading`."""

import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from trimaran.base.job import Job

READ_S = 5e-3
BATCH = 16


class Reading(Dataset[Any]):
    """Each item stands still for 5 ms."""

    def __len__(self) -> int:
        return 40 * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(READ_S)
        return torch.full((3, 48, 48), (index % 64) / 64.0), index % 4


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 48, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, 4),
    )


def reading() -> Job:
    return Job(
        model=network,
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        dataset=Reading,
        global_batch_size=BATCH,
        name="reading",
    )
