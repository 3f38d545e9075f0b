"""The reference scorer, on a schedule worked by hand, and on the same with one rule broken.

a (1 + 2 s) is read by b (3 + 3 s) on device 0 and by c (2 + 2 s) on device 1; tensors of 1 s a way

device 0   F a 0-1   F b 1-4             B b 4-7    B a 7-9
0>1                a 1-2
device 1               F c 2-4   B c 4-6
1>0                                    grad a 6-7
"""

from dataclasses import replace
from typing import Any

import pytest
from tests.raising import raises

from trimaran.base.errors import SolverError
from trimaran.placement.check import check
from trimaran.placement.problem import NodeRun, NodeTransfer, PlacementNode, PlacementProblem, Wire

PROBLEM = PlacementProblem(
    nodes=(
        PlacementNode(
            name="a", forward_s=1, backward_s=2, nbytes=4, backward_nbytes=4, saved_bytes=10, state_bytes=100
        ),
        PlacementNode(name="b", forward_s=3, backward_s=3, saved_bytes=5),
        PlacementNode(name="c", forward_s=2, backward_s=2, saved_bytes=7, state_bytes=50),
    ),
    edges=((0, 1), (0, 2)),
    memory_bytes=(200.0, 61.0),
    wires={
        (0, 1): Wire(bytes_per_s=4.0, links=("0>1",)),
        (1, 0): Wire(bytes_per_s=4.0, links=("1>0",)),
    },
)  # fmt: skip
RUNS = (
    NodeRun(node="a", phase="F", device=0, start_s=0, end_s=1),
    NodeRun(node="b", phase="F", device=0, start_s=1, end_s=4),
    NodeRun(node="c", phase="F", device=1, start_s=2, end_s=4),
    NodeRun(node="b", phase="B", device=0, start_s=4, end_s=7),
    NodeRun(node="c", phase="B", device=1, start_s=4, end_s=6),
    NodeRun(node="a", phase="B", device=0, start_s=7, end_s=9),
)
MOVES = (
    NodeTransfer(node="a", phase="F", source=0, target=1, start_s=1, end_s=2, links=("0>1",)),
    NodeTransfer(node="a", phase="B", source=1, target=0, start_s=6, end_s=7, links=("1>0",)),
)


def changed(index: int, **fields: object) -> tuple[NodeRun, ...]:
    """The schedule with one run changed."""
    return tuple(replace(run, **fields) if at == index else run for at, run in enumerate(RUNS))


def moved(index: int, **fields: object) -> tuple[NodeTransfer, ...]:
    """The transfers with one changed."""
    return tuple(replace(move, **fields) if at == index else move for at, move in enumerate(MOVES))


def test_a_legal_schedule_has_its_makespan_and_peaks() -> None:
    """Device 0: 100 + 10 + 5, and the 4 bytes of the gradient from 6 on; device 1: 50 + 7 + 4 for a's output."""
    score = check(PROBLEM, RUNS, MOVES)
    assert score.makespan_s == 9
    assert score.peak_bytes == (119, 61)
    assert score.busy_s == (9, 4)


@pytest.mark.parametrize(
    ("runs", "moves", "code", "figures"),
    [
        (RUNS[:-1], MOVES, "placement.run-missing", {"node": "a"}),
        ((*RUNS, RUNS[0]), MOVES, "placement.run-twice", {}),
        (changed(0, node="z"), MOVES, "placement.foreign-run", {}),
        (changed(4, device=0, start_s=9, end_s=11), MOVES, "placement.backward-elsewhere", {}),
        (changed(1, end_s=3.5), MOVES, "placement.wrong-duration", {"match": r"\b3\b"}),
        (changed(3, start_s=3.5, end_s=6.5), MOVES, "placement.two-at-once", {"where": "device 0"}),
        (changed(2, start_s=1.5, end_s=3.5), MOVES, "placement.too-early", {"first": "transfer F of a from 0 to 1"}),
        (changed(5, start_s=6.5, end_s=8.5), MOVES, "placement.two-at-once", {"where": "device 0"}),
        (changed(0, start_s=-1, end_s=0), MOVES, "placement.wrong-duration", {"match": r"-1\b"}),
        (RUNS, MOVES[:1], "placement.wrong-transfers", {}),
        (RUNS, (*MOVES, replace(MOVES[0], node="b")), "placement.wrong-duration", {"match": r"\b0\b"}),
        (RUNS, (*MOVES, MOVES[0]), "placement.transfer-twice", {}),
        (RUNS, moved(0, start_s=0.5, end_s=1.5), "placement.too-early", {"first": "F of a"}),
        (RUNS, moved(1, start_s=5, end_s=6), "placement.too-early", {"first": "B of c"}),
        (RUNS, moved(0, end_s=1.5), "placement.wrong-duration", {"match": r"\b1\b"}),
        (RUNS, moved(0, links=("elsewhere",)), "placement.wrong-links", {}),
    ],
)
def test_a_broken_rule_is_told(
    runs: tuple[NodeRun, ...], moves: tuple[NodeTransfer, ...], code: str, figures: dict[str, Any]
) -> None:
    with raises(code, SolverError, **figures):
        check(PROBLEM, runs, moves)


def test_too_little_memory_is_told() -> None:
    with raises("placement.too-much-memory", SolverError, match=r"\b1\b.*\b61\b.*\b60\b"):
        check(replace(PROBLEM, memory_bytes=(200.0, 60.0)), RUNS, MOVES)


def test_two_wires_that_share_a_link_may_not_use_it_at_once() -> None:
    """b and c of the source are read on devices 1 and 2, over one card out."""
    wires = {(a, b): Wire(bytes_per_s=1.0, links=(f"out{a}", f"in{b}")) for a in range(3) for b in range(3) if a != b}
    problem = PlacementProblem(
        nodes=(
            PlacementNode(name="a", forward_s=1, backward_s=0, nbytes=2),
            PlacementNode(name="b", forward_s=1, backward_s=0),
            PlacementNode(name="c", forward_s=1, backward_s=0),
        ),
        edges=((0, 1), (0, 2)),
        memory_bytes=(9.0,) * 3,
        wires=wires,
    )

    def schedule(first: float, second: float) -> tuple[tuple[NodeRun, ...], tuple[NodeTransfer, ...]]:
        runs = [NodeRun(node="a", phase="F", device=0, start_s=0, end_s=1)]
        moves = []
        for device, (name, start) in enumerate((("b", first), ("c", second)), start=1):
            runs.append(NodeRun(node=name, phase="F", device=device, start_s=start + 2, end_s=start + 3))
            runs.append(NodeRun(node=name, phase="B", device=device, start_s=start + 3, end_s=start + 3))
            out, back = wires[0, device], wires[device, 0]
            moves.append(
                NodeTransfer(
                    node="a", phase="F", source=0, target=device, start_s=start, end_s=start + 2, links=out.links
                )
            )
            moves.append(
                NodeTransfer(
                    node="a", phase="B", source=device, target=0, start_s=start + 3, end_s=start + 3, links=back.links
                )
            )
        end = max(first, second) + 3
        runs.append(NodeRun(node="a", phase="B", device=0, start_s=end, end_s=end))
        return tuple(runs), tuple(moves)

    assert check(problem, *schedule(1, 3)).makespan_s == 6
    with raises("placement.two-at-once", SolverError, where="link out0"):
        check(problem, *schedule(1, 2))
