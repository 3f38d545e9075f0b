"""The job of a soak: it tells each step by a socket, and breaks in the user's code where a file asks for that."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from trimaran.base.job import Job

SOCKET, FAULTS = "TRIMARAN_SOAK_SOCKET", "TRIMARAN_SOAK_FAULTS"
STEP_S = 0.05
"""Least time of a step [s]."""

SAMPLES, BATCH = 96, 12
BATCHES = SAMPLES // BATCH
EPOCHS = 10
STEPS = EPOCHS * BATCHES

PLACES = ("loss", "metric", "on_step")
"""Where the user's code may break."""


def make() -> Job:
    """Batch norm, dropout, momentum, a rate that falls, clipped gradients: much that a checkpoint must have."""
    generator = torch.Generator().manual_seed(11)
    data = torch.randn(SAMPLES, 8, generator=generator), torch.randint(3, (SAMPLES,), generator=generator)
    return Job(
        name="soak",
        model=make_model,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
        dataset=lambda: TensorDataset(*data),
        evaluation_dataset=lambda: TensorDataset(*data),
        metric=accuracy,
        lr_schedule=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS),
        global_batch_size=BATCH,
        clip_norm=0.5,
        epochs=EPOCHS,
        on_step=tell,
    )


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3),
        nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3),
    )  # fmt: skip


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    break_if_asked("loss")
    return functional.cross_entropy(output, target)


def accuracy(output: torch.Tensor, target: torch.Tensor) -> float:
    break_if_asked("metric")
    return float((output.argmax(1) == target).float().mean())


def tell(session: Any, step: int, metrics: dict[str, float]) -> None:
    """Say the step that has been done: rank, process, number, loss in bits."""
    say(f"{session.rank} {os.getpid()} {session.steps} {metrics['loss'].hex()}")
    break_if_asked("on_step")
    time.sleep(STEP_S)


_to: list[Callable[[bytes], Any]] = []


def say(text: str) -> None:
    if not _to:
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours.connect(os.environ[SOCKET])
        _to.append(ours.send)
    _to[0](text.encode())


def break_if_asked(place: str) -> None:
    """What the file of a place says: raise with a text, or end the process; the first rank that takes it does so."""
    folder = os.environ.get(FAULTS)
    asked = Path(folder or "", place)
    if not folder or not asked.exists():
        return
    own = asked.with_name(f"{place}-{os.getpid()}")
    try:
        asked.rename(own)
    except FileNotFoundError:
        return
    kind, _, value = own.read_text().partition(" ")
    own.unlink()
    if kind == "exit":
        os._exit(int(value))
    raise LookupError(value)
