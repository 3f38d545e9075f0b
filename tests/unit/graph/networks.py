"""Small models, one for each thing that a capture must get right, and jobs around them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from trimaran.base.job import Job

SAMPLES = 8


def make_job(model: Callable[[], nn.Module], **changes: Any) -> Job:
    """A regression of 4 numbers from 6."""
    generator = torch.Generator().manual_seed(3)
    inputs, targets = torch.randn(SAMPLES, 6, generator=generator), torch.randn(SAMPLES, 4, generator=generator)
    settings: dict[str, Any] = {
        "loss": functional.mse_loss,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "dataset": lambda: TensorDataset(inputs, targets),
        "global_batch_size": 4,
    }
    return Job(model=model, **(settings | changes))


class Layers(nn.Module):
    """Two layers, made and used by those below."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.last = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.first(x).relu())


class BranchesOnData(Layers):
    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if y.sum() > 0:
            y = y * 2
        return self.last(y)


class AuxiliaryHead(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.auxiliary = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        return self.last(y) + self.auxiliary(y) if self.training else self.last(y)


class FunctionalDropout(Layers):
    def forward(self, x: Tensor) -> Tensor:
        y = functional.dropout(self.first(x), 0.5, self.training)
        return self.last(y.tanh())


class FrozenNorm(Layers):
    """Keeps its batch norm, and the block around it, in eval mode, as fine-tuning does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.block = FunctionalDropout()

    def train(self, mode: bool = True) -> "FrozenNorm":
        super().train(mode)
        self.norm.eval()
        self.block.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.norm(self.first(x)).tanh())


class InPlace(Layers):
    """Writes into results of earlier operations, through the tensor itself and through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm(self.first(x)))
        z = y * 2
        row = z[:, 0]
        z = z.tanh() + 1
        row.mul_(0)
        return self.last(z + row.unsqueeze(1))


class SharedNorm(Layers):
    """Uses a layer and a batch norm twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x)).tanh()
        return self.last(self.norm(self.first(y)).tanh())


class Codes(Layers):
    """A part without gradients that writes to two buffers by what was computed, and gives nothing."""

    sums: Tensor
    codes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(6))
        self.register_buffer("codes", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        z = (y + self.codes).tanh()
        with torch.no_grad():
            self.sums.mul_(0.9).add_(y.sum(0), alpha=0.1)
            self.codes.copy_(self.sums / self.sums.abs().max())
        return self.last(z)


class Regions(Layers):
    """A part without gradients, a counter, constants written in place, a plain tensor as attribute."""

    count: Tensor
    offset: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("offset", torch.ones(6), persistent=False)
        self.steps = torch.arange(6.0)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        with torch.no_grad():
            scale = (y * 2).mean(0, keepdim=True).exp()
            self.count.add_(1)
        mask = torch.zeros(6)
        mask[2] = 1.0
        mask.add_(self.offset)
        y = (y + scale).tanh()
        return self.last(y + mask + self.steps)


class RecurrentLoop(nn.Module):
    """Calls a cell three times, from a state of zeros that is shaped after the input."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(6, 8)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        state = x.new_zeros(x.shape[0], 8)
        memory = torch.zeros_like(state)
        for _ in range(3):
            state, memory = self.cell(x, (state, memory))
        return self.last(state)


class SizesOfBatch(Layers):
    """Sizes that are products of the batch size, and numbers that follow from it."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        samples = x.shape[0]
        y = self.narrow(self.first(x).view(samples * 2, 3)) / samples
        y = y + torch.arange(2 * samples).unsqueeze(1) / samples**0.5
        return self.last(y.reshape(samples, 6))


class TwoInputs(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.side = nn.Linear(3, 6)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.last((self.first(x).tanh() + self.side(y)).tanh())


class ReadsDict(Layers):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        return self.last(self.first(batch["x"]).relu())


class OwnLoss(Layers):
    def forward(self, x: Tensor, y: Tensor) -> dict[str, Any]:  # type: ignore[override]
        output = self.last(self.first(x).relu())
        return {"loss": ((output - y) ** 2).mean(), "output": output}


class NestedOutput(Layers):
    def forward(self, x: Tensor) -> dict[str, Any]:
        early = self.first(x)
        return {"early": early, "parts": (self.last(early.relu()), x), "nothing": None, "number": 3}


class Heads:
    """An output that torch does not know."""

    def __init__(self, output: Tensor) -> None:
        self.output = output


class OwnOutput(Layers):
    def forward(self, x: Tensor) -> Heads:
        return Heads(self.last(self.first(x)))


class KeepsInside(nn.Module):
    """A leaf that leaves a tensor behind as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        self.scaled = x * self.weight
        return self.scaled.tanh()


class LeakyLeaf(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.leaf = KeepsInside()

    def forward(self, x: Tensor) -> Tensor:
        y = self.leaf(self.first(x))
        return self.last(y + self.leaf.scaled)
