"""Placements that can be worked out by hand."""

import random
import time
from dataclasses import replace
from typing import Any

import pytest
from tests.raising import raises

from trimaran.base.errors import InfeasibleError
from trimaran.placement import exact, solve
from trimaran.placement.list_scheduling import list_schedule
from trimaran.placement.problem import Flat, Placement, PlacementNode, PlacementProblem, Wire, flatten
from trimaran.placement.schedule import NodeSchedule
from trimaran.placement.solve import place
from trimaran.placement.stages import Core, filled_up, put_back, side_nodes, stages, waists, without


def node(name: str, forward_s: float, backward_s: float, nbytes: float = 0.0, **more: float) -> PlacementNode:
    """A node whose gradient is as large as its output."""
    return PlacementNode(
        name=name, forward_s=forward_s, backward_s=backward_s, nbytes=nbytes, backward_nbytes=nbytes, **more
    )


def alike(
    nodes: list[PlacementNode], edges: list[tuple[int, int]], *, devices: int = 2, memory: float = 1e9
) -> PlacementProblem:
    """Devices of one kind, with wires of a byte a second."""
    return PlacementProblem(
        nodes=tuple(nodes),
        edges=tuple(edges),
        memory_bytes=(memory,) * devices,
        wires={
            (a, b): Wire(bytes_per_s=1.0, links=(f"{a}>{b}",)) for a in range(devices) for b in range(devices) if a != b
        },
    )


def fork(cells: int, width: int = 2, *, devices: int = 2) -> PlacementProblem:
    """Cells of branches of 4 + 6 s between joins of no time; a tensor takes 1 s to cross."""
    nodes, edges, last = [node("start", 0, 0, 1)], [], 0
    for cell in range(cells):
        branches = []
        for branch in range(width):
            edges.append((last, len(nodes)))
            branches.append(len(nodes))
            nodes.append(node(f"c{cell}.b{branch}", 4, 6, 1))
        edges += [(branch, len(nodes)) for branch in branches]
        last = len(nodes)
        nodes.append(node(f"c{cell}.join", 0, 0, 1))
    return alike(nodes, edges, devices=devices)


def test_two_branches_run_side_by_side() -> None:
    """One branch stays, one goes with the join: 1 + 4 s, then 6 + 1 s back: 12 s instead of 20."""
    answer = place(fork(1), time_limit_s=5)
    assert answer.makespan_s == pytest.approx(12.0)
    assert answer.speedup == pytest.approx(20 / 12)
    assert answer.gap == pytest.approx(0.0, abs=1e-6)
    assert answer.device_of["c0.b0"] != answer.device_of["c0.b1"]


def test_cells_in_a_row_are_solved_one_by_one_to_the_end() -> None:
    """Twelve cells are 12 times one, and proved so: a waist between them makes the bound of the whole a sum."""
    answer = place(fork(12), time_limit_s=10)
    one = place(fork(1), time_limit_s=5)
    assert answer.makespan_s == pytest.approx(12 * one.makespan_s)
    assert answer.gap == pytest.approx(0.0, abs=1e-6)


def test_a_chain_stays_where_it_is_and_says_why() -> None:
    chain = alike([node(f"n{i}", 1, 2, 1) for i in range(20)], [(i, i + 1) for i in range(19)])
    answer = place(chain, time_limit_s=5)
    assert answer.makespan_s == pytest.approx(60.0)
    assert len(set(answer.device_of.values())) == 1
    assert "a pipeline" in answer.notes[0]


def test_branches_whose_tensors_take_too_long_say_so() -> None:
    slow = replace(fork(3), wires={pair: Wire(bytes_per_s=0.01, links=(str(pair),)) for pair in ((0, 1), (1, 0))})
    answer = place(slow, time_limit_s=5)
    assert answer.speedup == pytest.approx(1.0)
    assert "a faster wire" in answer.notes[0]


def test_a_tensor_crosses_once_for_several_readers() -> None:
    """One producer, four readers: of those on the other device the gradients return as one."""
    nodes = [node("a", 1, 1, 2), *(node(f"r{i}", 5, 5) for i in range(4))]
    answer = place(alike(nodes, [(0, i) for i in range(1, 5)]), time_limit_s=5)
    assert [(move.node, move.phase) for move in answer.transfers] == [("a", "F"), ("a", "B")]
    assert answer.makespan_s == pytest.approx(1 + 2 + 10 + 10 + 2 + 1)


def test_a_pin_is_kept_and_costs_what_it_costs() -> None:
    problem = fork(4)
    pins = {node.name: 0 for node in problem.nodes}
    assert place(replace(problem, pinned=pins), time_limit_s=5).speedup == pytest.approx(1.0)
    kept = place(replace(problem, pinned={"c2.b1": 1, "c2.b0": 1}), time_limit_s=5)
    assert kept.device_of["c2.b0"] == kept.device_of["c2.b1"] == 1
    assert kept.makespan_s >= place(problem, time_limit_s=5).makespan_s


def test_memory_makes_nodes_move() -> None:
    """Two nodes of 10 bytes that would stay together, on devices of 12 bytes."""
    nodes = [node("a", 1, 1, 2, state_bytes=10), node("b", 1, 1, 0, state_bytes=10)]
    problem = alike(nodes, [(0, 1)], memory=12)
    assert place(replace(problem, memory_bytes=(20.0, 20.0)), time_limit_s=5).makespan_s == pytest.approx(4.0)
    answer = place(problem, time_limit_s=5)
    assert answer.makespan_s == pytest.approx(8.0)
    assert answer.peak_bytes == (12, 12)


def test_a_large_network_is_divided_by_memory() -> None:
    """Thirty nodes of a chain that hold a byte each, on two devices of 20."""
    nodes = [node(f"n{i}", 1, 1, 0.25, state_bytes=1) for i in range(30)]
    answer = place(alike(nodes, [(i, i + 1) for i in range(29)], memory=20), time_limit_s=5)
    assert max(answer.peak_bytes) <= 20
    assert answer.makespan_s == pytest.approx(60.5)


def test_what_cannot_fit_is_told() -> None:
    nodes = [node("a", 1, 1, state_bytes=10), node("b", 1, 1, state_bytes=10)]
    with raises("placement.nothing-fits", InfeasibleError, match=r"\b2\b"):
        place(alike(nodes, [(0, 1)], memory=9), time_limit_s=5)


def test_totals_that_cannot_fit_are_told_before_anything_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes that keep 6 bytes each until the loss, and 4 of state each, on two devices of 9."""
    monkeypatch.delattr(solve, "lists")
    nodes = [node(name, 1, 1, state_bytes=4, saved_bytes=6) for name in "ab"]
    with raises("placement.nothing-fits", InfeasibleError, match="no placement fits"):
        place(alike(nodes, [(0, 1)], memory=9))


def test_routes_over_one_link_take_turns() -> None:
    """One producer, a reader on each of three other devices; all tensors leave by one card, 2 s each."""
    nodes = [node("a", 0, 0, 2), *(node(f"r{i}", 20, 0) for i in range(4))]
    problem = alike(nodes, [(0, i) for i in range(1, 5)], devices=4)
    shared = {pair: Wire(bytes_per_s=1.0, links=(f"out{pair[0]}", f"in{pair[1]}")) for pair in problem.wires}
    assert place(problem, time_limit_s=5).makespan_s == pytest.approx(2 + 20 + 2)
    assert place(replace(problem, wires=shared), time_limit_s=5).makespan_s == pytest.approx(6 + 20 + 2)


@pytest.mark.sweep
def test_the_same_seed_gives_the_same_answer() -> None:
    problem = fork(3, 5)
    assert place(problem, work_s=2.0, seed=3) == place(problem, work_s=2.0, seed=3)


@pytest.mark.parametrize("devices", [1, 3, 4, 8])
def test_other_numbers_of_devices(devices: int) -> None:
    answer = place(fork(2, 4, devices=devices), time_limit_s=4)
    assert answer.speedup >= (1.0 if devices == 1 else 1.5)
    assert set(answer.device_of.values()) <= set(range(devices))


@pytest.mark.parametrize(
    ("change", "code", "figures"),
    [
        ({"nodes": ()}, "placement.empty", {}),
        ({"edges": ((1, 0),)}, "placement.bad-edge", {}),
        ({"edges": ((0, 9),)}, "placement.bad-edge", {}),
        ({"pinned": {"start": 7}}, "placement.bad-pin", {}),
        ({"wires": {(0, 1): Wire(bytes_per_s=1.0)}}, "placement.one-way-wire", {}),
        ({"wires": {(0, 5): Wire(bytes_per_s=1.0)}}, "placement.bad-wire", {"match": r"\b2\b"}),
        ({"nodes": (node("a", -1, 0),)}, "placement.negative-number", {"match": "not negative"}),
        ({"nodes": (node("a", float("nan"), 0),)}, "placement.negative-number", {"match": "not negative"}),
        ({"nodes": (node("a", 1, 0), node("a", 1, 0))}, "placement.node-twice", {"node": "a"}),
    ],
)
def test_a_wrong_problem_is_told(change: dict[str, object], code: str, figures: dict[str, Any]) -> None:
    problem = fork(1)
    with raises(code, **figures):
        place(replace(problem, **({"edges": ()} | change)), time_limit_s=1)


def test_waists_are_nodes_that_nothing_passes_by() -> None:
    """a -> b -> c with a -> c: b comes before or after all, and yet the edge from a to c passes it by."""
    flat = flatten(alike([node(name, 1, 1) for name in "abc"], [(0, 1), (1, 2), (0, 2)]))
    assert waists(flat) == [0, 2]
    assert [(stage.first, stage.last) for stage in stages(flat)] == [(0, 2)]
    assert [(stage.first, stage.last) for stage in stages(flatten(fork(2)))] == [(0, 3), (3, 6)]


def test_a_small_side_branch_is_left_out_to_find_waists() -> None:
    """A classifier of little work that hangs on the first cell keeps the joins after it from being waists."""
    problem = fork(3)
    nodes = (*problem.nodes, node("aux", 0.1, 0.1))
    flat = flatten(replace(problem, nodes=nodes, edges=(*problem.edges, (3, len(nodes) - 1))))
    assert waists(flat) == [0, 3]
    assert side_nodes(flat, 0.03) == [len(nodes) - 1]


def served(answer: Placement, name: str) -> float:
    """Start of a forward."""
    return next(run.start_s for run in answer.schedule if run.node == name and run.phase == "F")


def test_side_branches_are_put_back() -> None:
    problem = fork(20)
    nodes = (*problem.nodes, node("aux", 0.1, 0.1))
    answer = place(replace(problem, nodes=nodes, edges=(*problem.edges, (30, len(nodes) - 1))), time_limit_s=6)
    assert served(answer, "aux") > 0
    assert answer.gap < 0.01


def test_a_side_branch_is_put_into_a_gap() -> None:
    """Device 0 waits for 2 s between its branch's forward and its backward, and a branch of 1 + 1 s fits in there."""
    problem = fork(1)
    flat = flatten(problem)
    best = exact.solve(flat, list_schedule(flat), wall_s=5.0, work=5.0, seed=0).layout
    assert best is not None
    assert best.makespan_s == pytest.approx(12.0)
    more = flatten(replace(problem, nodes=(*problem.nodes, node("aux", 1, 1)), edges=(*problem.edges, (0, 4))))
    assert put_back(more, best, [0, 1, 2, 3], flat, [4]).makespan_s == pytest.approx(12.0)


def test_a_side_branch_that_no_gap_takes_is_in_the_bound() -> None:
    """Two cells of 12 s with 20 s of work each leave 8 s; of 20 s beside the first, which has 4, 16 are in no gap."""
    problem = fork(2)
    edges = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4), (4, 5), (4, 6), (5, 7), (6, 7)]
    more = flatten(alike([*problem.nodes[:3], node("aux", 10, 10), *problem.nodes[3:]], edges))
    part, kept = without(more, [3])
    core = Core(part=part, kept=kept, split=stages(part), dropped=[3])
    assert filled_up(more, core, [0.0, 12.0, 12.0, 0.0]) == pytest.approx(24.0 + (20.0 - 4.0) / 2)


def test_a_network_of_one_stage_is_listed_once_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing interrupts a list, so HEFT's is the only one then, and it is not made again for the stage."""
    crossings: list[float] = []

    def noted(flat: Flat, crossing: float) -> NodeSchedule:
        crossings.append(crossing)
        return list_schedule(flat, crossing)

    monkeypatch.setattr("trimaran.placement.search.list_schedule", noted)
    nodes = [node(f"n{number}", 1, 2, 1) for number in range(40)]
    edges = {(number // 3, number) for number in range(1, 40)}
    found = place(alike(nodes, sorted(edges)), time_limit_s=5.0, began=time.monotonic() - 10.0)
    assert crossings == [1.0]
    assert found.makespan_s <= 120.0


@pytest.mark.alone
def test_a_large_network_that_nothing_narrows_is_placed_in_its_time() -> None:
    """Leaving out its side branches again and again, each time with new lists, took many times the limit."""
    draw = random.Random(7)
    nodes = [node(f"n{number}", draw.uniform(0.05, 2), draw.uniform(0.05, 4), 1e-3) for number in range(2000)]
    edges = {(draw.randrange(max(0, number - 40), number), number) for number in range(1, 2000) for _ in range(2)}
    began = time.monotonic()
    found = place(alike(nodes, sorted(edges), memory=1e12), time_limit_s=8.0)
    assert time.monotonic() - began < 8.0
    assert found.heft_s is not None
    assert found.makespan_s <= found.heft_s
