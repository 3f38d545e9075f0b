"""Bytes of sharded state by hand: a root of 12 rows, two units of 4 rows each; 16 bytes a row, two replicas."""

import pytest
from tests import builders

from trimaran.graph.types import Affine, Graph, Op, Parameter, TensorSpec
from trimaran.pricing.memory import RankState, gathered_bytes, held_state
from trimaran.program.strategy import Strategy, ZeroStage

ROWS = {"embed": 12, "blocks.0.a": 4, "blocks.1.a": 4}
UNITS = ("blocks.0", "blocks.1")


def _graph() -> Graph:
    spec = TensorSpec(name="y", shape=("B", 4), dtype="float32", nbytes=Affine(0, 16), requires_grad=True)
    return Graph(
        name="chain",
        inputs=(),
        ops=tuple(
            Op(id=name, target="Linear", module=name, outputs=(spec,), parameters=(f"{name}.w",)) for name in ROWS
        ),
        parameters=tuple(
            Parameter(name=f"{name}.w", shape=(rows, 4), dtype="float32", nbytes=16 * rows)
            for name, rows in ROWS.items()
        ),
        buffers={},
        storages={},
    )


def _strategy(zero: ZeroStage, dp: int = 2, microbatches: int = 1) -> Strategy:
    return builders.strategy(dp=dp, zero=zero, units=UNITS if zero > 1 else (), microbatches=microbatches)


def _bytes(zero: ZeroStage, dp: int = 2, microbatches: int = 1) -> RankState:
    graph = _graph()
    return held_state(graph, graph.ops, _strategy(zero, dp, microbatches))


def _gathered(zero: ZeroStage, microbatches: int = 1) -> int:
    graph = _graph()
    return gathered_bytes(graph, graph.ops, _strategy(zero, microbatches=microbatches))


def test_without_sharding_everything_is_whole() -> None:
    whole = RankState(parameters=320, trained=320, trained_tensors=3, updated=320, updated_tensors=3, buffers=0)
    assert (_bytes(0), _gathered(0)) == (whole, 0)


def test_the_update_alone_is_shared_out() -> None:
    """192 bytes to one replica, 64 and 64 to the other."""
    shared = RankState(parameters=320, trained=320, trained_tensors=3, updated=192, updated_tensors=1, buffers=0)
    assert (_bytes(1), _gathered(1)) == (shared, 0)


@pytest.mark.parametrize(("zero", "microbatches", "gathered"), [(3, 1, 448), (2, 1, 448), (3, 2, 608), (2, 2, 672)])
def test_shards_stay_and_units_come_and_go(zero: ZeroStage, microbatches: int, gathered: int) -> None:
    """Half of 320 bytes stay; a block has 64, the root 192, its parameters and gradients stay to the end.

    The worst moment is the end of the backward of the first block. zero=3: 384 + its 64 + 64, and 64 of the other one
    that are being scattered = 576, less its own shards and the root's, which are not there yet: - 32 - 96 = 448. In a
    second microbatch those of the other block are there twice: 576 + 32 = 608. zero=2: the same, as the other
    block has been freed; of several microbatches 64 more, as it is kept.
    """
    found = _bytes(zero, microbatches=microbatches)
    assert (found.parameters, found.trained, found.updated, found.updated_tensors) == (160, 160, 160, 3)
    assert _gathered(zero, microbatches) == gathered


def test_four_replicas_hold_a_quarter() -> None:
    assert _bytes(3, dp=4).parameters == 80
