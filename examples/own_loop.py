"""A training loop of one's own: the same script alone, under torchrun, or on a cluster.

python examples/own_loop.py
torchrun --standalone --nproc-per-node 2 examples/own_loop.py
trimaran plan examples/own_loop.py:make_job -o plan.json    # then: ... examples/own_loop.py plan.json
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import trimaran


def make_dataset(first: int, last: int) -> TensorDataset:
    digits = load_digits()
    images = torch.from_numpy(digits.images[first:last]).float().unsqueeze(1) / 16
    return TensorDataset(images, torch.from_numpy(digits.target[first:last]).long())


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 10),
    )


def accuracy(scores: torch.Tensor, classes: torch.Tensor) -> float:
    return (scores.argmax(dim=1) == classes).double().mean().item()


def make_job() -> trimaran.Job:
    return trimaran.Job(
        name="own-loop",
        model=make_model,
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
        dataset=lambda: make_dataset(0, 1500),
        evaluation_dataset=lambda: make_dataset(1500, 1797),
        metric=accuracy,
        global_batch_size=60,
        epochs=4,
    )


def main(plan: str | None = None) -> None:
    session = trimaran.init(make_job(), plan=plan)
    for batch in session.batches():
        loss = session.step(batch)
    score = session.evaluate()
    if session.rank == 0:
        print(f"{session.strategy.name}: last loss {loss:.3f}, accuracy {score:.3f}")
    session.save("model.safetensors")
    session.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
