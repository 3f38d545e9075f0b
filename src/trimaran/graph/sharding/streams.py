"""A stream as pure data."""

from collections.abc import Collection, Mapping, Sequence

from torch import fx

from trimaran.graph.regions import Entry, Region, Stream
from trimaran.graph.sharding.linears import linear_of
from trimaran.graph.sharding.streaming import Streaming


def describe_stream(
    found: Streaming, regions: Sequence[Region], names: Mapping[int, str], readers: Mapping[str, Collection[str]]
) -> Stream:
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
        return Stream()
    first: dict[str, str] = {}
    for taken in sorted(found.taken, key=lambda taken: found.place(taken.reader)):
        if taken.source.meta.get("wants_gradient"):
            first.setdefault(_name(taken.source, owner, names), str(taken.reader.meta["op"]))
    return Stream(
        ops=ops,
        sources=tuple(name for region in regions for name in region.rows if name in sources),
        partial=partial,
        entries=tuple(Entry(tensor=name, op=op) for name, op in first.items()),
        exits=tuple(Entry(tensor=str(node.meta["tensor"]), op=str(node.meta["op"])) for node in found.exits),
        length=found.units,
    )


def _name(node: fx.Node, owner: fx.GraphModule, names: Mapping[int, str]) -> str:
    return str(node.meta["tensor"]) if "tensor" in node.meta else names[id(owner.get_parameter(str(node.target)))]
