"""Training on data of which some samples have no finite loss, by plans and in plain loops that skip or roll back."""

import copy
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tests.distributed.jobs import make_job
from tests.distributed.resuming import open_session
from tests.distributed.training import Run, captured, open_executor, take_steps
from torch import nn

from trimaran.base.errors import TrimaranError
from trimaran.features.training.rank import Cadence, Saving, _train_epochs
from trimaran.launch.world import World
from trimaran.runtime.data.orders import sample_order
from trimaran.runtime.step.on_nan import Rollback


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


# ---------------------------------------------------------------------------------------------------------------------
# Back to the last checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """A training that has gone back.

    Attributes:
        losses: mean of each epoch
        steps: that count
        rollbacks: from where to where
        weights: at the end, whole, on rank 0
        error: code of what ended it; empty: nothing did
        again: `rollbacks` of a session that goes on from the last checkpoint
    """

    losses: list[float]
    steps: int
    rollbacks: tuple[Rollback, ...]
    weights: dict[str, torch.Tensor]
    error: str = ""
    again: tuple[Rollback, ...] = ()


def train_rolling_back(world: World, runs: list[Run], every: int, folder: str) -> list[RolledBack]:
    """Each run as `trimaran train` trains, with a checkpoint after every few steps."""
    found = []
    for number, run in enumerate(runs):
        session, where = open_session(world, run, "rollback"), Path(folder) / str(number)
        session.save_checkpoint(where)
        error = ""
        try:
            cadence = Cadence(Saving(steps=every), session.executor.agreement, 0)
            _train_epochs(session, world, cadence, where, rolls_back=True)
            session.save_checkpoint(where)
        except TrimaranError as raised:
            error = raised.code
        losses = [row["loss"] for row in session.history]
        made = RolledBack(
            losses=losses,
            steps=session.steps,
            rollbacks=session.rolled_back,
            weights=session.weights(),
            error=error,
        )
        session.close()
        again = open_session(world, run, "rollback")
        again.load_checkpoint(where)
        found.append(replace(made, again=again.rolled_back))
        again.close()
    return found


def train_plainly_rolling_back(name: str, every: int) -> RolledBack:
    """The plain loop: what was copied last is put back, and the batches since then are left out."""
    job = make_job(name)
    torch.manual_seed(job.seed)
    model = job.model().double()
    optimizer = job.optimizer(model.parameters())  # type: ignore[arg-type]
    schedule: Any = job.lr_schedule(optimizer) if job.lr_schedule else None
    inputs, targets = job.dataset().tensors  # type: ignore[attr-defined]
    steps, sums, rollbacks, means = 0, (0.0, 0), [], []

    def copied() -> Any:
        return copy.deepcopy((model.state_dict(), optimizer.state_dict(), schedule.state_dict(), steps, sums))

    kept = copied()
    for epoch in range(job.epochs):
        sums = 0.0, 0
        kept = copied()
        for chosen in sample_order(len(inputs), seed=job.seed, epoch=epoch).split(job.global_batch_size):
            loss = job.loss(model(inputs[chosen].double()), targets[chosen])  # type: ignore[misc]
            optimizer.zero_grad()
            if not math.isfinite(loss.item()):
                weights, state, rate, at, sums = copy.deepcopy(kept)
                rollbacks.append(Rollback(step=steps, to=at, batches=steps + 1 - at))
                model.load_state_dict(weights)
                optimizer.load_state_dict(state)
                schedule.load_state_dict(rate)
                steps = at
                continue
            loss.backward()
            if job.clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), job.clip_norm)
            optimizer.step()
            schedule.step()
            steps += 1
            sums = sums[0] + loss.item() * len(chosen), sums[1] + len(chosen)
            if steps % every == 0:
                kept = copied()
        means.append(sums[0] / sums[1] if sums[1] else math.nan)
    return RolledBack(losses=means, steps=steps, rollbacks=tuple(rollbacks), weights=dict(model.state_dict()))
