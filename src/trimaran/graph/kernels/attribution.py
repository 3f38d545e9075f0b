"""Which operation of a graph each kernel of a traced step belongs to.

The graph of a job and the trace of its step are made by walking the same model. Both note where they are: the call of a
module, and the torch function that it calls. So a kernel belongs to the operation of the same origin:

    torch function between modules        the operation that the function is; of several, shared by the bytes they move
    anything in a call of a leaf module   the call; so is the whole of a model that could not be captured
    sum of a parameter's gradient         the first operation that uses the parameter
    outside of the model                  the loss

The backward of an operation has the origin of its forward. A function that the graph lacks, as torch.export drops what
has no effect on shapes or values, counts with the operation before it.

Every kernel of forward and backward is given out, once: what a step takes is the sum of what its operations take. Left
out: the update, which belongs to parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from trimaran.graph.kernels.workload import Work, Workload
from trimaran.graph.types import ROOT, Graph, Op, Phase, is_whole


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


def attribute(graph: Graph, workload: Workload) -> Attribution:
    """Share the kernels of a step out among the operations of its graph.

    Args:
        graph: of the model, its loss last
        workload: of the same model, at any batch
    """
    known: dict[str, list[int]] = {}
    for number, op in enumerate(graph.ops):
        for origin in op.origins:
            known.setdefault(origin, []).append(number)
    for number, op in enumerate(graph.ops):
        for parameter in op.parameters:
            known.setdefault(parameter, [number])
    entries: list[tuple[int, int, float, bool]] = []
    whole = known[ROOT] if is_whole(graph) else []
    last = [0]
    for place, work in enumerate(workload.works):
        if work.phase is Phase.UPDATE:
            continue
        last = _find(known, work) or whole or last
        backward = work.phase is Phase.BACKWARD
        moved = [_moved(graph.ops[number], workload.batch, backward=backward) for number in last]
        total = sum(moved)
        for number, nbytes in zip(last, moved, strict=True):
            entries.append((place, number, nbytes / total if total else 1.0 / len(last), backward))
    columns = list(zip(*entries, strict=True)) or [(), (), (), ()]
    return Attribution(
        work=numpy.array(columns[0], dtype=numpy.int64),
        op=numpy.array(columns[1], dtype=numpy.int64),
        fraction=numpy.array(columns[2], dtype=numpy.float64),
        backward=numpy.array(columns[3], dtype=numpy.bool_),
    )


def _find(known: dict[str, list[int]], work: Work) -> list[int]:
    """The operations of a kernel's origin; none where the graph lacks it."""
    if work.origin in known:
        return known[work.origin]
    call, _, _ = work.origin.rpartition("/")
    return known.get(call, [])


def _moved(op: Op, batch: int, *, backward: bool) -> float:
    return max(0.0, (op.backward_bytes_moved if backward else op.bytes_moved).at(batch))
