"""Jobs of a user's own: no network of the catalog, no transformer that the analytical model knows."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from trimaran import Job

SAMPLES, WORDS, LENGTH = 32, 500, 16
IMAGES = torch.zeros(SAMPLES, 3, 16, 16)
LABELS = torch.zeros(SAMPLES, dtype=torch.long)
TOKENS = torch.zeros(SAMPLES, LENGTH, dtype=torch.long)


def _job(
    model: Callable[[], nn.Module], inputs: Tensor, targets: Tensor, loss: Any = nn.functional.cross_entropy
) -> Job:
    return Job(
        model=model,
        dataset=lambda: TensorDataset(inputs, targets),
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
        global_batch_size=16,
    )


def _of_tokens(found: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(found.flatten(0, 1), targets.flatten())


def _convolution(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU())


def cnn() -> Job:
    def model() -> nn.Module:
        layers = [nn.Conv2d(3, 128, 3, padding=1), nn.ReLU()]
        layers += [part for _ in range(4) for part in (nn.Conv2d(128, 128, 3, padding=1), nn.ReLU())]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))

    return _job(model, IMAGES, LABELS)


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 64), nn.Parameter(torch.zeros(1, LENGTH, 64))
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True, activation="gelu")
        self.body = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(64, WORDS)

    def forward(self, tokens: Tensor) -> Any:
        return self.head(self.body(self.words(tokens) + self.places))


def encoder() -> Job:
    return _job(_Encoder, TOKENS, TOKENS, _of_tokens)


class _UNet(nn.Module):
    def __init__(self, sizes: tuple[int, ...] = (32, 64, 128)) -> None:
        super().__init__()
        self.down = nn.ModuleList(map(_convolution, (3, *sizes), sizes))
        self.up = nn.ModuleList(_convolution(a + b, a) for a, b in pairwise(sizes))
        self.out = nn.Conv2d(sizes[0], 3, 1)

    def forward(self, images: Tensor) -> Any:
        kept: list[Tensor] = []
        for part in self.down:
            kept.append(part(images if not kept else nn.functional.avg_pool2d(kept[-1], 2)))
        found = kept.pop()
        for part in reversed(self.up):
            found = part(torch.cat([nn.functional.interpolate(found, scale_factor=2.0), kept.pop()], 1))
        return self.out(found)


def unet() -> Job:
    return _job(_UNet, IMAGES, IMAGES, nn.functional.mse_loss)


class _LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 64), nn.Linear(64, WORDS)
        self.lstm = nn.LSTM(64, 64, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Any:
        return self.head(self.lstm(self.words(tokens))[0])


def lstm() -> Job:
    return _job(_LSTM, TOKENS, TOKENS, _of_tokens)


class _Block(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.products, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, stream: Tensor) -> Tensor:
        samples, length, width = stream.shape
        parts = self.products(self.first(stream)).view(samples, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        stream = stream + self.out(found.transpose(1, 2).reshape(samples, length, width))
        return stream + self.down(nn.functional.gelu(self.up(self.second(stream))))


def decoder() -> Job:
    def model() -> nn.Module:
        return nn.Sequential(nn.Embedding(WORDS, 64), *[_Block() for _ in range(3)], nn.Linear(64, WORDS))

    return _job(model, TOKENS, TOKENS, _of_tokens)


class _NeverMade(nn.Sequential):
    """It has its weights on no device but meta."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 10))
        if not all(parameter.is_meta for parameter in self.parameters()):
            raise MemoryError("its weights were made")


def never_made() -> Job:
    return _job(_NeverMade, IMAGES, LABELS)
