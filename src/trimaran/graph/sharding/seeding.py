"""Where a region starts: a linear layer, and how its output is taken apart.

A fused layer makes several outputs at once, such as queries, keys and values. Each of them is split by itself, so that
every rank has its heads of all three.
"""

from itertools import pairwise

from torch import nn

from trimaran.graph.sharding.calls import is_tensor, shape_of
from trimaran.graph.sharding.growing import Growth, NeedsColumnError
from trimaran.graph.sharding.linears import Linear
from trimaran.graph.sharding.spread import NotSharedError


def grow(owner: nn.Module, first: Linear) -> Growth:
    """The smallest region that starts at a linear layer.

    Raises:
        NotSharedError: there is none; with the reason
    """
    reason = ""
    for choice in range(2):
        try:
            return _grow_with(owner, first, choice)
        except NotSharedError as error:
            reason = reason or str(error)
    raise NotSharedError(reason)


def _grow_with(owner: nn.Module, first: Linear, choice: int) -> Growth:
    seeds = {first: _sections(first, choice)}
    while True:
        try:
            return Growth(owner, seeds)
        except NeedsColumnError as need:
            if need.linear in seeds:
                raise NotSharedError(f"{need.linear.node.name} cannot be split in the way that it is read") from None
            seeds[need.linear] = _sections(need.linear, choice)


def _sections(linear: Linear, choice: int) -> tuple[int, ...]:
    """The parts of a fused output: as its readers take it apart; on the second choice also by the factor of a view."""
    last = len(shape_of(linear.node)) - 1
    for user in linear.node.users:
        text = str(user.target)
        if "aten.split" in text or "aten.chunk" in text:
            dim = user.args[2] if len(user.args) > 2 else user.kwargs.get("dim", 0)
            values = user.meta.get("val")
            if isinstance(dim, int) and dim % (last + 1) == last and isinstance(values, list | tuple):
                return tuple(int(value.shape[-1]) for value in values)
        elif (
            choice
            and is_tensor(user)
            and len(shape_of(user)) > last + 1
            and shape_of(user)[:last] == shape_of(linear.node)[:last]
        ):
            count = shape_of(user)[last]
            if count > 1:
                return (linear.features // count,) * count
    return _sliced(linear, last) or (linear.features,)


def _sliced(linear: Linear, last: int) -> tuple[int, ...]:
    bounds = {0, linear.features}
    for user in linear.node.users:
        if "aten.slice" in str(user.target) and len(user.args) == 4 and user.args[1] in (last, -1):
            bounds |= {int(value) for value in user.args[2:] if isinstance(value, int) and 0 < value < linear.features}
    ordered = sorted(bounds)
    return tuple(high - low for low, high in pairwise(ordered))
