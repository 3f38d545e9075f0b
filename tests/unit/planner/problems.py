"""Problems made by hand: two devices, two layers and a loss, links whose time one can check by head.

A layer i takes (i + 1) ms a sample forward and twice that backward, the loss 1 ms and 2 ms; loading half a millisecond
for 4 samples and 1 ms for 8. Nothing interferes. The graph has two weights and two biases of together 96 bytes.
"""

import dataclasses
from collections.abc import Mapping

from tests.unit.costs.tables import exact, network, table_for

from trimaran.cluster import Cluster, Device
from trimaran.costs.tables import Curve, CurveKey
from trimaran.planner.problem import Problem

GRADIENT_BYTES = 96
LOSS_BYTES = 16
# What no size shortens, and too short to matter.
NOTHING_S = 1e-9
UPDATE_MS = 1.0 + 4 * 0.1 + GRADIENT_BYTES * 1e-3


def flat(seconds: float) -> Curve:
    """A transfer that takes the same time for any size."""
    return tuple((size, exact(seconds)) for size in (1, GRADIENT_BYTES, 10**9))


def of_gradients(seconds: float) -> Curve:
    """An all-reduce of gradients that takes the same time for any of their sizes; that of the losses takes none."""
    times = {LOSS_BYTES: NOTHING_S, 8: seconds, 40: seconds, GRADIENT_BYTES: seconds, 10**9: seconds}
    return tuple((size, exact(times[size])) for size in sorted(times))


def proportional(seconds: float) -> Curve:
    """An all-reduce of all gradients that takes so long, of half of them half as long; of the losses, nothing."""
    half = GRADIENT_BYTES // 2
    return (
        (LOSS_BYTES, exact(NOTHING_S)),
        (half, exact(seconds / 2)),
        (GRADIENT_BYTES, exact(seconds)),
        (10**9, exact(seconds / GRADIENT_BYTES * 1e9)),
    )


def cluster(*, memory_bytes: int = 2**30) -> Cluster:
    device = Device(name="a core", kind="cpu", memory_bytes=memory_bytes)
    return Cluster(name="test", devices=(device,) * 2, hosts=(0, 0))


def problem(*, all_reduce: Curve | None = None, message: Curve | None = None, memory_bytes: int = 2**30) -> Problem:
    """Two layers, batch 8, two devices; all-reduces of gradients take 10 ms, messages 2 ms, unless said otherwise."""
    graph = network(2)
    curves: Mapping[CurveKey, Curve] = {
        CurveKey("AR", 2): of_gradients(10e-3) if all_reduce is None else all_reduce,
        CurveKey("SEND", 2): flat(2e-3) if message is None else message,
        CurveKey("BC", 2): flat(1e-3),
    }
    table = dataclasses.replace(table_for(graph), curves=curves, interference={})
    return Problem(graph=graph, table=table, cluster=cluster(memory_bytes=memory_bytes), batch=8, devices=2)
