"""Which operations a strategy shards: whole regions of the graph, over the ranks of a tensor-parallel group.

find_shards(graph, 4) ──▶ Strategy(tp=4, shards=...) ──▶ chosen_regions ──▶ collectives, bytes, shares of the work
"""

from collections.abc import Iterator

from trimaran.errors import InputError
from trimaran.graph.regions import Region, RegionKind, Stream, share_bounds
from trimaran.graph.types import Graph
from trimaran.graph.use import is_whole
from trimaran.program.segments import segment_ops
from trimaran.program.types import Shard, ShardStyle, Strategy


def find_shards(graph: Graph, ranks: int, *, sequence: bool = False, layers: bool = False) -> tuple[Shard, ...]:
    """All that so many ranks can share of a network.

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
    kept = [region for region in fitting if _is_agreed(graph, region, fitting)]
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
    """Why so many ranks can share nothing, in a sentence; empty where they can."""
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


def chosen_stream(graph: Graph, strategy: Strategy) -> Stream:
    """What a strategy splits along sequences; an empty stream where it splits nothing so.

    Args:
        graph: the network
        strategy: with shards that fit it (`check_shards`)
    """
    return graph.stream if any(shard.style == "sequence" for shard in strategy.shards) else Stream()


def check_shards(graph: Graph, strategy: Strategy) -> None:
    """Refuse shards that the graph does not allow.

    Args:
        graph: the network
        strategy: how it is spread over ranks

    Raises:
        InputError: no shards for a tensor-parallel group; an operation that cannot be sharded so, or not without
            others; a region in several segments
    """
    if strategy.shards and strategy.execution != "eager":
        raise InputError(
            f"shared tensors run eagerly, as torch.compile would break at each of their sums; got "
            f"execution={strategy.execution!r}",
            code="shards.compiled",
            execution=strategy.execution,
        )
    if strategy.tp > 1 and not strategy.shards:
        reason = why_not(graph, strategy.tp) or "take those that find_shards names"
        raise InputError(f"tp={strategy.tp} needs shards: {reason}", code="shards.missing", tp=strategy.tp)
    if strategy.tp == 1 and strategy.shards and (strategy.dp == 1 or strategy.zero or strategy.sync != "all-reduce"):
        raise InputError(
            f"shards without tp are shared by replicas that exchange by all-reduce, got {strategy.name}: take dp > 1, "
            "zero=0 and sync all-reduce, or tp",
            strategy=strategy.name,
        )
    regions = chosen_regions(graph, strategy)
    wanted = {shard.op: shard.style for region in regions for shard in _shards_of(region)}
    stream = _check_stream(graph, strategy, regions)
    wanted |= dict.fromkeys(stream.ops, "sequence")
    for shard in strategy.shards:
        if wanted.get(shard.op) != shard.style:
            raise InputError(
                f"{shard.op} cannot be sharded by {shard.style}: {_reason(graph, shard)}",
                code="shards.incomplete-group",
                op=shard.op,
            )
    ranks = sharing_ranks(strategy)
    for region in regions:
        if strategy.tp == 1 and not region.samples:
            raise InputError(
                f"replicas cannot share {region.name}: only layers over [samples, features] with nothing between them "
                "that counts samples; use tp",
                code="shards.not-for-replicas",
                op=region.name,
            )
        if not region.fits(ranks):
            raise InputError(
                f"{ranks} ranks cannot share {region.name}: its {region.units} heads or features do not divide by "
                f"{ranks}",
                code="shards.not-divisible",
                op=region.name,
                units=region.units,
                ranks=ranks,
            )
        if not _is_agreed(graph, region, regions):
            raise InputError(
                f"{region.name} shares its weight with another operation: shard both, or neither",
                code="shards.tied-weight",
                op=region.name,
            )
    _check_segments(graph, strategy, regions)


def sharing_ranks(strategy: Strategy) -> int:
    """How many ranks share what a strategy shards: those of a tensor-parallel group, or without one the replicas.

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


def _check_stream(graph: Graph, strategy: Strategy, regions: tuple[Region, ...]) -> Stream:
    stream = chosen_stream(graph, strategy)
    split = {shard.op for shard in strategy.shards if shard.style == "sequence"}
    if not split:
        return stream
    missing = next((name for name in stream.ops if name not in split), "")
    if missing:
        raise InputError(
            f"sequences are split for all operations between regions, or for none: {missing} is missing",
            code="shards.partial-sequence",
        )
    if strategy.tp == 1 or strategy.segments > 1 or len(regions) < len(graph.regions) or stream.length % strategy.tp:
        raise InputError(
            f"sequences are split where all regions of a whole network are sharded (pp=1) and tp divides the "
            f"{stream.length} places of a sequence, got {strategy.name}",
            length=stream.length,
            tp=strategy.tp,
        )
    return stream


def _check_segments(graph: Graph, strategy: Strategy, regions: tuple[Region, ...]) -> None:
    segment = {op.id: number for number, ops in enumerate(segment_ops(graph, strategy)) for op in ops}
    for region in regions:
        members = (*region.columns, *region.inside, *region.rows)
        cut = next((name for name in members if segment[name] != segment[members[0]]), None)
        if cut is not None:
            raise InputError(
                f"{members[0]} and {cut} are sharded together and lie in different segments: cut elsewhere",
                code="shards.split-across-segments",
                ops=(members[0], cut),
            )


def _is_agreed(graph: Graph, region: Region, regions: list[Region] | tuple[Region, ...]) -> bool:
    """Whether every region that splits a parameter of this one is among the given ones."""
    return all(other in regions for split in region.splits for other in graph.regions if split in other.splits)


def _shards_of(region: Region) -> Iterator[Shard]:
    vocabulary = region.kind in ("embedding", "head")
    first: ShardStyle = "vocabulary" if vocabulary else "column"
    last: ShardStyle = "vocabulary" if vocabulary else "row"
    for name in region.columns:
        yield Shard(op=name, style=first)
    for name in region.rows:
        if name not in region.columns:
            yield Shard(op=name, style=last)


def _reason(graph: Graph, shard: Shard) -> str:
    for region in graph.regions:
        if shard.op in (*region.columns, *region.rows):
            needed = ", ".join(f"{found.op} ({found.style})" for found in _shards_of(region))
            return f"it is sharded together with {needed}, or not at all"
    if all(op.id != shard.op for op in graph.ops):
        return f"{graph.name} has no such operation"
    return graph.whole.get(shard.op, "it starts or ends nothing that ranks could share")
