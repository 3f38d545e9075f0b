"""What a search keeps, what it leaves out and why; costs by hand from `tests/builders.py`."""

import dataclasses
import importlib
import itertools

import pytest
from tests import builders
from tests.builders import curve, network, table_for
from tests.graphs import dag
from tests.raising import raises

from trimaran.base.errors import InfeasibleError
from trimaran.graph.behaviour import Behaviour
from trimaran.planner.bounds import Bound
from trimaran.planner.candidates import Candidate
from trimaran.planner.epoch import EpochData
from trimaran.planner.placed_network import PlacedStrategy
from trimaran.planner.problem import Problem, lack_of_memory, least
from trimaran.planner.result import Search
from trimaran.planner.search import search
from trimaran.planner.trials import Prospect
from trimaran.pricing.tables import CostTable
from trimaran.program.strategy import Strategy

GRAPH = network(4)
TABLE = table_for(GRAPH)


def found(table: CostTable = TABLE, *, memory_bytes: int = 2**30, epoch: EpochData | None = None) -> Search[Candidate]:
    return search(builders.problem(graph=GRAPH, table=table, memory_bytes=memory_bytes, batch=16, epoch=epoch))


def with_links(latency_s: float) -> CostTable:
    """All-reduces and messages that take so long, however small."""
    curves = {key: curve(latency_s, 1e9) for key in TABLE.curves}
    return dataclasses.replace(TABLE, curves=curves)


def test_replicas_halve_a_step_of_compute() -> None:
    """One device: 16 · 33 ms + load and update, 0.53 s; two replicas do 8 samples each."""
    result = found()
    assert result.chosen.strategy == builders.strategy(dp=2)
    assert result.chosen is result.baseline
    times = {candidate.strategy.name: candidate.step_time_s for candidate in result.candidates}
    assert times["one device"] / times["dp2"] == pytest.approx(2.0, rel=0.02)


def test_links_that_cost_more_than_they_save_leave_one_device() -> None:
    """An all-reduce of 2 s against a step of 0.53 s."""
    assert found(with_links(2.0)).chosen.strategy == builders.strategy()


def test_what_people_do_without_a_plan_is_always_simulated() -> None:
    """Also where an all-reduce of 100 s leaves no doubt."""
    result = found(with_links(100.0))
    names = {candidate.strategy.name for candidate in result.references}
    assert names == {"one device", "dp2", "dp2 m2", "dp2 zero3"}
    assert result.baseline.strategy == builders.strategy(dp=2)


def test_what_a_bound_rules_out_is_rejected_with_both_figures() -> None:
    rejected = [rejection for rejection in found(with_links(100.0)).rejected if rejection.cause == "bound"]
    assert rejected
    for rejection in rejected:
        assert rejection.reason.startswith("takes at least ")
        assert rejection.reason.endswith(" a step, one device takes 532 ms")


def _times(factor: float, cases: tuple[float, float, float]) -> tuple[float, float, float]:
    return factor * cases[0], factor * cases[1], factor * cases[2]


def test_time_is_the_reason_only_for_what_may_still_be_chosen() -> None:
    """A bound between the fastest and a choice that is slower, for being simpler, rules out all the same."""
    quick, plain = (
        next(one for one in found().candidates if one.strategy.name == name) for name in ("dp2", "one device")
    )
    median = quick.cases[1]
    ruled_out, open_one = (
        Prospect(
            strategy=Strategy(dp=2, microbatches=4),
            bound=Bound(step_time_s=factor * median, cases=_times(factor, quick.cases), peak_bytes=()),
        )
        for factor in (1.1, 0.9)
    )
    too_slow = importlib.import_module("trimaran.planner.search").too_slow
    rejection = too_slow(ruled_out, plain, quick)
    assert (rejection.cause, rejection.reason) == ("bound", "takes at least 294 ms a step, dp2 takes 267 ms")
    assert too_slow(open_one, plain, quick).cause == "time"


def test_every_strategy_is_either_simulated_or_rejected() -> None:
    result = found(with_links(100.0))
    names = [one.strategy.name for one in (*result.candidates, *result.rejected)]
    assert sorted(names) == sorted({*names})
    assert {"pp2 1f1b m8", "pp2 gpipe m8", "dp2 m4", "one device m4"} <= set(names)


def test_nothing_is_on_the_front_that_another_beats_in_time_memory_and_devices() -> None:
    front = found().pareto
    assert len(front) > 1
    for one, other in itertools.permutations(front, 2):
        figures = [(c.step_time_s, max(c.peak_bytes), c.strategy.devices) for c in (one, other)]
        assert any(mine < theirs for mine, theirs in zip(*figures, strict=True))


def test_what_does_not_fit_is_rejected_with_both_sizes() -> None:
    """Parameters, gradients, state: 3 · 192 B; 16 samples keep 20 B each and need 8 B each in the backward: 1024 B."""
    result = found(memory_bytes=800)
    assert all(max(candidate.peak_bytes) <= 800 for candidate in result.candidates)
    reasons = {rejection.strategy.name: rejection.reason for rejection in result.rejected}
    assert reasons["one device"] == "rank 0 needs 1.0 KiB, its device has 800 B"


def test_where_nothing_fits_the_nearest_is_named() -> None:
    with raises("plan.nothing-fits", InfeasibleError, match="dp2 zero3"):
        found(memory_bytes=100)


def test_where_no_stages_fit_it_is_said_that_they_have_no_memory_plan() -> None:
    problem = builders.problem(graph=GRAPH, table=TABLE, memory_bytes=100, batch=16, pins=builders.pins(pp=2))
    with raises("plan.nothing-fits", InfeasibleError, match="pp2"):
        search(problem)
    with pytest.raises(InfeasibleError) as whole:
        found(memory_bytes=100)
    assert "no memory plan" not in str(whole.value)


def test_where_nothing_fits_and_the_batch_has_no_halves_both_are_said() -> None:
    """Seven samples do not divide among two replicas, and one device has too little memory."""
    with raises("plan.nothing-fits", InfeasibleError, match="one device: rank 0.*dp2.*batch of 7", devices=2):
        search(builders.problem(graph=GRAPH, table=TABLE, memory_bytes=600, batch=7))


def test_an_evaluation_counts_where_an_epoch_is_made_best() -> None:
    """Ten steps, and ten evaluations of a third of a step: the forward is one part in three of the compute."""
    chosen = found(epoch=EpochData(samples=160, evaluation_samples=160)).chosen
    assert chosen.epoch_s is not None
    assert chosen.epoch_s / chosen.step_time_s == pytest.approx(10 * 4 / 3, rel=0.05)
    assert all(candidate.epoch_s is None for candidate in found().candidates)


def test_the_objective_changes_the_choice() -> None:
    """An all-reduce takes 0.1 s: less than replicas save in a step, more than they save in an evaluation.

    One device takes 0.53 s a step and 0.178 s an evaluation. Replicas take 0.27 s and what their all-reduces of losses
    and gradients leave exposed of 0.2 s; an evaluation 0.089 s, and 0.1 s for the metric.
    """
    table = with_links(0.1)
    assert found(table).chosen.strategy == builders.strategy(dp=2)
    assert found(table, epoch=EpochData(samples=16, evaluation_samples=1600)).chosen.strategy == builders.strategy()


def test_equal_arguments_give_equal_searches() -> None:
    assert found() == found()


def test_a_batch_that_lacks_memory_in_few_microbatches_is_trained_in_the_fewest_that_fit() -> None:
    """4,096 samples: the space has at most 4 microbatches of a replica."""
    few = builders.problem(graph=GRAPH, table=TABLE, memory_bytes=2000, batch=4096)
    replicas = [one.strategy for one in search(few).candidates if one.strategy.pp == one.strategy.tp == 1]
    counts = {one.dp: one.microbatches for one in replicas if not one.zero}
    assert sorted(counts) == [2]
    for dp, count in counts.items():
        assert count > 4
        assert not lack_of_memory(least(builders.strategy(dp=dp, microbatches=count), few).peak_bytes, few)
        assert lack_of_memory(least(builders.strategy(dp=dp, microbatches=count // 2), few).peak_bytes, few)


def test_a_job_that_parts_would_train_otherwise_has_no_more_parts_for_lack_of_memory() -> None:
    seen = Behaviour(reduction="batch", microbatches=0.94, replicas=0.94, tolerance=1e-7)
    graph = dataclasses.replace(GRAPH, behaviour=seen)
    with raises("plan.nothing-fits", InfeasibleError):
        search(builders.problem(graph=graph, table=TABLE, memory_bytes=2000, batch=4096))


def test_pipelines_have_more_microbatches_where_they_lack_memory_or_are_faster() -> None:
    """4,096 samples by two stages: the space has at most 4 microbatches a stage, which do not fit in 1 KiB."""
    roomy, little = (
        search(
            builders.problem(
                graph=GRAPH, table=TABLE, memory_bytes=memory_bytes, batch=4096, pins=builders.pins(dp=1, pp=2, tp=1)
            )
        )
        for memory_bytes in (2**30, 2**10)
    )
    within = min(one.objective_s for one in roomy.candidates if one.strategy.microbatches <= 8)
    assert min(one.objective_s for one in roomy.candidates) < 0.99 * within
    assert {one.strategy.microbatches > 8 for one in little.candidates} == {True}
    assert max(little.chosen.peak_bytes) <= 2**10


def test_what_lacks_less_than_its_size_shows_is_told_by_the_difference() -> None:
    problem = builders.problem(graph=GRAPH, table=TABLE, memory_bytes=2**30)
    assert lack_of_memory([2**30 + 1000], problem) == "rank 0 needs 1.0 GiB and 1000 B more, its device has 1.0 GiB"
    assert lack_of_memory([2**31], problem) == "rank 0 needs 2.0 GiB, its device has 1.0 GiB"
    assert lack_of_memory([2**30], problem) == ""


def test_a_search_for_the_choice_alone_chooses_the_same_from_fewer() -> None:
    """Where an all-reduce takes 100 s nothing spread can be chosen: stages and sharded operations are not simulated."""
    problem = builders.problem(graph=GRAPH, table=with_links(100.0), batch=16)
    shown, alone = search(problem), search(problem, choice_only=True)
    assert alone.chosen.strategy == shown.chosen.strategy
    assert {one.strategy for one in alone.candidates} <= {one.strategy for one in shown.candidates}


@pytest.mark.parametrize(("forbid", "limits"), [((), []), (("dp", "pp"), [None])])
def test_a_placement_that_cannot_be_chosen_is_not_solved(
    forbid: tuple[str, ...], limits: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replicas take half a step of one device; two branches next to each other save a third of it at most."""
    given = []

    def place_on(strategy: Strategy, problem: Problem) -> PlacedStrategy:
        given.append(problem.time_limit_s)
        found: PlacedStrategy = solved(strategy, problem)
        return found

    trials = importlib.import_module("trimaran.planner.trials")
    solved = trials.place_on
    monkeypatch.setattr(trials, "place_on", place_on)
    branches = dag([[], [0], [0], [1, 2]])
    pins = builders.pins(forbid=forbid)
    result = search(builders.problem(graph=branches, table=table_for(branches), batch=16, pins=pins))
    assert given == limits
    assert ("placed on 2" in [candidate.strategy.name for candidate in result.candidates]) == bool(limits)
