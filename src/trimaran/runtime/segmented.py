"""The part of a rank that has some segments of the network: stages of a pipeline, or parts of a placement."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from torch import nn

from trimaran.graph.capture import Capture
from trimaran.graph.segments import build_part
from trimaran.graph.types import Graph, Op
from trimaran.job import Job
from trimaran.program.buckets import Bucket, gradient_buckets
from trimaran.program.cut import tied_segments
from trimaran.program.layout import strategy_layout
from trimaran.program.parts import check_parts
from trimaran.program.segments import segment_ops
from trimaran.program.sharded import own_parameters
from trimaran.program.types import Instruction, Kind, Strategy
from trimaran.runtime.channels import Channels
from trimaran.runtime.part import Part, ReduceSegmentBucket
from trimaran.runtime.segments import SegmentStage, parameters_by_name
from trimaran.runtime.world import World

_COMPLETING = (Kind.BACKWARD, Kind.BACKWARD_WEIGHT)


def segmented_part(
    job: Job,
    strategy: Strategy,
    capture: Capture,
    model: nn.Module,
    *,
    never: Collection[str] = (),
    world: World,
    channels: Channels,
    instructions: Sequence[Instruction],
    reduce_bucket: ReduceSegmentBucket,
) -> Part:
    """The segments of one row of a replica.

    A weight that several of them use is one parameter here, with one gradient.

    Args:
        job: the job
        strategy: what is cut, and who has what
        capture: of the job
        model: the user's, on its device
        never: names of parameters that get no gradient
        world: this process's
        channels: communicate
        instructions: of this rank
        reduce_bucket: starts the all-reduce of a bucket

    Raises:
        InputError: the graph cannot be cut like that
    """
    if strategy.parts:
        check_parts(capture.graph, strategy)
    row = strategy_layout(strategy).place_of(world.rank)[1]
    graph, parts = capture.graph, segment_ops(capture.graph, strategy)
    own = [segment for segment, of in enumerate(strategy.rows) if of == row]
    segments = {number: build_part(capture, parts, number) for number in own}
    named = {number: parameters_by_name(graph, segment) for number, segment in segments.items()}
    tied = tied_segments(graph, parts)
    buckets = _buckets(strategy, graph, parts, tied, instructions) if strategy.dp > 1 else {}
    stages = {
        number: SegmentStage(
            segment,
            execution=strategy.execution,
            buckets=[[named[number][name] for name in bucket.parameters] for bucket in buckets.get(number, ())],
            reduce_bucket=partial(reduce_bucket, number),
        )
        for number, segment in segments.items()
    }
    trained: dict[str, nn.Parameter] = {}
    for found in named.values():
        trained.update((name, parameter) for name, parameter in found.items() if parameter.requires_grad)
    first = {name: strategy.rows[users[0]] for name, users in tied.items()}
    return Part(
        stages=stages,
        parameters=tuple(trained.values()),
        counted=tuple(parameter for name, parameter in trained.items() if first.get(name, row) == row),
        tied={f"tie{number}": trained[name] for number, name in enumerate(tied) if name in trained},
        never=tuple(parameter for name, parameter in trained.items() if name in never),
        reads=any(segment.inputs or segment.is_last for segment in segments.values()),
    )


def _buckets(
    strategy: Strategy,
    graph: Graph,
    parts: Sequence[Sequence[Op]],
    tied: Mapping[str, Sequence[int]],
    instructions: Sequence[Instruction],
) -> dict[int, tuple[Bucket, ...]]:
    """The gradient buckets of each segment of a rank; a weight of several is in the one that completes last."""
    order = dict.fromkeys(
        instruction.segment
        for instruction in reversed(instructions)
        if instruction.kind in _COMPLETING and instruction.segment is not None
    )
    taken = set(own_parameters(graph, strategy))
    found = {}
    for number in order:
        found[number] = gradient_buckets(graph, parts[number], strategy.bucket_bytes, without=taken)
        taken.update(name for name, users in tied.items() if number in users)
    return found
