"""The part of a rank that shares tensors with others: the user's parameters are shares, under their own names.

Each section of a parameter is laid out over the mesh as a DTensor would be. The model has plain tensors, so that
optimizers, buckets and norms work on them as on any other.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from trimaran.base.errors import InputError
from trimaran.graph.capture.capture import Capture
from trimaran.graph.optimizers import marked
from trimaran.graph.types import Graph, Parameter, ParameterSplit, share_bounds
from trimaran.program.layout import strategy_layout
from trimaran.program.lowering.partition import segment_ops
from trimaran.program.lowering.tensor_parallel import chosen_regions, chosen_stream, gradient_sums, sharded_bytes
from trimaran.program.strategy import Strategy
from trimaran.runtime.parts.part import HasGradient, Making, RankPart, Sharing
from trimaran.runtime.parts.segments import segmented_part
from trimaran.runtime.tensor.collectives import Edges, PartialGradients, SampleEdges, TensorGroup, WholeEdges
from trimaran.runtime.tensor.rewriting import rewrite
from trimaran.runtime.whole_state import state_of


class SharedWeights:
    """The sharded parameters of a model on one rank.

    Args:
        model: the user's, whole; its sharded parameters are replaced by shares
        mesh: the ranks that share them
        splits: how each lies on them
        parameters: of the graph, which know the other names of each

    Attributes:
        shares: this rank's, by the name of the parameter
    """

    def __init__(
        self, model: nn.Module, mesh: DeviceMesh, splits: Sequence[ParameterSplit], parameters: Sequence[Parameter]
    ) -> None:
        self._model = model
        self._mesh = mesh
        self._splits = {split.parameter: split for split in splits}
        self._names = {parameter.name: (parameter.name, *parameter.aliases) for parameter in parameters}
        self.shares: dict[str, nn.Parameter] = {}
        self._own: dict[str, nn.Parameter] = {}
        for name, split in self._splits.items():
            whole = model.get_parameter(name)
            share = marked(nn.Parameter(self._share(whole.detach(), split), requires_grad=whole.requires_grad), whole)
            self.shares[name], self._own[name] = share, whole
            # The shape stays, the memory goes.
            whole.data = whole.new_zeros(()).expand(whole.shape)
            self._place(name, share)

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Whole shapes, by every name of each sharded parameter."""
        return {alias: whole.shape for name, whole in self._own.items() for alias in self._names[name]}

    def restore(self) -> None:
        """Restore the model's whole parameters, with zeros for the shares of other ranks; nothing is communicated."""
        for name, whole in self._own.items():
            whole.data = torch.zeros(whole.shape, dtype=whole.dtype, device=whole.device)
            whole.grad = None
            self._place(name, whole)

    def _place(self, name: str, parameter: nn.Parameter) -> None:
        for alias in self._names[name]:
            owner, _, attribute = alias.rpartition(".")
            self._model.get_submodule(owner)._parameters[attribute] = parameter

    def sharing(self, ranks: tuple[int, ...]) -> dict[str, Sharing]:
        """How each sharded parameter lies on the ranks of the mesh.

        Args:
            ranks: of the mesh, in order
        """
        return {
            name: Sharing(
                ranks=ranks,
                shape=self._own[name].shape,
                dim=split.dim,
                spans=self._spans(split),
            )
            for name, split in self._splits.items()
        }

    def _spans(self, split: ParameterSplit) -> tuple[tuple[int, int], ...]:
        """What of the whole this rank's share has, section by section."""
        rank, ranks = self._mesh.get_local_rank(), self._mesh.size()
        starts = accumulate(split.sections, initial=0)
        bounds = [share_bounds(section, ranks, rank) for section in split.sections]
        return tuple((start + low, start + high) for start, (low, high) in zip(starts, bounds, strict=False))

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Put whole tensors in their places.

        Args:
            state: by the names of the model's `state_dict`
        """
        splits = {alias: (name, split) for name, split in self._splits.items() for alias in self._names[name]}
        with torch.no_grad():
            for name, tensor in state_of(self._model).items():
                whole = state[name]
                if name in splits:
                    first, split = splits[name]
                    whole = self._share(whole.to(self.shares[first].device), split)
                tensor.copy_(whole)

    def _share(self, whole: torch.Tensor, split: ParameterSplit) -> torch.Tensor:
        parts = [whole.narrow(split.dim, low, high - low) for low, high in self._spans(split)]
        return torch.cat(parts, split.dim).clone(memory_format=torch.contiguous_format)


def tensor_part(making: Making, capture: Capture) -> RankPart:
    """The segments of a rank, with its share of what is sharded.

    Args:
        making: what it is made of
        capture: of the job

    Raises:
        InputError: the model has no graph; what its attention draws cannot be shared
    """
    job, strategy, model = making.job, making.strategy, making.model
    if capture.flow is None:
        raise InputError(f"the model of {job.name!r} could not be captured as a graph, so its tensors cannot be shared")
    layout = strategy_layout(strategy)
    replica, row, shard = layout.place_of(making.world.rank)
    sharers = layout.shards(replica, row) if strategy.tp > 1 else layout.replicas(row)
    if not making.channels.has_group(sharers):
        # A stage in which nothing is shared: each of its ranks does the same.
        part = segmented_part(making, capture)
        return dataclasses.replace(part, counted=part.counted if shard == 0 else ())
    group = TensorGroup(making.channels.group(sharers), making.world.rank)
    if strategy.tp > 1:
        edges: Edges = WholeEdges(group)
    else:
        share = -(-job.global_batch_size // strategy.dp)
        edges = SampleEdges(group, -(-share // strategy.microbatches))
    regions, stream = chosen_regions(capture.graph, strategy), chosen_stream(capture.graph, strategy)
    splits = {split.parameter: split for region in regions for split in region.splits}
    # While the model is whole, as its regions are searched for once more.
    flow = rewrite(capture.flow, model, regions, edges, precision=job.precision, sequences=bool(stream.ops))
    weights = SharedWeights(model, making.channels.mesh(sharers), tuple(splits.values()), capture.graph.parameters)
    graph = _with_shares(capture.graph, sharded_bytes(capture.graph, strategy))
    part = segmented_part(making, dataclasses.replace(capture, graph=graph, flow=flow))
    own = {id(share) for share in weights.shares.values()}
    return dataclasses.replace(
        part,
        # What every rank has whole counts once.
        counted=tuple(parameter for parameter in part.counted if group.shard == 0 or id(parameter) in own),
        tied=dict(part.tied) | _partial(graph, strategy, model, row),
        sharing=weights.sharing(sharers),
        load=weights.load,
        shapes=weights.shapes,
        close=weights.restore,
    )


def _partial(graph: Graph, strategy: Strategy, model: nn.Module, row: int) -> dict[str, HasGradient]:
    segments = zip(strategy.rows, segment_ops(graph, strategy), strict=True)
    sums = gradient_sums(graph, [op for place, ops in segments if place == row for op in ops], strategy)
    return {label: PartialGradients([model.get_parameter(name) for name in names]) for label, names, _ in sums}


def _with_shares(graph: Graph, held: Mapping[str, int]) -> Graph:
    """The graph with the sizes that parameters have on one rank, by which buckets are made."""

    def shrunk(parameter: Parameter) -> Parameter:
        return dataclasses.replace(parameter, nbytes=held.get(parameter.name, parameter.nbytes))

    return dataclasses.replace(graph, parameters=tuple(shrunk(parameter) for parameter in graph.parameters))
