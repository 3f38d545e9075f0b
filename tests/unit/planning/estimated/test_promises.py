"""A search on many devices: no simple plan that it may choose beats its answer, whatever its time limit."""

import dataclasses
import functools
import importlib
import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from tests import builders

from trimaran.base.errors import InfeasibleError
from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import fastest, may_be_as_fast
from trimaran.planner.pins import Pins, parse_pins
from trimaran.planner.problem import Problem, quick_bounds
from trimaran.planner.result import Search, said_of_compression
from trimaran.planner.trials import Trials
from trimaran.planning.estimated_problem import machine_problem
from trimaran.program.gradients import Compression

# The package has a function of this name too.
searching: ModuleType = importlib.import_module("trimaran.planner.search")

TOLERANCE = 1e-9

SLOW_LINKS = ("bert:large", "p3dn.24xlarge:8@ethernet-10g", 64, 512)
"""Where gradients of 1.3 GB cross links of 10 Gbit/s, and compressing them decides."""

CASES = (
    ("lenet", "p3dn.24xlarge:2@ethernet-10g", 16, 1024),
    ("alexnet", "dgx1-v100:2@ethernet-25g", 16, 512),
    ("gpt2", "dgx1-v100-32gb:2", 16, 64),
)
EACH = [pytest.param(case, id=case[0], marks=[pytest.mark.sweep] if case[0] == "gpt2" else []) for case in CASES]


@functools.cache
def problem_at(job: str, cluster: str, devices: int, batch: int) -> Problem:
    request = builders.cluster_request(cluster=cluster, devices=devices, batch=batch, pins=builders.pins(compress=True))
    return machine_problem(job, request)


class Ticks:
    """A clock on which every look takes the same time, so that a limit cuts a search at the same place each time."""

    def __init__(self, tick_s: float) -> None:
        self._tick_s, self._looks = tick_s, 0

    def monotonic(self) -> float:
        self._looks += 1
        return self._looks * self._tick_s


def searched(problem: Problem, monkeypatch: pytest.MonkeyPatch, *, looks: int | None) -> Search[Candidate]:
    """The search, cut off after it has looked at its clock so many times; None: without a limit."""
    if looks is None:
        return searching.search(problem)  # type: ignore[no-any-return]  # a module by its name
    with monkeypatch.context() as changed:
        changed.setattr(searching, "time", Ticks(1.0))
        return searching.search(dataclasses.replace(problem, time_limit_s=float(looks)))  # type: ignore[no-any-return]


def replicas(devices: int) -> Iterator[dict[str, Any]]:
    """Plans of whole networks on all devices, as a person pins them."""
    plain = {"dp": devices, "pp": 1, "tp": 1}
    for zero in (0, 1, 2, 3):
        yield {**plain, "zero": zero}
    for method in ("bf16", "powersgd:4"):
        yield {**plain, "zero": 0, "compression": method, "microbatches": 1}
    yield {**plain, "zero": 0, "nodes": 2}


def others(devices: int) -> Iterator[dict[str, Any]]:
    """Plans of stages and of shared layers, alone and with replicas."""
    for width in (2, 8):
        for schedule in ("1f1b", "interleaved", "zero-bubble"):
            yield {"dp": devices // width, "pp": width, "tp": 1, "schedule": schedule}
        yield {"dp": devices // width, "pp": 1, "tp": width}
    yield {"dp": 1, "pp": devices // 2, "tp": 2}


def pinned(problem: Problem, decided: dict[str, Any]) -> Candidate | None:
    """The fastest plan that keeps pins; None: there is none."""
    pins: Pins = parse_pins(allow=["compress"], **decided)
    try:
        found = searching.search(dataclasses.replace(problem, pins=pins))
    except InfeasibleError:
        return None
    return fastest(found.candidates)


def check(found: Search[Candidate], problem: Problem, plans: Iterator[dict[str, Any]]) -> None:
    best_s = fastest(found.candidates).objective_s
    assert may_be_as_fast(found.chosen.cases, fastest(found.candidates).cases)
    compared = 0
    for decided in plans:
        plan = pinned(problem, decided)
        if plan is not None:
            compared += 1
            assert best_s <= plan.objective_s * (1 + TOLERANCE), (plan.name, decided)
    assert compared > 2


@pytest.mark.sweep
def test_plain_replicas_are_tried_however_short_the_time_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed, a step takes a ninth of that of plain replicas: no limit may hide that."""
    problem = problem_at(*SLOW_LINKS)
    found = searched(problem, monkeypatch, looks=0)
    assert not found.is_complete
    assert found.chosen.strategy.compression is not None
    assert found.chosen.strategy.dp == 64
    check(found, problem, itertools.islice(replicas(64), 3, 6))


@pytest.mark.parametrize(
    ("case", "looks"),
    [
        # A search of which nothing is left out looks at all plans of each network: one of them is enough.
        pytest.param(
            *(*one.values, looks),
            id=f"{looks}-{one.id}",
            marks=[*one.marks, *([pytest.mark.sweep] if looks is None and one.id != "lenet" else [])],
        )
        for looks in (0, 100, None)
        for one in EACH
    ],
)
def test_no_simple_plan_beats_the_answer(
    case: tuple[str, str, int, int], looks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_at(*case)
    found = searched(problem, monkeypatch, looks=looks)
    check(found, problem, replicas(case[2]))
    if looks is None:
        assert found.is_complete
        check(found, problem, others(case[2]))


def test_a_search_that_is_cut_short_says_nothing_of_what_it_has_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_at(*CASES[1])
    found = searched(problem, monkeypatch, looks=0)
    left = [one for one in found.rejected if one.cause == "time"]
    assert left
    assert all("at least" not in one.reason for one in left)
    assert found.gap is None
    only = dataclasses.replace(found, candidates=tuple(c for c in found.candidates if c.strategy.compression is None))
    powersgd = builders.strategy(dp=16, compression=Compression(method="powersgd", rank=4))
    compressed = dataclasses.replace(left[0], strategy=powersgd)
    only = dataclasses.replace(only, references=(), chosen=only.candidates[0], rejected=(compressed,))
    assert "is not known" in said_of_compression(only, problem.pins)


@pytest.mark.parametrize("case", EACH)
def test_bounds_from_totals_are_never_above_the_simulation(case: tuple[str, str, int, int]) -> None:
    """Of communication too: over links of 10 and 25 Gbit/s, NVLink and InfiniBand."""
    problem = problem_at(*case)
    # Bounds that take stages for equal are no bounds of stages that are not.
    trials, bounds = Trials(problem), dataclasses.replace(quick_bounds(problem), balanced=False)
    strategies = searching.enumerate_strategies(
        problem.graph, devices=problem.devices, batch=problem.batch, pins=problem.pins, hosts=problem.cluster.hosts
    )[0]
    exchanging = tight = 0
    for strategy in itertools.islice(strategies, 0, None, 7):
        if strategy.parts or strategy.pp * strategy.microbatches > 64:
            continue
        found = trials.try_out(strategy, problem)
        if not isinstance(found, Candidate):
            continue
        lower = bounds.of(strategy)
        for bounded, taken in zip(lower.cases[1:], found.cases[1:], strict=True):
            assert bounded * found.samples_factor <= taken * (1 + 1e-6), strategy.name
        exchanging += strategy.dp > 1
        tight += lower.objective_s > 0.5 * found.step_time_s
    assert exchanging > 5
    assert tight > exchanging // 3
