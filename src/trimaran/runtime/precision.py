"""Precision and device of a model and of what it reads."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from trimaran.graph.batches import cast_batch, move_batch
from trimaran.graph.untouched import AUTOCAST
from trimaran.job import Precision


def place_model(model: nn.Module, *, precision: Precision, device: str) -> nn.Module:
    """Move a model to a device, in place; in fp64 also widen it. Its parameters stay the same objects.

    Args:
        model: the model
        precision: of the job
        device: "cpu" or "cuda:<n>"
    """
    return model.to(device=device, dtype=torch.float64) if precision == "fp64" else model.to(device=device)


def place_batch(batch: Any, *, precision: Precision, device: str) -> Any:
    """Move a batch to a device; in fp64 also widen its floating-point tensors.

    Args:
        batch: a batch
        precision: of the job
        device: "cpu" or "cuda:<n>"
    """
    moved = move_batch(batch, device)
    return cast_batch(moved, torch.float64) if precision == "fp64" else moved


def autocast(precision: Precision, device: str) -> AbstractContextManager[Any]:
    """The context of a forward and its loss: autocast to 16 bits for "bf16" and "fp16", else nothing."""
    lower = AUTOCAST.get(precision)
    return nullcontext() if lower is None else torch.autocast(torch.device(device).type, dtype=lower)
