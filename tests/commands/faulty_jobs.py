"""Jobs that are wrong, or hard, in one way each."""

import dataclasses

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from trimaran.base.job import Job


class Undecided(nn.Module):
    """A network whose path depends on its data, which cannot be exported as a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.left(x) + self.right(x) if x.sum() > 0 else self.left(x) - self.right(x)


def make_data(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(
        torch.randn(samples, 8, generator=generator), torch.randint(2, (samples,), generator=generator)
    )


def good() -> Job:
    return Job(
        name="good",
        model=lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)),
        loss=functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=lambda: make_data(64),
        global_batch_size=16,
    )


def other() -> Job:
    return dataclasses.replace(good(), model=lambda: nn.Sequential(nn.Linear(8, 2)))


def cannot_be_exported() -> Job:
    return dataclasses.replace(good(), model=Undecided)


def one_sample_left() -> Job:
    return dataclasses.replace(good(), dataset=lambda: make_data(33))


def tiny_dataset() -> Job:
    return dataclasses.replace(good(), dataset=lambda: make_data(4))


def vector_loss() -> Job:
    return dataclasses.replace(good(), loss=per_sample(functional.cross_entropy))


def per_sample(loss):  # type: ignore[no-untyped-def]
    return lambda output, target: loss(output, target, reduction="none")


def nan_loss() -> Job:
    return dataclasses.replace(good(), loss=lambda output, target: functional.cross_entropy(output, target) / 0 * 0)


def never_ends() -> Job:
    return dataclasses.replace(good(), epochs=1_000_000)


class Torn(TensorDataset):
    """A data set of which one sample cannot be read."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        if index == 5:
            raise OSError("no such picture")
        return super().__getitem__(index)


class Stumbling(nn.Linear):
    """A layer whose forward raises."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise LookupError("no such layer")


def raises_in_forward() -> Job:
    return dataclasses.replace(good(), model=lambda: nn.Sequential(nn.Linear(8, 16), Stumbling(16, 2)))


def raises_in_callback() -> Job:
    """Its callback raises in the third step of a training, and at once in anything else."""

    def on_step(session, step, metrics):  # type: ignore[no-untyped-def]
        if step == 2 or session.steps != step + 1:
            raise LookupError("no such log")

    return dataclasses.replace(good(), on_step=on_step)


def raises_at_five() -> Job:
    return dataclasses.replace(good(), dataset=lambda: Torn(*make_data(64).tensors), global_batch_size=64)
