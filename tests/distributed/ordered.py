"""Jobs whose samples come in an order of their own: by a sampler, or as a stream; and some that will not do."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import (
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from trimaran.base.job import Job

ROWS = 29
BATCH = 8


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(
        torch.randn(ROWS, 3, generator=generator).double(), torch.randn(ROWS, 1, generator=generator).double()
    )


def drawn() -> TensorDataset:
    """Other rows wherever it is called, unless the global generators are seeded."""
    return TensorDataset(torch.randn(ROWS, 3).double(), torch.tensor(numpy.random.rand(ROWS, 1)))  # noqa: NPY002


def drawn_by_none() -> TensorDataset:
    """Other rows wherever it is called."""
    return TensorDataset(torch.tensor(numpy.random.default_rng().random((ROWS, 3))), torch.zeros(ROWS, 1).double())


def job(**fields: Any) -> Job:
    return Job(
        **{  # type: ignore[arg-type]
            "model": lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)),
            "loss": nn.functional.mse_loss,
            "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.2),
            "dataset": rows,
            "global_batch_size": BATCH,
            "precision": "fp64",
            "seed": 3,
            "epochs": 2,
            **fields,
        }
    )


def weighted(dataset: Any, epoch: int) -> WeightedRandomSampler:
    """With repetition, fewer in each epoch: the last batches have 5 and 4 samples."""
    weights = [1.0 + (number % 7) for number in range(len(dataset))]
    return WeightedRandomSampler(weights, num_samples=ROWS - epoch, replacement=True)


class Rows(IterableDataset[Any]):
    """Rows in turn; it draws, and begins elsewhere in each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        data = rows()
        for number in range(ROWS):
            values, target = data[(number + 11 * self.epoch) % ROWS]
            yield values + 0.1 * random.random(), target + 0.1 * torch.randn(1).double()


class Counting(IterableDataset[Any]):
    """A stream that says where it is; it draws nothing."""

    def __init__(self) -> None:
        self.next = 0

    def __iter__(self) -> Iterator[Any]:
        data = rows()
        while self.next < ROWS:
            self.next += 1
            yield data[self.next - 1]
        self.next = 0

    def __len__(self) -> int:
        return ROWS

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class Odd(IterableDataset[Any]):
    """A stream of rows, of which `of` says the numbers."""

    def __init__(self, of: Callable[[], Any]) -> None:
        self.of = of

    def __iter__(self) -> Iterator[Any]:
        data = rows()
        return (data[number] for number in self.of())


def failing() -> Iterator[int]:
    yield from range(10)
    if rank() == 1:
        raise OSError("no such shard")
    yield from range(10, ROWS)


def rank() -> int:
    return torch.distributed.get_rank()


ONCE = iter(range(ROWS))
GENERATOR = torch.Generator().manual_seed(1)


class Named(Dataset[Any]):
    """Samples of a length of their own, with a name: their batches are padded, and hold strings and None."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> Any:
        generator = torch.Generator().manual_seed(number)
        return torch.randn(1 + number % 4, 3, generator=generator).double(), f"sample {number}"


def pad(samples: list[Any]) -> Any:
    """Rows of all samples in one tensor, and to whom they belong: first dims say nothing of samples."""
    owners = [number for number, (values, _) in enumerate(samples) for _ in values]
    names = [name for _, name in samples]
    return {
        "rows": torch.cat([values for values, _ in samples]),
        "owners": torch.tensor(owners),
        "names": names,
        "no": None,
    }


class Pooled(nn.Module):
    """Mean of the rows of each sample, and a figure of its name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, rows: Any, owners: Any, names: Any, no: Any) -> Any:
        count = len(names)
        sums = torch.zeros(count, 1, dtype=rows.dtype).index_add(0, owners, self.layer(rows))
        wanted = torch.tensor([[float(name.split()[1])] for name in names], dtype=rows.dtype)
        return ((sums / torch.bincount(owners, minlength=count)[:, None] - wanted / ROWS) ** 2).mean()


JOBS: dict[str, Callable[[], Job]] = {
    "weighted": lambda: job(sampler=weighted),
    "stream": lambda: job(dataset=Rows),
    "counting": lambda: job(dataset=Counting),
    "named": lambda: job(dataset=Named, collate=pad, model=Pooled, loss=lambda output, batch: output),
    "evaluated": lambda: job(evaluation_dataset=lambda: Odd(lambda: range(13)), metric=_metric),
    "sampler shares": lambda: job(sampler=lambda data, epoch: DistributedSampler(data)),
    "sampler by rank": lambda: job(sampler=lambda data, epoch: range(rank(), ROWS)),
    "sampler raises": lambda: job(sampler=lambda data, epoch: [0, 1 // (1 - rank())]),
    "sampler of state": lambda: job(sampler=lambda data, epoch: RandomSampler(data, generator=GENERATOR)),
    "sampler ends": lambda: job(sampler=lambda data, epoch: [] if epoch else range(ROWS)),
    "stream by rank": lambda: job(dataset=lambda: Odd(lambda: range(rank(), ROWS, 2))),
    "stream ends early": lambda: job(dataset=lambda: Odd(lambda: range(ROWS - 10 * rank()))),
    "stream later": lambda: job(dataset=lambda: Odd(lambda: [*range(20), rank(), *range(21, ROWS)])),
    "stream raises": lambda: job(dataset=lambda: Odd(failing)),
    "stream once": lambda: job(dataset=lambda: Odd(lambda: ONCE)),
    "stream with sampler": lambda: job(dataset=Rows, sampler=weighted),
    "drawn": lambda: job(dataset=drawn),
    "drawn by none": lambda: job(dataset=drawn_by_none),
    "data by rank": lambda: job(dataset=lambda: TensorDataset(*rows()[: ROWS - rank()])),
    "evaluation by rank": lambda: job(evaluation_dataset=lambda: Odd(lambda: range(13 - rank())), metric=_metric),
}


def _metric(output: torch.Tensor, target: torch.Tensor) -> float:
    return -float((output.detach() - target).abs().mean())
