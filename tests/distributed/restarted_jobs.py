"""Jobs of `resumed_jobs` that break when their ranks have been started again, or at a step."""

import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from tests.distributed.jobs import torn_adam
from tests.distributed.resumed_jobs import say_loss, spoken
from tests.distributed.signalled_jobs import FAULT

from trimaran.base.job import Job

WRONG_STEP = 7


def always_wrong() -> Job:
    """The same error at the same step, however often."""

    def on_step(session: Any, step: int, metrics: dict[str, float]) -> None:
        say_loss(session, step, metrics)
        if session.steps == WRONG_STEP:
            raise LookupError("as ever")

    return dataclasses.replace(spoken(), on_step=on_step)


def _after_the_fault(act: Any) -> Job:
    """Its data do something in ranks that are started when there is the file that the variable of the fault names."""
    job = spoken()

    def dataset() -> Any:
        if torch.distributed.is_initialized() and Path(os.environ[FAULT]).exists():
            act(torch.distributed.get_rank())
        return job.dataset()  # type: ignore[misc]

    return dataclasses.replace(job, dataset=dataset)


def without_a_device() -> Job:
    """Rank 1 dies as soon as it is started again, as one whose device is gone."""
    return _after_the_fault(lambda rank: rank == 1 and os.kill(os.getpid(), signal.SIGKILL))


def slow_again() -> Job:
    """To be started again takes long."""
    return _after_the_fault(lambda _: time.sleep(250))


def torn() -> Job:
    """Two samples of 96 have no finite loss; three epochs of six steps."""
    return dataclasses.replace(torn_adam(), on_step=say_loss, epochs=3)
