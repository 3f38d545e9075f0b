"""Precision and device of a model and of its batches; scaled losses for fp16.

So that gradients fit into fp16, a loss is multiplied by a scale before its backward, and the summed gradients are
divided by it, before their norm is taken. A step whose gradients are then not all finite on some rank is left out on
every rank. `torch.amp.GradScaler` grows and shrinks the scale: the result on which all ranks have agreed is given to it
as the gradient of one number.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from trimaran.base.errors import InputError
from trimaran.base.precision import Precision
from trimaran.user_code.batches import cast_batch, move_batch
from trimaran.user_code.model import AUTOCAST


def place_model(model: nn.Module, *, precision: Precision, device: str) -> nn.Module:
    """Move a model to a device, in place; in fp64 also widen it. Its parameters stay the same objects.

    Args:
        model: the model
        precision: of the job
        device: "cpu" or "cuda:<n>"
    """
    # Not by `to(dtype=...)`, which takes the real part of what is complex.
    return (model.double() if precision == "fp64" else model).to(device=device)


def check_synchronized(model: nn.Module, device: str) -> None:
    """Refuse batch norms that torch synchronizes on GPUs only, where several ranks train on CPUs.

    Args:
        model: the model
        device: of the ranks

    Raises:
        InputError: it has one
    """
    found = [path for path, module in model.named_modules() if isinstance(module, nn.SyncBatchNorm)]
    if found and device == "cpu":
        raise InputError(
            f"{found[0] or 'the model'} is a SyncBatchNorm, which torch runs on GPUs only: use nn.BatchNorm, or one "
            "device",
            code="model.synchronized-on-cpu",
        )


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


class LossScaler:
    """The scale of one rank, which is the same on all.

    Args:
        device: of the rank
        first_rank: the first rank on which something is true; all ranks are asked

    Attributes:
        scaler: of torch; its `state_dict` is what a checkpoint needs
        skipped: steps that were left out so far
    """

    def __init__(self, device: str, first_rank: Callable[[bool], int | None]) -> None:
        self.scaler = torch.amp.GradScaler(torch.device(device).type)
        self.skipped = 0
        self._first_rank = first_rank
        self._number = nn.Parameter(torch.zeros((), device=device))
        self._optimizer = torch.optim.SGD([self._number], lr=0.0)
        self._finite: list[torch.Tensor] = []

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """A loss from which a backward starts.

        Args:
            loss: of a microbatch, scalar
        """
        scaled: torch.Tensor = self.scaler.scale(loss)
        return scaled

    def unscale(self, gradients: Sequence[torch.Tensor]) -> None:
        """Divide the summed gradients of a step, in place.

        Args:
            gradients: of this rank
        """
        if gradients:
            torch._foreach_mul_(list(gradients), 1.0 / self.scaler.get_scale())
        self._finite = [gradient.isfinite().all() for gradient in gradients]

    def agree(self) -> bool:
        """Whether the step is taken: the gradients are finite on every rank; every rank calls it, once a step.

        Raises:
            ExecutionError: another rank is gone
        """
        finite = not self._finite or bool(torch.stack(self._finite).all())
        self._finite = []
        taken = self._first_rank(not finite) is None
        # The scaler's own factor is finite, so that it finds exactly the result on which all ranks have agreed.
        self._number.grad = torch.full_like(self._number, 0.0 if taken else math.inf)
        self.scaler.unscale_(self._optimizer)
        self.scaler.step(self._optimizer)
        self.scaler.update()
        self.skipped += not taken
        return taken
