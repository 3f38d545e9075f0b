"""Rules of operations that show a tensor in another shape."""

from torch import fx

from trimaran.graph.sharding.calls import (
    Growing,
    NotSharedError,
    Result,
    dim_of,
    lead,
    leader,
    reshaped,
    resize_listed,
    shape_of,
)


def resized(growing: Growing, node: fx.Node) -> Result:
    """A view with sizes."""
    source, spread, arguments = lead(growing, node)
    after = reshaped(spread, shape_of(source), shape_of(node))
    name = "shape" if "shape" in arguments else "size"
    if node.op == "call_module":
        raise NotSharedError(f"{node.target} has sizes of whole tensors")
    resize_listed(growing, node, name, arguments[name][after.dim], after.dim)
    return after


def unflatten(growing: Growing, node: fx.Node) -> Result:
    """A view with sizes of one dimension."""
    source, spread, arguments = lead(growing, node)
    after = reshaped(spread, shape_of(source), shape_of(node))
    place = after.dim - dim_of(arguments["dim"], source)
    if 0 <= place < len(arguments["sizes"]):
        resize_listed(growing, node, "sizes", arguments["sizes"][place], place)
    return after


def renamed(growing: Growing, node: fx.Node) -> Result:
    """Views that name no size."""
    source, spread = leader(growing, node)
    return reshaped(spread, shape_of(source), shape_of(node))


def unsqueeze(growing: Growing, node: fx.Node) -> Result:
    """One more dimension."""
    source, spread, arguments = lead(growing, node)
    new = arguments["dim"] % (len(shape_of(source)) + 1)
    return spread.moved(spread.dim + (new <= spread.dim))


def squeeze(growing: Growing, node: fx.Node) -> Result:
    """Dimensions of size 1 left out."""
    source, spread, arguments = lead(growing, node)
    dims = arguments.get("dim")
    if dims is None or shape_of(source)[spread.dim] == 1:
        raise NotSharedError("a share may be squeezed where the whole is not")
    gone = {dim_of(dim, source) for dim in ([dims] if isinstance(dims, int) else dims)}
    gone = {dim for dim in gone if shape_of(source)[dim] == 1}
    return spread.moved(spread.dim - sum(dim < spread.dim for dim in gone))


def transpose(growing: Growing, node: fx.Node) -> Result:
    """Two dimensions exchanged."""
    source, spread, arguments = lead(growing, node)
    pair = [dim_of(value, source) for key, value in arguments.items() if key in ("dim0", "dim1", "axis0", "axis1")]
    one, other = pair or (0, 1)
    return spread.moved({one: other, other: one}.get(spread.dim, spread.dim))


def permute(growing: Growing, node: fx.Node) -> Result:
    """Dimensions in another order."""
    source, spread, arguments = lead(growing, node)
    return spread.moved([dim_of(dim, source) for dim in arguments["dims"]].index(spread.dim))


def expand(growing: Growing, node: fx.Node) -> Result:
    """Dimensions of size 1 repeated."""
    source, spread, arguments = lead(growing, node)
    after = spread.moved(spread.dim + len(shape_of(node)) - len(shape_of(source)))
    resize_listed(growing, node, "size", arguments["size"][after.dim], after.dim)
    return after
