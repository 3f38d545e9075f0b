"""Which operations of a graph the kernels of a traced step belong to.

A `Graph` has calls of leaf modules and tensor operations between them; a `Workload` has kernels, each with the path of
the module that asked for it. Both are of one model and in one order:

    kernel of a module that is one operation           that operation
    kernel of a module with several operations         forward: aligned in order, by the operator's name;
                                                       backward: shared out by the bytes that their backwards move
    kernel of a module that is called several times    the calls in turn; the backward in reverse
    kernel inside an atomic module                     the call of that module
    what is left                                       the operation before it in the order of kernels

Every kernel of forward and backward is given out, once: what a step takes is the sum of what its operations take. Left
out: the update, which belongs to parameters.

Whether an operation of a graph may be what launched a kernel, by their names.

A graph has operators as a model calls them ("aten.linear.default"), a traced step those that they come down to
("aten.addmm"). What they have in common is part of the name, or the family.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy
from numpy.typing import NDArray

from trimaran.graph.kernels.workload import Work, WorkKind, Workload
from trimaran.graph.types import Graph, Op, Phase

_FAMILIES: dict[WorkKind, tuple[str, ...]] = {
    WorkKind.PRODUCT: ("linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "einsum", "dot", "mv"),
    WorkKind.ATTENTION: ("scaled_dot_product",),
    WorkKind.CONVOLUTION: ("conv",),
    WorkKind.RECURRENT: ("lstm", "gru", "rnn"),
    WorkKind.SOFTMAX: ("softmax",),
    WorkKind.NORMALIZATION: ("norm",),
    WorkKind.POOLING: ("pool",),
    WorkKind.EMBEDDING: ("embedding", "index_select", "gather"),
}
"""Parts of the names of operators that launch kernels of a kind."""


def may_launch(op: Op, work: Work) -> bool:
    """Whether an operation may have launched a kernel.

    Args:
        op: of a graph
        work: a kernel of the forward

    Example:
        >>> from trimaran.graph.types import Phase
        >>> figures = {"module": "", "dtype": "float32", "flops": 1.0, "nbytes": 1, "dims": (1,)}
        >>> work = Work(kind=WorkKind.PRODUCT, phase=Phase.FORWARD, name="aten.addmm", **figures)
        >>> may_launch(Op(id="a", target="aten.linear.default"), work), may_launch(Op(id="b", target="aten.relu"), work)
        (True, False)
    """
    called, launched = _bare(op.target), _bare(work.name)
    if called == launched:
        return True
    return any(part in called for part in _FAMILIES.get(work.kind, ()))


def _bare(name: str) -> str:
    """The operator without its library, its overload and the marks of variants.

    Example:
        >>> _bare("aten.relu_.default"), _bare("aten._softmax")
        ('relu', 'softmax')
    """
    parts = name.split(".")
    return (parts[1] if len(parts) > 1 else parts[0]).strip("_")


LOSS = "loss"
"""Target of the operation that is the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Kernels shared out among operations: entry `i` gives `fraction[i]` of a kernel to an operation.

    Attributes:
        work: index of the kernel in `Workload.works`
        op: index of the operation in `Graph.ops`
        fraction: of the kernel [0..1]
        backward: whether the kernel runs in the backward
    """

    work: NDArray[numpy.int64]
    op: NDArray[numpy.int64]
    fraction: NDArray[numpy.float64]
    backward: NDArray[numpy.bool_]

    def sums(self, seconds: Sequence[float], operations: int, *, backward: bool) -> NDArray[numpy.float64]:
        """What each operation takes in one direction [s].

        Args:
            seconds: of each kernel of the step [s]
            operations: of the graph
            backward: of the backward, else of the forward
        """
        chosen = self.backward == backward
        share = numpy.asarray(seconds)[self.work[chosen]] * self.fraction[chosen]
        return numpy.bincount(self.op[chosen], weights=share, minlength=operations).astype(numpy.float64)


@dataclass(slots=True)
class _Builder:
    entries: list[tuple[int, int, float, bool]] = field(default_factory=list)

    def give(self, work: int, op: int, fraction: float, *, backward: bool) -> None:
        self.entries.append((work, op, fraction, backward))

    def built(self) -> Attribution:
        columns = list(zip(*self.entries, strict=True)) or [(), (), (), ()]
        return Attribution(
            work=numpy.array(columns[0], dtype=numpy.int64),
            op=numpy.array(columns[1], dtype=numpy.int64),
            fraction=numpy.array(columns[2], dtype=numpy.float64),
            backward=numpy.array(columns[3], dtype=numpy.bool_),
        )


def attribute(graph: Graph, workload: Workload) -> Attribution:
    """Share the kernels of a step out among the operations of its graph.

    Args:
        graph: of the model, its loss last
        workload: of the same model, at any batch
    """
    places = _Places(graph.ops)
    built = _Builder()
    forward = [number for number, work in enumerate(workload.works) if work.phase is Phase.FORWARD]
    _align(workload.works, forward, graph.ops, places, built)
    backward = [number for number, work in enumerate(workload.works) if work.phase is Phase.BACKWARD]
    _share_out(workload, backward, graph.ops, places, built)
    return built.built()


class _Places:
    """The operations that the kernels of a module may belong to."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._of: dict[str, list[int]] = {}
        self._atomic: dict[str, list[int]] = {}
        self._below: dict[str, list[int]] = {}
        for number, op in enumerate(ops):
            self._of.setdefault("" if op.target == LOSS else op.module, []).append(number)
            if is_call(op):
                self._atomic.setdefault(op.module, []).append(number)
            for above in _above(op.module):
                self._below.setdefault(above, []).append(number)
        self._known: dict[str, tuple[int, ...]] = {}

    def find(self, module: str) -> tuple[int, ...]:
        """Numbers of the operations, ascending; none where nothing is known of the module."""
        if module not in self._known:
            self._known[module] = tuple(self._find(module))
        return self._known[module]

    def _find(self, module: str) -> list[int]:
        if module in self._of:
            return self._of[module]
        for above in _above(module):
            if above in self._atomic:
                return self._atomic[above]
        if module in self._below:
            return self._below[module]
        return next((self._of[above] for above in _above(module) if above and above in self._of), [])


def is_call(op: Op) -> bool:
    """Whether an operation is a call of a module, not a tensor operation or the loss."""
    return op.target != LOSS and not op.target.startswith(("aten.", "torch.", "trimaran.")) and bool(op.module)


def _above(module: str) -> list[str]:
    """Paths of the modules that a module is in, the nearest first; "" is the root."""
    parts = module.split(".") if module else []
    return [".".join(parts[:count]) for count in range(len(parts) - 1, -1, -1)]


def _align(works: Sequence[Work], order: Sequence[int], ops: Sequence[Op], places: _Places, built: _Builder) -> None:
    """Give each kernel of the forward to an operation, in order."""
    turns = _Turns(works, order, ops, places)
    reached: dict[str, int] = {}
    last = 0
    trailing: list[int] = []
    given: dict[int, int] = {}
    for number in order:
        work = works[number]
        found = places.find(work.module)
        if len(found) > 1 and all(is_call(ops[op]) for op in found) and len({ops[op].module for op in found}) == 1:
            last = turns.next(number, found)
        elif len(found) == 1:
            last = found[0]
        elif found:
            start = reached.get(work.module, 0)
            at = next((at for at in range(start, len(found)) if may_launch(ops[found[at]], work)), None)
            reached[work.module] = start if at is None else at
            last = found[reached[work.module]]
            if at is None and not work.module:
                trailing.append(number)
                given[number] = last
                continue
        given[number] = last
        trailing.clear()
    loss = next((number for number, op in enumerate(ops) if op.target == LOSS), None)
    for number in trailing if loss is not None else ():
        given[number] = loss if loss is not None else last
    for number, op in given.items():
        built.give(number, op, 1.0, backward=False)


class _Turns:
    """Kernels of modules that are called several times, dealt out to the calls in turn."""

    def __init__(self, works: Sequence[Work], order: Sequence[int], ops: Sequence[Op], places: _Places) -> None:
        self._total: dict[tuple[int, ...], int] = {}
        self._taken: dict[tuple[int, ...], int] = {}
        for number in order:
            found = places.find(works[number].module)
            self._total[found] = self._total.get(found, 0) + 1

    def next(self, _: int, found: tuple[int, ...]) -> int:
        """The call that the next kernel belongs to."""
        taken = self._taken.get(found, 0)
        self._taken[found] = taken + 1
        return found[taken * len(found) // self._total[found]]


def _share_out(workload: Workload, order: Sequence[int], ops: Sequence[Op], places: _Places, built: _Builder) -> None:
    """Give the kernels of the backward to the operations of their module, by the bytes that their backwards move."""
    last: tuple[tuple[int, float], ...] = ((len(ops) - 1, 1.0),)
    known: dict[tuple[int, ...], tuple[tuple[int, float], ...]] = {}
    for number in order:
        found = places.find(workload.works[number].module)
        if found:
            if found not in known:
                known[found] = _weights(found, ops, workload.batch)
            last = known[found]
        for op, fraction in last:
            built.give(number, op, fraction, backward=True)


def _weights(found: tuple[int, ...], ops: Sequence[Op], batch: int) -> tuple[tuple[int, float], ...]:
    moved = [max(0.0, ops[op].backward_bytes_moved.at(batch)) for op in found]
    total = sum(moved)
    if total <= 0.0:
        return tuple((op, 1.0 / len(found)) for op in found)
    return tuple((op, nbytes / total) for op, nbytes in zip(found, moved, strict=True) if nbytes > 0.0)
