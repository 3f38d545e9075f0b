"""A copy of a flow's graph, to be rewritten."""

from typing import Any

from torch import fx

from trimaran.graph.sharding.growing import Sized


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
