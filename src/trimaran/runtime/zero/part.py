"""The part of a rank whose parameters, gradients or optimizer state are sharded over the replicas.

With zero=1 the part is that of plain replicas or stages, and only the update is sharded: each replica updates some
whole parameters and broadcasts them. With zero=2 and 3 the model is sharded by FSDP2. Not supported: FSDP2 on a stage
of a pipeline or with tensor parallelism, and zero=1 on a rank with several segments.

An optimizer that treats each element separately is given the shards as plain tensors: on a CPU, the bookkeeping of
DTensor would take longer than the update. Any other one is given the DTensors, whose norms and means are those of whole
tensors: the trial of the plan shows whether it does the same on them as on whole tensors.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.base.user_errors import told, users
from trimaran.graph.behaviour import OptimizerTraits
from trimaran.graph.optimizers import Trained, differing_option, marked, named_in
from trimaran.graph.types import Graph
from trimaran.program.gradients import gradient_buckets
from trimaran.program.lowering.partition import segment_ops
from trimaran.program.lowering.zero import after_update
from trimaran.program.types import Kind
from trimaran.runtime.parts.part import Making, RankPart
from trimaran.runtime.parts.segments import parameters_by_name
from trimaran.runtime.step.updates import Updater, local_part
from trimaran.runtime.zero.fsdp import ShardedReplica


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
        plain = Trained(
            (name, marked(nn.Parameter(local_part(one.detach())), one)) for name, one in parameters.named_parameters()
        )
        elementwise = traits.elementwise and not differing_option(job, plain, traits)
        super().__init__(job, parameters, list(parameters), held=plain if elementwise else None, traits=traits)
        self._plain = list(zip(parameters, plain, strict=True)) if elementwise else []

    def known_as(self, parameter: nn.Parameter) -> torch.Tensor:
        """What the optimizer has in the place of a parameter of this rank."""
        return next((plain for one, plain in self._plain if one is parameter), parameter)

    def update(self) -> None:
        """One step of the optimizer, then one of the schedule; gradients are gone afterwards."""
        for parameter, plain in self._plain:
            plain.grad = None if parameter.grad is None else local_part(parameter.grad)
            parameter.grad = None
        with users(
            "Job.optimizer",
            said=lambda error: InputError(
                f"{self.name} fails on shards of parameters: {told(error)}. Take zero=1 or zero=0", optimizer=self.name
            ),
        ):
            super().update()
        for parameter, plain in self._plain:
            own = local_part(parameter.detach())
            if plain.data_ptr() != own.data_ptr():
                # The optimizer has put another tensor in its place (p.data = ...).
                plain.data = own.copy_(plain.detach())


def zero_part(making: Making) -> RankPart:
    """The part of a rank that has its share of every parameter (zero=2 and 3).

    Args:
        making: what it is made of; where the use of parameters varies there are no units

    Raises:
        InputError: a unit that is no module, a parameter that cannot be sharded, or an optimizer that cannot
    """
    job, strategy, model = making.job, making.strategy, making.model
    _check_units(model, strategy.units)
    _check_parameters(model)
    for parameter in model.parameters():
        # Such as channels_last, which FSDP2 does not shard.
        if not parameter.is_contiguous():
            parameter.data = parameter.data.contiguous()
    replicas = tuple(range(strategy.dp))
    stage = ShardedReplica(
        model,
        own_loss=job.loss is None,
        execution=strategy.execution,
        mesh=making.channels.mesh(replicas),
        units=strategy.units,
        freed=strategy.zero == 3,
        varies=making.use == "varies",
    )
    try:
        updater = ShardUpdater(job, named_in(model, stage.parameters), making.traits)
    except BaseException:
        stage.close()
        raise
    return RankPart(
        stages={0: stage},
        parameters=stage.parameters,
        counted=stage.parameters,
        tied={},
        reads=True,
        updater=updater,
        sharing=stage.sharing(replicas),
        ready=stage.free,
        load=stage.place,
        record=stage.record,
        used=stage.used,
    )


def share_update(part: RankPart, making: Making, graph: Graph) -> RankPart:
    """A part of which this rank updates its share only (zero=1).

    Args:
        part: of this rank, with all that its row trains
        making: what it is made of; the instructions say who broadcasts what
        graph: names the parameters

    Raises:
        InputError: the rank has several segments, or the program hands out something else
    """
    strategy, rank = making.strategy, making.world.rank
    if len(part.stages) != 1:
        raise InputError(
            f"zero=1 is for ranks with one segment, rank {rank} has {len(part.stages)}: take zero=0",
            zero=strategy.zero,
            segments=tuple(part.stages),
        )
    ((segment, stage),) = part.stages.items()
    ops = segment_ops(graph, strategy)[segment]
    named = parameters_by_name(graph, stage.module)
    handed = after_update(graph, ops, strategy, gradient_buckets(graph, ops, strategy.bucket_bytes))
    broadcasts = [item for item in making.instructions if item.kind is Kind.BROADCAST]
    owners = {item.label: item.root_rank for item in broadcasts if item.label[:1] == "w"}
    if owners.keys() != {item.label for item in handed}:
        raise InputError(
            f"the program hands out {', '.join(owners) or 'nothing'} after the update, and the strategy "
            f"{strategy.name} wants {', '.join(item.label for item in handed)}: lower it again",
            program=tuple(owners),
        )
    buckets = {item.label: [named[name] for name in item.parameters] for item in handed}
    own = {id(one) for label, members in buckets.items() if owners[label] == rank for one in members}
    return replace(
        part,
        parameters=tuple(parameter for parameter in part.parameters if id(parameter) in own),
        buckets=buckets,
        refit=None,
        elsewhere=tuple(parameter for parameter in part.parameters if id(parameter) not in own),
    )


def _check_units(model: nn.Module, units: Sequence[str]) -> None:
    known = dict(model.named_modules())
    for unit in units:
        if unit not in known:
            raise InputError(f"the strategy shards a unit {unit!r}, and the model has no such module", unit=unit)
        if isinstance(known[unit], (nn.ModuleList, nn.ModuleDict)):
            raise InputError(
                f"the unit {unit!r} is a {type(known[unit]).__name__}, which is never called, so nothing says when "
                "to gather it: name the modules inside it",
                unit=unit,
            )


def _check_parameters(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if not parameter.ndim:
            raise InputError(
                f"the parameter {name} is a scalar, which cannot be split over replicas: take zero=1", parameter=name
            )
