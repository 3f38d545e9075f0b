"""Jobs whose data sets are slow in a known way, beside a small network: `jobs.py:reading`, `jobs.py:decoding`."""

import time
import zlib
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import Dataset

from trimaran.base.job import Job

READ_S = 5e-3
"""What an item of `Reading` stands still for [s]."""

SAMPLES = 4096
PIXELS, CLASSES = 32, 10
_SIDE = 320
_SHADES = 64


class Reading(Dataset[Any]):
    """Items that are waited for, as those of a network file system are."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(READ_S)
        return torch.full((3, PIXELS, PIXELS), (index % 256) / 256.0), index % CLASSES


class Decoding(Dataset[Any]):
    """Items that are unpacked and scaled down, which takes a core some milliseconds, as decoding a photograph does."""

    def __init__(self, samples: int = SAMPLES) -> None:
        shades = numpy.random.default_rng(0).integers(0, _SHADES, 3 * _SIDE * _SIDE, dtype=numpy.uint8)
        self._packed = zlib.compress(shades.tobytes(), 6)
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pixels = numpy.frombuffer(zlib.decompress(self._packed), dtype=numpy.uint8).reshape(1, 3, _SIDE, _SIDE)
        image = torch.from_numpy(pixels.astype(numpy.float32)) / 255.0
        small = nn.functional.interpolate(image, size=(PIXELS, PIXELS), mode="bilinear", antialias=True)
        return small[0] + (index % 256) / 256.0, index % CLASSES


def network(width: int = 80) -> nn.Module:
    """Four convolutions: a sample takes a core about as long as it is waited for, some 5 ms forward and backward.

    Args:
        width: channels of the first ones
    """
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, CLASSES),
    )


def small_network() -> nn.Module:
    """The same, of which a sample takes a core a millisecond."""
    return network(24)


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def _few() -> Decoding:
    return Decoding(256)


def _job(dataset: Any, name: str, model: Any = network, epochs: int = 1) -> Job:
    return Job(
        model=model,
        loss=nn.functional.cross_entropy,
        optimizer=optimizer,
        dataset=dataset,
        global_batch_size=32,
        epochs=epochs,
        name=name,
    )


def reading() -> Job:
    """Waits for its items."""
    return _job(Reading, "reading")


def large_network() -> nn.Module:
    """The same, of which a sample takes a core some 12 ms."""
    return network(128)


def reading_large() -> Job:
    """Waits for its items, and has much to do with them."""
    return _job(Reading, "reading_large", large_network)


def reading_small() -> Job:
    """Waits for its items, and has little to do with them."""
    return _job(Reading, "reading_small", small_network)


def decoding() -> Job:
    """Decodes its items."""
    return _job(Decoding, "decoding")


def decoding_again() -> Job:
    """Decodes few items in many epochs, so that keeping them pays."""
    return _job(_few, "decoding_again", epochs=20)
