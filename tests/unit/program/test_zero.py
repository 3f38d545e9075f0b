"""Gathers and scatters of a chain of four layers by hand: two units of two, between an embedding and a head.

Shapes are (rows, 4) of fp32, 16 bytes a row; two replicas.
"""

from dataclasses import replace

import pytest
from tests import builders

from trimaran.graph.types import Affine, Graph, Op, Parameter, TensorSpec
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.lowering.zero import after_update, zero_collectives
from trimaran.program.strategy import Strategy
from trimaran.program.types import Kind

LAYERS = {"embed": 6, "blocks.0.up": 2, "blocks.0.down": 3, "blocks.1.up": 2, "blocks.1.down": 3, "head": 5}
UNITS = ("blocks.0", "blocks.1")
ZERO2 = builders.strategy(dp=2, zero=2, units=UNITS)
ZERO3 = replace(ZERO2, zero=3)


def _graph(frozen: tuple[str, ...] = ()) -> Graph:
    ops, before, flows = [], "x", False
    for name in LAYERS:
        flows = flows or name not in frozen
        spec = TensorSpec(name=name, shape=("B", 4), dtype="float32", nbytes=Affine(0, 16), requires_grad=flows)
        ops.append(
            Op(id=name, target="Linear", module=name, inputs=(before,), outputs=(spec,), parameters=(f"{name}.weight",))
        )
        before = name
    spec = TensorSpec(name="loss", shape=(), dtype="float32", nbytes=Affine(4), requires_grad=True)
    ops.append(Op(id="loss", target="loss", inputs=(before, "y"), outputs=(spec,)))
    data = tuple(TensorSpec(name=name, shape=("B", 4), dtype="float32", nbytes=Affine(0, 16)) for name in "xy")
    return Graph(
        name="chain",
        inputs=data,
        targets=("y",),
        ops=tuple(ops),
        parameters=tuple(
            Parameter(
                name=f"{name}.weight", shape=(rows, 4), dtype="float32", nbytes=16 * rows, trainable=name not in frozen
            )
            for name, rows in LAYERS.items()
        ),
        buffers={},
        storages={},
    )


GRAPH = _graph()


def _drawn(strategy: Strategy, kind: Kind, graph: Graph = GRAPH, *, first: bool = True) -> list[str]:
    """Each collective as `label bytes start > wait`, `^` before an operation's part and `$` after it."""
    inners = zero_collectives(graph, graph.ops, strategy, kind=kind, first=first, last=True)
    found = []
    for inner in inners:
        wait = "" if inner.wait is None else f" > {inner.wait.op}{'^' if inner.wait.before else '$'}"
        found.append(f"{inner.label} {inner.nbytes} {inner.start.op}{'^' if inner.start.before else '$'}{wait}")
    return found


def test_a_forward_gathers_one_unit_ahead() -> None:
    """The root: 6 and 5 rows, the 5 padded to 6. A block: 2 and 3 rows, the 3 padded to 4."""
    assert _drawn(ZERO3, Kind.FORWARD) == [
        "u0 192 embed^ > embed^",
        "u1 96 embed^ > blocks.0.up^",
        "u2 96 blocks.0.up^ > blocks.1.up^",
    ]


def test_a_backward_gathers_again_and_scatters_what_is_done() -> None:
    """The last unit is gathered as soon as the loss has its gradient; the root has kept its parameters."""
    assert _drawn(ZERO3, Kind.BACKWARD) == [
        "v2 96 loss$ > blocks.1.down^",
        "v1 96 blocks.1.down^ > blocks.0.down^",
        "s2 96 blocks.1.up$ > blocks.0.up$",
        "s1 96 blocks.0.up$ > embed$",
        "s0 192 embed$ > embed$",
    ]


def test_what_is_kept_is_gathered_once_a_step() -> None:
    assert _drawn(ZERO2, Kind.FORWARD) == _drawn(ZERO3, Kind.FORWARD)
    assert _drawn(ZERO2, Kind.FORWARD, first=False) == []
    assert _drawn(ZERO2, Kind.BACKWARD) == [line for line in _drawn(ZERO3, Kind.BACKWARD) if line[0] == "s"]
    assert _drawn(ZERO3, Kind.FORWARD, first=False) == _drawn(ZERO3, Kind.FORWARD)
    assert _drawn(ZERO2, Kind.EVALUATE, first=False) == _drawn(ZERO2, Kind.FORWARD)


def test_what_is_frozen_is_gathered_and_not_scattered() -> None:
    """No gradient comes back to block 0, which is gathered ahead all the same; block 1 passes none on."""
    frozen = _graph(frozen=("embed", "blocks.0.up", "blocks.0.down"))
    assert _drawn(ZERO3, Kind.BACKWARD, frozen) == [
        "v2 96 loss$ > blocks.1.down^",
        "v1 96 blocks.1.down^",
        "s0 96 embed$ > embed$",
        "s2 96 embed$ > embed$",
    ]


@pytest.mark.parametrize("strategy", [builders.strategy(dp=2), builders.strategy(dp=2, zero=1), replace(ZERO3, dp=1)])
def test_nothing_is_gathered_where_parameters_are_whole(strategy: Strategy) -> None:
    assert all(_drawn(strategy, kind) == [] for kind in (Kind.FORWARD, Kind.BACKWARD))


def test_updated_parameters_are_dealt_out_by_size() -> None:
    """96, 80, 48, 48, 32, 32 bytes: 96 + 48 + 32 and 80 + 48 + 32."""
    handed = after_update(GRAPH, GRAPH.ops, builders.strategy(dp=2, zero=1), ())
    assert [(item.label, item.root, item.nbytes) for item in handed] == [("w0", 0, 176), ("w1", 1, 160)]
    assert handed[0].parameters == ("embed.weight", "blocks.1.up.weight", "blocks.1.down.weight")


def test_the_program_of_a_step_with_everything_sharded() -> None:
    program = lower(GRAPH, replace(ZERO3, microbatches=2), batch=8, clip=True)
    tokens = [item.token for item in program.ranks[1] if item.communicates]
    forward = [f"0AG{m}#{label}" for m in range(2) for label in ("u0", "u1", "u2")]
    backward = [
        f"0{name}" for m in range(2) for name in (f"AG{m}#v2", f"AG{m}#v1", *(f"RS{m}#s{k}" for k in (2, 1, 0)))
    ]
    assert tokens == [*forward[:3], *backward[:5], *forward[3:], "AR#loss", *backward[5:], "AR#norm"]
    assert not any(item.kind == Kind.ALL_REDUCE and item.label.startswith("b") for item in program)


def test_the_program_of_a_step_with_the_update_shared_out() -> None:
    program = lower(GRAPH, builders.strategy(dp=2, zero=1), batch=8)
    after = [item for item in program.ranks[1] if item.kind == Kind.BROADCAST]
    assert [(item.token, item.root_rank, item.nbytes, item.after) for item in after] == [
        ("0BC#w0", 0, 176, ("U",)),
        ("0BC#w1", 1, 160, ("U",)),
    ]


def test_an_evaluation_gathers_too() -> None:
    program = lower_evaluation(GRAPH, ZERO2, batch=8)
    assert [item.token for item in program.ranks[0] if item.kind == Kind.ALL_GATHER] == [
        "0AG0#u0",
        "0AG0#u1",
        "0AG0#u2",
    ]
