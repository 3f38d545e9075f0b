"""Graphs made by hand: what a program needs of a job, with figures that one can check by head.

Every operation `op<i>` makes the tensor `t<i>` of 4 bytes a sample, and has a weight and a bias of 40 and 8 bytes. The
last one is the loss, reads the targets and owns nothing.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from trimaran.graph.types import Affine, Graph, Op, Parameter, ParameterSplit, Region, RegionEntry, TensorSpec
from trimaran.program.lowering.lower import lower_as
from trimaran.program.lowering.schedules import Compute, Order
from trimaran.program.strategy import Part, Strategy
from trimaran.program.types import Kind, Program

TENSOR_BYTES = 4
WEIGHT_BYTES = 40
BIAS_BYTES = 8
BUFFER_BYTES = 16


def tensor(name: str, *, requires_grad: bool = True, nbytes: int = TENSOR_BYTES) -> TensorSpec:
    return TensorSpec(
        name=name, shape=("B",), dtype="float32", nbytes=Affine(0.0, float(nbytes)), requires_grad=requires_grad
    )


def parameter(name: str, nbytes: int = WEIGHT_BYTES, **changes: object) -> Parameter:
    figures: dict[str, object] = {"shape": (nbytes // 4,), "dtype": "float32", "trainable": True}
    return Parameter(name=name, nbytes=nbytes, **(figures | changes))  # type: ignore[arg-type]


def chain(
    length: int, *, buffers: bool = False, tied: Sequence[Sequence[int]] = (), skips: Sequence[tuple[int, int]] = ()
) -> Graph:
    """A chain of operations and the loss after them.

    Args:
        length: operations before the loss
        buffers: every operation has a buffer
        tied: groups of operations that share one weight, which is named by the first
        skips: pairs of operations, the second of which also reads what the first makes; `length` is the loss
    """
    owner = {user: group[0] for group in tied for user in group}
    extra: dict[int, list[str]] = {}
    for source, target in skips:
        extra.setdefault(target, []).append(f"t{source}")
    ops = []
    for number in range(length):
        before = "x" if number == 0 else f"t{number - 1}"
        ops.append(
            Op(
                id=f"op{number}",
                target="Linear",
                inputs=tuple(dict.fromkeys([before, *extra.get(number, ())])),
                outputs=(tensor(f"t{number}"),),
                parameters=(f"op{owner.get(number, number)}.weight", f"op{number}.bias"),
                buffers=(f"op{number}.mean",) if buffers else (),
            )
        )
    read = dict.fromkeys([f"t{length - 1}", *extra.get(length, ()), "y"])
    ops.append(Op(id="loss", target="loss", inputs=tuple(read), outputs=(tensor("loss"),)))
    sizes: Mapping[str, int] = {
        name: WEIGHT_BYTES if name.endswith("weight") else BIAS_BYTES for op in ops for name in op.parameters
    }
    return Graph(
        name="chain",
        inputs=(tensor("x", requires_grad=False, nbytes=2), tensor("y", requires_grad=False, nbytes=1)),
        targets=("y",),
        ops=tuple(ops),
        parameters=tuple(parameter(name, nbytes) for name, nbytes in sizes.items()),
        buffers={f"op{number}.mean": BUFFER_BYTES for number in range(length)} if buffers else {},
        storages={},
        split_points=tuple(f"op{number}" for number in range(length - 1)),
    )


def boundaries(segments: int) -> tuple[str, ...]:
    """Cuts of a chain after each of its first operations."""
    return tuple(f"op{number}" for number in range(segments - 1))


def dag(reads: Sequence[Sequence[int]], *, tied: Sequence[Sequence[int]] = ()) -> Graph:
    """A graph whose operation i reads what some earlier ones make; the loss reads what nothing else does.

    Args:
        reads: for each operation, those that it reads; none: the data
        tied: groups of operations that share one weight, which is named by the first
    """
    graph = chain(len(reads), tied=tied)
    left = set(range(len(reads))) - {source for sources in reads for source in sources}
    inputs = [tuple(f"t{source}" for source in sources) or ("x",) for sources in reads]
    inputs.append((*(f"t{number}" for number in sorted(left)), "y"))
    ops = tuple(dataclasses.replace(op, inputs=read) for op, read in zip(graph.ops, inputs, strict=True))
    return dataclasses.replace(graph, ops=ops)


def paired(pairs: int) -> Graph:
    """A chain of pairs of operations, each of which two ranks can share: the first by columns, the second by rows."""
    graph = chain(2 * pairs)
    regions = tuple(
        Region(
            kind="pair",
            columns=(f"op{first}",),
            rows=(f"op{first + 1}",),
            entries=(RegionEntry(tensor=f"t{first - 1}", op=f"op{first}"),) if first else (),
            splits=tuple(
                ParameterSplit(parameter=name, dim=0, sections=(size,))
                for name, size in (
                    (f"op{first}.weight", WEIGHT_BYTES // 4),
                    (f"op{first}.bias", BIAS_BYTES // 4),
                    (f"op{first + 1}.weight", WEIGHT_BYTES // 4),
                )
            ),
            units=2,
        )
        for first in range(0, 2 * pairs, 2)
    )
    return dataclasses.replace(graph, regions=regions)


def read_order(text: str) -> Order:
    """An order of compute, such as `0F0,0B0` of the first row and `1F0,1B0` of the second, a line each."""
    steps = (re.findall(r"([0-9]+)([A-Z])([0-9]+)", line) for line in text.split())
    return tuple(tuple(Compute(Kind(kind), int(part), int(number)) for part, kind, number in row) for row in steps)


def microbatches_of(order: Order) -> int:
    """The number of microbatches of an order of compute, each of which has its F and B, or F, I and W, in order."""
    tokens: dict[tuple[int, int], str] = {}
    rows: dict[int, set[int]] = {}
    for row, steps in enumerate(order):
        for step in steps:
            place = step.segment, step.microbatch
            tokens[place] = tokens.get(place, "") + str(step.kind)
            rows.setdefault(step.segment, set()).add(row)
    segments, microbatches = (1 + max(one) for one in zip(*tokens, strict=True))
    assert len(tokens) == segments * microbatches
    assert set(tokens.values()) <= {"FB", "FIW"}
    assert all(len(one) == 1 for one in rows.values())
    return microbatches


def lower_order(
    graph: Graph, order: Order, *, boundaries: Sequence[str] = (), batch: int, dp: int = 1, clip: bool = False
) -> Program:
    """The program of any order of compute, as a person may put one into a plan's file."""
    row_of = {step.segment: row for row, steps in enumerate(order) for step in steps}
    parts = tuple(
        Part(ops=tuple(op.id for op in ops), row=row_of[number]) for number, ops in enumerate(graph.parts(boundaries))
    )
    microbatches = 1 + max(step.microbatch for row in order for step in row)
    strategy = Strategy(dp=dp, pp=len(order), parts=parts, microbatches=microbatches)
    return lower_as(graph, strategy, order, batch=batch, clip=clip)
