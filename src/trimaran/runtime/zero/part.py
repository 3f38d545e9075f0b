"""The part of a rank whose parameters, gradients or optimizer state are sharded over the replicas.

With zero=1 the part is any other's, and only the update is shared out: each replica updates whole parameters and hands
them out. With zero=2 and 3 the model is sharded by FSDP2. What is left out: FSDP2 on a stage of a pipeline or beside
tensor parallelism, and zero=1 on a rank with several segments.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from trimaran.errors import InputError
from trimaran.graph.behaviour import OptimizerTraits
from trimaran.graph.capture import Capture
from trimaran.graph.optimizers import named_in
from trimaran.graph.use import ParameterUse
from trimaran.job import Job
from trimaran.program.buckets import gradient_buckets
from trimaran.program.segments import segment_ops
from trimaran.program.types import Instruction, Kind, Strategy
from trimaran.program.zero import after_update
from trimaran.runtime.channels import Channels
from trimaran.runtime.part import Part
from trimaran.runtime.segments import parameters_by_name
from trimaran.runtime.world import World
from trimaran.runtime.zero.replica import ShardedReplica
from trimaran.runtime.zero.updates import ShardUpdater


def zero_part(
    job: Job,
    strategy: Strategy,
    model: nn.Module,
    traits: OptimizerTraits,
    *,
    use: ParameterUse,
    world: World,
    channels: Channels,
) -> Part:
    """The part of a rank that has its share of every parameter (zero=2 and 3).

    Args:
        job: the job
        strategy: how
        model: the user's, on its device, with the same weights on all ranks
        traits: of the job's optimizer
        use: which parameters get a gradient; where it varies there are no units
        world: this process's
        channels: has the group of the replicas

    Raises:
        InputError: a unit that is no module, a parameter that cannot be sharded, or an optimizer that cannot
    """
    _check_units(model, strategy.units)
    _check_parameters(model)
    group = channels.group(tuple(range(strategy.dp)))
    # torch keeps what it knows of a mesh under its names: those of one that is gone must not be used again.
    names = (f"replicas of {group.group_name}",)
    mesh = DeviceMesh.from_group(group, world.device.partition(":")[0], mesh_dim_names=names)
    stage = ShardedReplica(
        model,
        own_loss=job.loss is None,
        execution=strategy.execution,
        mesh=mesh,
        units=strategy.units,
        freed=strategy.zero == 3,
        varies=use == "varies",
    )
    try:
        updater = ShardUpdater(job, named_in(model, stage.parameters), traits)
    except BaseException:
        stage.close()
        raise
    return Part(
        stages={0: stage},
        parameters=stage.parameters,
        counted=stage.parameters,
        tied={},
        reads=True,
        updater=updater,
        sharing=stage.sharing(tuple(range(strategy.dp))),
        ready=stage.free,
        load=stage.place,
        record=stage.record,
        used=stage.used,
    )


def share_update(
    part: Part, strategy: Strategy, capture: Capture, *, world: World, instructions: Sequence[Instruction]
) -> Part:
    """A part of which this rank updates its share only (zero=1).

    Args:
        part: of this rank, with all that its row trains
        strategy: how
        capture: names the parameters
        world: this process's
        instructions: of this rank; they say who hands out what

    Raises:
        InputError: the rank has several segments, or the program hands out something else
    """
    if len(part.stages) != 1:
        raise InputError(
            f"zero=1 is for ranks with one segment, rank {world.rank} has {len(part.stages)}: take zero=0",
            zero=strategy.zero,
            segments=tuple(part.stages),
        )
    ((segment, stage),) = part.stages.items()
    graph = capture.graph
    ops = segment_ops(graph, strategy)[segment]
    named = parameters_by_name(graph, stage.module)
    handed = after_update(graph, ops, strategy, gradient_buckets(graph, ops, strategy.bucket_bytes))
    homes = {item.label: item.home for item in instructions if item.kind is Kind.BROADCAST and item.label[:1] == "w"}
    if homes.keys() != {item.label for item in handed}:
        raise InputError(
            f"the program hands out {', '.join(homes) or 'nothing'} after the update, and the strategy "
            f"{strategy.name} wants {', '.join(item.label for item in handed)}: lower it again",
            program=tuple(homes),
        )
    buckets = {item.label: [named[name] for name in item.parameters] for item in handed}
    own = {id(one) for label, members in buckets.items() if homes[label] == world.rank for one in members}
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
