"""Jobs that lose a known time in one class of each step, and what ranks do to find it."""

import dataclasses
import time
from typing import Any

import torch
import torch.distributed as dist
from tests import builders
from torch import nn
from torch.utils.data import Dataset, default_collate

from trimaran.base.job import Job
from trimaran.features.diagnose.stalls import stalls_rank
from trimaran.launch.world import World
from trimaran.measure.stalls.rank import RankRun
from trimaran.program.strategy import Feeding, Strategy
from trimaran.program.types import Program

BATCH = 16
SAMPLE_S = 0.005
STEP_S = 0.04
"""8 samples a rank of 5 ms each take as long as a slow layer does."""

SAMPLED = ("fetch",)
"""Jobs whose samples are looked at."""


def spin(seconds: float) -> None:
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        pass


class Samples(Dataset[Any]):
    """Rows of numbers, of which each takes a time: asleep, at work, or asleep at the first reading."""

    def __init__(self, *, asleep_s: float = 0.0, at_work_s: float = 0.0, first_s: float = 0.0) -> None:
        self.asleep_s, self.at_work_s, self.first_s = asleep_s, at_work_s, first_s
        self.seen: set[int] = set()

    def __len__(self) -> int:
        return 40 * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.asleep_s:
            time.sleep(self.asleep_s)
        if self.first_s and index not in self.seen:
            time.sleep(self.first_s)
        self.seen.add(index)
        spin(self.at_work_s)
        return torch.full((32,), index / 640), torch.tensor([index % 2.0])


class Slow(nn.Linear):
    """A layer that takes a time in its forward, on all ranks or on one."""

    def __init__(self, *, seconds: float = 0.0, rank: int | None = None) -> None:
        super().__init__(32, 64)
        self.seconds, self.rank = seconds, rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.rank is None or (dist.is_initialized() and dist.get_rank() == self.rank):
            spin(self.seconds)
        return super().forward(x)


def job(dataset: Any = Samples, first: Any = Slow) -> Job:
    return Job(
        name="stalled",
        model=lambda: nn.Sequential(first(), nn.ReLU(), nn.Linear(64, 1)),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        dataset=dataset,
        global_batch_size=BATCH,
    )


def plain() -> Job:
    return job()


def fetch() -> Job:
    return job(lambda: Samples(asleep_s=SAMPLE_S))


def prepare() -> Job:
    return job(lambda: Samples(at_work_s=SAMPLE_S))


def collate() -> Job:
    def slowly(samples: list[Any]) -> Any:
        spin(STEP_S)
        return default_collate(samples)

    return dataclasses.replace(job(), collate=slowly)


def once() -> Job:
    return job(lambda: Samples(first_s=SAMPLE_S))


def compute() -> Job:
    return job(first=lambda: Slow(seconds=STEP_S))


def late() -> Job:
    return job(first=lambda: Slow(seconds=STEP_S, rank=1))


def wide() -> Job:
    """1 MiB of gradients and little to compute."""
    return Job(
        name="wide",
        model=lambda: nn.Linear(32, 8192),
        loss=lambda output, target: (output.mean(1, keepdim=True) - target).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        dataset=Samples,
        global_batch_size=BATCH,
    )


def measure(
    world: World, names: list[tuple[str, int]], program: Program, evaluation: Program, gradient_bytes: int
) -> list[RankRun]:
    """Run jobs one after the other, each with a number of workers."""
    found = []
    for name, workers in names:
        strategy = builders.strategy(dp=world.size, feeding=Feeding(workers=workers))
        made: Job = globals()[name]()
        sampled = name in SAMPLED
        found.append(
            stalls_rank(world, made, strategy, program, evaluation, 8, gradient_bytes, samples=sampled, use="always")
        )
    return found


def measure_strategy(world: World, name: str, strategy: Strategy, program: Program, evaluation: Program) -> RankRun:
    made: Job = globals()[name]()
    return stalls_rank(world, made, strategy, program, evaluation, 6, 0, samples=False, use="always")
