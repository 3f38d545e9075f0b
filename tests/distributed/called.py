"""A job with callbacks, and a plain loop that calls them as a session does."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset, default_collate

from trimaran.base.job import Job
from trimaran.runtime.data.orders import sample_order

SAMPLES, BATCH, EPOCHS = 60, 16, 4
BATCHES = -(-SAMPLES // BATCH)
STOPS_AT = 3 * BATCHES + 1


class Scaled(nn.Module):
    """A layer that is frozen at the start, a buffer that its forward reads and does not change, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 8)
        self.third, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.second.requires_grad_(False)
        self.register_buffer("scale", torch.ones(8))
        self.factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x)))) * self.scale
        return self.last(torch.tanh(self.third(x)) * self.factor)


def make_data(seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(
        torch.randn(SAMPLES, 6, generator=generator), torch.randint(3, (SAMPLES,), generator=generator)
    )


@dataclass(slots=True)
class Diary:
    """Callbacks that average weights over steps and evaluate the average, and change what may be changed.

    Attributes:
        freezes: whether layers are frozen and freed
        whole: the model is whole on each rank, and may be used
        told: what they saw
    """

    freezes: bool
    whole: bool = True
    told: list[tuple[Any, ...]] = field(default_factory=list)
    average: dict[str, torch.Tensor] = field(default_factory=dict)

    @torch.no_grad()
    def on_step(self, session: Any, step: int, metrics: dict[str, float]) -> None:
        for name, weight in session.model.named_parameters() if self.whole else ():
            if name in self.average:
                self.average[name].mul_(0.8).add_(weight, alpha=0.2)
            else:
                self.average[name] = weight.detach().clone()
        self.told.append(("step", step, session.steps, session.epoch, metrics["loss"]))
        if step == STOPS_AT and session.rank == session.world_size - 1:
            session.stop()

    @torch.no_grad()
    def on_epoch(self, session: Any, epoch: int, metrics: dict[str, float]) -> None:
        weights = dict(session.model.named_parameters()) if self.whole else {}
        kept = {name: weight.detach().clone() for name, weight in weights.items()}
        for name, weight in weights.items():
            weight.copy_(self.average[name])
        score = session.evaluate()
        for name, weight in weights.items():
            weight.copy_(kept[name])
        self.told.append(("epoch", epoch, metrics["loss"], metrics["metric"], score))
        if self.whole:
            session.model.scale.fill_(1.0 + epoch / 10)
        if session.optimizer is not None:
            for group in session.optimizer.param_groups:
                group["lr"] *= 0.7
        if self.freezes and epoch == 0:
            session.model.second.requires_grad_(True)
        if self.freezes and epoch == 1:
            session.model.first.requires_grad_(False)


def make_job(
    on_step: Callable[..., None] | None = None, on_epoch: Callable[..., None] | None = None, **changes: Any
) -> Job:
    job = Job(
        name="called",
        model=Scaled,
        loss=functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.02, weight_decay=0.01),
        dataset=lambda: make_data(1),
        evaluation_dataset=lambda: make_data(2),
        metric=lambda output, target: -float(functional.cross_entropy(output, target)),
        global_batch_size=BATCH,
        epochs=EPOCHS,
        precision="fp64",
        clip_norm=0.5,
        on_step=on_step,
        on_epoch=on_epoch,
    )
    return replace(job, **changes)


@dataclass(slots=True)
class Plain:
    """What a plain loop gives callbacks in the place of a session."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    job: Job
    rank: int = 0
    world_size: int = 1
    steps: int = 0
    epoch: int = 0
    stopped: bool = False

    def stop(self) -> None:
        self.stopped = True

    def evaluate(self) -> float:
        inputs, target = default_collate(list(make_data(2)))
        with torch.no_grad():
            return float(self.job.metric(self.model(inputs.double()), target))  # type: ignore[misc]


def train_plainly(job: Job) -> nn.Module:
    """One process, one forward over each global batch, and the job's callbacks."""
    torch.manual_seed(job.seed)
    model = job.model().double()
    optimizer = job.optimizer(model.parameters())
    session = Plain(model=model, optimizer=optimizer, job=job)
    data = make_data(1)
    for epoch in range(job.epochs):
        order = sample_order(SAMPLES, seed=job.seed, epoch=epoch)
        losses = samples = 0.0
        for start in range(0, SAMPLES, BATCH):
            inputs, target = data[order[start : start + BATCH]]
            loss = job.loss(model(inputs.double()), target)  # type: ignore[misc]
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), job.clip_norm or math.inf)
            optimizer.step()
            optimizer.zero_grad()
            session.steps += 1
            losses, samples = losses + loss.item() * len(target), samples + len(target)
            if job.on_step:
                job.on_step(session, session.steps - 1, {"loss": loss.item()})
            if session.stopped:
                break
        else:
            session.epoch += 1
        metrics = {"loss": losses / samples, "metric": session.evaluate()}
        if job.on_epoch:
            job.on_epoch(session, epoch, metrics)
        if session.stopped:
            break
    return model


DIARY = Diary(freezes=True)


def diary() -> Job:
    """For what takes a job by its reference; `DIARY` is what its callbacks wrote in this process."""
    return make_job(DIARY.on_step, DIARY.on_epoch)
