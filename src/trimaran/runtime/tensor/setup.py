"""The part of a rank that shares tensors with others."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from trimaran.errors import InputError
from trimaran.graph.capture import Capture
from trimaran.graph.types import Graph, Parameter
from trimaran.graph.untouched import device_of
from trimaran.job import Job
from trimaran.program.layout import strategy_layout
from trimaran.program.sharded import gradient_sums, sharded_bytes
from trimaran.program.shards import chosen_regions, chosen_stream
from trimaran.program.types import Instruction, Strategy
from trimaran.runtime.channels import Channels
from trimaran.runtime.part import HasGradient, Part, ReduceSegmentBucket
from trimaran.runtime.segmented import segmented_part
from trimaran.runtime.tensor.edges import Edges, SampleEdges, WholeEdges
from trimaran.runtime.tensor.partial import PartialGradients
from trimaran.runtime.tensor.rewriting import rewrite
from trimaran.runtime.tensor.sums import Group
from trimaran.runtime.tensor.weights import SharedWeights
from trimaran.runtime.world import World


def tensor_part(
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
    """The segments of a rank, with its share of what is sharded.

    Args:
        job: the job
        strategy: what is sharded, and how the rest is divided
        capture: of the job
        model: the user's, whole, on its device, the same on every rank; its sharded parameters become shares
        never: names of parameters that get no gradient
        world: this process's
        channels: communicate
        instructions: of this rank
        reduce_bucket: starts the sum of a bucket over the replicas

    Raises:
        InputError: the model has no graph; what its attention draws cannot be shared
    """
    if capture.flow is None:
        raise InputError(f"the model of {job.name!r} could not be captured as a graph, so its tensors cannot be shared")
    layout = strategy_layout(strategy)
    replica, row, _ = layout.place_of(world.rank)
    sharers = layout.shards(replica, row) if strategy.tp > 1 else layout.replicas(row)
    process_group = channels.group(sharers)
    group, device = Group(process_group, world.rank), device_of(model)
    if strategy.tp > 1:
        edges: Edges = WholeEdges(group)
    else:
        share = -(-job.global_batch_size // strategy.dp)
        edges = SampleEdges(group, -(-share // strategy.microbatches))
    regions, stream = chosen_regions(capture.graph, strategy), chosen_stream(capture.graph, strategy)
    splits = {split.parameter: split for region in regions for split in region.splits}
    mesh = DeviceMesh.from_group(process_group, device.type)
    # While the model is whole: the regions are found in it again.
    flow = rewrite(capture.flow, model, regions, edges, precision=job.precision, sequences=bool(stream.ops))
    weights = SharedWeights(model, mesh, tuple(splits.values()), capture.graph.parameters)
    graph = _with_shares(capture.graph, sharded_bytes(capture.graph, strategy))
    part = segmented_part(
        job,
        strategy,
        dataclasses.replace(capture, graph=graph, flow=flow),
        model,
        never=never,
        world=world,
        channels=channels,
        instructions=instructions,
        reduce_bucket=reduce_bucket,
    )
    own = {id(share) for share in weights.shares.values()}
    return dataclasses.replace(
        part,
        # What every rank has whole counts once.
        counted=tuple(parameter for parameter in part.counted if group.shard == 0 or id(parameter) in own),
        tied=dict(part.tied) | _partial(graph, strategy, model),
        sharing=weights.sharing(sharers),
        load=weights.load,
        shapes=weights.shapes,
        close=weights.restore,
    )


def _partial(graph: Graph, strategy: Strategy, model: nn.Module) -> dict[str, HasGradient]:
    sums = gradient_sums(graph, graph.ops, strategy)
    return {label: PartialGradients([model.get_parameter(name) for name in names]) for label, names, _ in sums}


def _with_shares(graph: Graph, held: Mapping[str, int]) -> Graph:
    """The graph with the sizes that parameters have on one rank, by which buckets are made."""

    def shrunk(parameter: Parameter) -> Parameter:
        return dataclasses.replace(parameter, nbytes=held.get(parameter.name, parameter.nbytes))

    return dataclasses.replace(graph, parameters=tuple(shrunk(parameter) for parameter in graph.parameters))
