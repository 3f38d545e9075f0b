"""A plan is tried before it trains: what is another training under it is found, with the tensor; what is right is not.

Each case is tried on two ranks as a run does it: in children of ranks that have no world yet, beside a plain loop in a
process of its own.
"""

import functools
import itertools
import math
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import builders
from tests.distributed import called
from tests.distributed.following import PLACES, following_job
from tests.distributed.jobs import make_job
from torch import Tensor, nn
from torch.nn import functional

from trimaran.base.errors import TrimaranError
from trimaran.base.job import Job
from trimaran.features.training.session import Session
from trimaran.graph.behaviour import WholeMetric
from trimaran.graph.capture.capture import capture
from trimaran.launch.supervise import launch
from trimaran.launch.world import World
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.strategy import Strategy, needs_graph
from trimaran.runtime.whole_state import WholeState
from trimaran.trial.compare import DIFFERS, ComparedStep, Examiner, Verified
from trimaran.trial.trial import STEPS, _examined, try_plan

REPLICAS = builders.strategy(dp=2)
SHARDED = builders.strategy(dp=2, zero=1)
SHARDS = builders.strategy(dp=2, zero=3, units=("blocks.0", "blocks.1", "blocks.2", "blocks.3", "norm"))
PIPELINE = builders.strategy(pp=2, microbatches=2, schedule="1f1b")


def spread(output: Tensor, target: Tensor) -> Tensor:
    """No mean over samples."""
    return functional.cross_entropy(output, target) + output.std(0).mean()


def summed(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target, reduction="sum")


def first_five(output: Tensor, target: Tensor) -> Tensor:
    """Of a few samples those of all."""
    return functional.cross_entropy(output, target, reduction="none")[:5].mean()


def when_often(output: Tensor, target: Tensor) -> Tensor:
    """A term over the batch where a class is often in it."""
    often = functional.relu(torch.bincount(target, minlength=3).double() - 3).mean()
    return functional.cross_entropy(output, target) + often * output.square().mean()


def counting() -> Callable[[Tensor, Tensor], Tensor]:
    """A loss that grows with its calls, of which no checkpoint knows."""
    calls = itertools.count(1)
    return lambda output, target: functional.cross_entropy(output, target) * next(calls)


class Many(nn.Module):
    """Twice the output of many samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x)
        return output * (2.0 if len(x) > 8 else 1.0)


class Centred(nn.Module):
    """In evaluation mode each output goes by the others of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x)
        return output if self.training else output - output.mean(0)


def largest(output: Tensor, target: Tensor) -> float:
    return float(output.max())


class Counts(nn.Module):
    """The loss grows with the calls of the forward: each is a step under replicas, and a part under microbatches."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(6, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        output: Tensor = self.layer(x)
        return output * self.calls


class Normed(torch.optim.SGD):
    """Its step goes by the norm of all gradients that it was given."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        gradients = [one.grad for group in self.param_groups for one in group["params"] if one.grad is not None]
        norm = math.sqrt(sum(float(one.square().sum()) for one in gradients)) or 1.0
        for one in gradients:
            one.div_(norm)
        super().step(closure)


class Unequal(nn.Module):
    """A layer has a gradient where a sample is large: each replica has one for other samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.first(x)
        return output + self.second(x) if bool((x.mean() > 0).any()) else output


class Projected(nn.Module):
    """Draws a projection in its first forward, and keeps it in a buffer, an attribute or a cache."""

    projection: Tensor

    def __init__(self, kept: str) -> None:
        super().__init__()
        self.layer, self.kept, self.by = nn.Linear(6, 3), kept, None
        self.register_buffer("projection", torch.zeros(6, 6))
        self.cached = functools.lru_cache(partial(torch.randn, 6, 6))

    def forward(self, x: Tensor) -> Any:
        if self.kept == "cache":
            return self.layer(x @ self.cached().to(x))
        if self.kept == "attribute":
            self.by = torch.randn(6, 6) if self.by is None else self.by
            return self.layer(x @ self.by.to(x))
        if not self.projection.any():
            self.projection.copy_(torch.randn(6, 6))
        return self.layer(x @ self.projection)


def clipped(*, late: bool) -> nn.Module:
    """Gradients are clipped by hooks: those of parts of a batch would be clipped apart."""
    layer = nn.Linear(6, 3).double()
    for one in layer.parameters():
        if late:
            one.register_post_accumulate_grad_hook(lambda parameter: parameter.grad.clamp_(-0.01, 0.01))
        else:
            one.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return layer


def _job(**fields: Any) -> Job:
    return called.make_job(on_step=None, on_epoch=None, **fields)


def projected_job(kept: str) -> Job:
    return _job(model=lambda: Projected(kept).double())


def clipped_job(*, late: bool) -> Job:
    return _job(model=partial(clipped, late=late))


WRONG: dict[str, tuple[Callable[[], Job], Strategy]] = {
    "no mean": (lambda: _job(loss=spread), REPLICAS),
    "a sum": (lambda: _job(loss=summed), REPLICAS),
    "the first of a batch": (lambda: _job(loss=first_five), REPLICAS),
    "a class that is often there": (lambda: _job(loss=when_often), REPLICAS),
    "many samples": (lambda: _job(model=lambda: Many().double()), REPLICAS),
    "a score by others": (lambda: _job(model=lambda: Centred().double()), REPLICAS),
    "a score of parts": (lambda: _job(metric=largest), REPLICAS),
    "calls are counted": (lambda: _job(model=lambda: Counts().double()), builders.strategy(microbatches=2)),
    "one norm": (lambda: _job(optimizer=lambda parameters: Normed(parameters, lr=0.1)), SHARDED),
    "by the data": (lambda: _job(model=lambda: Unequal().double()), builders.strategy(microbatches=2)),
    # Of shards there are other identities, and other orders of the sums in bf16.
    "parameters by identity": (partial(make_job, "gpt_by_identity"), SHARDS),
    "whole matrices": (partial(make_job, "gpt_muon"), SHARDS),
    **{
        f"a first draw in a {kept}": (partial(projected_job, kept), REPLICAS)
        for kept in ("buffer", "attribute", "cache")
    },
    **{
        f"ranks in {place}": (partial(following_job, place, way), REPLICAS)
        for place, way in zip(PLACES, ("group", "variable") * 4, strict=True)
    },
}
RIGHT: dict[str, tuple[Callable[[], Job], Strategy]] = {
    "replicas": (_job, REPLICAS),
    "calls under replicas": (lambda: _job(model=lambda: Counts().double()), REPLICAS),
    "calls of the loss": (lambda: _job(loss=counting()), REPLICAS),
    "a gathered score": (lambda: _job(metric=WholeMetric(largest)), REPLICAS),
    "a first draw, microbatches": (partial(projected_job, "buffer"), builders.strategy(microbatches=2)),
    **{
        f"hooks on gradients, {strategy.name}, {late}": (partial(clipped_job, late=late), strategy)
        for strategy in (REPLICAS, SHARDED, builders.strategy(microbatches=2))
        for late in (False, True)
    },
    "bf16": (lambda: _job(precision="bf16"), REPLICAS),
    "dropout, replicas": (lambda: replace(make_job("dropped"), on_step=None), REPLICAS),
    "dropout, stages": (lambda: replace(make_job("dropped"), on_step=None), PIPELINE),
    "batch norm, shards": (lambda: make_job("cnn"), builders.strategy(dp=2, zero=1, microbatches=2)),
    "a plateau": (
        lambda: _job(
            lr_schedule=lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
            evaluation_dataset=None,
            metric=None,
        ),
        REPLICAS,
    ),
}


def try_all(rank: int, join: Callable[[str], World]) -> dict[str, Verified | str]:
    """What comes of each case."""
    # As torchrun does.
    os.environ["WORLD_SIZE"] = "2"
    return {name: _try(rank, partial(join, name), *case) for name, case in {**WRONG, **RIGHT}.items()}


def _try(rank: int, join: Callable[[], World], make: Callable[[], Job], strategy: Strategy) -> Verified | str:
    made = capture(make())
    if strategy.pp > 1:
        points = made.graph.split_points
        strategy = replace(strategy, boundaries=(points[len(points) // 2],))

    def open_session(world: World, job: Job) -> Session:
        own = capture(job) if needs_graph(strategy) else None
        batch = job.global_batch_size
        program = lower(made.graph, strategy, batch=batch, clip=job.clip_norm is not None)
        evaluation = lower_evaluation(made.graph, strategy, batch=batch)
        return Session(job, strategy, program, own, world, owns_world=False, evaluation=evaluation)

    if strategy.devices == 1 and rank:
        return ""
    alone = (lambda: World()) if strategy.devices == 1 else join
    try:
        return try_plan(rank, alone, make, open_session, strategy, draws="dropout" in make().name or _draws(make()))
    except TrimaranError as error:
        return error.code


def _draws(job: Job) -> bool:
    return any(isinstance(one, nn.Dropout | Projected) for one in job.model().modules())


def found(world: World, trials: dict[str, Verified | str]) -> dict[str, Verified | str]:
    return trials


@pytest.mark.timeout(300)
def test_what_trains_something_else_is_found_before_it_counts_and_what_is_right_is_not(tmp_path: Path) -> None:
    first, _ = launch(found, (), ranks=2, log_dir=tmp_path, device="cpu", beforehand=try_all)
    # The runtime refuses it itself.
    refused = first.pop("one norm")
    assert isinstance(refused, Verified)
    assert refused.reason
    assert {name: first[name] for name in WRONG if first.get(name, DIFFERS) != DIFFERS} == {}
    alarms = {name: first[name] for name in RIGHT if not _is_right(first[name])}
    assert not alarms
    assert "probability of 0" in repr(first["dropout, stages"])
    said = {name: "Job.state" in repr(first[name]) for name in RIGHT}
    assert [name for name, one in said.items() if one] == ["calls of the loss"]


class Poor(Examiner):
    """One process, on a device that does not hold what it needs."""

    def __init__(self) -> None:
        super().__init__(_job(), REPLICAS, "cpu")

    def _examine(self, step: ComparedStep) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_memory_that_one_process_lacks_makes_a_plan_not_verified() -> None:
    state = WholeState()
    found = _examined(Poor(), ComparedStep(before=state, after=state, states=(), epoch=0, index=0))
    assert "out of memory" in found.reason


def _is_right(one: Verified | str) -> bool:
    return (
        isinstance(one, Verified)
        and (one.reason, one.steps, one.restarted) == ("", STEPS, True)
        and one.difference <= one.limit <= 1e-3
    )
