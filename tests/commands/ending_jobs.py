"""A job, and a script, whose code ends the process, or spins, at the place and in the way that FAULT says."""

import os

import torch

import trimaran

PLACE, _, WAY = os.environ.get("FAULT", "").partition(" ")
BEFORE = int(os.environ.get("FAULT_AFTER", "0"))
"""Times that the place is passed before."""


class Odd(BaseException):
    """What no code of libraries catches."""


_passed: list[str] = []


def fault(place: str) -> None:
    if place == PLACE and len(_passed) < BEFORE:
        _passed.append(place)
    elif place == PLACE:
        exec(WAY, {"Odd": Odd})  # noqa: S102 the test's own words


fault("import")


class Net(torch.nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        fault("forward")
        return super().forward(inputs)


class Updates(torch.optim.SGD):
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        fault("step")
        super().step(closure)


def backward(_: torch.Tensor) -> None:
    fault("backward")


def model() -> Net:
    made = Net(4, 3)
    made.weight.register_hook(backward)
    return made


class Data(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        fault("data")
        return torch.full((4,), float(number)), number % 3


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    fault("loss")
    return torch.nn.functional.cross_entropy(outputs, targets)


def optimizer(parameters: object) -> torch.optim.Optimizer:
    fault("optimizer")
    return Updates(parameters, lr=0.1)  # type: ignore[arg-type]


def metric(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    fault("metric")
    return float((outputs.argmax(1) == targets).float().mean())


def on_step(*_: object) -> None:
    fault("callback")


def make_job() -> trimaran.Job:
    fault("factory")
    return trimaran.Job(
        model=model,
        loss=loss,
        optimizer=optimizer,
        dataset=Data,
        global_batch_size=8,
        evaluation_dataset=Data,
        metric=metric,
        on_step=on_step,
    )


def train(*, epochs: int) -> None:
    """As a script does that knows nothing of Trimaran."""
    fault("factory")
    model = Net(4, 3)
    updates = optimizer(model.parameters())
    for _ in range(epochs):
        for inputs, targets in torch.utils.data.DataLoader(Data(), batch_size=8):
            outputs = model(inputs)
            loss(outputs, targets).backward()
            updates.step()
            updates.zero_grad()
            metric(outputs, targets)
            on_step()


if __name__ == "__main__":
    train(epochs=int(os.environ.get("EPOCHS", "1")))
