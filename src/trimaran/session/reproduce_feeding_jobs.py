"""Jobs on which the three remedies are tried here: one that waits for data, one that waits for the wire.

reads   images that a storage keeps waiting for, packed, and twice as large as the network wants; a small network
wire    vectors in memory; a network of many weights for what it computes
"""

import functools
import time
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from trimaran.errors import InputError
from trimaran.job import Job

READ_S = 2e-3
"""What a storage keeps a reader waiting for each image [s]."""

_BATCHES = 96
_CLASSES = 10
_STORED_PIXELS, _PIXELS = 128, 64
_FEATURES, _WIDTH = 512, 1024


class PackedImages(Dataset[Any]):
    """Images that are read slowly, unpacked and made smaller.

    Args:
        samples: how many
        read_s: waiting for the storage, each [s]
    """

    def __init__(self, samples: int, read_s: float = READ_S) -> None:
        self._samples, self._read_s = samples, read_s
        ramp = torch.arange(_STORED_PIXELS, dtype=torch.float32)
        image = (ramp[:, None] * ramp[None, :] / 64).to(torch.uint8).expand(3, -1, -1)
        self._packed = zlib.compress(image.contiguous().numpy().tobytes(), level=6)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(self._read_s)
        raw = bytearray(zlib.decompress(self._packed))
        image = torch.frombuffer(raw, dtype=torch.uint8).view(1, 3, _STORED_PIXELS, _STORED_PIXELS)
        small = functional.interpolate(image.float().div_(255), size=_PIXELS, mode="bilinear", antialias=True)
        return small[0] + index % 7, index % _CLASSES


def _small_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, _CLASSES),
    )


def _wide_network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(_FEATURES, _WIDTH),
        nn.ReLU(),
        nn.Linear(_WIDTH, _WIDTH),
        nn.ReLU(),
        nn.Linear(_WIDTH, _FEATURES),
        nn.ReLU(),
        nn.Linear(_FEATURES, _CLASSES),
    )


def _reads_job() -> Job:
    batch = 32
    return Job(
        name="reads",
        model=_small_network,
        loss=functional.cross_entropy,
        optimizer=_sgd,
        dataset=lambda: PackedImages(_BATCHES * batch),
        global_batch_size=batch,
        drop_last=True,
    )


def _wire_job() -> Job:
    batch = 64

    def vectors() -> TensorDataset:
        generator = torch.Generator().manual_seed(0)
        count = _BATCHES * batch
        return TensorDataset(
            torch.randn(count, _FEATURES, generator=generator), torch.randint(_CLASSES, (count,), generator=generator)
        )

    return Job(
        name="wire",
        model=_wide_network,
        loss=functional.cross_entropy,
        optimizer=_sgd,
        dataset=vectors,
        global_batch_size=batch,
        drop_last=True,
    )


_sgd = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)

FED_JOBS: dict[str, Callable[[], Job]] = {"reads": _reads_job, "wire": _wire_job}
"""By name; the same in every process."""


def fed_job(name: str) -> Job:
    """One of the jobs.

    Args:
        name: of `FED_JOBS`

    Raises:
        InputError: another name
    """
    if name not in FED_JOBS:
        raise InputError(f'"{name}" is not measured here; there are {", ".join(FED_JOBS)}', network=name)
    return FED_JOBS[name]()
