"""Callbacks: losses in a file, a checkpoint every ten minutes, and an average of the weights.

trimaran train examples/callbacks.py:make_job --devices 2 --allow dp
"""

import time
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import trimaran

FOLDER = Path("callbacks")


def make_dataset() -> TensorDataset:
    digits = load_digits()
    return TensorDataset(torch.from_numpy(digits.data).float() / 16, torch.from_numpy(digits.target).long())


class Callbacks:
    """Every rank has one, and calls it after each step and each epoch."""

    def __init__(self, minutes: float = 10.0, decay: float = 0.99) -> None:
        self.minutes, self.decay = minutes, decay
        self.saved_s = time.monotonic()
        self.average: dict[str, torch.Tensor] = {}

    def on_step(self, session: trimaran.Session, step: int, metrics: dict[str, float]) -> None:
        self.log(session, step, metrics)
        with torch.no_grad():
            # `session.model` is there under replicas: --allow dp.
            for name, parameter in session.model.named_parameters():
                self.average.setdefault(name, parameter.clone()).lerp_(parameter, 1 - self.decay)
        # All ranks save, or none does: rank 0 has the clock.
        is_due = torch.tensor(int(time.monotonic() - self.saved_s > 60 * self.minutes))
        if dist.is_initialized():
            dist.broadcast(is_due, 0)
        if is_due:
            session.save_checkpoint(FOLDER / "checkpoints")
            self.saved_s = time.monotonic()

    def on_epoch(self, session: trimaran.Session, epoch: int, metrics: dict[str, float]) -> None:
        if session.rank == 0:
            print(f"epoch {epoch}: {metrics}")
            save_file(self.average, FOLDER / "average.safetensors")

    def state_dict(self) -> dict[str, object]:
        return {"average": self.average}

    def load_state_dict(self, state: dict[str, dict[str, torch.Tensor]]) -> None:
        self.average = state["average"]

    def log(self, session: trimaran.Session, step: int, metrics: dict[str, float]) -> None:
        if session.rank == 0:
            FOLDER.mkdir(exist_ok=True)
            with (FOLDER / "losses.csv").open("a") as file:
                file.write(f"{step},{metrics['loss']:.6g}\n")


def make_job() -> trimaran.Job:
    callbacks = Callbacks()
    return trimaran.Job(
        name="callbacks",
        model=lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
        dataset=make_dataset,
        global_batch_size=60,
        epochs=2,
        on_step=callbacks.on_step,
        on_epoch=callbacks.on_epoch,
        state=[callbacks],  # a checkpoint has it
    )
