"""Jobs of one small network that are slow in one place each, so that a signal comes there."""

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from trimaran.base.job import Job

BATCHES = 4
LONG_S = 250.0
FAULT = "TRIMARAN_TEST_FAULT"
"""Variable that says what is slow in jobs of `slow`."""


def make_data(samples: int = 16 * BATCHES) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(
        torch.randn(samples, 8, generator=generator), torch.randint(2, (samples,), generator=generator)
    )


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def right(output: torch.Tensor, target: torch.Tensor) -> float:
    return float((output.argmax(1) == target).float().mean())


def plain() -> Job:
    """Says each step in the log of its rank, and goes on for ever."""
    return Job(
        name="plain",
        model=make_model,
        loss=functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=make_data,
        evaluation_dataset=make_data,
        metric=right,
        global_batch_size=16,
        epochs=1_000_000,
        on_step=say_step,
    )


def say_step(session: Any, step: int, metrics: dict[str, float]) -> None:
    print(f"step {session.steps}", flush=True)  # noqa: T201 into the log of the rank
    time.sleep(0.02)


def slow_model() -> Job:
    """The model takes long: a signal comes while the job is planned."""

    def model() -> nn.Module:
        time.sleep(LONG_S)
        return make_model()

    return dataclasses.replace(plain(), model=model)


def slow_step() -> Job:
    """A step takes long, by the number in the variable of the fault."""

    def on_step(session: Any, step: int, metrics: dict[str, float]) -> None:
        say_step(session, step, metrics)
        if session.steps == int(os.environ[FAULT]):
            time.sleep(LONG_S)

    return dataclasses.replace(plain(), on_step=on_step)


def slow_evaluation() -> Job:
    """A batch of an evaluation takes a fifth of a second, and there are hundreds."""

    def metric(output: torch.Tensor, target: torch.Tensor) -> float:
        print("evaluating", flush=True)  # noqa: T201 into the log of the rank
        time.sleep(0.2)
        return right(output, target)

    return dataclasses.replace(plain(), metric=metric, evaluation_dataset=lambda: make_data(16 * 600))


def waits() -> Job:
    """The first step is not over before there is a file, whose path is in the variable of the fault."""

    def on_step(session: Any, step: int, metrics: dict[str, float]) -> None:
        say_step(session, step, metrics)
        while not os.path.exists(os.environ[FAULT]):  # noqa: PTH110 quick
            time.sleep(0.01)

    return dataclasses.replace(plain(), on_step=on_step)


def raises_late() -> Job:
    """A step raises once there is a file, whose path is in the variable of the fault."""

    def on_step(session: Any, step: int, metrics: dict[str, float]) -> None:
        say_step(session, step, metrics)
        if os.path.exists(os.environ[FAULT]):  # noqa: PTH110 quick
            raise LookupError("the cause")

    return dataclasses.replace(plain(), on_step=on_step)


def talkative() -> Job:
    """Prints much in each step, and counts steps in a file whose path is in the variable of the fault."""

    def on_step(session: Any, step: int, metrics: dict[str, float]) -> None:
        print("x" * 10_000, flush=True)  # noqa: T201 into the log of the rank
        say_step(session, step, metrics)
        if session.rank == 0:
            Path(os.environ[FAULT]).write_text(str(session.steps))

    return dataclasses.replace(plain(), on_step=on_step)


def large() -> Job:
    return dataclasses.replace(plain(), model=lambda: nn.Sequential(nn.Linear(8, 2**20), nn.Linear(2**20, 2)))


def leaves_its_folder() -> Job:
    return dataclasses.replace(plain(), name="../../left")
