"""Four small networks whose kinds of operations cover what capture, pipelines and replicas must handle.

`cnn`: batch norm, in-place ReLU, concatenation, residual addition. `unet`: long skips. `lstm`: a recurrent network
whose output is a tuple. `gpt`: attention, a functional causal mask, tied input and output embeddings.

Every factory takes no argument, so that each is a job reference (`tests/zoo.py:cnn`); `<name>_fp64` is the same in
fp64.
"""

import dataclasses

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from trimaran.base.job import Job

SAMPLES = 96
BATCH = 16


class ConvBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.norm(self.conv(x)))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBlock(1, 8)
        self.left = ConvBlock(8, 8)
        self.right = nn.Sequential(ConvBlock(8, 8), ConvBlock(8, 8))
        self.mix = ConvBlock(16, 16)
        self.residual = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16))
        self.relu = nn.ReLU(inplace=True)
        self.dropout = nn.Dropout(0.0)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = torch.cat([self.left(x), self.right(x)], dim=1)
        x = functional.max_pool2d(self.mix(x), 2)
        y = self.residual(x)
        y += x
        y = self.relu(y)
        y = functional.dropout(y, 0.0, self.training)
        return self.head(self.dropout(functional.adaptive_avg_pool2d(y, 1).flatten(1)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = ConvBlock(1, 6)
        self.down2 = ConvBlock(6, 12)
        self.bottom = ConvBlock(12, 24)
        self.up2 = nn.ConvTranspose2d(24, 12, 2, stride=2)
        self.merge2 = ConvBlock(24, 12)
        self.up1 = nn.ConvTranspose2d(12, 6, 2, stride=2)
        self.merge1 = ConvBlock(12, 6)
        self.head = nn.Conv2d(6, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.down1(x)
        two = self.down2(functional.max_pool2d(one, 2))
        x = self.bottom(functional.max_pool2d(two, 2))
        x = self.merge2(torch.cat([self.up2(x), two], dim=1))
        x = self.merge1(torch.cat([self.up1(x), one], dim=1))
        return self.head(x)


class CharacterLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 24)
        self.lstm1 = nn.LSTM(24, 32, batch_first=True)
        self.lstm2 = nn.LSTM(32, 32, batch_first=True)
        self.head = nn.Linear(32, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x, _ = self.lstm1(self.embedding(tokens))
        x, (hidden, _) = self.lstm2(x)
        return self.head(x + hidden[-1].unsqueeze(1))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        scores = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5
        weights = scores.masked_fill(mask, float("-inf")).softmax(dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(
        self, vocabulary: int = 32, length: int = 12, width: int = 32, heads: int = 4, layers: int = 4
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        x = self.token(tokens) + self.position[:length]
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def _images(kind: str) -> TensorDataset:
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(SAMPLES, 1, 16, 16, generator=generator)
    if kind == "classes":
        return TensorDataset(x, torch.randint(10, (SAMPLES,), generator=generator))
    return TensorDataset(x, (x.roll(1, dims=2) > 0).float())


def _tokens() -> TensorDataset:
    generator = torch.Generator().manual_seed(12)
    tokens = torch.randint(32, (SAMPLES, 13), generator=generator)
    return TensorDataset(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def token_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def pixel_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(output, target.to(output.dtype))


def class_accuracy(output: torch.Tensor, target: torch.Tensor) -> float:
    return float((output.argmax(-1) == target).float().mean())


def pixel_accuracy(output: torch.Tensor, target: torch.Tensor) -> float:
    return float(((output > 0) == (target > 0.5)).float().mean())


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)  # type: ignore[arg-type]


def cnn() -> Job:
    return Job(
        name="cnn",
        model=Cnn,
        loss=functional.cross_entropy,
        optimizer=sgd,
        dataset=lambda: _images("classes"),
        evaluation_dataset=lambda: _images("classes"),
        metric=class_accuracy,
        global_batch_size=BATCH,
    )


def unet() -> Job:
    return Job(
        name="unet",
        model=UNet,
        loss=pixel_loss,
        optimizer=sgd,
        dataset=lambda: _images("pixels"),
        evaluation_dataset=lambda: _images("pixels"),
        metric=pixel_accuracy,
        global_batch_size=BATCH,
    )


def lstm() -> Job:
    return Job(
        name="lstm",
        model=CharacterLstm,
        loss=token_loss,
        optimizer=sgd,
        dataset=_tokens,
        evaluation_dataset=_tokens,
        metric=class_accuracy,
        global_batch_size=BATCH,
    )


def gpt() -> Job:
    return Job(
        name="gpt",
        model=Gpt,
        loss=token_loss,
        optimizer=sgd,
        dataset=_tokens,
        evaluation_dataset=_tokens,
        metric=class_accuracy,
        global_batch_size=BATCH,
    )


def cnn_fp64() -> Job:
    return dataclasses.replace(cnn(), precision="fp64")


def unet_fp64() -> Job:
    return dataclasses.replace(unet(), precision="fp64")


def lstm_fp64() -> Job:
    return dataclasses.replace(lstm(), precision="fp64")


def gpt_fp64() -> Job:
    return dataclasses.replace(gpt(), precision="fp64")
