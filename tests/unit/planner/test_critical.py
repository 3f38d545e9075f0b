"""What binds a simulated step; the figures are those of `problems.py`, in milliseconds."""

import dataclasses
import re

import pytest
from tests import builders
from tests.builders import UPDATE_MS, of_gradients, problem

from trimaran.planner.explanation.contrast import Anatomy, binding, dissect
from trimaran.planner.explanation.critical_path import GROUPS, TimeClass, bottleneck
from trimaran.planner.problem import assess
from trimaran.pricing.types import Between, Cost
from trimaran.program.strategy import Strategy
from trimaran.program.types import Kind

WORDS_OF_SEVERAL = "rank|exchang|communicat|straggl"

PIPELINE = builders.strategy(pp=2, microbatches=2)


def anatomy(strategy: Strategy) -> Anatomy:
    given = problem()
    return dissect(assess(strategy, given), given)


def milliseconds(parts: Anatomy) -> dict[TimeClass, float]:
    return {part: 1e3 * seconds for part, seconds in parts.parts.items() if seconds}


def test_one_device_is_its_serial_sum() -> None:
    """8 samples: forward 8 · (1 + 2 + 1), backward twice that, 1 ms of loading."""
    assert milliseconds(anatomy(builders.strategy())) == pytest.approx(
        {TimeClass.LOAD: 1.0, TimeClass.FORWARD: 32.0, TimeClass.BACKWARD: 64.0, TimeClass.UPDATE: UPDATE_MS}
    )


def test_an_exchange_after_the_backward_is_exposed() -> None:
    """4 samples a device; the only bucket is complete at the end of the backward, and takes 10 ms."""
    assert milliseconds(anatomy(builders.strategy(dp=2))) == pytest.approx(
        {
            TimeClass.LOAD: 0.5,
            TimeClass.FORWARD: 16.0,
            TimeClass.BACKWARD: 32.0,
            TimeClass.EXCHANGE: 10.0,
            TimeClass.UPDATE: UPDATE_MS,
        }
    )


def test_what_the_other_stage_computes_on_the_path_is_the_bubble() -> None:
    """Stages of 1 and 3 ms a sample, microbatches of 4. The second stage binds: 2 · 12 ms forward, 2 · 24 backward.

    Before it the first forward of the other stage, 4 ms, after it its last backward, 8 ms; a message of 2 ms each way;
    two loads, of which the second delays the second stage. The first stage updates 48 of the 96 bytes last.
    """
    pipeline = anatomy(PIPELINE)
    assert milliseconds(pipeline) == pytest.approx(
        {
            TimeClass.LOAD: 1.0,
            TimeClass.FORWARD: 24.0,
            TimeClass.BACKWARD: 48.0,
            TimeClass.MESSAGES: 4.0,
            TimeClass.BUBBLE: 12.0,
            TimeClass.UPDATE: 1.0 + 2 * 0.1 + 48e-3,
        }
    )
    path = [leg.instruction.id for leg in pipeline.legs if leg.instruction is not None]
    assert path[:4] == ["r0/IN0", "r0/0F0", "r0/0SEND_F0>1", "r1/1F0"]


def test_what_transfers_take_from_compute_is_a_class_of_its_own() -> None:
    """All-reduces of 2 ms; beside one, compute takes 1.5 times as long, and so loses two thirds of a millisecond.

    With a bucket for each parameter, the two of layer 1 run beside the backward, and those of layer 0 are exposed.
    """
    given = problem(all_reduce=of_gradients(2e-3))
    beside = {"AR": builders.interference(compute=1.5, communication=1.0, source="by hand")}
    given = dataclasses.replace(given, table=dataclasses.replace(given.table, interference=beside))
    parts = milliseconds(dissect(assess(builders.strategy(dp=2, bucket_bytes=1), given), given))
    assert parts[TimeClass.BACKWARD] == pytest.approx(32.0)
    assert parts[TimeClass.SLOWED] == pytest.approx(2 * 2.0 / 3)
    assert parts[TimeClass.EXCHANGE] == pytest.approx(2 * 2.0)


def test_the_sentence_names_the_largest_group_and_the_stage() -> None:
    """73.248 of 90.248 ms of the pipeline are compute of stage 1 and the update."""
    assert binding(anatomy(PIPELINE).candidate) == (
        "limited by compute of stage 1: 73.2 ms, 81 % of the step; also idle stages 13 %, communication 4 %."
    )


def test_one_account_names_the_bottleneck_of_a_plan_and_of_its_explanation() -> None:
    """Loading 31 ms of 100: compute binds with the rest, in the table of candidates as in an explanation."""
    given = problem()
    for strategy in (builders.strategy(), builders.strategy(dp=2), PIPELINE):
        plan = assess(strategy, given)
        parts = dissect(plan, given).parts
        assert sum(plan.groups_s.values()) == pytest.approx(plan.step_time_s)
        for name, classes in GROUPS.items():
            assert plan.groups_s.get(name, 0.0) == pytest.approx(sum(parts[part] for part in classes))
        largest = max(plan.groups_s, key=lambda name: plan.groups_s[name])
        assert plan.subject.startswith(largest)
        assert binding(plan).startswith(f"limited by {plan.subject}: ")
        assert plan.limiter.startswith(plan.subject)


@pytest.mark.parametrize(("load_ms", "subject"), [(31.0, "compute"), (300.0, "loading")])
def test_loading_is_the_bottleneck_only_where_it_takes_the_most(load_ms: float, subject: str) -> None:
    leg = {"start_s": 0.0, "alone_s": 0.0}
    plan = assess(builders.strategy(), problem())
    legs = dissect(plan, problem()).legs
    longer = []
    for one in legs:
        loads = one.instruction is not None and one.instruction.kind is Kind.LOAD
        seconds = 1e-3 * load_ms if loads else one.seconds
        longer.append(dataclasses.replace(one, **leg | {"end_s": seconds, "alone_s": seconds}))
    found = bottleneck(plan.program, longer, plan.strategy, step_s=sum(one.seconds for one in longer))
    assert found.subject == subject


@pytest.mark.parametrize("strategy", [builders.strategy(), builders.strategy(microbatches=2), builders.strategy(dp=2)])
def test_what_lies_between_instructions_is_the_loops_own_on_one_device(strategy: Strategy) -> None:
    """5 ms a step and 1 ms between two instructions: of one device no exchange, and no wait for a rank."""
    given = problem()
    cost = {ms: Cost(ms / 1e3, ms / 1e3, ms / 1e3, "by hand") for ms in (1, 5)}
    table = dataclasses.replace(given.table, between=Between(step=cost[5], instruction=cost[1]))
    given = dataclasses.replace(given, table=table)
    plan = assess(strategy, given)
    parts, instructions = dissect(plan, given).parts, len(plan.program.ranks[0])
    own, other = (TimeClass.LOOP, TimeClass.AFTER) if strategy.devices == 1 else (TimeClass.AFTER, TimeClass.LOOP)
    assert parts[own] == pytest.approx(5e-3 + (instructions - 1) * 1e-3)
    assert not parts[other]
    assert sum(plan.groups_s.values()) == pytest.approx(plan.step_time_s)
    says_so = any(re.search(WORDS_OF_SEVERAL, text) for text in (*plan.groups_s, binding(plan)))
    assert says_so == (strategy.devices > 1)
