"""What each operation does with shares: where its result is split, and what it needs of its other inputs.

One rule a family of operations. A rule reads the spreads of the inputs and returns that of the output, or several for
an operation with several results. It asks its `Growing` for what is not split yet, and raises where shares are not
provably the same as the whole: what has no rule has no share.
"""

from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from trimaran.graph.capture.flow import written_by
from trimaran.graph.sharding.calls import (
    ELEMENTWISE,
    Growing,
    NotSharedError,
    Result,
    Rule,
    Spread,
    arguments_of,
    dim_of,
    dims,
    interior,
    is_endless,
    is_tensor,
    lead,
    leader,
    operation_name,
    reshaped,
    resize_listed,
    shape_of,
)
from trimaran.graph.sharding.layers import linear_of
from trimaran.graph.sharding.random_numbers import BY_CHANNEL, LIKE, check_drawn_alike, draws_inside
from trimaran.user_code.model import has_user_hooks


def _elementwise(growing: Growing, node: fx.Node) -> Result:
    source, spread = leader(growing, node)
    right = spread.dim - len(shape_of(source))
    for other in node.all_input_nodes:
        if is_tensor(other):
            growing.join(node, other, right, spread.sections)
    return spread.moved(len(shape_of(node)) + right)


def _resized(growing: Growing, node: fx.Node) -> Result:
    """A view with sizes."""
    source, spread, arguments = lead(growing, node)
    after = reshaped(spread, shape_of(source), shape_of(node))
    name = "shape" if "shape" in arguments else "size"
    if node.op == "call_module":
        raise NotSharedError(f"{node.target} has sizes of whole tensors")
    resize_listed(growing, node, name, arguments[name][after.dim], after.dim)
    return after


def _unflatten(growing: Growing, node: fx.Node) -> Result:
    """A view with sizes of one dimension."""
    source, spread, arguments = lead(growing, node)
    after = reshaped(spread, shape_of(source), shape_of(node))
    place = after.dim - dim_of(arguments["dim"], source)
    if 0 <= place < len(arguments["sizes"]):
        resize_listed(growing, node, "sizes", arguments["sizes"][place], place)
    return after


def _renamed(growing: Growing, node: fx.Node) -> Result:
    """Views that name no size."""
    source, spread = leader(growing, node)
    return reshaped(spread, shape_of(source), shape_of(node))


def _unsqueeze(growing: Growing, node: fx.Node) -> Result:
    """One more dimension."""
    source, spread, arguments = lead(growing, node)
    new = arguments["dim"] % (len(shape_of(source)) + 1)
    return spread.moved(spread.dim + (new <= spread.dim))


def _squeeze(growing: Growing, node: fx.Node) -> Result:
    """Dimensions of size 1 left out."""
    source, spread, arguments = lead(growing, node)
    dims = arguments.get("dim")
    if dims is None or shape_of(source)[spread.dim] == 1:
        raise NotSharedError("a share may be squeezed where the whole is not")
    gone = {dim_of(dim, source) for dim in ([dims] if isinstance(dims, int) else dims)}
    gone = {dim for dim in gone if shape_of(source)[dim] == 1}
    return spread.moved(spread.dim - sum(dim < spread.dim for dim in gone))


def _transpose(growing: Growing, node: fx.Node) -> Result:
    """Two dimensions exchanged."""
    source, spread, arguments = lead(growing, node)
    pair = [dim_of(value, source) for key, value in arguments.items() if key in ("dim0", "dim1", "axis0", "axis1")]
    one, other = pair or (0, 1)
    return spread.moved({one: other, other: one}.get(spread.dim, spread.dim))


def _permute(growing: Growing, node: fx.Node) -> Result:
    """Dimensions in another order."""
    source, spread, arguments = lead(growing, node)
    return spread.moved([dim_of(dim, source) for dim in arguments["dims"]].index(spread.dim))


def _expand(growing: Growing, node: fx.Node) -> Result:
    """Dimensions of size 1 repeated."""
    source, spread, arguments = lead(growing, node)
    after = spread.moved(spread.dim + len(shape_of(node)) - len(shape_of(source)))
    resize_listed(growing, node, "size", arguments["size"][after.dim], after.dim)
    return after


def _repeat_interleave(growing: Growing, node: fx.Node) -> Result:
    source, spread, arguments = lead(growing, node)
    if not isinstance(arguments.get("repeats"), int) or arguments["dim"] is None:
        raise NotSharedError("repeat_interleave with other repeats than one number")
    if dim_of(arguments["dim"], source) != spread.dim:
        return spread
    return Spread(spread.dim, tuple(part * arguments["repeats"] for part in spread.sections))


def _along(growing: Growing, node: fx.Node) -> Result:
    """Operations along one dimension, which must not be the split one."""
    source, spread, arguments = lead(growing, node)
    if dim_of(arguments["dim"], source) == spread.dim:
        raise NotSharedError(f"{node.name} works along the split dimension")
    return spread


def _reduction(growing: Growing, node: fx.Node) -> Result:
    source, spread, arguments = lead(growing, node)
    dims = arguments.get("dim")
    if dims is None or dims == []:
        raise NotSharedError(f"{node.name} reduces the split dimension")
    gone = {dim_of(dim, source) for dim in ([dims] if isinstance(dims, int) else dims)}
    if spread.dim in gone:
        raise NotSharedError(f"{node.name} reduces the split dimension")
    return spread if arguments.get("keepdim") else spread.moved(spread.dim - sum(dim < spread.dim for dim in gone))


def _select(growing: Growing, node: fx.Node) -> Result:
    source, spread, arguments = lead(growing, node)
    dim = dim_of(arguments["dim"], source)
    if dim == spread.dim:
        raise NotSharedError(f"{node.name} takes one place of the split dimension")
    return spread.moved(spread.dim - (dim < spread.dim))


def _slice(growing: Growing, node: fx.Node) -> Result:
    source, spread, arguments = lead(growing, node)
    if dim_of(arguments["dim"], source) != spread.dim:
        return spread
    start, end = arguments["start"] or 0, arguments["end"]
    if arguments["step"] != 1 or not isinstance(start, int):
        raise NotSharedError(f"{node.name} takes some places of the split dimension")
    end = spread.size if is_endless(end) or end == spread.size else end
    bounds = [sum(spread.sections[:count]) for count in range(len(spread.sections) + 1)]
    if start not in bounds or end not in bounds:
        raise NotSharedError(f"{node.name} takes some places of the split dimension")
    if start:
        growing.resize(node, "start")
    if end != spread.size:
        growing.resize(node, "end")
    return Spread(spread.dim, spread.sections[bounds.index(start) : bounds.index(end)])


def _split(growing: Growing, node: fx.Node) -> Result:
    source, spread, arguments = lead(growing, node)
    count = len(node.meta["val"]) if isinstance(node.meta.get("val"), list | tuple) else 0
    if dim_of(arguments["dim"], source) != spread.dim:
        return (spread,) * count
    pieces: list[int]
    if "split_sizes" in arguments or isinstance(arguments.get("split_size"), list | tuple):
        name = "split_sizes" if "split_sizes" in arguments else "split_size"
        pieces = list(arguments[name])
        for place in range(len(pieces)):
            growing.resize(node, name, place)
    elif "split_size" in arguments:
        pieces = [arguments["split_size"]] * count
        growing.resize(node, "split_size")
    else:
        pieces = [spread.size // count] * count
    if tuple(pieces) != spread.sections:
        raise NotSharedError(f"{node.name} takes the split dimension apart")
    return tuple(Spread(spread.dim, (piece,)) for piece in pieces)


def _unbind(growing: Growing, node: fx.Node) -> Result:
    source, spread, arguments = lead(growing, node)
    dim = dim_of(arguments["dim"], source)
    if dim == spread.dim:
        raise NotSharedError(f"{node.name} takes the split dimension apart")
    return (spread.moved(spread.dim - (dim < spread.dim)),) * shape_of(source)[dim]


def _join_all(growing: Growing, node: fx.Node) -> tuple[fx.Node, Spread, dict[str, Any]]:
    source, spread, arguments = lead(growing, node)
    right = spread.dim - len(shape_of(source))
    for other in arguments["tensors"]:
        if shape_of(other) != (0,):
            growing.join(node, other, right, spread.sections)
    return source, spread, arguments


def _concatenate(growing: Growing, node: fx.Node) -> Result:
    source, spread, arguments = _join_all(growing, node)
    if dim_of(arguments["dim"], source) == spread.dim:
        raise NotSharedError(f"{node.name} joins along the split dimension")
    return spread


def _stack(growing: Growing, node: fx.Node) -> Result:
    source, spread, arguments = _join_all(growing, node)
    new = arguments["dim"] % (len(shape_of(source)) + 1)
    return spread.moved(spread.dim + (new <= spread.dim))


def _matmul(growing: Growing, node: fx.Node) -> Result:
    left, right = node.all_input_nodes if len(node.all_input_nodes) == 2 else (node.args[0], node.args[1])
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node) or min(dims(left), dims(right)) < 2:
        raise NotSharedError(f"{node.name} is no product of two batches of matrices")
    one, other = growing.spread(left), growing.spread(right)
    places = [found.dim - dims(part) for found, part in ((one, left), (other, right)) if found is not None]
    if min(places) <= -3:
        _, spread = leader(growing, node)
        for part in (left, right):
            growing.join(node, part, min(places), spread.sections)
        return spread.moved(dims(node) + min(places))
    if one is not None and other is None and places == [-2]:
        growing.join(node, right, -dims(right) - 1, ())
        return one.moved(dims(node) - 2)
    if other is not None and one is None and places == [-1]:
        growing.join(node, left, -dims(left) - 1, ())
        return other.moved(dims(node) - 1)
    raise NotSharedError(f"{node.name} multiplies along the split dimension")


def _attention(growing: Growing, node: fx.Node) -> Result:
    arguments = arguments_of(node)
    query, key, value, mask = (arguments[name] for name in ("query", "key", "value", "attn_mask"))
    source, spread = leader(growing, node)
    right = spread.dim - dims(source)
    if right > -3 or len(spread.sections) != 1:
        raise NotSharedError("attention within what is split")
    for part in (query, key, value):
        # Groups of queries share keys and values: heads of both are split, each in its own number.
        size = shape_of(part)[right] if dims(part) >= -right else 1
        growing.join(node, part, right, (size,))
    if mask is not None:
        growing.join(node, mask, right, (shape_of(query)[right],))
    return (
        spread.moved(dims(node) + right)
        if source is query
        else Spread(dims(node) + right, shape_of(query)[right : right + 1])
    )


def _normalization(growing: Growing, node: fx.Node) -> Result:
    source, spread, arguments = lead(growing, node)
    if spread.dim >= dims(source) - len(arguments["normalized_shape"]):
        raise NotSharedError(f"{node.name} normalizes over the split dimension")
    for name in ("weight", "bias"):
        if arguments.get(name) is not None:
            growing.join(node, arguments[name], -dims(source) - 1, ())
    return spread


def _by_channel(growing: Growing, node: fx.Node) -> Result:
    return leader(growing, node)[1]


def _bernoulli(growing: Growing, node: fx.Node) -> Result:
    _, spread, arguments = lead(growing, node)
    if not isinstance(arguments.get("p"), float):
        raise NotSharedError(f"{node.name} draws with a chance for each element")
    return spread


RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(("view", "reshape", "_unsafe_view"), _resized),
    "unflatten": _unflatten,
    "flatten": _renamed,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    **dict.fromkeys(("transpose", "swapaxes", "swapdims", "t"), _transpose),
    "permute": _permute,
    "expand": _expand,
    "repeat_interleave": _repeat_interleave,
    **dict.fromkeys(("softmax", "_softmax", "log_softmax", "cumsum"), _along),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "var", "std", "logsumexp"), _reduction),
    "select": _select,
    "slice": _slice,
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), _split),
    "unbind": _unbind,
    "cat": _concatenate,
    "concat": _concatenate,
    "stack": _stack,
    **dict.fromkeys(("matmul", "bmm"), _matmul),
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(("layer_norm", "rms_norm"), _normalization),
    **dict.fromkeys(LIKE, _elementwise),
    **dict.fromkeys(BY_CHANNEL, _by_channel),
    "bernoulli": _bernoulli,
}


REDUCTIONS = frozenset({"mean", "sum", "var", "amax"})
_BY_PLACE = ELEMENTWISE | {"layer_norm", "rms_norm", "linear"}


def through_layer(growing: Growing, node: fx.Node, owner: nn.Module) -> Result:
    """How the result of a leaf module is split whose parameters treat every place alike: a norm, a linear layer.

    Each rank has the parameters whole, and their gradient of its places: ranks add these up.

    Args:
        growing: what is split so far
        node: the call of the module
        owner: the flow

    Raises:
        NotSharedError: it wants whole tensors
    """
    module = owner.get_submodule(str(node.target))
    (source,) = node.all_input_nodes if len(node.all_input_nodes) == 1 else (None,)
    spread = growing.spread(source) if source is not None else None
    if source is None or spread is None or has_user_hooks(module) or any(True for _ in module.buffers()):
        raise NotSharedError("a module that wants whole tensors")
    if not is_tensor(node):
        raise NotSharedError("a module with several results")
    if shape_of(node)[:-1] != shape_of(source)[:-1] or spread.dim == len(shape_of(source)) - 1:
        raise NotSharedError("a module along what is split")
    if draws_inside(node):
        raise NotSharedError("a module with parameters that draws random numbers")
    features = shape_of(source)[-1]
    if linear_of(node, owner) is None and any(t.shape != (features,) for t in module.parameters()):
        raise NotSharedError("a module with parameters for each place")
    for name, arguments, _ in interior(node):
        reduced = name in REDUCTIONS and len(arguments) > 1 and arguments[1] in ([-1], -1)
        if not reduced and (name not in _BY_PLACE or not _over_features(name, arguments)):
            raise NotSharedError(f"{name} inside of a module")
    return spread


def _over_features(name: str, arguments: Sequence[Any]) -> bool:
    """Whether a norm is over the last dimension alone."""
    return name not in ("layer_norm", "rms_norm") or len(arguments[1]) == 1


def has_parameters(node: fx.Node, owner: nn.Module) -> bool:
    """Whether a node calls a leaf module with parameters."""
    return node.op == "call_module" and any(True for _ in owner.get_submodule(str(node.target)).parameters())


def split_by_rule(growing: Growing, node: fx.Node, owner: nn.Module, *, shares_writes: bool) -> Result:
    """How the result of an operation is split.

    Args:
        growing: what is split so far
        node: the operation
        owner: the flow
        shares_writes: it may write into a tensor that others read too

    Raises:
        NotSharedError: there is no rule for it, or it is not kept
    """
    name = operation_name(node, owner)
    for written in written_by(node):
        if growing.spread(written) is None or not (shares_writes or len(written.users) == 1):
            raise NotSharedError(f"{node.name} writes into a whole tensor, or one that others read")
    if node.op == "call_module" and all(inner in ELEMENTWISE for inner in name.split("+")):
        check_drawn_alike(node)
        module = owner.get_submodule(str(node.target))
        if any(tensor.numel() > 1 for tensor in (*module.parameters(), *module.buffers())):
            raise NotSharedError(f"{node.target} has tensors, which are whole")
        name = "clone"  # any elementwise operation
    if name not in RULES:
        raise NotSharedError(f"there is no rule for {name} on shares")
    return RULES[name](growing, node)
