"""A step of two layers, small enough to follow by hand.

moment     0   1       2   3       4     5         6        7         8        9
event      a   pack 0  b   pack 1  loss  unpack 1  b_back   unpack 0  a_back   update
s0 1000 B  |---------------------------------------------------------|
s1 2000 B          |-------------------------------|
s2    4 B                          |-----|
s3  500 B                                          |-----------------|
s4  100 B  the parameter, all the time
s5  100 B                                                            |----------------|
"""

import numpy as np
from tests import builders

from trimaran.graph.trace.types import Role, Tick, TraceOp, TraceStorage
from trimaran.graph.types import Phase
from trimaran.pricing.offload_costs import MemoryCosts
from trimaran.program.memory import Decision, MemoryPlan, MemoryStep
from trimaran.program.types import Kind

_VIEW = builders.view(shape=(1,))


def _op(moment: int, name: str, phase: Phase, reads: tuple[int, ...], writes: tuple[int, ...]) -> TraceOp:
    return builders.trace_op(
        moment=moment,
        name=f"aten.{name}.default",
        phase=phase,
        module=name.removesuffix("_back"),
        reads=tuple((number, 0) for number in reads),
        writes=tuple((number, 0) for number in writes),
        nbytes=1000,
    )


def _tick(moment: int, kind: str, index: int, storage: int, end: int) -> Tick:
    return builders.tick(
        moment=moment,
        kind="pack" if kind == "pack" else "unpack",
        index=index,
        pack=storage,
        storage=storage,
        view=_VIEW,
        end=end,
    )


def _storage(
    number: int,
    nbytes: int,
    role: Role,
    life: tuple[int, int, int],
    *,
    packs: tuple[int, ...] = (),
    unpacks: tuple[int, ...] = (),
    module: str = "",
) -> TraceStorage:
    birth, outside_end, keep_end = life
    return builders.trace_storage(
        number=number,
        nbytes=nbytes,
        role=role,
        birth=birth,
        outside_end=outside_end,
        keep_end=keep_end,
        copy_bytes=nbytes if packs else 0,
        packs=packs,
        unpacks=unpacks,
        version=0,
        module=module,
    )


TRACE = builders.step_trace(
    events=(
        _op(0, "a", Phase.FORWARD, (4,), (0,)),
        _tick(1, "pack", 0, 0, 9),
        _op(2, "b", Phase.FORWARD, (0,), (1,)),
        _tick(3, "pack", 1, 1, 7),
        _op(4, "loss", Phase.FORWARD, (1,), (2,)),
        _tick(5, "unpack", 0, 1, 7),
        _op(6, "b_back", Phase.BACKWARD, (1, 2), (3,)),
        _tick(7, "unpack", 1, 0, 9),
        _op(8, "a_back", Phase.BACKWARD, (0, 3), (5,)),
        _op(9, "update", Phase.UPDATE, (4, 5), (4,)),
    ),
    storages=(
        _storage(0, 1000, Role.ACTIVATION, (0, 3, 9), packs=(1,), unpacks=(7,), module="a"),
        _storage(1, 2000, Role.ACTIVATION, (2, 5, 7), packs=(3,), unpacks=(5,), module="b"),
        _storage(2, 4, Role.ACTIVATION, (4, 7, 7)),
        _storage(3, 500, Role.ACTIVATION, (6, 9, 9), module="b"),
        _storage(4, 100, Role.PARAMETER, (-1, 10, 10)),
        _storage(5, 100, Role.GRADIENT, (8, 10, 10)),
    ),
    names={4: "a.weight"},
)

COSTS = MemoryCosts(
    durations_s=np.array([1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 2.0, 0.0, 2.0, 1.0]),
    to_host_bytes_per_s=1000.0,
    to_device_bytes_per_s=500.0,
    copy_latency_s=0.0,
    source="modelled: by hand",
)

PLAN = MemoryPlan(
    policy="by hand",
    budget_bytes=2700,
    decisions={0: Decision.OFFLOAD},
    steps=(
        MemoryStep(moment=1, kind=Kind.OFFLOAD, storage=0),
        MemoryStep(moment=3, kind=Kind.RELEASE, storage=0),
        MemoryStep(moment=7, kind=Kind.PREFETCH, storage=0),
    ),
    recipes={},
    reasons={0: "it is away for 4 s"},
)
"""s0 goes while b runs (1 s, nobody waits), and comes back when it is needed (2 s, waited for)."""
