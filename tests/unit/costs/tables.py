"""Cost tables made by hand, for graphs made by hand."""

import dataclasses

from tests.graphs import chain

from trimaran.costs.tables import (
    CostTable,
    Curve,
    CurveKey,
    Fingerprint,
    OperationKey,
    StepCosts,
    TensorFit,
    WholeCost,
    WholeKey,
)
from trimaran.costs.types import Cost, Interference, OpCost
from trimaran.graph.types import Graph

HERE = Fingerprint(device="a core", kind="cpu", torch="2.13.0", threads=1, ranks=2, cores=2)


def exact(seconds: float) -> Cost:
    return Cost(seconds, seconds, seconds, "measured: by hand")


def about(seconds: float, part: float) -> Cost:
    """A cost with an interval of so large a part on either side."""
    return Cost(seconds, seconds * (1 - part), seconds * (1 + part), "measured: by hand")


def network(length: int = 4, *, skips: tuple[tuple[int, int], ...] = (), buffers: bool = False) -> Graph:
    """A chain whose operations differ in content and keep their own outputs for the backward."""
    graph = chain(length, skips=skips, buffers=buffers)
    ops = tuple(
        dataclasses.replace(op, content=f"content of {op.id}", saved=tuple(spec.name for spec in op.outputs))
        for op in graph.ops
    )
    return dataclasses.replace(graph, ops=ops, storages={spec.name: spec.nbytes for op in ops for spec in op.outputs})


def curve(latency_s: float, bytes_per_s: float) -> Curve:
    return tuple((size, exact(latency_s + size / bytes_per_s)) for size in (1, 1000, 1_000_000))


def table_for(graph: Graph, *, whole_s: float | None = None, part: float = 0.0) -> CostTable:
    """A table in which operation i of n takes (i + 1) ms a sample forward, twice that backward; the loss 1 ms.

    Args:
        graph: whose operations
        whole_s: forward of the whole model at a batch of 8 in every form; backward twice that, evaluation half
        part: half-width of the intervals of operations
    """
    operations = {}
    for number, op in enumerate(graph.ops):
        milliseconds = 1.0 if op.id == "loss" else number + 1.0
        operations[OperationKey(op.content, "eager")] = {
            batch: OpCost(
                forward=about(milliseconds * 1e-3 * batch, part), backward=about(milliseconds * 2e-3 * batch, part)
            )
            for batch in (4, 8)
        }
    wholes = {}
    if whole_s is not None:
        whole = WholeCost(forward=exact(whole_s), backward=exact(2 * whole_s), evaluation=exact(whole_s / 2))
        for form in ("module", "replicated", "graph"):
            wholes[WholeKey(graph.digest, form, "eager")] = {8: whole}
    fit = TensorFit(fixed_s=1e-3, per_tensor_s=1e-4, per_byte_s=1e-6, low=0.5, high=2.0, source="measured: by hand")
    return CostTable(
        fingerprint=HERE,
        operations=operations,
        wholes=wholes,
        steps={
            graph.digest: StepCosts(
                update=fit, clip=fit, load={4: exact(0.5e-3), 8: exact(1e-3)}, state_bytes_per_byte=1.0
            )
        },
        curves={
            CurveKey("SEND", 2): curve(1e-4, 1e9),
            CurveKey("AR", 2): curve(2e-4, 5e8),
            CurveKey("BC", 2): curve(1e-4, 1e9),
        },
        interference={"AR": Interference(compute=1.5, communication=2.0, source="measured: by hand")},
    )


__all__ = ["HERE", "about", "curve", "exact", "network", "table_for"]
