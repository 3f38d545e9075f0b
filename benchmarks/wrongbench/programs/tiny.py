"""Two data sets, small networks, and a record of weights where one is asked for."""

import os

import torch
from torch import nn
from torch.utils.data import TensorDataset

RECORD = os.environ.get("WRONGBENCH_RECORD")
PADDING = -100
recorded: list[dict[str, torch.Tensor]] = []

if RECORD:
    torch.set_default_dtype(torch.float64)


def pairs(samples: int = 64, features: int = 8, outputs: int = 4) -> TensorDataset:
    """Inputs and outputs of a noisy function; no two samples are alike."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, features, generator=generator, dtype=torch.float64)
    mix = torch.randn(features, outputs, generator=generator, dtype=torch.float64)
    noise = torch.randn(samples, outputs, generator=generator, dtype=torch.float64)
    dtype = torch.get_default_dtype()
    return TensorDataset(inputs.to(dtype), (torch.tanh(inputs @ mix) + noise).to(dtype))


def sentences(samples: int = 64, length: int = 12, vocabulary: int = 32) -> TensorDataset:
    """Token ids and next tokens; sentences have 2 to `length` tokens, the rest is padding."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(vocabulary, (samples, length), generator=generator)
    lengths = torch.randint(2, length + 1, (samples, 1), generator=generator)
    labels = (ids * 3 + 1) % vocabulary
    return TensorDataset(ids, labels.masked_fill(torch.arange(length) >= lengths, PADDING))


class Net(nn.Module):
    """Two linear layers with a norm between them."""

    def __init__(self, features: int = 8, width: int = 16, outputs: int = 4) -> None:
        super().__init__()
        self.fc1 = nn.Linear(features, width)
        self.norm = nn.LayerNorm(width)
        self.fc2 = nn.Linear(width, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.norm(torch.relu(self.fc1(inputs))))


class Language(nn.Module):
    """Predicts the next token from the current one."""

    def __init__(self, vocabulary: int = 32, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embed(ids)))


class Mlp(nn.Sequential):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


class Tied(nn.Module):
    """Predicts the next token with the weights that embed it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.fc = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def lower(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.fc(self.embed(ids)))

    def upper(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.norm(rows), self.embed.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.upper(self.lower(ids))


class Encoders(nn.Module):
    """One network for images and one for texts."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = Net(), Net(features=4)

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.image(batch[0]), self.text(batch[1])


class ActorCritic(nn.Module):
    """Two networks that share nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = Net(outputs=3), Net(outputs=1)


def record(model: nn.Module, **values: torch.Tensor) -> None:
    """Appends the weights (and values) to this process's file, if one is named in the environment."""
    if not RECORD:
        return
    weights = {name.removeprefix("module."): value for name, value in model.named_parameters()}
    whole = {name: getattr(value, "full_tensor", lambda value=value: value)() for name, value in weights.items()}
    recorded.append({name: value.detach().cpu().clone() for name, value in (whole | values).items()})
    torch.save(recorded, f"{RECORD}.{os.environ['RANK']}")
