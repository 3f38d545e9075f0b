"""What the scripts of this folder share: a process group, a small model, data."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

CLEAN = "--clean" in sys.argv
"""Whether the script is asked for its twin without the fault."""


def begin(backend: str = "nccl") -> tuple[int, int, torch.device]:
    """Join the job; rank, ranks in all, device."""
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group(backend)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    return dist.get_rank(), dist.get_world_size(), device


def net(device: torch.device, width: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)).to(device)


def batch(device: torch.device, width: int = 16, size: int = 4) -> torch.Tensor:
    return torch.randn(size, width, device=device)
