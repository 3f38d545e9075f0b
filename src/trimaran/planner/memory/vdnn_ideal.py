"""Offload everything, and have it back only while it is used: the least memory that offloading alone can reach.

Each storage leaves at its last pack and comes back at its first unpack, so that every copy is waited for. Nobody would
run it; its memory is what the mean of an offload-all policy is measured against.
"""

from bisect import bisect_right

from trimaran.graph.trace.types import StepTrace
from trimaran.program.memory import Decision, MemoryPlan, MemoryStep
from trimaran.program.types import Kind


def offload_on_demand(trace: StepTrace) -> MemoryPlan:
    """Every storage to the host that is away for at least one operation."""
    ticks = sorted(tick.moment for tick in (*trace.packs, *trace.unpacks))
    steps: list[MemoryStep] = []
    for storage in trace.movable:
        leave = ticks[bisect_right(ticks, storage.packs[-1])]
        back = storage.unpacks[0]
        if max(leave, storage.outside_end) < back:
            keys = ((storage.packs[-1], Kind.OFFLOAD), (leave, Kind.RELEASE), (back, Kind.PREFETCH))
            steps += [MemoryStep(moment=moment, kind=kind, storage=storage.number) for moment, kind in keys]
    return MemoryPlan(
        policy="on_demand",
        budget_bytes=None,
        decisions={step.storage: Decision.OFFLOAD for step in steps},
        steps=tuple(sorted(steps, key=lambda step: step.moment)),
        recipes={},
        reasons={},
    )
