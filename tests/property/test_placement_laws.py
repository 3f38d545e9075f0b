"""Laws of placement: the best of all on small graphs, never worse than a list schedule, legal by the reference scorer.

The brute force shares nothing with the solvers: for each assignment of devices it goes through every order in which
forwards, backwards and transfers can be appended to their devices and wires, and leaves out those that another one
beats in every respect, and those that cannot become shorter than the answer in question.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.list_schedule import earliest_finish

from trimaran.placement import exact
from trimaran.placement.check import check
from trimaran.placement.list_scheduling import list_schedule
from trimaran.placement.problem import Flat, Placement, PlacementNode, PlacementProblem, Wire, flatten
from trimaran.placement.schedule import NodeSchedule
from trimaran.placement.solve import place
from trimaran.placement.stages import Core, filled_up, flat_of, put_back, stages, with_ends, without

REL = 2e-6
"""Whole-number times of the solver are rounded to a millionth of the step."""


@dataclass
class Item:
    """A task or transfer of one assignment: where, how long, and after which others."""

    where: str
    seconds: float
    after: list[str]


def items_of(problem: PlacementProblem, on: tuple[int, ...]) -> dict[str, Item]:
    """Everything that has to happen for an assignment."""
    readers: dict[int, list[int]] = {index: [] for index in range(len(problem.nodes))}
    for producer, consumer in set(problem.edges):
        readers[producer].append(consumer)
    found = {}
    for index, node in enumerate(problem.nodes):
        found[f"F{index}"] = Item(f"d{on[index]}", node.forward_s, [])
        found[f"B{index}"] = Item(f"d{on[index]}", node.backward_s, [f"F{index}"])
    for index, node in enumerate(problem.nodes):
        for other in sorted({on[reader] for reader in readers[index]}):
            there = [reader for reader in readers[index] if on[reader] == other]
            if other == on[index]:
                for reader in there:
                    found[f"F{reader}"].after.append(f"F{index}")
                    found[f"B{index}"].after.append(f"B{reader}")
                continue
            go, back = problem.wires[on[index], other], problem.wires[other, on[index]]
            found[f"go{index}>{other}"] = Item(go.links[0], go.latency_s + node.nbytes / go.bytes_per_s, [f"F{index}"])
            found[f"back{index}<{other}"] = Item(
                back.links[0], back.latency_s + node.backward_nbytes / back.bytes_per_s, [f"B{r}" for r in there]
            )
            for reader in there:
                found[f"F{reader}"].after.append(f"go{index}>{other}")
            found[f"B{index}"].after.append(f"back{index}<{other}")
    return found


def shortest(items: Mapping[str, Item], at_most: float) -> float:
    """Length of the best order, or `at_most` where none is shorter."""
    tails: dict[str, float] = {}

    def tail(name: str) -> float:
        if name not in tails:
            later = [other for other, item in items.items() if name in item.after]
            tails[name] = items[name].seconds + max((tail(other) for other in later), default=0.0)
        return tails[name]

    for name in items:
        tail(name)
    best = at_most
    seen: dict[frozenset[str], list[tuple[float, ...]]] = {}

    def go(done: frozenset[str], ends: dict[str, float], free: dict[str, float]) -> None:
        nonlocal best
        if len(done) == len(items):
            best = min(best, max(ends.values()))
            return
        open_names = sorted(
            name for name in done if any(name in item.after for other, item in items.items() if other not in done)
        )
        state = (*(free[where] for where in sorted(free)), *(ends[name] for name in open_names))
        known = seen.setdefault(done, [])
        if any(all(a <= b for a, b in zip(other, state, strict=True)) for other in known):
            return
        known.append(state)
        for name, item in items.items():
            if name in done or not set(item.after) <= done:
                continue
            start = max([free[item.where], *(ends[other] for other in item.after)])
            if start + tails[name] >= best:
                continue
            end = start + item.seconds
            go(done | {name}, ends | {name: end}, free | {item.where: end})

    go(frozenset(), {}, {item.where: 0.0 for item in items.values()})
    return best


def shorter(problem: PlacementProblem, than_s: float) -> float | None:
    """A step that is shorter than that, of any assignment and order; None where there is none."""
    for on in itertools.product(range(problem.devices), repeat=len(problem.nodes)):
        if on[0] == 0:  # devices are alike
            found = shortest(items_of(problem, on), than_s)
            if found < than_s:
                return found
    return None


def problem_of(nodes: list[tuple[int, int, int]], edges: list[tuple[int, int]], devices: int = 2) -> PlacementProblem:
    """A problem with times in seconds, and wires that take a second for a unit."""
    return PlacementProblem(
        nodes=tuple(
            PlacementNode(name=f"n{i}", forward_s=f, backward_s=b, nbytes=size, backward_nbytes=size)
            for i, (f, b, size) in enumerate(nodes)
        ),
        edges=tuple(edges),
        memory_bytes=(1e9,) * devices,
        wires={
            (a, b): Wire(bytes_per_s=1.0, links=(f"{a}>{b}",)) for a in range(devices) for b in range(devices) if a != b
        },
    )


@st.composite
def problems(draw: st.DrawFn, most: int = 5, devices: int = 2) -> PlacementProblem:
    """Small graphs with branches; times and sizes are small whole numbers, zero included."""
    count = draw(st.integers(1, most))
    nodes = draw(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7), st.integers(0, 3)), min_size=count, max_size=count)
    )
    pairs = [(a, b) for b in range(count) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=7)) if pairs else []
    return problem_of(nodes, edges, devices)


def confirmed(problem: PlacementProblem, answer: Placement) -> Placement:
    """The answer, after the reference scorer has agreed to it."""
    score = check(problem, answer.schedule, answer.transfers)
    assert score.makespan_s == pytest.approx(answer.makespan_s)
    assert answer.bound_s <= answer.makespan_s * (1 + 1e-9)
    return answer


@settings(max_examples=60, deadline=None)
@given(problems())
def test_small_graphs_are_placed_as_brute_force_does(problem: PlacementProblem) -> None:
    answer = confirmed(problem, place(problem, time_limit_s=20))
    assert shorter(problem, answer.makespan_s * (1 - REL)) is None
    assert answer.gap <= REL


SEVEN = [
    # two branches, joined
    ([(1, 2, 1), (3, 4, 1), (2, 5, 2), (4, 3, 1), (2, 2, 1), (3, 1, 1), (1, 1, 0)],
     [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 5), (5, 6)]),
    # one tensor read by three on another device; their gradients return once
    ([(1, 1, 3), (4, 4, 1), (4, 4, 1), (4, 4, 1), (5, 5, 1), (1, 1, 1), (1, 2, 0)],
     [(0, 1), (0, 2), (0, 3), (0, 4), (1, 5), (2, 5), (3, 6), (4, 6), (5, 6)]),
    # two ends, one of which may go back before the other is there
    ([(2, 3, 1), (5, 2, 1), (1, 6, 1), (3, 3, 1), (2, 4, 1), (6, 1, 0), (2, 2, 0)],
     [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6), (2, 3)]),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "edges"), SEVEN)
def test_seven_operations_are_placed_as_brute_force_does(
    nodes: list[tuple[int, int, int]], edges: list[tuple[int, int]]
) -> None:
    problem = problem_of(nodes, edges)
    answer = confirmed(problem, place(problem, time_limit_s=20))
    assert shorter(problem, answer.makespan_s * (1 - REL)) is None
    assert answer.gap <= REL


@settings(max_examples=15, deadline=None)
@given(problems(most=4, devices=3))
def test_three_devices_are_used_as_brute_force_does(problem: PlacementProblem) -> None:
    answer = confirmed(problem, place(problem, time_limit_s=20))
    assert shorter(problem, answer.makespan_s * (1 - REL)) is None


@st.composite
def branchy(draw: st.DrawFn) -> PlacementProblem:
    """Larger graphs: each node reads one to three of the ten before it."""
    count = draw(st.integers(12, 40))
    nodes = [(draw(st.integers(1, 9)), draw(st.integers(1, 19)), draw(st.integers(0, 9))) for _ in range(count)]
    edges = {
        (draw(st.integers(max(0, consumer - 10), consumer - 1)), consumer)
        for consumer in range(1, count)
        for _ in range(draw(st.integers(1, 3)))
    }
    return problem_of(nodes, sorted(edges))


@settings(max_examples=12, deadline=None)
@given(branchy())
def test_no_list_schedule_is_shorter(problem: PlacementProblem) -> None:
    answer = confirmed(problem, place(problem, work_s=0.1))
    assert answer.makespan_s <= earliest_finish(problem) * (1 + 1e-9)
    assert answer.makespan_s <= problem.serial_s * (1 + 1e-9)


@settings(max_examples=10, deadline=None)
@given(problems(most=5), st.integers(0, 20))
def test_what_fits_is_found_and_what_does_not_is_refused(problem: PlacementProblem, memory: int) -> None:
    """With one device able to hold a node or two only, the answer never holds more than there is."""
    from dataclasses import replace

    from trimaran.base.errors import InfeasibleError

    nodes = tuple(replace(node, saved_bytes=node.forward_s, state_bytes=3.0) for node in problem.nodes)
    tight = replace(problem, nodes=nodes, memory_bytes=(float(memory), 12.0))
    try:
        answer = place(tight, time_limit_s=5)
    except InfeasibleError:
        assert memory_of_one(tight) > 12.0
        return
    assert all(peak <= limit for peak, limit in zip(answer.peak_bytes, tight.memory_bytes, strict=True))


def memory_of_one(problem: PlacementProblem) -> float:
    """What all nodes hold on one device: where that fits, something fits."""
    return sum(node.saved_bytes + node.state_bytes for node in problem.nodes)


@st.composite
def narrow(draw: st.DrawFn) -> tuple[PlacementProblem, list[int]]:
    """Cells between joins, beside which a node or two run that read some node and may be read by a later one."""
    nodes = [(draw(st.integers(0, 3)), draw(st.integers(0, 3)), draw(st.integers(0, 2)))]
    edges: list[tuple[int, int]] = []
    joins, branches = [0], []
    for _ in range(draw(st.integers(1, 2))):
        inner = [len(nodes) + branch for branch in range(draw(st.integers(1, 2)))]
        join = len(nodes) + len(inner)
        edges += [(joins[-1], branch) for branch in inner] + [(branch, join) for branch in inner]
        nodes += [(draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.integers(0, 2))) for _ in inner]
        nodes.append((draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(st.integers(0, 2))))
        branches += inner
        joins.append(join)
    # Side nodes come last by number, unless a node of the chain reads them: then all is numbered anew.
    side = []
    for _ in range(1 if len(nodes) > 5 else draw(st.integers(1, 2))):
        reads = draw(st.sampled_from([-1, *range(len(nodes))]))
        reader = draw(st.sampled_from([-1, *(other for other in range(len(nodes)) if other > reads)]))
        side.append(len(nodes))
        if reads >= 0:
            edges.append((reads, len(nodes)))
        if reader >= 0 and reader not in side:
            edges.append((len(nodes), reader))
        nodes.append((draw(st.integers(0, 6)), draw(st.integers(0, 6)), draw(st.integers(0, 2))))
    order = in_order(len(nodes), edges)
    place_of = {node: index for index, node in enumerate(order)}
    problem = problem_of([nodes[node] for node in order], sorted((place_of[a], place_of[b]) for a, b in edges))
    return problem, sorted(place_of[node] for node in side)


def in_order(count: int, edges: list[tuple[int, int]]) -> list[int]:
    """Nodes, none before one that it reads; of those that can come, the first."""
    order: list[int] = []
    while len(order) < count:
        order.append(
            next(
                node
                for node in range(count)
                if node not in order and all(producer in order for producer, reader in edges if reader == node)
            )
        )
    return order


def solved(flat: Flat) -> NodeSchedule:
    """The best schedule, or one of no length."""
    start = list_schedule(flat)
    return exact.solve(flat, start, wall_s=20.0, work=20.0, seed=0).layout or start


@settings(max_examples=60, deadline=None)
@given(narrow())
def test_no_placement_is_below_the_bound_with_side_nodes(case: tuple[PlacementProblem, list[int]]) -> None:
    """Bounds of stages that are the best there is, and side nodes filled into what they leave."""
    problem, side = case
    flat = flatten(problem)
    part, kept = without(flat, side)
    split = stages(part)
    least = [solved(flat_of(part, stage, {})).makespan_s * (1 - REL) for stage in split]
    bounds = with_ends(part, split, least)
    bound_s = filled_up(flat, Core(part=part, kept=kept, split=split, dropped=side), bounds)
    assert bound_s >= sum(bounds)
    assert shorter(problem, bound_s * (1 - REL)) is None
    for layout in (solved(part), list_schedule(part)):
        whole = put_back(flat, layout, kept, part, side)
        assert whole.makespan_s >= bound_s * (1 - REL)
