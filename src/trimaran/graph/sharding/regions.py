"""The regions of a network: what tensor-parallel ranks can share, found from its dataflow graph.

Every linear layer, in order, is tried as the start of a region (`growing`); embeddings, and linear layers with more
outputs than inputs that start none, can be split by the entries of their vocabulary. Where no layer starts one, each
linear layer and each convolution is split by its outputs, which are gathered at once. A parameter that several
operations read is split for all of them or for none.
"""

from collections.abc import Iterable, Mapping, Sequence

from torch import fx, nn

from trimaran.graph.sharding.calls import NotSharedError, shape_of
from trimaran.graph.sharding.growth import Growth, grow
from trimaran.graph.sharding.layers import (
    AttentionCall,
    ConvolutionCall,
    Linear,
    LookupCall,
    attention_of,
    convolution_of,
    linear_of,
    lookup_of,
)
from trimaran.graph.sharding.rules import has_parameters
from trimaran.graph.sharding.sequence_parallel import describe_stream, start_streaming
from trimaran.graph.types import Op, ParameterSplit, Region, RegionEntry, RegionKind, ResidualStream


def find_regions(
    flow: fx.GraphModule, model: nn.Module, ops: Sequence[Op], names: Mapping[int, str]
) -> tuple[tuple[Region, ...], ResidualStream, dict[str, str]]:
    """What ranks can share of a flow.

    Args:
        flow: of the model, with shapes on its nodes (`calls.mark_shapes`)
        model: the user's
        ops: its operations, which say who reads a parameter
        names: of each parameter in the graph, by the identity of the tensor

    Returns:
        The regions, in the order of the graph; the stream between them; and for each layer that is in no pair, the
        reason.
    """
    found = _Finder(flow, model, ops, names)
    for node in flow.graph.nodes:
        found.visit(node)
    regions = found.agreed()
    if all(region.kind in ("embedding", "head") for region in regions):
        # Gathers are of whole sequences: there is no stream between them.
        return found.with_layers(regions), ResidualStream(), found.whole
    try:
        streaming = start_streaming(flow, regions)
        stream = ResidualStream() if streaming is None else describe_stream(streaming, regions, names, found.readers)
    except _NOT_UNDERSTOOD as error:
        found.whole["sequences"] = f"they were not understood: {error!r}"
        stream = ResidualStream()
    return regions, stream, found.whole


# What an unforeseen graph may raise: what is not known stays whole, and the model is captured all the same.
_NOT_UNDERSTOOD = (NotSharedError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


class _Finder:
    def __init__(self, flow: fx.GraphModule, model: nn.Module, ops: Sequence[Op], names: Mapping[int, str]) -> None:
        self._flow = flow
        self._model = model
        self._names = names
        self.readers: dict[str, set[str]] = {}
        for op in ops:
            for name in op.parameters:
                self.readers.setdefault(name, set()).add(op.id)
        self._regions: list[Region] = []
        self._taken: set[str] = set()
        self._order = {op.id: place for place, op in enumerate(ops)}
        self.whole: dict[str, str] = {}

    def visit(self, node: fx.Node) -> None:
        """Try a node as the start of a region."""
        if "op" not in node.meta or node.meta.get("constant") or node.meta["op"] in self._taken:
            return
        linear, lookup = linear_of(node, self._flow), lookup_of(node, self._flow)
        attention = attention_of(node, self._flow)
        if attention is not None:
            self._add_attention(attention)
        elif linear is not None:
            self._add_linear(linear)
        elif lookup is not None:
            self._add_lookup(lookup)

    def agreed(self) -> tuple[Region, ...]:
        """The regions that leave no reader of a split parameter without its split."""
        regions = list(self._regions)
        while True:
            lonely = next((region for region in regions if self._disagrees(region, regions)), None)
            if lonely is None:
                return tuple(sorted(regions, key=lambda region: self._order[region.name]))
            regions.remove(lonely)
            self.whole[lonely.name] = "its weight is read whole, or split in another way, by another operation"

    def with_layers(self, regions: Sequence[Region]) -> tuple[Region, ...]:
        """Regions, and each layer that is in none of them as one more region."""
        self._regions = list(regions)
        taken = {name for region in regions for name in (*region.columns, *region.rows)}
        for node in self._flow.graph.nodes:
            if "op" not in node.meta or node.meta.get("constant") or node.meta["op"] in taken:
                continue
            try:
                linear, convolution = linear_of(node, self._flow), convolution_of(node, self._flow)
                if linear is not None:
                    self._regions.append(self._gathered("layer", linear))
                elif convolution is not None:
                    self._regions.append(self._channels(convolution))
            except _NOT_UNDERSTOOD as error:
                self.whole[str(node.meta["op"])] = f"it was not understood: {error!r}"
        return self.agreed()

    def _disagrees(self, region: Region, regions: Sequence[Region]) -> bool:
        for split in region.splits:
            readers: set[str] = set()
            for other in regions:
                if split in other.splits:
                    readers |= {*other.columns, *other.rows}
            if not self.readers[split.parameter] <= readers:
                return True
        return False

    def _add_linear(self, linear: Linear) -> None:
        name = str(linear.node.meta["op"])
        try:
            growth = grow(self._flow, linear)
            region = self._pair(growth)
        except _NOT_UNDERSTOOD as error:
            self.whole[name] = str(error) if isinstance(error, NotSharedError) else f"it was not understood: {error!r}"
            inputs = shape_of(linear.source)[-1]
            if linear.features > inputs and len(shape_of(linear.node)) > 1 and self._is_last(linear.node):
                self._regions.append(self._gathered("head", linear))
            return
        self._regions.append(region)
        self._taken |= {*region.columns, *region.rows, *region.inside}

    def _pair(self, growth: Growth) -> Region:
        columns, rows = list(growth.seeds), list(growth.rows)
        taken = {str(part.node.meta["op"]) for part in (*columns, *rows)} & self._taken
        if taken:
            raise NotSharedError(f"{', '.join(sorted(taken))} is in another region")
        splits: dict[str, ParameterSplit] = {}
        for linear, sections in growth.seeds.items():
            self._split(splits, linear.weight, linear.out_dim, sections)
            if linear.bias is not None:
                self._split(splits, linear.bias, 0, sections)
        for linear, spread in growth.rows.items():
            self._split(splits, linear.weight, 1 - linear.out_dim, spread.sections)
        for split in splits.values():
            if len(self.readers[split.parameter]) > 1:
                raise NotSharedError(f"{split.parameter} is read by several operations")
        inside = self._ids(node for node in growth.inside)
        tensors = [
            tensor for node in growth.modules for tensor in self._flow.get_submodule(str(node.target)).parameters()
        ]
        partial = tuple(dict.fromkeys(self._names[id(tensor)] for tensor in tensors if tensor.requires_grad))
        if any(not self.readers[name] <= {*inside} for name in partial):
            raise NotSharedError("a parameter inside is read elsewhere too")
        read = [(linear.source, linear.node) for linear in columns]
        read += [(taken.source, taken.reader) for taken in growth.taken]
        return Region(
            kind="pair",
            columns=self._ids(linear.node for linear in columns),
            rows=self._ids(linear.node for linear in rows),
            inside=inside,
            partial=partial,
            entries=self._entries(read),
            splits=tuple(splits.values()),
            units=growth.units,
            samples=growth.takes_samples_apart,
            draws=self._ids(growth.drawing),
        )

    def _add_attention(self, attention: AttentionCall) -> None:
        """A module with columns and rows inside; its second pair reads a tensor as large as its output."""
        name = str(attention.node.meta["op"])
        for number, (parts, units) in enumerate(zip(attention.splits, attention.units, strict=True)):
            splits: dict[str, ParameterSplit] = {}
            for path, dim, sections in parts:
                self._split(splits, path, dim, sections)
            entries = self._entries([(source, attention.node) for source in attention.sources])
            if number:
                entries = (RegionEntry(tensor=str(attention.node.meta["tensor"]), op=name),)
            self._regions.append(
                Region(
                    kind="attention",
                    columns=(name,),
                    rows=(name,),
                    entries=entries,
                    splits=tuple(splits.values()),
                    units=units,
                )
            )
        self._taken.add(name)

    def _gathered(self, kind: RegionKind, linear: Linear) -> Region:
        splits: dict[str, ParameterSplit] = {}
        self._split(splits, linear.weight, linear.out_dim, (linear.features,))
        if linear.bias is not None:
            self._split(splits, linear.bias, 0, (linear.features,))
        return Region(
            kind=kind,
            columns=self._ids([linear.node]),
            entries=self._entries([(linear.source, linear.node)]),
            splits=tuple(splits.values()),
        )

    def _channels(self, convolution: ConvolutionCall) -> Region:
        splits: dict[str, ParameterSplit] = {}
        dim, shape = convolution.split_dim, self._parameter(convolution.weight).shape
        self._split(splits, convolution.weight, dim, (shape[dim],))
        if convolution.bias is not None:
            self._split(splits, convolution.bias, 0, (convolution.channels,))
        return Region(
            kind="layer",
            columns=self._ids([convolution.node]),
            entries=self._entries([(convolution.source, convolution.node)]),
            splits=tuple(splits.values()),
            units=convolution.groups if convolution.groups > 1 else 0,
        )

    def _is_last(self, node: fx.Node) -> bool:
        """Whether no other operation with parameters comes behind."""
        pending, seen = [node], {node}
        while pending:
            for user in pending.pop().users:
                if has_parameters(user, self._flow):
                    return False
                if user not in seen and linear_of(user, self._flow) is None:
                    seen.add(user)
                    pending.append(user)
                elif user not in seen:
                    return False
        return True

    def _add_lookup(self, lookup: LookupCall) -> None:
        rows, features = self._parameter(lookup.weight).shape
        if lookup.source.meta.get("constant") or rows < features:
            return
        splits: dict[str, ParameterSplit] = {}
        self._split(splits, lookup.weight, 0, (rows,))
        self._regions.append(Region(kind="embedding", rows=self._ids([lookup.node]), splits=tuple(splits.values())))

    def _entries(self, read: Sequence[tuple[fx.Node, fx.Node]]) -> tuple[RegionEntry, ...]:
        """Each tensor that wants a gradient once, with its first reader."""
        first: dict[str, str] = {}
        for source, reader in read:
            if not source.meta.get("wants_gradient"):
                continue
            name = str(source.meta["tensor"]) if "tensor" in source.meta else self._name(str(source.target))
            reading = str(reader.meta["op"])
            if name not in first or self._order[reading] < self._order[first[name]]:
                first[name] = reading
        return tuple(RegionEntry(tensor=name, op=op) for name, op in first.items())

    def _split(self, splits: dict[str, ParameterSplit], path: str, dim: int, sections: tuple[int, ...]) -> None:
        name = self._name(path)
        splits[name] = ParameterSplit(parameter=name, dim=dim, sections=sections)

    def _name(self, path: str) -> str:
        return self._names[id(self._parameter(path))]

    def _parameter(self, path: str) -> nn.Parameter:
        owner, _, name = path.rpartition(".")
        found: nn.Parameter = self._model.get_submodule(owner)._parameters[name]  # type: ignore[assignment]
        return found

    @staticmethod
    def _ids(nodes: Iterable[fx.Node]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(node.meta["op"]) for node in nodes if "op" in node.meta))
