"""Live bytes of a trace that was written by hand.

moment     0       1        2       3        4          5
event      exp     pack 0   sin     cos      unpack 0   mul
x          [parameter, 10 bytes: always ............................)
y = exp x  [0 ...................... 3)     [4 ......... 6)            100 bytes; autograd holds it [0, 6)
z = sin y                   [2 ............ 4)                         1000 bytes
"""

from tests import builders
from tests.dropped import live_dropped

from trimaran.graph.trace.live_bytes import WEIGHTS, live_kept, writers
from trimaran.graph.trace.types import Role, Tick, TraceOp, TraceStorage
from trimaran.graph.types import Phase

VIEW = builders.view(shape=(25,))


def op(moment: int, name: str, reads: tuple[tuple[int, int], ...], writes: tuple[tuple[int, int], ...]) -> TraceOp:
    return builders.trace_op(
        moment=moment, name=name, phase=Phase.FORWARD if moment < 4 else Phase.BACKWARD, reads=reads, writes=writes
    )


def tick(moment: int, kind: str, end: int) -> Tick:
    return builders.tick(moment=moment, kind=kind, index=0, pack=0, storage=1, view=VIEW, node="ExpBackward0", end=end)  # type: ignore[arg-type]


def storage(number: int, nbytes: int, role: Role, life: tuple[int, int, int], packed: bool = False) -> TraceStorage:
    birth, outside_end, keep_end = life
    return builders.trace_storage(
        number=number,
        nbytes=nbytes,
        role=role,
        birth=birth,
        outside_end=outside_end,
        keep_end=keep_end,
        copy_bytes=nbytes if packed else 0,
        packs=(1,) if packed else (),
        unpacks=(4,) if packed else (),
        version=0 if packed else None,
    )


TRACE = builders.step_trace(
    events=(
        op(0, "exp", ((0, 0),), ((1, 0),)),
        tick(1, "pack", 6),
        op(2, "sin", ((1, 0),), ((2, 0),)),
        op(3, "cos", ((2, 0),), ((2, 1),)),
        tick(4, "unpack", 6),
        op(5, "mul", ((1, 0),), ()),
    ),
    storages=(
        storage(0, 10, Role.PARAMETER, (-1, 6, 6)),
        storage(1, 100, Role.ACTIVATION, (0, 3, 6), packed=True),
        storage(2, 1000, Role.ACTIVATION, (2, 4, 4)),
    ),
    names={0: "x"},
)


def test_what_autograd_holds_is_there_until_it_lets_go() -> None:
    assert live_kept(TRACE).tolist() == [110, 110, 1110, 1110, 110, 110]


def test_what_is_dropped_is_there_again_while_a_node_uses_it() -> None:
    assert live_dropped(TRACE).tolist() == [110, 110, 1110, 1010, 110, 110]


def test_without_weights() -> None:
    assert live_kept(TRACE, frozenset(Role) - WEIGHTS).tolist() == [100, 100, 1100, 1100, 100, 100]


def test_who_makes_each_value() -> None:
    assert writers(TRACE) == {(1, 0): 0, (2, 0): 2, (2, 1): 3}
