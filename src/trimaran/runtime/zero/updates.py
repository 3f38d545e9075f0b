"""The update of shards.

An optimizer that treats each element by itself is given the shards as plain tensors: on a CPU, the bookkeeping of
DTensor would take longer than the update. Any other one is given the DTensors, whose norms and means are those of whole
tensors.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from trimaran.errors import InputError
from trimaran.job import Job
from trimaran.runtime.updates import Updater

_ELEMENTWISE = frozenset(
    {
        torch.optim.ASGD,
        torch.optim.Adadelta,
        torch.optim.Adagrad,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adamax,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Rprop,
        torch.optim.SGD,
    }
)
"""Optimizers of torch in which an element depends on no other one. Classes that derive from them may differ."""


class ShardUpdater(Updater):
    """Optimizer and schedule of the shards of one rank.

    Args:
        job: makes the optimizer and the schedule
        parameters: shards that are trained

    Raises:
        InputError: the optimizer cannot be sharded
    """

    def __init__(self, job: Job, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__(job, parameters, parameters)
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise InputError("the state of LBFGS is one for all parameters, so that it cannot be sharded: take zero=0")
        self._plain: list[tuple[nn.Parameter, nn.Parameter]] = []
        if type(self.optimizer) in _ELEMENTWISE:
            self._plain = [(one, nn.Parameter(_shard(one.detach()))) for one in parameters]
            self.optimizer = job.optimizer([plain for _, plain in self._plain])
            self.schedule = job.lr_schedule(self.optimizer) if job.lr_schedule else None

    def known_as(self, parameter: nn.Parameter) -> torch.Tensor:
        """What the optimizer has in the place of a parameter of this rank."""
        return next((plain for one, plain in self._plain if one is parameter), parameter)

    def update(self) -> None:
        """One step of the optimizer, then one of the schedule; gradients are gone afterwards."""
        for parameter, plain in self._plain:
            plain.grad = None if parameter.grad is None else _shard(parameter.grad)
            parameter.grad = None
        super().update()


def _shard(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
