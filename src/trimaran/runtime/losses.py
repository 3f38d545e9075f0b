"""The loss of a global batch, from the losses of its microbatches.

The gradient of a step must be that of the mean over the whole global batch, whatever the plan and however uneven the
shares. Write L for the mean loss of the N samples of a global batch, and L_m for that of the n_m samples of
microbatch m. Then L = sum over m of (n_m / N) L_m. So each microbatch's loss is multiplied by n_m / N before its
backward, and gradients are *summed* over microbatches and replicas, never averaged: an average over replicas is right
only when all have equally many samples.

A loss that returns `(sum, weight)`, such as a mean over tokens that are not padding, has L = (sum of sums) / (sum of
weights), and the divisor is known only when all ranks have been heard. Its sums are propagated as they are, and
gradients are divided once, before the update. A loss whose weight w `Job.loss_weight` gives is such a mean too: each
microbatch's is multiplied by w_m / (N t), with t the typical weight of a sample, and gradients are divided by
(sum of weights) / (N t). That is 1, and nothing is divided, where all samples weigh the same, as texts of one length.

A loss that is a sum over samples (`Job.loss_weight` is `SUMMED`) adds up as it is.
"""

from dataclasses import dataclass
from typing import Any

import torch

from trimaran.errors import InputError
from trimaran.graph.batches import SUMMED, split_batch
from trimaran.graph.behaviour import typical_weight
from trimaran.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerm:
    """What one microbatch adds to the loss of the global batch.

    Attributes:
        total: its part of the sum, detached, fp64
        weight: its part of the divisor of the loss, fp64
        weighted: gradients are divided by the sum of the weights, where `Job.loss_weight` gives them by that over the
            samples; False: they are scaled already
    """

    total: torch.Tensor
    weight: torch.Tensor
    weighted: bool


def loss_term(job: Job, output: Any, batch: Any, *, samples: int, of: int) -> tuple[torch.Tensor, LossTerm]:
    """The loss of one microbatch.

    Args:
        job: the job
        output: what the model returned
        batch: the microbatch
        samples: of the microbatch
        of: samples of the global batch

    Returns:
        Where its backward starts, and what it adds to the loss.

    Raises:
        InputError: the loss is no scalar, or no tensor
    """
    if job.loss is None:
        value = output["loss"] if isinstance(output, dict) else getattr(output, "loss", None)
        if value is None:
            raise InputError(
                f"the job has loss=None, so its model must return an object with .loss; it returned {_describe(output)}"
            )
    else:
        value = job.loss(output, split_batch(batch)[2])
    if isinstance(value, tuple) and len(value) == 2:
        total, weight = value
        total = _scalar(total, "the sum of the loss")
        weight = _on_device(weight, total.device)
        return total, LossTerm(total=total.detach().double(), weight=weight, weighted=True)
    mean = _scalar(value, "the loss")
    if job.loss_weight is SUMMED:
        share = _on_device(samples / of, mean.device)
        return mean, LossTerm(total=mean.detach().double(), weight=share, weighted=False)
    if job.loss_weight is not None:
        weight = _on_device(job.loss_weight(batch), mean.device)
        # The mean over nothing is no number, and adds nothing.
        nothing = torch.zeros_like(mean)
        root = torch.where(weight > 0, mean * (weight / (of * typical_weight(job))).to(mean.dtype), nothing)
        total = torch.where(weight > 0, mean.detach().double() * weight, nothing.double())
        return root, LossTerm(total=total, weight=weight, weighted=True)
    weight = _on_device(samples, mean.device)
    return mean * (samples / of), LossTerm(total=mean.detach().double() * samples, weight=weight, weighted=False)


def _on_device(weight: Any, device: torch.device) -> torch.Tensor:
    if isinstance(weight, torch.Tensor):
        return weight.detach().to(device, torch.float64).reshape(())
    # Filled where the tensor lives: a copy from the host would wait for the device.
    return torch.full((), float(weight), dtype=torch.float64, device=device)


def _scalar(value: Any, what: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise InputError(
            f"{what} must be a scalar tensor, a mean over the samples of the batch, or (sum, weight); it is "
            f"{_describe(value)}: reduce it, as in loss.mean()",
            code="loss.not-reduced",
        )
    return value.reshape(())


def _describe(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
