"""Sharded tensors: their collectives inside a step of compute, and the bytes that one rank holds.

    forward   ── column ── inside ── row ──●f0── norm ── column ── row ──●f1──
    backward  ──●g1── column ◀── inside ◀── row ◀── norm ◀──●g0── column ◀── row ◀──

A region ends in a sum over the group (an embedding too; a classifier, and a layer by itself, in a gather), and in the
backward it sums the gradient of each tensor that came in whole. They follow from the graph and the shards alone.

A strategy shards whole regions of the graph over the ranks of a tensor-parallel group:

    find_shards(graph, 4) ──▶ Strategy(tp=4, shards=...) ──▶ chosen_regions ──▶ collectives, bytes, shares of the work
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from trimaran.base.errors import InputError
from trimaran.base.units import format_some
from trimaran.graph.types import (
    GATHERED,
    Affine,
    Graph,
    Op,
    Parameter,
    ParameterSplit,
    Region,
    RegionKind,
    ResidualStream,
    TensorSpec,
    is_whole,
    of_graph,
    share_bounds,
)
from trimaran.program.lowering.partition import segment_ops
from trimaran.program.lowering.schedules import FORWARDS, PASSING_BACK
from trimaran.program.strategy import Shard, ShardStyle, Strategy
from trimaran.program.types import Axis, ComputePoint, Inner, Kind


def find_shards(graph: Graph, ranks: int, *, sequence: bool = False, layers: bool = False) -> tuple[Shard, ...]:
    """All that a number of ranks can share of a network.

    Args:
        graph: the network
        ranks: of a tensor-parallel group
        sequence: what lies between too, where the graph allows it: norms and dropouts on parts of sequences
        layers: of a network without pairs of layers the layers one by one, each with a gather behind it. They save
            memory and seldom time, so they are for those who ask for a tensor-parallel group

    Returns:
        Its sharded operations, in the order of the graph; none where nothing can be shared. `Graph.whole` and
        `why_not` say why.
    """
    fitting = [region for region in graph.regions if region.fits(ranks) and (layers or region.kind != "layer")]
    names = {region.name for region in fitting}
    # Every region that splits a parameter of this one is among them.
    kept = [region for region in fitting if names.issuperset(_sharers(graph)[region.name])]
    if ranks < 2 or all(region.kind in _vocabulary(graph, layers) for region in kept):
        # The vocabulary alone is not worth a group.
        return ()
    order = {op.id: place for place, op in enumerate(graph.ops)}
    shards = [shard for region in kept for shard in _shards_of(region)]
    if sequence and len(kept) == len(graph.regions) and graph.stream.length and graph.stream.length % ranks == 0:
        shards += [Shard(op=op, style="sequence") for op in graph.stream.ops]
    return tuple(sorted(shards, key=lambda shard: order[shard.op]))


def _vocabulary(graph: Graph, layers: bool) -> frozenset[RegionKind]:
    """Kinds of regions that do not make a group by themselves."""
    paired = any(region.kind in ("pair", "attention") for region in graph.regions)
    return frozenset({"embedding"}) if layers and not paired else frozenset({"embedding", "head"})


def find_classifier_shards(graph: Graph, replicas: int) -> tuple[Shard, ...]:
    """Big layers behind the convolutions that replicas can share, each its part of them for the samples of all.

    Args:
        graph: the network
        replicas: data-parallel replicas

    Returns:
        The sharded operations, in the order of the graph, of a strategy with `tp=1`; none where there are none.
    """
    if replicas < 2:
        return ()
    kept = [region for region in graph.regions if region.samples and region.fits(replicas)]
    return tuple(shard for region in kept for shard in _shards_of(region))


def why_not(graph: Graph, ranks: int) -> str:
    """Why this number of ranks can share nothing, in a sentence; empty where they can."""
    if find_shards(graph, ranks, layers=True):
        return ""
    pairs = [region for region in graph.regions if region.kind in ("pair", "attention")]
    if pairs:
        units = ", ".join(str(number) for number in sorted({region.units for region in pairs}))
        return f"{ranks} ranks do not divide the heads or features ({units}) of any pair of layers of {graph.name}"
    if graph.whole:
        name, reason = next(iter(graph.whole.items()))
        return f"no pair of layers of {graph.name} can be shared: {name}: {reason}"
    if is_whole(graph):
        return f"{graph.name} could not be captured, and is one operation of which no layer is known"
    return f"{graph.name} has no linear layers or convolutions that {ranks} ranks can share"


def chosen_regions(graph: Graph, strategy: Strategy) -> tuple[Region, ...]:
    """The regions that a strategy shards.

    Args:
        graph: the network
        strategy: with shards that fit it (`check_shards`)
    """
    sharded = {shard.op for shard in strategy.shards}
    return tuple(region for region in graph.regions if sharded.issuperset((*region.columns, *region.rows)))


def chosen_stream(graph: Graph, strategy: Strategy) -> ResidualStream:
    """The operations that a strategy splits along sequences; an empty stream where there are none.

    Args:
        graph: the network
        strategy: with shards that fit it (`check_shards`)
    """
    return graph.stream if any(shard.style == "sequence" for shard in strategy.shards) else ResidualStream()


def sharing_ops(graph: Graph, strategy: Strategy) -> frozenset[str]:
    """The operations that work on shares, or on parts of sequences.

    Args:
        graph: the network
        strategy: with shards that fit it (`check_shards`)
    """
    regions = chosen_regions(graph, strategy)
    members = (name for region in regions for name in (*region.columns, *region.inside, *region.rows))
    return frozenset((*members, *chosen_stream(graph, strategy).ops))


def check_shards(graph: Graph, strategy: Strategy) -> None:
    """Refuse shards that are none of those of `find_shards` or `find_classifier_shards`, or that lie in two segments.

    Args:
        graph: the network
        strategy: how it is spread over ranks

    Raises:
        InputError: no shards for a tensor-parallel group, or others; a region in several segments
    """
    if strategy.shards and strategy.execution != "eager":
        raise InputError(
            f"shared tensors run eagerly, as torch.compile would break at each of their sums; got "
            f"execution={strategy.execution!r}",
            code="shards.compiled",
            execution=strategy.execution,
        )
    if strategy.tp == 1 and strategy.shards and (strategy.dp == 1 or strategy.zero or strategy.sync != "all-reduce"):
        raise InputError(
            f"shards without tp are shared by replicas that exchange by all-reduce, got {strategy.name}: take dp > 1, "
            "zero=0 and sync all-reduce, or tp",
            strategy=strategy.name,
        )
    ranks = sharing_ranks(strategy)
    own = set(strategy.shards)
    if own not in map(set, _offered(graph, strategy)):
        odd = min((own.symmetric_difference(shards) for shards in _offered(graph, strategy)), key=len, default=own)
        reason = (why_not(graph, ranks) if strategy.tp > 1 else "") or "take those of find_shards, all of them"
        named = format_some(sorted(f"{shard.op} ({shard.style})" for shard in odd))
        raise InputError(
            f"{ranks} ranks cannot share {graph.name} as {strategy.name} says, which differs in {named}: {reason}",
            code="shards.not-offered",
            ranks=ranks,
        )
    if strategy.segments > 1 and chosen_stream(graph, strategy).ops:
        raise InputError(
            f"sequences are split where all of a network is one segment (pp=1), got {strategy.name}",
            code="shards.sequence-in-stages",
            strategy=strategy.name,
        )
    _check_segments(graph, strategy, chosen_regions(graph, strategy))


def _offered(graph: Graph, strategy: Strategy) -> Iterator[tuple[Shard, ...]]:
    """What the ranks of a strategy can share, by how it is asked for; nothing where they can share nothing."""
    if strategy.tp == 1:
        found = iter([find_classifier_shards(graph, strategy.dp)])
    else:
        ways = itertools.product((False, True), repeat=2)
        found = (find_shards(graph, strategy.tp, sequence=sequence, layers=layers) for layers, sequence in ways)
    return (shards for shards in found if shards)


def sharing_ranks(strategy: Strategy) -> int:
    """Number of ranks that share tensors: those of a tensor-parallel group, or without one the replicas.

    Example:
        >>> sharing_ranks(Strategy(dp=4, tp=2)), sharing_ranks(Strategy(dp=4))
        (2, 4)
    """
    return strategy.tp if strategy.tp > 1 else strategy.dp


def share_of(region: Region, ranks: int) -> float:
    """The largest share of a region that one rank has, of its weights and its work.

    Example:
        >>> share_of(Region(kind="pair", columns=("a",), rows=("b",), units=12), 4)
        0.25
    """
    if region.units:
        return 1 / ranks
    size = sum(region.splits[0].sections)
    low, high = share_bounds(size, ranks, 0)
    return (high - low) / size


def _check_segments(graph: Graph, strategy: Strategy, regions: tuple[Region, ...]) -> None:
    segment = {op.id: number for number, ops in enumerate(segment_ops(graph, strategy)) for op in ops}
    for region in regions:
        members = (*region.columns, *region.inside, *region.rows)
        apart = next((name for name in members if segment[name] != segment[members[0]]), None)
        if apart is not None:
            raise InputError(
                f"{members[0]} and {apart} are sharded together and lie in different segments: split elsewhere",
                code="shards.split-across-segments",
                ops=(members[0], apart),
            )


@of_graph
def _sharers(graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """For each region, by name, the regions that split one of its parameters the same way, itself included."""
    users: dict[ParameterSplit, dict[str, None]] = {}
    for region in graph.regions:
        for split in region.splits:
            users.setdefault(split, {})[region.name] = None
    return {
        region.name: tuple(dict.fromkeys((region.name, *(name for split in region.splits for name in users[split]))))
        for region in graph.regions
    }


def _shards_of(region: Region) -> Iterator[Shard]:
    vocabulary = region.kind in ("embedding", "head")
    first: ShardStyle = "vocabulary" if vocabulary else "column"
    last: ShardStyle = "vocabulary" if vocabulary else "row"
    for name in region.columns:
        yield Shard(op=name, style=first)
    for name in region.rows:
        if name not in region.columns:
            yield Shard(op=name, style=last)


_Stop = tuple[Kind, str, bool, int]
"""A collective: what, at which operation, before it, how many bytes."""


def tensor_collectives(
    graph: Graph, ops: Sequence[Op], strategy: Strategy, *, samples: int, kind: Kind
) -> tuple[Inner, ...]:
    """The collectives of a tensor-parallel group inside a step of compute.

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
    if kind in FORWARDS:
        return sharing.forward()
    return sharing.backward() if kind in PASSING_BACK else ()


def gradient_sums(graph: Graph, ops: Sequence[Op], strategy: Strategy) -> tuple[tuple[str, tuple[str, ...], int], ...]:
    """Gradients that the ranks of a tensor-parallel group add up once, before the update.

    Args:
        graph: the network
        ops: of all segments of a rank
        strategy: what is sharded

    Returns:
        For each sum its label, the names of the parameters, and its size [bytes]. It has parameters that ranks have
        whole and use on shares; the others get the same gradient on every rank.
    """
    inside = (name for region in chosen_regions(graph, strategy) for name in region.partial)
    partial = {*chosen_stream(graph, strategy).partial, *inside}.intersection(
        name for op in ops for name in op.parameters
    )
    found: dict[str, list[Parameter]] = {}
    for parameter in graph.parameters:
        if parameter.name in partial and parameter.trainable:
            found.setdefault(parameter.dtype, []).append(parameter)
    return tuple(
        (f"q{number}", tuple(p.name for p in alike), sum(p.nbytes for p in alike))
        for number, alike in enumerate(found.values())
    )


def sharded_bytes(graph: Graph, strategy: Strategy) -> Mapping[str, int]:
    """Bytes that one rank holds of each sharded parameter [bytes]; the largest share, where they differ.

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
    regions = _regions_in(ops, graph, strategy)
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
    if kind in FORWARDS:
        found: list[_Stop] = [(Kind.ALL_GATHER, op, True, round(spec.nbytes.at(every))) for op, spec in ins]
        found += [(Kind.REDUCE_SCATTER, op, False, round(spec.nbytes.at(every))) for op, spec in outs]
        if kind is Kind.FORWARD:
            drawn = [(name, math.prod(_features(outputs[name]))) for region in regions for name in region.draws]
            found += [(Kind.ALL_GATHER, op, False, every * features) for op, features in drawn]
        return _numbered("x", found, ops, "replicas")
    if kind in PASSING_BACK:
        wanted = [(op, spec) for op, spec in ins if spec.requires_grad]
        found = [(Kind.ALL_GATHER, op, True, round(spec.nbytes.at(every))) for op, spec in outs]
        found += [(Kind.REDUCE_SCATTER, op, False, round(spec.nbytes.at(every))) for op, spec in wanted]
        return _numbered("y", found, ops, "replicas", backward=True)
    return ()


def _features(spec: TensorSpec) -> Iterator[int]:
    """Its sizes but that of samples."""
    return (size for size in spec.shape[1:] if isinstance(size, int))


def _splits(graph: Graph, strategy: Strategy) -> Iterator[tuple[Region, ParameterSplit]]:
    for region in chosen_regions(graph, strategy):
        for split in region.splits:
            yield region, split


@of_graph
def _outputs_and_sizes(graph: Graph) -> tuple[Mapping[str, tuple[TensorSpec, ...]], Mapping[str, Affine]]:
    """Outputs of each operation, by id; sizes of tensors and parameters, by name."""
    specs = (*graph.inputs, *(spec for op in graph.ops for spec in op.outputs))
    sizes = {spec.name: spec.nbytes for spec in specs}
    sizes |= {parameter.name: Affine(parameter.nbytes) for parameter in graph.parameters}
    return {op.id: op.outputs for op in graph.ops}, sizes


class _Sharing:
    """The collectives of one step of compute of a tensor-parallel group."""

    def __init__(self, graph: Graph, ops: Sequence[Op], strategy: Strategy, samples: int) -> None:
        self._ops = ops
        self._regions = _regions_in(ops, graph, strategy)
        self._stream = chosen_stream(graph, strategy)
        self._outputs, self._sizes = _outputs_and_sizes(graph)
        self._ranks, self._samples = strategy.tp, samples
        split = {*self._stream.ops, *self._stream.sources}
        self._split = {spec.name for op in graph.ops if op.id in split for spec in op.outputs} if split else set()

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
        return _numbered("f", found, self._ops, "shards")

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
        return _numbered("g", found, self._ops, "shards", backward=True)

    def _bytes(self, tensor: str) -> int:
        return round(self._sizes[tensor].at(self._samples))

    def _output(self, op: str) -> int:
        return round(self._outputs[op][0].nbytes.at(self._samples))


def _regions_in(ops: Sequence[Op], graph: Graph, strategy: Strategy) -> list[Region]:
    """The regions that a strategy shards among some operations."""
    here = {op.id for op in ops}
    return [region for region in chosen_regions(graph, strategy) if region.name in here]


def _numbered(
    letter: str, found: list[_Stop], ops: Sequence[Op], axis: Axis, *, backward: bool = False
) -> tuple[Inner, ...]:
    """Collectives that a step waits for, in the order in which it passes them."""
    place = {op.id: -number if backward else number for number, op in enumerate(ops)}
    found.sort(key=lambda stop: (place[stop[1]], not stop[2]))
    points = [ComputePoint(op=op, before=before) for _, op, before, _ in found]
    return tuple(
        Inner(label=f"{letter}{number}", kind=kind, axis=axis, nbytes=nbytes, start=point, wait=point)
        for number, (point, (kind, _, _, nbytes)) in enumerate(zip(points, found, strict=True))
    )
