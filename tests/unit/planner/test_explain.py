"""Why not another plan, and what would help; the figures are those of `problems.py`, in milliseconds."""

import dataclasses

import pytest
from tests import builders
from tests.builders import UPDATE_MS, flat, problem, proportional

from trimaran.planner.explanation.critical_path import TimeClass
from trimaran.planner.explanation.explain import Explanation, SimulatedCase, explain, read_family
from trimaran.planner.explanation.what_if import parse_change
from trimaran.planner.problem import Problem, assess
from trimaran.planner.search import search
from trimaran.pricing.tables import StepCosts
from trimaran.program.strategy import Strategy

STEP_MS = 0.5 + 16.0 + 32.0 + 10.0 + UPDATE_MS


def explained(given: Problem, *why_not: str) -> Explanation:
    families = [read_family(name) for name in why_not]
    return explain(
        SimulatedCase(problem=given, found=search(given), why_not=families, changes=[parse_change("load=0")])
    )


def test_why_not_a_pipeline_is_told_by_the_classes_of_its_step() -> None:
    """60.0 against 90.2 ms (`test_critical.py`): backward 48 − 32, bubble 12, forward 24 − 16; exchange 10 saved."""
    given = problem()
    answer = explained(given, "pp2-gpipe-m2").contrasts[0]
    assert answer.conclusion == (
        "pp2 gpipe m2 is 50 % slower than dp2 (90.2 ms against 60.0 ms), beyond the uncertainty: "
        "16.0 ms more backward, 12.0 ms more bubble and 8.00 ms more forward; "
        "it saves 10.0 ms of exposed gradient exchange; it needs 288 B instead of 368 B a device."
    )
    assert answer.other is not None
    difference = {part: answer.other.parts[part] - explained(given).chosen.parts[part] for part in TimeClass}
    assert sum(difference.values()) == pytest.approx(answer.other.candidate.step_time_s - STEP_MS * 1e-3)


def test_what_does_not_fit_is_simulated_all_the_same() -> None:
    """Two replicas need at least 308 bytes, the pipeline with 4 microbatches fewer."""
    given = problem(memory_bytes=300)
    answer = explained(given, "dp").contrasts[0]
    assert answer.other is not None
    assert answer.other.candidate.strategy.dp == 2
    assert "but cannot be run: rank 0 needs" in answer.conclusion


def test_what_needs_more_devices_is_told_how_to_ask() -> None:
    answer = explained(problem(), "pp4").contrasts[0]
    assert answer.other is None
    assert answer.conclusion == (
        "pp4 cannot be run: pp4 gpipe m4 needs 4 devices, there are 2; --what-if devices=4 shows their gain."
    )


def test_what_was_not_measured_is_not_guessed() -> None:
    answer = explained(problem(), "compiled").contrasts[0]
    assert answer.other is None
    assert "were not measured" in answer.conclusion


def test_the_plan_itself_is_said_to_be_it() -> None:
    assert explained(problem(), "dp2").contrasts[0].conclusion == "dp2 is the plan, and the best of dp2."


def test_a_rival_within_the_uncertainty_is_not_called_slower() -> None:
    """An exchange of 48 ms: replicas take 98.0 ms, one device 98.5, which is within 3 %; it is simpler, so chosen."""
    given = problem(all_reduce=proportional(48e-3), message=flat(1.0))
    found = explained(given, "dp")
    assert found.chosen.candidate.strategy == builders.strategy()
    alternatives = {alternative.candidate.strategy.name: alternative for alternative in found.alternatives}
    assert not alternatives["dp2"].is_certain
    assert alternatives["dp2"].slower == pytest.approx((STEP_MS + 38.0) / (97.0 + UPDATE_MS) - 1, rel=1e-4)
    sentence = "which is within the uncertainty, and one device is chosen for simpler kinds of parallelism."
    assert found.contrasts[0].conclusion.endswith(sentence)
    # The same sentence says of the runners-up why the fastest of them was not chosen.
    assert found.is_fresh
    assert found.rule.endswith(sentence)
    assert "plan again" not in found.rule


def test_a_given_plan_is_explained_against_the_search() -> None:
    given = dataclasses.replace(problem(), pins=builders.pins(forbid=("zero", "p2p")))
    plan = assess(builders.strategy(pp=2, microbatches=2), given)
    found = explain(SimulatedCase(problem=given, found=search(given), changes=[]), chosen=plan)
    assert found.chosen.candidate is plan
    assert found.alternatives[0].candidate.strategy == builders.strategy(dp=2)
    assert found.alternatives[0].slower < 0


def test_a_rival_that_is_certainly_faster_than_a_given_plan_is_said_to_be() -> None:
    """60.0 against 90.2 ms; the other way around in `test_why_not_a_pipeline_is_told_by_the_classes_of_its_step`."""
    given = problem()
    plan = assess(builders.strategy(pp=2, microbatches=2), given)
    found = explain(
        SimulatedCase(problem=given, found=search(given), why_not=[read_family("dp2")], changes=[]), chosen=plan
    )
    assert found.alternatives[0].is_certain
    assert found.contrasts[0].conclusion == (
        "dp2 is predicted 34 % faster (60.0 ms against 90.2 ms), beyond the uncertainty: plan again."
    )
    assert not found.is_fresh
    assert not found.rule


def test_what_is_not_simpler_is_not_called_so() -> None:
    """Replicas take 98.0 ms, one device 98.5; beside given replicas, one device is simpler, and the other way not."""
    given = problem(all_reduce=proportional(50e-3), message=flat(1.0))
    replicas = assess(builders.strategy(dp=2), given)
    found = explain(
        SimulatedCase(problem=given, found=search(given), why_not=[read_family("one device")], changes=[]),
        chosen=replicas,
    )
    alternative = found.contrasts[0]
    assert alternative.other is not None
    assert alternative.other.candidate.step_time_s < replicas.step_time_s
    assert alternative.conclusion.endswith("which is within the uncertainty.")


def remedies(given: Problem, strategy: Strategy | None = None) -> dict[str, float]:
    chosen = None if strategy is None else assess(strategy, given)
    found = explain(SimulatedCase(problem=given, found=search(given), changes=[]), chosen=chosen)
    return {one.name: one.predicted_gain for one in (*found.remedies, *found.not_worth_it)}


def test_remedies_of_an_exchange_are_simulated() -> None:
    """Half of 10 ms in 16 bits; exchanging every other pass saves half of it and of the update, and half a load."""
    found = remedies(problem(all_reduce=proportional(10e-3)))
    assert found["16-bit communication"] == pytest.approx(5.0 / STEP_MS)
    assert found["exchange every other pass"] == pytest.approx((10.0 + UPDATE_MS) / 2 / STEP_MS)


def test_remedies_of_a_bubble_are_simulated() -> None:
    """Twice the batch in 4 microbatches: fill, drain, messages, update once for both."""
    found = remedies(problem(), builders.strategy(pp=2, microbatches=2))
    step = 90.248
    twice = step + 2 * (12.0 + 24.0 + 0.5)
    assert found["a batch of twice the microbatches"] == pytest.approx(1 - twice / (2 * step), abs=1e-3)
    assert "16-bit communication" in found


def test_loading_has_a_remedy_where_it_is_on_the_path() -> None:
    """Loading of 10 ms for 4 samples, before everything else."""
    given = problem()
    ((digest, step),) = given.table.steps.items()
    slow: StepCosts = dataclasses.replace(step, load={size: cost.scaled(20.0) for size, cost in step.load.items()})
    given = dataclasses.replace(given, table=dataclasses.replace(given.table, steps={digest: slow}))
    assert remedies(given)["load ahead"] == pytest.approx(10.0 / (STEP_MS + 9.5))
    # Half a millisecond is less than a hundredth of the step.
    assert "load ahead" not in remedies(problem())
