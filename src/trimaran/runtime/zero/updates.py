"""The update of shards.

An optimizer that treats each element by itself is given the shards as plain tensors: on a CPU, the bookkeeping of
DTensor would take longer than the update. Any other one is given the DTensors, whose norms and means are those of whole
tensors, if a trial on small ones shows that it does the same on them as on whole tensors.
"""

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from trimaran.errors import InputError
from trimaran.graph.behaviour import OptimizerTraits
from trimaran.graph.optimizers import (
    Trained,
    differing_option,
    equal_values,
    stand_ins,
    stands_still,
    try_steps,
)
from trimaran.graph.untouched import preserved_randomness, quiet
from trimaran.job import Job
from trimaran.runtime.updates import Updater


class ShardUpdater(Updater):
    """Optimizer and schedule of the shards of one rank; every replica makes its own at the same time.

    Args:
        job: makes the optimizer and the schedule
        parameters: shards that are trained, under the names of the user's model
        traits: of the optimizer over whole parameters

    Raises:
        InputError: the optimizer cannot be sharded
    """

    def __init__(self, job: Job, parameters: Trained, traits: OptimizerTraits) -> None:
        plain = Trained((name, nn.Parameter(_shard(one.detach()))) for name, one in parameters.named_parameters())
        elementwise = traits.elementwise and not differing_option(job, plain, traits)
        if not elementwise and len(parameters):
            _try_on_shards(job, parameters, traits)
        super().__init__(job, parameters, list(parameters), held=plain if elementwise else None, traits=traits)
        self._plain = list(zip(parameters, plain, strict=True)) if elementwise else []

    def known_as(self, parameter: nn.Parameter) -> torch.Tensor:
        """What the optimizer has in the place of a parameter of this rank."""
        return next((plain for one, plain in self._plain if one is parameter), parameter)

    def update(self) -> None:
        """One step of the optimizer, then one of the schedule; gradients are gone afterwards."""
        for parameter, plain in self._plain:
            plain.grad = None if parameter.grad is None else _shard(parameter.grad)
            parameter.grad = None
        super().update()


def _try_on_shards(job: Job, parameters: Trained, traits: OptimizerTraits) -> None:
    """See that the optimizer does the same on DTensors as on whole tensors; every replica takes part.

    Raises:
        InputError: it does not, or fails
    """
    layouts = {name: one for name, one in parameters.named_parameters() if isinstance(one, DTensor)}
    starts, gradients = stand_ins(parameters, traits.tried)

    def sharded(name: str, tensor: torch.Tensor) -> torch.Tensor:
        # Every replica has the whole: nothing is sent.
        return distribute_tensor(tensor, layouts[name].device_mesh, layouts[name].placements, src_data_rank=None)

    names = [name for name, _ in starts]
    try:
        with preserved_randomness(), quiet():
            whole = try_steps(job, starts, gradients)
            found = try_steps(
                job,
                [(name, sharded(name, start)) for name, start in starts],
                [[sharded(*one) for one in zip(names, step, strict=True)] for step in gradients],
            )
            gathered = [[one.full_tensor() for one in values if isinstance(one, DTensor)] for values in found.values]
    except Exception as error:  # an optimizer may raise anything
        raise InputError(
            f"{traits.class_name} cannot update shards of parameters ({traits.reason}), and a trial on sharded tensors "
            f"failed ({type(error).__name__}: {error}): take zero=1 or zero=0",
            optimizer=traits.class_name,
        ) from error
    if stands_still(starts, whole) or not all(equal_values(*pair) for pair in zip(gathered, whole.values, strict=True)):
        raise InputError(
            f"{traits.class_name} cannot update shards of parameters ({traits.reason}), and on sharded tensors it does "
            "not do what it does on whole ones: take zero=1 or zero=0",
            optimizer=traits.class_name,
        )


def _shard(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
