"""A job of one small network that says each loss in bits, in the log of its rank."""

import dataclasses
import os
import time
from typing import Any

import torch
from tests.distributed.jobs import normed

from trimaran.base.job import Job

ELSEWHERE = "TRIMARAN_TEST_ELSEWHERE"


def spoken() -> Job:
    """Three epochs of five steps, with batch norm and dropout."""
    return dataclasses.replace(normed(), on_step=say_loss)


def say_loss(session: Any, step: int, metrics: dict[str, float]) -> None:
    print(f"step {session.steps}\nloss {session.steps} {metrics['loss'].hex()}", flush=True)  # noqa: T201 into the log
    time.sleep(0.15)


def steeper() -> Job:
    """With another rate and momentum, and a schedule of another length."""
    return dataclasses.replace(
        spoken(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.8, nesterov=True),
        lr_schedule=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 24),
    )


def wider() -> Job:
    """Another network under the same name."""
    return dataclasses.replace(spoken(), model=lambda: torch.nn.Linear(8, 3))


def moving() -> Job:
    """`spoken`, whose data are looked for in another folder."""
    job = spoken()

    def dataset() -> Any:
        os.chdir(os.environ[ELSEWHERE])
        return job.dataset()

    return dataclasses.replace(job, dataset=dataset)


def unplain() -> Job:
    """A schedule that keeps what cannot be saved."""

    def schedule(optimizer: torch.optim.Optimizer) -> Any:
        made = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        made.source = object()  # type: ignore[attr-defined]
        return made

    return dataclasses.replace(spoken(), lr_schedule=schedule)
