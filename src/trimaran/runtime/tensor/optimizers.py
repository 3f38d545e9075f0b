"""Whether an optimizer does the same on shares of a parameter as on the whole of it.

Most treat every element by itself. Those that need the norm, the factors or the spectrum of a whole parameter do not;
they are told by a trial on a small matrix.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from trimaran.errors import InputError
from trimaran.job import Job

_SIZE, _STEPS = 8, 3


def check_optimizer(job: Job) -> None:
    """Refuse an optimizer whose update of a matrix is not that of its two halves.

    Raises:
        InputError: it is not, or the trial fails
    """
    generator = torch.Generator().manual_seed(0)
    start, *gradients = (torch.randn(_SIZE, _SIZE, generator=generator, dtype=torch.float64) for _ in range(_STEPS + 1))
    try:
        with torch.random.fork_rng(devices=[]):
            whole = _trained(job.optimizer, [start], [[gradient] for gradient in gradients])[0]
            halves = _trained(job.optimizer, start.chunk(2), [gradient.chunk(2) for gradient in gradients])
    except Exception as error:  # an optimizer may raise anything
        raise InputError(
            f"the optimizer of {job.name!r} could not be tried on shares of a parameter ({error}): use tp=1 "
            "without shards"
        ) from error
    if not torch.allclose(whole, torch.cat(halves), rtol=1e-9, atol=1e-12):
        raise InputError(
            f"the optimizer of {job.name!r} needs whole parameters: on the two halves of a matrix it does not do what "
            "it does on the matrix. Use one that treats every element by itself, or tp=1 without shards"
        )


def _trained(
    make: Callable[[Any], torch.optim.Optimizer],
    starts: Iterable[torch.Tensor],
    gradients: Iterable[Iterable[torch.Tensor]],
) -> list[torch.Tensor]:
    """Parameters after a few steps."""
    parameters = [nn.Parameter(start.clone()) for start in starts]
    optimizer = make(parameters)
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()
    return [parameter.detach() for parameter in parameters]
