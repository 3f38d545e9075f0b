"""Steps of the training itself are compared: what begins after the trial is noticed at the next power of two.

No training that is right is stopped, whatever it draws, normalizes, accumulates or shares, and in which precision.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import builders
from tests.distributed import called
from tests.distributed.jobs import make_job
from tests.distributed.test_zero import GPT
from tests.distributed.training import even_boundaries, full_batch
from tests.forks.client import launch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import IterableDataset

from trimaran.base.errors import TrimaranError
from trimaran.base.job import Job
from trimaran.features.training.session import Session
from trimaran.graph.capture.capture import capture
from trimaran.launch.world import World
from trimaran.program.lowering.lower import lower
from trimaran.program.lowering.tensor_parallel import find_shards
from trimaran.program.strategy import Strategy
from trimaran.trial.compare import DIFFERS, Verified

REPLICAS = builders.strategy(dp=2)
PARTS = builders.strategy(dp=2, microbatches=2)
SHARDED = builders.strategy(dp=2, zero=1)
SCATTERED = builders.strategy(dp=2, zero=3, microbatches=2)
OWNED = builders.strategy(dp=2, sync="p2p", microbatches=2)
PIPELINE = builders.strategy(pp=2, microbatches=2, schedule="1f1b")
STAGES = builders.strategy(pp=2, schedule="1f1b")
SHARES = builders.strategy(tp=2)
ALONE = builders.strategy(microbatches=2)


class Late(nn.Module):
    """A loss that gets another term from a step on, by its own count: no mean, or one for each sample."""

    def __init__(self, begins: int, term: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.begins, self.term, self.calls = begins, term, 0

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        loss = functional.cross_entropy(output, target)
        return loss + self.term(output) if self.calls > self.begins else loss


class Normalized:
    """A loss whose normalization a callback changes."""

    def __init__(self) -> None:
        self.reduction = "mean"

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target, reduction=self.reduction)


def summed_later(at: int, **changes: Any) -> Job:
    loss = Normalized()

    def on_step(session: Any, step: int, metrics: dict[str, float]) -> None:
        if step == at:
            loss.reduction = "sum"

    return small(loss=loss, on_step=on_step, **changes)


def written_alone(at: int) -> Job:
    """One rank's weights are another's no more."""

    def on_step(session: Any, step: int, metrics: dict[str, float]) -> None:
        if step == at and session.rank == 0:
            # One element that is not among those that are looked at after each callback.
            session.model.wide.weight.data.view(-1)[1] += 1.0

    return small(model=Wide, on_step=on_step)


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.last = nn.Linear(6, 100), nn.Linear(100, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(torch.tanh(self.wide(x)))
        return output


class Dropped(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from called.make_data(1)


def counted(samples: list[Any]) -> Any:
    """A batch with weights by its number of samples."""
    inputs, targets = zip(*samples, strict=True)
    return {"x": torch.stack(inputs), "y": torch.stack(targets), "w": torch.full((len(samples),), 1 / len(samples))}


class Taking(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 3)

    def forward(self, batch: Any) -> Tensor:
        return super().forward(batch["x"])


def weighted(output: Tensor, batch: Any) -> Tensor:
    return (functional.cross_entropy(output, batch["y"], reduction="none") * batch["w"]).sum()


def mean_apart(output: Tensor) -> Tensor:
    return output.std(0).mean()


def mean_of_each(output: Tensor) -> Tensor:
    return 0.1 * output.square().mean()


def small(**changes: Any) -> Job:
    return called.make_job(**{"precision": "fp32", "model": Wide, "epochs": 100, **changes})


def halved(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.9)


def linear(**changes: Any) -> Job:
    """A problem that is solved to the last digit: its gradients end as nothing but rounding."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 6, generator=generator)
    y = x @ torch.randn(6, 1, generator=generator)
    return small(
        model=lambda: nn.Linear(6, 1, bias=False),
        loss=functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.3),
        dataset=lambda: torch.utils.data.TensorDataset(x, y),
        evaluation_dataset=None,
        metric=None,
        clip_norm=None,
        **changes,
    )


def language(precision: Any) -> Job:
    return replace(make_job("gpt"), precision=precision, epochs=100)


Case = tuple[Callable[[], Job], Strategy]
WRONG: dict[str, tuple[Case, int]] = {
    "a callback sums": ((partial(summed_later, 12), REPLICAS), 16),
    "weights of one rank": ((partial(written_alone, 9), REPLICAS), 16),
    "a term that is no mean": ((lambda: small(loss=Late(20, mean_apart)), REPLICAS), 32),
    "a sum in bf16": ((partial(summed_later, 12, precision="bf16"), REPLICAS), 16),
    "under stages": ((lambda: small(loss=Late(9, mean_apart)), PIPELINE), 8),
    "under scattered shards": ((lambda: small(loss=Late(20, mean_apart)), SCATTERED), 16),
    "in parts of one rank": ((lambda: small(loss=Late(20, mean_apart)), ALONE), 16),
}
RIGHT: dict[str, Case] = {
    "replicas": (lambda: small(lr_schedule=halved), REPLICAS),
    "parts": (lambda: small(lr_schedule=halved), PARTS),
    "a mean that begins": (lambda: small(loss=Late(20, mean_of_each)), REPLICAS),
    "one that begins, stages": (lambda: small(loss=Late(20, mean_of_each)), STAGES),
    "dropout": (lambda: small(model=Dropped), PARTS),
    "dropout, stages": (lambda: small(model=Dropped), PIPELINE),
    "dropout, scattered": (lambda: small(model=Dropped), SCATTERED),
    "batch norm": (lambda: small(model=Normed), PARTS),
    "batch norm, stages": (lambda: small(model=Normed), PIPELINE),
    "batch norm, shards": (lambda: small(model=Normed), SHARDED),
    "shards": (lambda: small(lr_schedule=halved), SHARDED),
    "owners": (small, OWNED),
    "solved": (linear, PARTS),
    "solved, shares": (linear, SHARDED),
    "a stream": (lambda: small(dataset=Streamed), PARTS),
    "weights by size": (lambda: small(model=Taking, loss=weighted, collate=counted, metric=None), PARTS),
    "shares of tensors": (partial(language, "fp32"), SHARES),
    "shares of tensors, bf16": (partial(language, "bf16"), SHARES),
    "scattered, bf16": (partial(language, "bf16"), replace(SCATTERED, units=GPT)),
    "stages, bf16": (lambda: small(precision="bf16"), PIPELINE),
    "parts, bf16": (lambda: small(precision="bf16"), PARTS),
}
SKIPPED = ("dropout, stages",)


def watch_all(world: World, names: list[str], steps: int) -> dict[str, tuple[str, int] | Verified | None]:
    """What comes of each training: code and step of its error, or what was found."""
    cases = RIGHT | {name: case for name, (case, _) in WRONG.items()}
    return {name: _watch(world, *cases[name], steps) for name in names}


def _watch(world: World, make: Callable[[], Job], strategy: Strategy, steps: int) -> Any:
    job = make()
    if strategy.devices == 1:
        if world.rank:
            return None
        world = World()
    made = capture(job)
    shards = find_shards(made.graph, strategy.tp) if strategy.tp > 1 else ()
    strategy = replace(strategy, boundaries=even_boundaries(made.graph.split_points, strategy.pp), shards=shards)
    batch = full_batch(job.global_batch_size, strategy)
    program = lower(made.graph, strategy, batch=batch, clip=job.clip_norm is not None)
    session = Session(job, strategy, program, made, world, owns_world=False)
    session.watch(world)
    try:
        while session.steps < steps:
            for share in session.shares():
                session.step(share)
            session.end_epoch(session.epoch - 1, evaluate=False)
        return session.verified
    except TrimaranError as error:
        return error.code, error.figures.get("step", session.steps - 1)
    finally:
        session.close()


@pytest.mark.timeout(300)
def test_what_begins_late_ends_the_run_at_the_next_power_of_two(tmp_path: Path) -> None:
    first, second = launch(watch_all, ([*WRONG], 33), ranks=2, log_dir=tmp_path, device="cpu")
    assert {name: one for name, one in first.items() if one != (DIFFERS, WRONG[name][1])} == {}
    assert {one[0] for one in second.values() if one is not None} == {DIFFERS}


@pytest.mark.timeout(300)
def test_what_is_right_goes_on(tmp_path: Path) -> None:
    first, second = launch(watch_all, ([*RIGHT], 33), ranks=2, log_dir=tmp_path, device="cpu")
    for name, found in first.items():
        assert isinstance(found, Verified), (name, found)
        assert (found.steps, bool(found.reason)) == ((0, True) if name in SKIPPED else (3, False)), (name, found)
        assert second[name].reason == found.reason
        assert math.isfinite(found.limit)
