"""What the guides recommend, and the rule of thumb that a plan is compared with."""

from collections import Counter
from dataclasses import replace

import pytest

from trimaran.machine.find import find_machine
from trimaran.planner.analytical.candidates import AnalyticalModel, AnalyticalProblem, groups, members
from trimaran.planner.analytical.guides import GUIDES, MEGATRON, TORCHTITAN
from trimaran.planner.analytical.search import baselines, search_degrees, transformer_problem
from trimaran.planner.pins import Pins
from trimaran.pricing.analytical.shapes import gpt_shape
from trimaran.program.strategy import Degrees
from trimaran_studies.validation.regret import follows, recommended

WIDE = gpt_shape(layers=24, hidden=4096, heads=32, vocabulary=51200, sequence=2048)


def problem(machine: str, batch: int, memory_gb: int) -> AnalyticalProblem:
    return transformer_problem(WIDE, find_machine(machine), batch=batch, memory_bytes=memory_gb * 10**9)


def as_degrees(plan: Degrees) -> Degrees:
    return plan


def test_megatron_takes_the_least_model_parallelism_and_layers_before_stages() -> None:
    plans = [Degrees(tp=2, pp=2, zero=1), Degrees(pp=2, dp=2, zero=1), Degrees(tp=2, dp=2, zero=1)]
    assert recommended(plans, MEGATRON, as_degrees) == [plans[2]]


def test_torchtitan_takes_replicas_then_layers_then_stages() -> None:
    plans = [Degrees(pp=2, dp=4, zero=3), Degrees(tp=4, dp=2, zero=3), Degrees(tp=2, dp=4, zero=3)]
    assert recommended(plans, TORCHTITAN, as_degrees) == [plans[2]]


def test_plans_with_layers_recomputed_have_a_least_of_their_own() -> None:
    again = Degrees(dp=8, zero=1, recomputed=frozenset({"layers"}))
    kept = Degrees(tp=2, dp=4, zero=1)
    assert recommended([again, kept, Degrees(tp=4, dp=2, zero=1)], MEGATRON, as_degrees) == [again, kept]


def test_without_replicas_there_is_nothing_to_shard() -> None:
    assert follows(Degrees(tp=8), TORCHTITAN)
    assert not follows(Degrees(dp=8), TORCHTITAN)
    assert not follows(Degrees(dp=8, zero=2), MEGATRON)


@pytest.mark.parametrize(("machine", "batch", "memory_gb"), [("dgx-a100:2", 32, 40), ("dgx-h100:2", 64, 24)])
def test_the_rule_of_thumb_is_the_fastest_of_what_pricing_everything_recommends(
    machine: str, batch: int, memory_gb: int
) -> None:
    asked = problem(machine, batch, memory_gb)
    tried = []
    for guide in GUIDES:
        pinned = replace(asked, pins=Pins(zero=guide.levels[0]))
        model = AnalyticalModel(problem=pinned)
        every = [model.price(each) for group in groups(pinned, Counter()) for each in members(pinned, group)]
        fitting = [found for found in every if found.memory.peak <= asked.memory_limit]
        tried += recommended(fitting, guide, lambda found: found.strategy)
    rule = next(one.candidate for one in baselines(asked) if one.role == "rule of thumb")
    assert rule is not None
    assert rule.step_time_s == pytest.approx(min(found.step_time_s for found in tried))


def test_the_rule_of_thumb_tries_microbatches() -> None:
    """With the largest microbatch that fits a pipeline has few to be filled with; the rule is not worse than with 1."""
    asked = problem("dgx-h100:2", 64, 24)
    rule = next(one.candidate for one in baselines(asked) if one.role == "rule of thumb")
    assert rule is not None
    model = AnalyticalModel(problem=asked)
    for microbatch in (1, 2, 4):
        count = 64 // (rule.strategy.dp * microbatch)
        other = replace(rule.strategy, microbatch=microbatch, microbatches=count, chunks=1, segment_layers=())
        found = model.price(replace(other, schedule="1f1b"))
        if found.memory.peak <= asked.memory_limit:
            assert rule.step_time_s <= found.step_time_s


def test_nothing_that_fits_is_said() -> None:
    rule = next(one for one in baselines(problem("dgx-a100", 8, 1)) if one.role == "rule of thumb")
    assert rule.candidate is None
    assert "GiB on a rank, of" in rule.reason


def test_what_two_baselines_recommend_is_one_reference() -> None:
    found = search_degrees(problem("dgx-h100:1", 64, 80))
    named = [one.candidate.name for one in found.baselines if one.candidate is not None]
    assert len(set(named)) < len(named), "FSDP and the rule of thumb were to be the same here"
    assert [one.name for one in found.references] == list(dict.fromkeys(named))
