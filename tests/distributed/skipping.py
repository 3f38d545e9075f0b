"""Training on data of which some samples have no finite loss, by plans and in a plain loop that skips such batches."""

import math
from typing import Any

import torch
from tests.distributed.jobs import make_job
from tests.distributed.training import Run, captured, open_executor, take_steps
from torch import nn

from trimaran.base.errors import TrimaranError
from trimaran.launch.world import World
from trimaran.runtime.data import sample_order


def train_skipping(world: World, runs: list[Run]) -> list[tuple[list[float], tuple[int, ...], dict[str, torch.Tensor]]]:
    """Losses, skipped steps and weights of several runs."""
    found = []
    for run in runs:
        executor = open_executor(world, run, captured(run.job), on_nan="skip")
        losses = take_steps(executor, run.steps)
        found.append((losses, executor.skipped, executor.weights()))
        executor.close()
    return found


def refusals(world: World, runs: list[Run]) -> list[tuple[str, int | None]]:
    """The code of the error that ends each run, and its step."""
    found = []
    for run in runs:
        executor = None
        try:
            executor = open_executor(world, run, captured(run.job), on_nan="skip")
            take_steps(executor, run.steps)
        except TrimaranError as error:
            found.append((error.code, error.figures.get("step")))
        if executor is not None:
            executor.close()
    return found  # type: ignore[return-value]


def train_plainly_skipping(name: str, steps: int) -> tuple[list[float], list[int], nn.Module]:
    """The plain loop: a batch whose loss is not a finite number changes nothing but what its forward has changed."""
    job = make_job(name)
    torch.manual_seed(job.seed)
    model = job.model().double()
    optimizer = job.optimizer(model.parameters())  # type: ignore[arg-type]
    schedule: Any = job.lr_schedule(optimizer) if job.lr_schedule else None
    inputs, targets = job.dataset().tensors  # type: ignore[attr-defined]
    losses: list[float] = []
    skipped: list[int] = []
    epoch = 0
    while len(losses) < steps:
        order = sample_order(len(inputs), seed=job.seed, epoch=epoch)
        for chosen in order.split(job.global_batch_size):
            loss = job.loss(model(inputs[chosen].double()), targets[chosen])  # type: ignore[misc]
            loss.backward()
            if math.isfinite(loss.item()):
                if job.clip_norm is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), job.clip_norm)
                optimizer.step()
                if schedule is not None:
                    schedule.step()
            else:
                skipped.append(len(losses))
            optimizer.zero_grad()
            losses.append(loss.item())
            if len(losses) == steps:
                break
        epoch += 1
    return losses, skipped, model
