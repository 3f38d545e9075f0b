"""A region that grows from linear layers whose outputs are split, until every share has met a row.

    seeds ─▶ users, in the order of the graph ─▶ ... ─▶ rows

Where an operation needs a second tensor split as well, and that one comes from another linear layer (keys and
values with queries, an up projection with its gate), that layer becomes a seed too and the region grows anew. What
comes from elsewhere, every rank has whole and takes its share of.

Where a region starts: a linear layer, and how its output is taken apart.

A fused layer makes several outputs at once, such as queries, keys and values. Each of them is split by itself, so that
every rank has its heads of all three.
"""

import heapq
import math
from collections.abc import Mapping
from itertools import pairwise

from torch import fx, nn

from trimaran.graph.sharding.calls import (
    ELEMENTWISE,
    Growing,
    NotSharedError,
    Result,
    Spread,
    is_tensor,
    operation_name,
    place_of,
    shape_of,
)
from trimaran.graph.sharding.layers import Linear, linear_of
from trimaran.graph.sharding.random_numbers import LIKE, Draw, draw_of, draws_in_training, may_draw
from trimaran.graph.sharding.rules import RULES, has_parameters, split_by_rule, through_layer


class NeedsColumnError(Exception):
    """A second linear layer must be split too."""

    def __init__(self, linear: Linear) -> None:
        super().__init__(linear.weight)
        self.linear = linear


class Growth(Growing):
    """A region, grown.

    Args:
        owner: the flow
        seeds: its columns, with the sections of their outputs

    Attributes:
        seeds: as given
        rows: where it ends, with how their inputs are split
        spreads: how each tensor inside is split
        taken: what is read from outside
        sized: sizes that are divided
        modules: leaf modules with parameters that it runs on shares, such as a norm of each head

    Raises:
        NotSharedError: it cannot be shared
        NeedsColumnError: it needs another seed
    """

    def __init__(self, owner: nn.Module, seeds: Mapping[Linear, tuple[int, ...]]) -> None:
        super().__init__()
        self.seeds = dict(seeds)
        self.rows: dict[Linear, Spread] = {}
        self.modules: dict[fx.Node, None] = {}
        self._owner = owner
        self._reached: dict[int, fx.Node] = {}
        self._grow()

    @property
    def inside(self) -> list[fx.Node]:
        """Operations between columns and rows, in order."""
        columns = {linear.node for linear in self.seeds}
        return sorted(set(self.spreads) - columns, key=place_of)

    @property
    def units(self) -> int:
        """The number of ranks must divide it."""
        return math.gcd(super().units, *(taken.spread.units for taken in self.taken if taken.spread is not None))

    @property
    def draws(self) -> dict[fx.Node, Draw | None]:
        """Operations inside that may draw random numbers; with None those that draw the same for every share."""
        return {node: draw_of(self, node, self._owner) for node in self.inside if may_draw(node, self._owner)}

    @property
    def drawing(self) -> list[fx.Node]:
        """Operations inside that draw other random numbers for each share in training."""
        return [node for node, draw in self.draws.items() if draw and draws_in_training(node, self._owner)]

    @property
    def takes_samples_apart(self) -> bool:
        """Whether each of its tensors is [samples, features] and nothing comes in or counts samples on the way.

        What it draws must be masks: replicas send each other those of their samples, of a byte each.
        """
        names = [operation_name(node, self._owner) for node in self.draws]
        if any(part not in ELEMENTWISE for name in names for part in name.split("+")):
            return False
        nodes = [*self.spreads, *(linear.source for linear in self.seeds)]
        flat = all(is_tensor(node) and len(shape_of(node)) == 2 for node in nodes)
        inputs = [source for node in self.inside for source in node.all_input_nodes]
        return flat and not self.taken and not self.sized and all(is_tensor(source) for source in inputs)

    def check_taken(self, source: fx.Node) -> None:
        """Want a tensor made by shares where it comes from a linear layer; see `Growing`."""
        behind = None if source.meta.get("constant") else _linear_behind(source, self._owner)
        if behind is not None:
            raise NeedsColumnError(behind)

    def _grow(self) -> None:
        waiting: list[int] = []
        for linear, sections in self.seeds.items():
            self.spreads[linear.node] = Spread(len(shape_of(linear.node)) - 1, sections)
            self._push(waiting, linear.node)
        last = -1
        while waiting:
            place = heapq.heappop(waiting)
            if place > last:
                last = place
                self._reach(self._reached[place], waiting)
        if not self.rows:
            raise NotSharedError("no second linear layer takes in what is split")

    def _reach(self, node: fx.Node, waiting: list[int]) -> None:
        if any(linear.node is node for linear in self.seeds):
            raise NotSharedError(f"{node.name} reads what another layer of its region makes")
        linear = linear_of(node, self._owner)
        if linear is not None:
            self._end(linear)
            return
        found = self._apply(node)
        self.spreads[node] = found
        self._push(waiting, node)

    def _push(self, waiting: list[int], node: fx.Node) -> None:
        for user in node.users:
            if user.op != "call_function" or "sym_size" not in str(user.target):
                self._reached[place_of(user)] = user
                heapq.heappush(waiting, place_of(user))
            elif self._reads_split_size(user, node):
                raise NotSharedError(f"{user.name} reads the size of the split dimension")

    def _reads_split_size(self, user: fx.Node, node: fx.Node) -> bool:
        spread = self.spread(node)
        dim = user.args[1]
        return spread is None or not isinstance(dim, int) or dim % len(shape_of(node)) == spread.dim

    def _end(self, linear: Linear) -> None:
        spread = self.spread(linear.source)
        if spread is None or spread.dim != len(shape_of(linear.source)) - 1:
            raise NotSharedError(f"{linear.node.name} has all of its weights for what is split")
        self.rows[linear] = spread

    def _apply(self, node: fx.Node) -> Result:
        if node.op == "output":
            raise NotSharedError("what is split is an output of the model")
        taken_out = self.one_of_several(node)
        if taken_out is not None:
            return taken_out
        if has_parameters(node, self._owner):
            found = through_layer(self, node, self._owner)
            self.modules[node] = None
            return found
        return split_by_rule(self, node, self._owner, shares_writes=True)


def _linear_behind(node: fx.Node, owner: nn.Module) -> Linear | None:
    """The linear layer from which a tensor comes through views and elementwise operations."""
    pending, seen = [node], {node}
    while pending:
        current = pending.pop(0)
        linear = linear_of(current, owner)
        if linear is not None:
            return linear
        if not _passes(current, owner):
            continue
        for source in current.all_input_nodes:
            if source not in seen and not source.meta.get("constant"):
                seen.add(source)
                pending.append(source)
    return None


def _passes(node: fx.Node, owner: nn.Module) -> bool:
    if node.op not in ("call_function", "call_module") or not node.all_input_nodes:
        return False
    if str(getattr(node.target, "__name__", "")) == "getitem":
        return True
    if has_parameters(node, owner):
        # A norm of each head; one of all features mixes what heads are made of.
        return len(shape_of(node)) > 3 and len(node.all_input_nodes) == 1
    try:
        names = operation_name(node, owner).split("+")
    except NotSharedError:
        return False
    blocking = {"matmul", "bmm", "scaled_dot_product_attention", "softmax", "layer_norm", "rms_norm", "sum", "mean"}
    blocking |= LIKE | {"empty_like"}
    return all(name in RULES and name not in blocking for name in names)


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
