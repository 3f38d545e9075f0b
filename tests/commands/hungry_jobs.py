"""A job with far more state than activations, and ways to have little memory for it."""

import os
import resource
import traceback
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from trimaran.base.job import Job

ROOM = "TRIMARAN_TEST_ROOM_MIB"
WIDTH = 1024
LAYERS = 6


def limit_address_space() -> None:
    """Let a rank of a training take no more than some MiB beyond what it has, where the environment says so."""
    training = any(frame.name == "train_rank" for frame in traceback.extract_stack())
    if ROOM in os.environ and training:
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        most = taken + int(os.environ[ROOM]) * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def make_model() -> nn.Module:
    """Six layers of 4 MiB."""
    return nn.Sequential(*(part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh())))


def make_data() -> TensorDataset:
    """When the model and the connections of the rank are there already."""
    limit_address_space()
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(32, WIDTH, generator=generator), torch.zeros(32, WIDTH))


def hungry() -> Job:
    """24 MiB of parameters; with gradients and the state of AdamW 96 MiB."""
    return Job(
        name="hungry",
        model=make_model,
        loss=functional.mse_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
        dataset=make_data,
        global_batch_size=8,
    )
