"""The flow of a model on shares: layers are replaced, sizes divided by the number of ranks, sums inserted.

The flow itself is not changed, for other strategies of the same model: a copy is rewritten. Each inserted node carries
the id of the operation that it belongs to, so that it is in the same segment.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import fx, nn

from trimaran.base.errors import TrimaranError
from trimaran.graph.capture.flow import RESERVED, assemble
from trimaran.graph.sharding.calls import OutsideTensor, Sized, dims_in_memory, place_of
from trimaran.graph.sharding.growth import Growth, grow
from trimaran.graph.sharding.layers import ConvolutionCall, Linear, attention_of, convolution_of, linear_of, lookup_of
from trimaran.graph.sharding.random_numbers import Draw
from trimaran.graph.sharding.sequence_parallel import Streaming, start_streaming
from trimaran.graph.types import GATHERED, Region
from trimaran.runtime.tensor.collectives import Edges, SampleEdges, SequenceEdges, WholeEdges
from trimaran.runtime.tensor.layers import (
    Attention,
    ChannelParallelConvolution,
    Column,
    EnterRegion,
    GatherWhole,
    Head,
    Lookup,
    ParallelEncoderLayer,
    RowParallelLinear,
    TakeShare,
)
from trimaran.runtime.tensor.random_numbers import ShardedRandomOperation, WholeDraws, check_attention_draws
from trimaran.user_code.model import device_of

# ---------------------------------------------------------------------------------------------------------------------
# A copy of a flow's graph, to be rewritten


def copy_flow(flow: fx.GraphModule) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """The graph of a flow again, with all that is kept on its nodes.

    Args:
        flow: left as it is

    Returns:
        The copy, and for each node of the flow its copy.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.graph_copy(flow.graph, copies)
    for old in flow.graph.nodes:
        if old.op == "output":
            copies[old] = graph.output(fx.map_arg(old.args[0], copies.__getitem__))
            copies[old].meta = dict(old.meta)
    for new in graph.nodes:
        if "rewrites" in new.meta:
            written = new.meta["rewrites"]
            new.meta["rewrites"] = type(written)(copies[node] for node in written)
    return graph, copies


def divide_size(node: fx.Node, sized: Sized, ranks: int) -> None:
    """Divide a size among the arguments of a call by the number of ranks, wherever the call has it.

    Args:
        node: the copy of the call
        sized: which size
        ranks: that share it
    """
    schema = sized.node.target._schema  # type: ignore[union-attr]
    position = [argument.name for argument in schema.arguments].index(sized.name)
    given = position < len(node.args)
    value: Any = node.args[position] if given else node.kwargs[sized.name]
    if sized.place is None:
        value = value // ranks
    else:
        value = [size // ranks if place == sized.place else size for place, size in enumerate(value)]
    if given:
        node.update_arg(position, value)
    else:
        node.update_kwarg(sized.name, value)


def rewrite(
    flow: fx.GraphModule,
    model: nn.Module,
    regions: Sequence[Region],
    edges: Edges,
    *,
    precision: str,
    sequences: bool = False,
) -> fx.GraphModule:
    """A flow on shares. What is built of it reads the weights that the model has by then.

    Args:
        flow: of the whole model
        model: the user's, still whole
        regions: what is shared
        edges: how tensors come into regions and out
        precision: of the job
        sequences: between regions each rank has its part of every sequence

    Raises:
        InputError: on this device one process draws inside of the kernel of an attention
    """
    graph, copies = copy_flow(flow)
    streaming = start_streaming(flow, regions) if sequences else None

    def check_attention(name: str) -> None:
        check_attention_draws(device_of(model), precision, name)

    writer = _Writer(flow, graph, copies, edges, check_attention, streaming)
    by_op = {node.meta["op"]: node for node in flow.graph.nodes if "op" in node.meta and "tensor" in node.meta}
    done: set[str] = set()
    for region in regions:
        if region.name not in done:
            writer.write(region, by_op)
        done.add(region.name)
    if streaming is not None:
        writer.write_stream(streaming, regions)
    names = {str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")}
    kept = {name: getattr(flow, name) for name in names if name.startswith(RESERVED) and hasattr(flow, name)}
    return assemble(model, graph, {**kept, **writer.extras})


class _Writer:
    """Rewrites a copy of a flow, region by region.

    The analysis is of the flow itself, which still has its shapes and its user's layers.
    """

    def __init__(
        self,
        flow: fx.GraphModule,
        graph: fx.Graph,
        copies: Mapping[fx.Node, fx.Node],
        edges: Edges,
        check_attention: Callable[[str], None],
        streaming: Streaming | None,
    ) -> None:
        self.extras: dict[str, nn.Module] = {}
        self._flow = flow
        self._graph = graph
        self._copies = copies
        self._edges = edges
        self._group = edges.group
        self._check_attention = check_attention
        self._streaming = streaming
        self._sequence = SequenceEdges(edges.group)

    def write(self, region: Region, by_op: Mapping[str, fx.Node]) -> None:
        """Rewrite one region."""
        first = by_op[region.name]
        if region.kind == "attention":
            self._attention(next(node for node in self._flow.graph.nodes if node.meta.get("op") == region.name))
            return
        linear, lookup = linear_of(first, self._flow), lookup_of(first, self._flow)
        if region.kind == "embedding" and lookup is not None:
            size = region.splits[0].sections[0]
            layer = Lookup(self._behind(lookup.node), size, lookup.padding)
            self._replace(lookup.node, layer, [self._copies[lookup.source]], [lookup.weight])
        elif region.kind in GATHERED and linear is not None:
            head = Head(self._group, linear.out_dim, linear.features)
            self._layer(linear, head, self._enter(linear.source, [linear.node]))
        elif region.kind in GATHERED:
            self._channels(first)
        elif linear is not None:
            self._pair(grow(self._flow, linear))

    def _channels(self, node: fx.Node) -> None:
        convolution = convolution_of(node, self._flow)
        if convolution is None:
            raise TrimaranError(f"{node.name} is no layer that can be shared: a defect in the capture of the model")
        layer = ChannelParallelConvolution(self._group, convolution)
        self._layer(convolution, layer, self._enter(convolution.source, [node]))

    def _attention(self, node: fx.Node) -> None:
        """One module of torch's in the place of another; what it is called with stays."""
        found = attention_of(node, self._flow)
        if found is None:
            raise TrimaranError(f"{node.name} is no attention that can be shared: a defect in the capture of the model")
        module: Any = self._flow.get_submodule(str(node.target))
        paths = [[path for path, _, _ in parts] for parts in found.splits]
        if (module if len(paths) == 1 else module.self_attn).dropout:
            self._check_attention(str(node.target))
        if len(paths) == 1:
            layer: nn.Module = Attention(module, self._edges, len(paths[0]))
            positions = 3
        else:
            layer = ParallelEncoderLayer(module, self._edges, (len(paths[0]), len(paths[1])))
            positions = 1
        old = self._copies[node]
        shared = [path for parts in paths for path in parts]
        # The others too, so that they are known as parameters of the segment; the layer finds them in the module.
        others = [f"{node.target}.{name}" for name, _ in module.named_parameters()]
        weights = [self._read(path, old) for path in dict.fromkeys((*shared, *others))]
        old.target = self._keep(layer)
        old.args = (*old.args[:positions], weights, *old.args[positions:])

    def _read(self, path: str, before: fx.Node) -> fx.Node:
        """A parameter of the model."""
        with self._graph.inserting_before(before):
            read = self._graph.create_node("get_attr", path)
        read.meta["constant"] = True
        return read

    def _pair(self, growth: Growth) -> None:
        entered = self._entered(growth)
        for linear in growth.seeds:
            self._layer(linear, Column(linear.out_dim), entered[linear.source])
        for taken in growth.taken:
            self._take(taken, entered)
        for sized in growth.sized:
            divide_size(self._copies[sized.node], sized, self._group.size)
        for linear in growth.rows:
            self._layer(
                linear, RowParallelLinear(self._behind(linear.node), linear.out_dim), self._copies[linear.source]
            )
        for node, draw in growth.draws.items():
            self._draw(node, draw)

    def _entered(self, growth: Growth) -> dict[fx.Node, fx.Node]:
        """Each whole tensor that comes in, once."""
        readers: dict[fx.Node, list[fx.Node]] = {}
        for linear in growth.seeds:
            readers.setdefault(linear.source, []).append(linear.node)
        for taken in growth.taken:
            readers.setdefault(taken.source, []).append(taken.reader)
        return {source: self._enter(source, found) for source, found in readers.items()}

    def _enter(self, source: fx.Node, readers: Iterable[fx.Node]) -> fx.Node:
        edges = self._before(source)
        if isinstance(edges, WholeEdges) and not source.meta.get("wants_gradient"):
            return self._copies[source]
        first = min(readers, key=place_of)
        return self._insert(self._copies[first], EnterRegion(edges), (self._copies[source],))

    def _before(self, source: fx.Node) -> Edges:
        """How a tensor comes into a region."""
        split = self._streaming is not None and source in self._streaming.spreads
        return self._sequence if split else self._edges

    def _behind(self, node: fx.Node) -> Edges:
        """How the result of a row comes out of its region."""
        split = self._streaming is not None and node in self._streaming.sources
        return self._sequence if split else self._edges

    def write_stream(self, streaming: Streaming, regions: Sequence[Region]) -> None:
        """Rewrite what lies between regions for parts of sequences."""
        readers: dict[fx.Node, list[fx.Node]] = {}
        for taken in streaming.taken:
            readers.setdefault(taken.source, []).append(taken.reader)
        entered = {source: self._enter(source, found) for source, found in readers.items()}
        for taken in streaming.taken:
            self._take(taken, entered)
        for sized in streaming.sized:
            divide_size(self._copies[sized.node], sized, self._group.size)
        for node, draw in streaming.draws.items():
            self._draw(node, draw)
        gathering = {name for region in regions for name in region.columns}
        for node in streaming.exits:
            self._gather(node, streaming, gathering)

    def _gather(self, node: fx.Node, streaming: Streaming, gathering: Collection[str]) -> None:
        """Give a tensor of the stream whole to those that are not part of it."""
        users = [user for user in node.users if user not in streaming.spreads]
        outside = [user for user in users if user.meta.get("op") not in gathering]
        spread = streaming.spread(node)
        if not outside or spread is None:
            return
        made = self._copies[node]
        layer = GatherWhole(self._group, spread.dim, spread.size, dims_in_memory(node))
        with self._graph.inserting_after(made):
            whole = self._graph.create_node("call_module", self._keep(layer), (made,))
        whole.meta.update(made.meta)
        whole.meta.pop("tensor", None)
        for user in outside:
            self._copies[user].replace_input_with(made, whole)

    def _take(self, taken: OutsideTensor, entered: Mapping[fx.Node, fx.Node]) -> None:
        reader, value = self._copies[taken.reader], entered[taken.source]
        if taken.spread is not None:
            layer = TakeShare(self._group, taken.spread.dim, taken.spread.sections)
            value = self._insert(reader, layer, (value,))
        reader.replace_input_with(self._copies[taken.source], value)

    def _layer(self, linear: Linear | ConvolutionCall, layer: nn.Module, source: fx.Node) -> None:
        paths = [linear.weight] + ([linear.bias] if linear.bias is not None else [])
        self._replace(linear.node, layer, [source], paths)

    def _replace(self, node: fx.Node, layer: nn.Module, sources: Sequence[fx.Node], paths: Sequence[str]) -> None:
        """Put a layer in the place of a node; it reads its weights from the model."""
        old = self._copies[node]
        weights = [self._read(path, old) for path in paths]
        old.op, old.target = "call_module", self._keep(layer)
        old.args, old.kwargs = (*sources, *weights), {}

    def _insert(self, before: fx.Node, layer: nn.Module, arguments: tuple[fx.Node, ...]) -> fx.Node:
        with self._graph.inserting_before(before):
            node = self._graph.create_node("call_module", self._keep(layer), arguments)
        node.meta.update(op=before.meta["op"], constant=False, module=before.meta.get("module", ""))
        return node

    def _draw(self, node: fx.Node, draw: Draw | None) -> None:
        if draw is None:
            return
        if draw.attention:
            self._check_attention(str(node.meta.get("op", node.name)))
        copy = self._copies[node]
        called: Any = self._flow.get_submodule(str(node.target)) if node.op == "call_module" else node.target
        operation: Callable[..., Any] = called
        samples = self._edges if isinstance(self._edges, SampleEdges) else None
        copy.op, copy.target = (
            "call_module",
            self._keep(ShardedRandomOperation(operation, WholeDraws(self._group, draw, samples))),
        )

    def _keep(self, layer: nn.Module) -> str:
        name = f"{RESERVED}share_{len(self.extras)}"
        self.extras[name] = layer
        return name
