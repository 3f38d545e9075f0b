"""The collectives of sharded tensors inside a step of compute, and what one rank holds of them.

    forward   ── column ── inside ── row ──●f0── norm ── column ── row ──●f1──
    backward  ──●g1── column ◀── inside ◀── row ◀── norm ◀──●g0── column ◀── row ◀──

A region ends in a sum over the group (an embedding too; a classifier, and a layer by itself, in a gather), and in the
backward it sums the gradient of each tensor that came in whole. They follow from the graph and the shards alone.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from trimaran.graph.regions import GATHERED, Region, Split
from trimaran.graph.types import Affine, Graph, Op, Parameter, TensorSpec
from trimaran.program.inner import Axis, Inner, Point
from trimaran.program.shards import chosen_regions, chosen_stream, share_of, sharing_ranks
from trimaran.program.types import Kind, Strategy

_FORWARDS = (Kind.FORWARD, Kind.EVALUATE)
_BACKWARDS = (Kind.BACKWARD, Kind.BACKWARD_INPUT)

_Stop = tuple[Kind, str, bool, int]
"""A collective: what, at which operation, before it, how many bytes."""


def tensor_collectives(
    graph: Graph, ops: Sequence[Op], strategy: Strategy, *, samples: int, kind: Kind
) -> tuple[Inner, ...]:
    """What the ranks of a tensor-parallel group do together inside a step of compute.

    Args:
        graph: the network
        ops: of the segment
        strategy: what is sharded
        samples: of a full microbatch
        kind: of the step: a forward, a backward or an evaluation

    Returns:
        The collectives, in order of the step.
    """
    if not strategy.shards:
        return ()
    if strategy.tp == 1:
        return _sample_exchanges(graph, ops, strategy, samples, kind)
    sharing = _Sharing(graph, ops, strategy, samples)
    if kind in _FORWARDS:
        return sharing.forward()
    return sharing.backward() if kind in _BACKWARDS else ()


def gradient_sums(graph: Graph, ops: Sequence[Op], strategy: Strategy) -> tuple[tuple[str, tuple[str, ...], int], ...]:
    """Gradients that the ranks of a tensor-parallel group add up once, before the update.

    Args:
        graph: the network
        ops: of the segment
        strategy: what is sharded

    Returns:
        For each sum its label, the names of the parameters, and its size [bytes]. Without split sequences there is
        none: what every rank has whole gets the same gradient on every rank.
    """
    partial = set(chosen_stream(graph, strategy).partial)
    if not partial.intersection(name for op in ops for name in op.parameters):
        return ()
    found: dict[str, list[Parameter]] = {}
    for parameter in graph.parameters:
        if parameter.name in partial and parameter.trainable:
            found.setdefault(parameter.dtype, []).append(parameter)
    return tuple(
        (f"q{number}", tuple(p.name for p in alike), sum(p.nbytes for p in alike))
        for number, alike in enumerate(found.values())
    )


def sharded_bytes(graph: Graph, strategy: Strategy) -> Mapping[str, int]:
    """What one rank holds of each parameter that is sharded [bytes]; the largest share, where they differ.

    Args:
        graph: the network
        strategy: what is sharded
    """
    if not strategy.shards:
        return {}
    parameters = {parameter.name: parameter for parameter in graph.parameters}
    held: dict[str, int] = {}
    for region, split in _splits(graph, strategy):
        parameter = parameters[split.parameter]
        size = parameter.shape[split.dim]
        held[split.parameter] = parameter.nbytes // size * round(size * share_of(region, sharing_ranks(strategy)))
    return held


def own_parameters(graph: Graph, strategy: Strategy) -> frozenset[str]:
    """Names of the parameters of which every replica has another share: their gradients are not added up.

    Args:
        graph: the network
        strategy: what is sharded
    """
    if strategy.tp > 1:
        return frozenset()
    return frozenset(split.parameter for _, split in _splits(graph, strategy))


def _sample_exchanges(
    graph: Graph, ops: Sequence[Op], strategy: Strategy, samples: int, kind: Kind
) -> tuple[Inner, ...]:
    """Samples gathered in front of a region that replicas share, and results scattered behind it.

    What each has drawn for its samples, in training, is gathered too: masks of a byte an element.
    """
    here = {op.id: place for place, op in enumerate(ops)}
    regions = [region for region in chosen_regions(graph, strategy) if region.name in here]
    specs = {spec.name: spec for spec in (*graph.inputs, *(spec for op in graph.ops for spec in op.outputs))}
    outputs = {op.id: op.outputs[0] for op in graph.ops if op.outputs}
    inputs = {op.id: op.inputs for op in ops}
    ins, outs = [], []
    for region in regions:
        sources = dict.fromkeys(name for column in region.columns for name in inputs[column])
        for name in sources:
            first = next(column for column in region.columns if name in inputs[column])
            ins.append((first, specs[name]))
        outs += [(row, outputs[row]) for row in region.rows]
    every = samples * strategy.dp
    if kind in _FORWARDS:
        found = [(here[op], Kind.ALL_GATHER, Point(op=op, before=True), spec.nbytes.at(every)) for op, spec in ins]
        found += [(here[op], Kind.REDUCE_SCATTER, Point(op=op), spec.nbytes.at(every)) for op, spec in outs]
        if kind is Kind.FORWARD:
            drawn = [(name, math.prod(_features(outputs[name]))) for region in regions for name in region.draws]
            found += [(here[op], Kind.ALL_GATHER, Point(op=op), every * features) for op, features in drawn]
        letter = "x"
    elif kind in _BACKWARDS:
        wanted = [(op, spec) for op, spec in ins if spec.requires_grad]
        found = [(-here[op], Kind.ALL_GATHER, Point(op=op, before=True), spec.nbytes.at(every)) for op, spec in outs]
        found += [(-here[op], Kind.REDUCE_SCATTER, Point(op=op), spec.nbytes.at(every)) for op, spec in wanted]
        letter = "y"
    else:
        return ()
    found.sort(key=lambda exchange: exchange[0])
    return tuple(
        _stop(f"{letter}{number}", how, point, round(nbytes), "replicas")
        for number, (_, how, point, nbytes) in enumerate(found)
    )


def _features(spec: TensorSpec) -> Iterator[int]:
    """Its sizes but that of samples."""
    return (size for size in spec.shape[1:] if isinstance(size, int))


def _splits(graph: Graph, strategy: Strategy) -> Iterator[tuple[Region, Split]]:
    for region in chosen_regions(graph, strategy):
        for split in region.splits:
            yield region, split


class _Sharing:
    """The collectives of one step of compute of a tensor-parallel group."""

    def __init__(self, graph: Graph, ops: Sequence[Op], strategy: Strategy, samples: int) -> None:
        self._here = {op.id: place for place, op in enumerate(ops)}
        self._regions = [region for region in chosen_regions(graph, strategy) if region.name in self._here]
        self._stream = chosen_stream(graph, strategy)
        self._outputs = {op.id: op.outputs for op in graph.ops}
        self._ranks, self._samples = strategy.tp, samples
        specs = (*graph.inputs, *(spec for op in graph.ops for spec in op.outputs))
        self._sizes = {spec.name: spec.nbytes for spec in specs}
        self._sizes |= {parameter.name: Affine(parameter.nbytes) for parameter in graph.parameters}
        split = {*self._stream.ops, *self._stream.sources}
        self._split = {spec.name for op in graph.ops if op.id in split for spec in op.outputs}

    def forward(self) -> tuple[Inner, ...]:
        found: list[_Stop] = []
        for region in self._regions:
            found += [
                (Kind.ALL_GATHER, entry.op, True, self._bytes(entry.tensor))
                for entry in region.entries
                if entry.tensor in self._split
            ]
            for name in region.rows:
                how = Kind.REDUCE_SCATTER if name in self._stream.sources else Kind.ALL_REDUCE
                found.append((how, name, False, self._output(name)))
            for name in region.columns if region.kind in GATHERED else ():
                # Shares are gathered at the size of the largest.
                nbytes = round(self._output(name) * share_of(region, self._ranks) * self._ranks)
                found.append((Kind.ALL_GATHER, name, False, nbytes))
        found += [(Kind.ALL_GATHER, leaving.op, False, self._bytes(leaving.tensor)) for leaving in self._stream.exits]
        return self._numbered("f", found, 1)

    def backward(self) -> tuple[Inner, ...]:
        found: list[_Stop] = []
        for region in self._regions:
            for entry in region.entries:
                how = Kind.REDUCE_SCATTER if entry.tensor in self._split else Kind.ALL_REDUCE
                found.append((how, entry.op, False, self._bytes(entry.tensor)))
            found += [
                (Kind.ALL_GATHER, name, True, self._output(name))
                for name in region.rows
                if name in self._stream.sources
            ]
        found += [(Kind.ALL_REDUCE, entry.op, False, self._bytes(entry.tensor)) for entry in self._stream.entries]
        return self._numbered("g", found, -1)

    def _numbered(self, letter: str, found: list[_Stop], direction: int) -> tuple[Inner, ...]:
        found.sort(key=lambda stop: (direction * self._here[stop[1]], not stop[2]))
        return tuple(
            _stop(f"{letter}{number}", how, Point(op=op, before=before), nbytes, "shards")
            for number, (how, op, before, nbytes) in enumerate(found)
        )

    def _bytes(self, tensor: str) -> int:
        return round(self._sizes[tensor].at(self._samples))

    def _output(self, op: str) -> int:
        return round(self._outputs[op][0].nbytes.at(self._samples))


def _stop(label: str, kind: Kind, point: Point, nbytes: int, axis: Axis) -> Inner:
    """A collective at which the step stands still."""
    return Inner(label=label, kind=kind, axis=axis, nbytes=nbytes, start=point, wait=point)
