"""Sizes that grow with the batch, as expressions in one number: the batch size.

An exported graph takes sizes from whatever tensor is at hand. In a segment that tensor may be absent, but the batch
size is known everywhere, so every size that is read off a tensor is rewritten to be computed from it.
"""

import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import fx

from trimaran.graph.capture.export import NotExportableError
from trimaran.graph.types import Affine

# sympy's classes and torch's own for integer arithmetic, by name; each folds its arguments from the left.
_FOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "Pow": operator.pow,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
}


class Sizes:
    """Makes nodes for expressions in the batch size.

    Args:
        graph: an exported graph; a node with the batch size is added after its inputs
        inputs: its input nodes; dim 0 of each is the batch size
    """

    def __init__(self, graph: fx.Graph, inputs: tuple[fx.Node, ...]) -> None:
        self._graph = graph
        self._symbols = {_expression(node.meta["val"].shape[0]) for node in inputs}
        self._nodes: dict[str, fx.Node] = {}
        last = [node for node in graph.nodes if node.op == "placeholder"][-1]
        with graph.inserting_after(last):
            self.batch = graph.call_function(torch.ops.aten.sym_size.int, (inputs[0], 0))
        self.batch.meta.update(val=inputs[0].meta["val"].shape[0], batch=True)
        self._end = self.batch

    def node(self, size: Any) -> Any:
        """A node, or a plain number, for a size.

        Raises:
            NotExportableError: the size does not follow from the batch size
        """
        expression = _expression(size)
        if not hasattr(expression, "free_symbols"):
            return size
        return self._build(expression, size)

    def follows(self, size: Any) -> bool:
        """Whether the size can be computed from the batch size."""
        symbols: set[Any] = getattr(_expression(size), "free_symbols", set())
        return all(symbol in self._symbols for symbol in symbols)

    def _build(self, expression: Any, size: Any) -> Any:
        if expression in self._symbols:
            return self.batch
        if expression.is_Integer:
            return int(expression)
        text = str(expression)
        if text not in self._nodes:
            fold = _FOLDS.get(type(expression).__name__)
            if fold is None:
                raise NotExportableError(f"a size does not follow from the batch size: {text}")
            node, *parts = [self._build(part, None) for part in expression.args]
            for part in parts:
                node = self._call(fold, (node, part))
            self._nodes[text] = node
        return self._nodes[text]

    def _call(self, function: Callable[[Any, Any], Any], arguments: tuple[Any, Any]) -> Any:
        if not any(isinstance(argument, fx.Node) for argument in arguments):
            return function(*arguments)
        with self._graph.inserting_after(self._end):
            self._end = self._graph.call_function(function, arguments)
        self._end.meta["val"] = 0  # a number; which one depends on the batch
        return self._end


def compute_sizes_from_batch(graph: fx.Graph, inputs: tuple[fx.Node, ...]) -> Sizes:
    """Rewrite every size that is read off a tensor; sizes that do not follow from the batch stay."""
    sizes = Sizes(graph, inputs)
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if node.op != "call_function" or not is_number(value) or node is sizes.batch:
            continue
        if any(not is_number(source.meta.get("val")) for source in node.all_input_nodes) and sizes.follows(value):
            _substitute(node, sizes.node(value))
            graph.erase_node(node)
    return sizes


def check_numbers(graph: fx.Graph) -> None:
    """Refuse a graph in which a number is read off the data.

    Raises:
        NotExportableError: it is one
    """
    for node in graph.nodes:
        is_result = is_number(node.meta.get("val")) and not node.meta.get("batch")
        if is_result and any(not is_number(source.meta.get("val")) for source in node.all_input_nodes):
            raise NotExportableError(f"a number depends on the data: {node.format_node()}")


def is_number(value: object) -> bool:
    """Whether the value of a node is a size or another number, rather than tensors."""
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool)


def _substitute(node: fx.Node, value: Any) -> None:
    for user in list(node.users):
        user.args = fx.map_arg(user.args, lambda source: value if source is node else source)
        user.kwargs = fx.map_arg(user.kwargs, lambda source: value if source is node else source)


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool) else size


# ---------------------------------------------------------------------------------------------------------------------
# Sizes at two batch sizes, as one expression in the batch size `B`


Batches = tuple[int, int]


def fit(first: float, second: float, batches: Batches) -> Affine:
    """The line through a quantity at two batch sizes.

    Example:
        >>> fit(14.0, 22.0, (4, 8))
        Affine(fixed=6.0, per_sample=2.0)
    """
    per_sample = (second - first) / (batches[1] - batches[0])
    return Affine(float(first - per_sample * batches[0]), float(per_sample))


def describe_shape(first: Sequence[int], second: Sequence[int], batches: Batches) -> tuple[int | str, ...]:
    """A shape whose sizes are numbers, or expressions in `B`.

    Example:
        >>> describe_shape((4, 3, 9), (8, 3, 17), (4, 8))
        ('B', 3, '2*B + 1')
    """
    return tuple(_describe(one, other, batches) for one, other in zip(first, second, strict=True))


def describe_number(first: object, second: object, batches: Batches) -> str:
    """A number or another plain value at two batch sizes, as text."""
    if isinstance(first, int) and isinstance(second, int) and not isinstance(first, bool):
        return str(_describe(first, second, batches))
    return str(first)


def _describe(first: int, second: int, batches: Batches) -> int | str:
    factor = Fraction(second - first, batches[1] - batches[0])
    rest = first - factor * batches[0]
    if factor == 0:
        return first
    product = "B" if factor == 1 else f"{factor}*B"
    return product if rest == 0 else f"{product} {'+' if rest > 0 else '-'} {abs(rest)}"
