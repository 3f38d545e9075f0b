"""From a strategy to the stage that this rank runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn

from trimaran.errors import InputError
from trimaran.graph.capture import Capture
from trimaran.graph.segments import build_segment
from trimaran.graph.types import Graph
from trimaran.job import Job
from trimaran.program.buckets import gradient_buckets
from trimaran.program.cut import cut_graph
from trimaran.program.types import Instruction, Program, Strategy
from trimaran.runtime.channels import Channels
from trimaran.runtime.homed import HomedReplica
from trimaran.runtime.replica import Replica
from trimaran.runtime.segments import SegmentStage, parameters_by_name
from trimaran.runtime.stages import ReduceBucket, Stage
from trimaran.runtime.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one rank has of a job.

    Attributes:
        stage: computes
        parameters: trained here
        counted: those that count in the global norm here
        tied: for each label of the all-reduce of a shared weight, the weight, where it is held here
        reads: the stage reads data of the batch
        buckets: parameters of each bucket that has a home, by its label
        elsewhere: parameters that other ranks are home to: their gradients are dropped after the update
    """

    stage: Stage
    parameters: tuple[nn.Parameter, ...]
    counted: tuple[nn.Parameter, ...]
    tied: Mapping[str, nn.Parameter]
    reads: bool
    buckets: Mapping[str, Sequence[nn.Parameter]] = field(default_factory=dict)
    elsewhere: tuple[nn.Parameter, ...] = ()


def check_world(strategy: Strategy, programs: Sequence[Program], world: World) -> None:
    """Refuse a world that a strategy and its programs are not for.

    Raises:
        InputError: the number of ranks differs
    """
    for program in programs:
        if len(program.ranks) != strategy.devices:
            raise InputError(
                f"the strategy is for {strategy.devices} ranks, the program for {len(program.ranks)}: lower it again",
                strategy=strategy.devices,
                program=len(program.ranks),
            )
    if strategy.devices != world.size:
        raise InputError(
            f"the strategy is for {strategy.devices} ranks (dp {strategy.dp} x pp {strategy.pp}), this world has "
            f"{world.size}: start as many, or plan again for this world",
            strategy=strategy.devices,
            world=world.size,
        )


def share_weights(model: nn.Module, world: World, channels: Channels) -> None:
    """Give every rank the parameters and buffers of rank 0.

    The seed has made them equal already, unless the model draws from something that the seed does not reach.

    Args:
        model: the user's
        world: this process's
        channels: communicate
    """
    if world.size == 1:
        return
    group = channels.control if world.device == "cpu" else None
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            contiguous = tensor.detach().contiguous()
            dist.broadcast(contiguous, src=0, group=group)
            if contiguous.data_ptr() != tensor.data_ptr():
                tensor.copy_(contiguous)


def whole_model(
    job: Job,
    strategy: Strategy,
    model: nn.Module,
    channels: Channels,
    reduce_bucket: ReduceBucket,
    buckets: Sequence[Instruction],
) -> Part:
    """The part of a rank that has the whole model.

    Args:
        job: the job
        strategy: how
        model: the user's, on its device
        channels: communicate
        reduce_bucket: starts the all-reduce of a bucket
        buckets: the all-reduces of the program; together they have every parameter that the captured forward uses
    """
    parameters = tuple(parameter for parameter in model.parameters() if parameter.requires_grad)
    reduced_bytes = sum(bucket.nbytes for bucket in buckets)
    stage = Replica(
        model,
        own_loss=job.loss is None,
        execution=strategy.execution,
        group=channels.group(tuple(range(strategy.dp))) if strategy.dp > 1 else None,
        bucket_bytes=strategy.bucket_bytes,
        reduce_bucket=reduce_bucket,
        some_unused=reduced_bytes < sum(parameter.nbytes for parameter in parameters),
    )
    return Part(stage=stage, parameters=parameters, counted=parameters, tied={}, reads=True)


def homed_model(
    job: Job,
    strategy: Strategy,
    model: nn.Module,
    graph: Graph,
    reduce_bucket: ReduceBucket,
    reduces: Sequence[Instruction],
) -> Part:
    """The part of a rank that has the whole model and is home to some of its buckets.

    Args:
        job: the job
        strategy: how
        model: the user's, on its device
        graph: names its parameters
        reduce_bucket: starts the reduce of a bucket
        reduces: those of this rank, which say where each bucket is at home

    Raises:
        InputError: the program's buckets are not those of the strategy
    """
    named = parameters_by_name(graph, model)
    buckets = {
        bucket.label: [named[name] for name in bucket.parameters]
        for bucket in gradient_buckets(graph, graph.ops, strategy.bucket_bytes)
    }
    homes = {instruction.label: instruction.home == instruction.rank for instruction in reduces}
    if homes.keys() != buckets.keys():
        raise InputError(
            f"the program reduces {len(homes)} buckets to their homes, and the strategy {strategy.name} makes "
            f"{len(buckets)}: lower it again",
            program=len(homes),
            strategy=len(buckets),
        )
    own = {id(parameter) for label, bucket in buckets.items() if homes[label] for parameter in bucket}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    mine = tuple(parameter for parameter in trained if id(parameter) in own)
    stage = HomedReplica(
        model,
        own_loss=job.loss is None,
        execution=strategy.execution,
        buckets=list(buckets.values()),
        reduce_bucket=reduce_bucket,
    )
    return Part(
        stage=stage,
        parameters=mine,
        counted=mine,
        tied={},
        reads=True,
        buckets=buckets,
        elsewhere=tuple(parameter for parameter in trained if id(parameter) not in own),
    )


def one_segment(strategy: Strategy, capture: Capture, world: World, reduce_bucket: ReduceBucket) -> Part:
    """The part of a rank that has one segment of a pipeline."""
    number = world.rank % strategy.pp
    graph = capture.graph
    segment = build_segment(capture, strategy.boundaries, number)
    named = parameters_by_name(graph, segment)
    cut = cut_graph(graph, strategy.boundaries, microbatch=1)
    buckets = gradient_buckets(graph, cut.parts[number], strategy.bucket_bytes) if strategy.dp > 1 else ()
    stage = SegmentStage(
        segment,
        execution=strategy.execution,
        buckets=[[named[name] for name in bucket.parameters] for bucket in buckets],
        reduce_bucket=reduce_bucket,
    )
    trained = {name: parameter for name, parameter in named.items() if parameter.requires_grad}
    return Part(
        stage=stage,
        parameters=tuple(trained.values()),
        counted=tuple(p for name, p in trained.items() if cut.tied.get(name, (number,))[0] == number),
        tied={f"tie{k}": trained[name] for k, name in enumerate(cut.tied) if name in trained},
        reads=bool(cut.data[number]),
    )
