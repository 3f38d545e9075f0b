"""What the rules of sharing ask of a region that grows, and of the operation before them."""

from collections.abc import Callable
from typing import Any, Protocol

from torch import fx

from trimaran.graph.sharding.calls import arguments_of, is_tensor, shape_of
from trimaran.graph.sharding.spread import NotSharedError, Spread

Result = Spread | tuple[Spread | None, ...]


class Growing(Protocol):
    """What a rule asks of the region that grows."""

    def spread(self, node: fx.Node) -> Spread | None:
        """How a tensor is split; None: it is whole."""

    def join(self, node: fx.Node, source: fx.Node, right: int, sections: tuple[int, ...]) -> None:
        """Want an input split in a dimension counted from the right (-1 is the last), where it has more than one."""

    def resize(self, node: fx.Node, name: str, place: int | None = None) -> None:
        """Divide a size among the arguments by the number of ranks."""


Rule = Callable[[Growing, fx.Node], Result]


def leader(growing: Growing, node: fx.Node) -> tuple[fx.Node, Spread]:
    """The first input that is split, and how."""
    for source in node.all_input_nodes:
        found = growing.spread(source) if is_tensor(source) else None
        if found is not None:
            return source, found
    raise NotSharedError(f"{node.name} reads no share")


def lead(growing: Growing, node: fx.Node) -> tuple[fx.Node, Spread, dict[str, Any]]:
    """The only tensor that is read, how it is split, and the arguments."""
    source, spread = leader(growing, node)
    return source, spread, arguments_of(node)


def dim_of(dim: int, source: fx.Node) -> int:
    """A dimension counted from the front."""
    return dim % max(1, len(shape_of(source)))


def dims(node: fx.Node) -> int:
    """Number of dimensions of a tensor."""
    return len(shape_of(node))


def resize_listed(growing: Growing, node: fx.Node, name: str, size: object, place: int) -> None:
    """A size that is written down; one that torch finds (-1) is right as it is."""
    if isinstance(size, fx.Node):
        raise NotSharedError(f"{node.name} computes the size of the split dimension")
    if size != -1:
        growing.resize(node, name, place)
