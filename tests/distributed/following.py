"""Jobs that go by their rank, or by how many there are, each in one place where user code runs."""

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from tests.distributed import called
from torch import Tensor, nn
from torch.nn import functional

from trimaran.base.job import Job


def by_group() -> int:
    """The size of the group, where there is one."""
    return dist.get_world_size() if dist.is_initialized() else 1


def by_variable() -> int:
    """What a launcher says."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def unguarded() -> int:
    """Fails where there is no group."""
    return dist.get_world_size()


@dataclass
class Divides(nn.Module):
    """A network of which something divides by the number of ranks."""

    place: str
    ranks: Callable[[], int]

    def __post_init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6).double(), nn.Linear(6, 3).double()
        if self.place == "parameter hook":
            self.first.weight.register_hook(lambda gradient: gradient / self.ranks())
        if self.place == "accumulated":
            self.first.weight.register_post_accumulate_grad_hook(self._divide)
        if self.place == "module hook":
            self.first.register_full_backward_hook(self._divide_given)

    def _divide(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            parameter.grad.div_(self.ranks())

    def _divide_given(self, module: nn.Module, given: Any, left: Any) -> Any:
        return tuple(None if one is None else one / self.ranks() for one in given)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(self.first(x)))
        if self.place == "activation hook" and x.requires_grad:
            x.register_hook(lambda gradient: gradient / self.ranks())
        if self.place == "function":
            x = _Divided.apply(x, self.ranks)
        output: Tensor = self.last(x)
        return output / self.ranks() if self.place == "forward" else output

    __hash__ = nn.Module.__hash__


class _Divided(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Callable[[], int]) -> Tensor:
        ctx.ranks = ranks
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient / ctx.ranks(), None


PLACES = ("parameter hook", "activation hook", "module hook", "function", "forward", "loss", "optimizer", "schedule")
"""Where something is divided; `accumulated` besides, which is refused on several ranks whatever it does."""

WAYS = {"group": by_group, "variable": by_variable, "unguarded": unguarded}


def following_job(place: str, way: str) -> Job:
    """A job that divides by the number of ranks in a place."""
    ranks = WAYS[way]
    job = called.make_job(model=lambda: Divides(place, ranks), lr_schedule=None)
    if place == "loss":
        return replace(job, loss=lambda output, target: functional.cross_entropy(output, target) / ranks())
    if place == "optimizer":
        return replace(job, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1 / ranks()))
    if place == "schedule":
        schedule = torch.optim.lr_scheduler.LambdaLR
        return replace(job, lr_schedule=lambda optimizer: schedule(optimizer, lambda step: 1.0 / ranks()))
    return job


def cases() -> Iterator[tuple[str, str]]:
    """Each place, in one of the ways, in turn."""
    yield from zip((*PLACES, "accumulated"), itertools.cycle(WAYS), strict=False)
