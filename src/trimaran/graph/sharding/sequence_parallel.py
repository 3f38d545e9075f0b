"""The part of a network between regions in which each rank can have its own part of every sequence.

It starts where regions end: at sums over the ranks, which become scatters along the sequence. It spreads through what
treats each place of a sequence by itself, and ends where regions start, which gather. What must see whole sequences, or
has no rule, gets them gathered.
"""

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence

from torch import fx

from trimaran.graph.sharding.calls import (
    Growing,
    NotSharedError,
    Result,
    Spread,
    is_tensor,
    shape_of,
)
from trimaran.graph.sharding.layers import linear_of
from trimaran.graph.sharding.random_numbers import Draw, draw_of, may_draw
from trimaran.graph.sharding.rules import has_parameters, split_by_rule, through_layer
from trimaran.graph.types import Region, RegionEntry, ResidualStream

_DIM = 1  # of [samples, places, features]


class Streaming(Growing):
    """What parts of sequences spread through.

    Args:
        owner: the flow
        sources: nodes that come in scattered: rows of regions, embeddings
        gathers: nodes that gather what they read: columns of regions
        inside: nodes inside of regions, which are no concern of the stream

    Attributes:
        spreads: how each tensor of the stream is split
        taken: whole tensors of which it reads a part
        sized: sizes that are divided
        exits: tensors that are read whole
        modules: leaf modules with parameters that it runs on parts
        owner: as given
        sources: as given
    """

    def __init__(
        self, owner: fx.GraphModule, sources: Sequence[fx.Node], gathers: Iterable[fx.Node], inside: Iterable[fx.Node]
    ) -> None:
        super().__init__()
        self.exits: dict[fx.Node, None] = {}
        self.modules: dict[fx.Node, None] = {}
        self.owner = self._owner = owner
        self.sources = dict.fromkeys(sources)
        self._gathers, self._inside = set(gathers), set(inside)
        graph = sources[0].graph
        self._order = {node: place for place, node in enumerate(graph.nodes)}
        self.length = shape_of(sources[0])[_DIM]
        waiting: list[int] = []
        for node in sources:
            self.spreads[node] = Spread(_DIM, (self.length,))
            self._push(waiting, node)
        nodes, last = list(graph.nodes), -1
        fixed = set(sources)
        while waiting:
            place = heapq.heappop(waiting)
            if place > last:
                last = place
                if nodes[place] not in fixed:
                    self._reach(nodes[place], waiting)

    def place(self, node: fx.Node) -> int:
        """Where a node is in the flow."""
        return self._order[node]

    @property
    def draws(self) -> dict[fx.Node, Draw | None]:
        """Operations that may draw random numbers; with None those that draw the same for every part."""
        found = [node for node in self.spreads if node not in self.sources and node not in self.modules]
        return {node: draw_of(self, node, self._owner) for node in found if may_draw(node, self._owner)}

    def _push(self, waiting: list[int], node: fx.Node) -> None:
        for user in node.users:
            if user not in self._gathers and user not in self._inside:
                heapq.heappush(waiting, self._order[user])

    def _reach(self, node: fx.Node, waiting: list[int]) -> None:
        """Let the stream through an operation, or gather what it reads."""
        if "sym_size" in str(node.target) and self._reads_other_size(node):
            return
        marks = len(self.taken), len(self.sized)
        try:
            found = self._apply(node)
        except NotSharedError:
            del self.taken[marks[0] :], self.sized[marks[1] :]
            for source in node.all_input_nodes:
                if isinstance(self.spreads.get(source), Spread):
                    self.exits[source] = None
            return
        self.spreads[node] = found
        self._push(waiting, node)

    def _apply(self, node: fx.Node) -> Result:
        if node.op == "output" or "sym_size" in str(node.target):
            raise NotSharedError("whole tensors are read")
        taken_out = self.one_of_several(node)
        if taken_out is not None:
            return taken_out
        if has_parameters(node, self._owner):
            found = through_layer(self, node, self._owner)
            self.modules[node] = None
            return found
        return split_by_rule(self, node, self._owner, shares_writes=False)

    def _reads_other_size(self, node: fx.Node) -> bool:
        source, dim = node.args
        spread = self.spread(source) if isinstance(source, fx.Node) else None
        return spread is not None and isinstance(dim, int) and dim % len(shape_of(source)) != spread.dim  # type: ignore[arg-type]


def start_streaming(owner: fx.GraphModule, regions: Sequence[Region]) -> Streaming | None:
    """The stream between the regions of a flow; None: there is none.

    Args:
        owner: the flow
        regions: all that it has
    """
    members: dict[str, list[fx.Node]] = {}
    for node in owner.graph.nodes:
        if "op" in node.meta:
            members.setdefault(str(node.meta["op"]), []).append(node)

    def nodes(names: Iterable[str]) -> list[fx.Node]:
        return [node for name in names for node in members[name]]

    sources = [node for region in regions for node in nodes(region.rows)]
    sources = [node for node in sources if is_tensor(node) and len(shape_of(node)) == _DIM + 2]
    if (
        any(region.kind == "attention" for region in regions)
        or not sources
        or len({shape_of(node)[_DIM] for node in sources}) > 1
    ):
        return None
    gathers = nodes(name for region in regions for name in region.columns)
    inside = nodes(name for region in regions for name in (*region.inside, *region.rows))
    try:
        found = Streaming(owner, sources, gathers, inside)
    except NotSharedError:
        return None
    for node in gathers:
        spreads = [found.spreads[source] for source in node.all_input_nodes if source in found.spreads]
        if any(not isinstance(spread, Spread) or spread.dim != _DIM for spread in spreads):
            return None
        if spreads and not all(source.meta.get("wants_gradient") for source in node.all_input_nodes):
            return None
    leaks = any(source in found.spreads and source not in inside for node in inside for source in node.all_input_nodes)
    return None if leaks or found.units < 2 else found


# ---------------------------------------------------------------------------------------------------------------------
# A stream as pure data


def describe_stream(
    found: Streaming, regions: Sequence[Region], names: Mapping[int, str], readers: Mapping[str, Collection[str]]
) -> ResidualStream:
    """A stream as pure data; an empty one where a parameter is read inside and outside of it.

    Args:
        found: the stream
        regions: between which it lies
        names: of each parameter in the graph, by the identity of the tensor
        readers: ids of the operations that read each parameter
    """
    owner = found.owner
    sources = {str(node.meta["op"]) for node in found.spreads if node in found.sources}
    inside = [node for node in found.spreads if node not in found.sources and "op" in node.meta]
    ops = tuple(dict.fromkeys(str(node.meta["op"]) for node in sorted(inside, key=found.place)))
    tensors = [tensor for node in found.modules for tensor in owner.get_submodule(str(node.target)).parameters()]
    for node in found.sources:
        linear = linear_of(node, owner)
        if linear is not None and linear.bias is not None:
            tensors.append(owner.get_parameter(linear.bias))
    partial = tuple(dict.fromkeys(names[id(tensor)] for tensor in tensors if tensor.requires_grad))
    if any(not set(readers[name]) <= {*ops, *sources} for name in partial):
        return ResidualStream()
    first: dict[str, str] = {}
    for taken in sorted(found.taken, key=lambda taken: found.place(taken.reader)):
        if taken.source.meta.get("wants_gradient"):
            first.setdefault(_name(taken.source, owner, names), str(taken.reader.meta["op"]))
    return ResidualStream(
        ops=ops,
        sources=tuple(name for region in regions for name in region.rows if name in sources),
        partial=partial,
        entries=tuple(RegionEntry(tensor=name, op=op) for name, op in first.items()),
        exits=tuple(RegionEntry(tensor=str(node.meta["tensor"]), op=str(node.meta["op"])) for node in found.exits),
        length=found.units,
    )


def _name(node: fx.Node, owner: fx.GraphModule, names: Mapping[int, str]) -> str:
    return str(node.meta["tensor"]) if "tensor" in node.meta else names[id(owner.get_parameter(str(node.target)))]
