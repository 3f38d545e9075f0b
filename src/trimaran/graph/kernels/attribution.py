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

What autograd keeps is given out in the same way, as a graph that is captured on a CPU keeps what a CPU's kernels keep:
gpt2:355m with four samples would need 31.6 GiB on an A100 in any precision, and needs 13.1 in fp32 and 11.1 in fp16.
The graph's digest leaves these sizes out: what a plan means does not depend on where it runs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy
from numpy.typing import NDArray

from trimaran.graph.kernels.workload import Workload
from trimaran.graph.trace.live_bytes import KeptBytes, PassingBytes, StepMemory
from trimaran.graph.types import ROOT, Affine, Graph, Line, Op, Phase, is_whole


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
    entries: list[tuple[int, int, float, bool]] = []
    works = [(place, work) for place, work in enumerate(workload.works) if work.phase is not Phase.UPDATE]
    owners = operations_of(graph, (work.origin for _, work in works))
    for (place, work), numbers in zip(works, owners, strict=True):
        backward = work.phase is Phase.BACKWARD
        moved = [_moved(graph.ops[number], workload.batch, backward=backward) for number in numbers]
        total = sum(moved)
        for number, nbytes in zip(numbers, moved, strict=True):
            entries.append((place, number, nbytes / total if total else 1.0 / len(numbers), backward))
    columns = list(zip(*entries, strict=True)) or [(), (), (), ()]
    return Attribution(
        work=numpy.array(columns[0], dtype=numpy.int64),
        op=numpy.array(columns[1], dtype=numpy.int64),
        fraction=numpy.array(columns[2], dtype=numpy.float64),
        backward=numpy.array(columns[3], dtype=numpy.bool_),
    )


def operations_of(graph: Graph, origins: Iterable[str]) -> Iterator[list[int]]:
    """The operations that each kernel of a trace belongs to, as indices of `Graph.ops`; none is left out.

    Args:
        graph: of the model, its loss last
        origins: of kernels of forward and backward, in the order of the trace (`TraceOp.origin`)
    """
    known = _by_origin(graph)
    whole = known[ROOT] if is_whole(graph) else []
    last = [0]
    for origin in origins:
        last = _find(known, origin) or whole or last
        yield last


def with_memory(graph: Graph, memory: StepMemory) -> Graph:
    """The graph with what its step keeps, and has besides, by the kernels and in the precision of a device.

    A captured graph has the storages of the kernels by which it was captured, such as attention that keeps its
    probabilities, in the precision of the weights. Here the bytes that each operation makes and autograd keeps are
    those of a traced step. Where they are in other storages, as the cast that a product makes of its input, they count
    with one that the operation keeps.

    Args:
        graph: of the model, its loss last
        memory: of a step of the same model

    Returns:
        The graph with `kept` and `passing`, where these are known.
    """
    return replace(graph, kept=_kept(graph, memory.kept), passing=_passing(graph, memory.passing))


def _passing(graph: Graph, passing: Sequence[PassingBytes]) -> dict[str, tuple[tuple[Line, ...], tuple[Line, ...]]]:
    found: dict[str, tuple[tuple[Line, ...], tuple[Line, ...]]] = {}
    for one, numbers in zip(passing, operations_of(graph, (one.origin for one in passing)), strict=True):
        for number in numbers:
            forward, backward = found.get(graph.ops[number].id, ((), ()))
            found[graph.ops[number].id] = (
                (forward, (*backward, *one.lines)) if one.backward else ((*forward, *one.lines), backward)
            )
    return found


def _kept(graph: Graph, kept: Sequence[KeptBytes]) -> dict[str, Affine]:
    if not kept:
        return {}
    made = _made_storages(graph)
    wanted = dict.fromkeys(range(len(graph.ops)), Affine())
    for one, numbers in zip(kept, operations_of(graph, (one.origin for one in kept)), strict=True):
        weights = [sum(graph.storages[name].at(1) for name in made.get(number, ())) for number in numbers]
        total = sum(weights)
        for number, weight in zip(numbers, weights, strict=True):
            share = weight / total if total else 1.0 / len(numbers)
            wanted[number] += Affine(one.fixed * share, one.per_sample * share)
    sizes = dict(graph.storages)
    for number, own in made.items():
        before = sum((graph.storages[name] for name in own), Affine())
        for name in own:
            share = graph.storages[name].at(1) / before.at(1) if before.at(1) else 1.0 / len(own)
            sizes[name] = Affine(wanted[number].fixed * share, wanted[number].per_sample * share)
    for number, op in enumerate(graph.ops):
        if op.saved and not made.get(number):
            sizes[op.saved[0]] += wanted[number]
    return sizes


def _made_storages(graph: Graph) -> dict[int, list[str]]:
    """Names of the storages that autograd keeps, by the operation that makes them; those of the batch are left out."""
    place = {op.id: number for number, op in enumerate(graph.ops)}
    makers = {spec.name: number for number, op in enumerate(graph.ops) for spec in op.outputs}
    found: dict[int, list[str]] = {}
    for name in graph.storages:
        number = makers.get(name, place.get(name.rpartition("/")[0], -1))
        if number >= 0:
            found.setdefault(number, []).append(name)
    return found


def _by_origin(graph: Graph) -> dict[str, list[int]]:
    """Operations by origin, and the first one of each parameter by its name."""
    known: dict[str, list[int]] = {}
    for number, op in enumerate(graph.ops):
        for origin in op.origins:
            known.setdefault(origin, []).append(number)
    for number, op in enumerate(graph.ops):
        for parameter in op.parameters:
            known.setdefault(parameter, [number])
    return known


def _find(known: dict[str, list[int]], origin: str) -> list[int]:
    """The operations of an origin; none where the graph lacks it."""
    if origin in known:
        return known[origin]
    call, _, _ = origin.rpartition("/")
    return known.get(call, [])


def _moved(op: Op, batch: int, *, backward: bool) -> float:
    return max(0.0, (op.backward_bytes_moved if backward else op.bytes_moved).at(batch))
