"""Answers do not depend on how fast a machine is: to one whose clock leaps an hour at each look they are the same.

Where the user gives a time limit, a plan keeps it in work, so that it ends a search alike on any machine, and the
answer says so. Placements and memory plans that are asked for by themselves have limits of the clock.
"""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from tests import builders
from tests.unit.memory.test_search import EVEN, planned
from tests.unit.placement.test_place import alike, fork, node

from trimaran.machine.find import find_machine
from trimaran.placement.problem import PlacementProblem
from trimaran.placement.solve import place
from trimaran.planner.analytical.candidates import AnalyticalCandidate
from trimaran.planner.analytical.search import search_degrees, transformer_problem
from trimaran.planner.result import Search
from trimaran.planning.answer.evidence import Outlook
from trimaran.planning.plan import make_plan
from trimaran.pricing.analytical.shapes import gpt_shape

SHAPE = gpt_shape(layers=24, hidden=4096, heads=32, vocabulary=51200, sequence=2048)


@contextmanager
def slow() -> Iterator[None]:
    """A machine on which an hour passes between two looks at the clock."""
    hours = itertools.count(0, 3600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: float(next(hours)))
        yield


def searched(time_limit_s: float | None = None, **asked: int) -> Search[AnalyticalCandidate]:
    """60 sequences divide over fewer devices than 32: which are the fastest takes time to say."""
    problem = transformer_problem(SHAPE, find_machine("dgx-a100:4"), batch=60, time_limit_s=time_limit_s)
    return replace(search_degrees(replace(problem, **asked)), seconds=0.0)  # type: ignore[arg-type]


def tree() -> PlacementProblem:
    nodes = [node(f"n{number}", 1, 2, 1) for number in range(40)]
    return alike(nodes, sorted({(number // 3, number) for number in range(1, 40)}))


def outlook(job: str, cluster: str, batches: tuple[int, ...], **asked: object) -> Outlook:
    request = builders.cluster_request(
        cluster=cluster,
        devices=find_machine(cluster).devices,
        objective="throughput",
        target=builders.target_request(batches=batches),
        precision=None,
        **asked,
    )
    found = make_plan(job, request).outlook
    assert found is not None
    return found


def test_parallel_degrees_are_the_same_on_a_slow_machine() -> None:
    expected, stopped = searched(), searched(time_limit_s=0.02)
    with slow():
        assert searched() == expected
        assert searched(time_limit_s=0.02) == stopped
        assert searched(time_limit_s=60.0) == expected
    assert expected.is_complete
    assert not stopped.is_complete


def test_a_number_of_parallel_degrees_ends_their_search_and_it_says_so() -> None:
    found = searched(most_priced=1)
    assert not found.is_complete
    assert found.priced < searched().priced


@pytest.mark.parametrize("problem", [fork(1), fork(6), tree()], ids=["exact", "stages", "one stage"])
def test_a_placement_is_the_same_on_a_slow_machine(problem: PlacementProblem) -> None:
    expected = place(problem, work_s=0.5)
    with slow():
        assert place(problem, work_s=0.5) == expected
        stopped = place(problem, time_limit_s=2.0)
    assert not any("time limit" in note for note in expected.notes)
    assert any("time limit of 2 s" in note for note in stopped.notes)


@pytest.mark.parametrize(
    ("job", "cluster", "batches"),
    [
        ("lenet", "4xrtx-3090", (1024, 2048)),
        pytest.param("llama2:13b", "hgx-h100:16", (120,), marks=pytest.mark.sweep),
    ],
)
def test_batches_are_compared_alike_on_a_slow_machine(job: str, cluster: str, batches: tuple[int, ...]) -> None:
    for limit_s in (None, 0.02):
        expected = outlook(job, cluster, batches, time_limit_s=limit_s)
        with slow():
            found = outlook(job, cluster, batches, time_limit_s=limit_s)
        assert [one.contender.name for one in found.estimates] == [one.contender.name for one in expected.estimates]
        assert found.chosen.contender.cases == expected.chosen.contender.cases
        assert found.warnings == expected.warnings
        stopped = any("was stopped" in warning for warning in found.warnings)
        assert not stopped if limit_s is None else stopped or job == "lenet"


def test_a_memory_plan_is_the_same_on_a_slow_machine() -> None:
    expected = planned(EVEN, 700, rate=20.0)
    with slow():
        found, stopped = planned(EVEN, 700, rate=20.0), planned(EVEN, 700, rate=20.0, limit_s=60.0)
    assert found.plan == expected.plan
    assert found.is_complete
    assert not stopped.is_complete
