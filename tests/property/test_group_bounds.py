"""No strategy of a group takes less time than the bound of the group, whatever its choices; pins are kept by all."""

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import builders
from tests.raising import raises

from trimaran.machine.find import find_machine
from trimaran.planner.analytical.candidates import AnalyticalModel, AnalyticalProblem, groups, members
from trimaran.planner.analytical.given import obstacle
from trimaran.planner.analytical.search import search_degrees, transformer_problem
from trimaran.planner.pins import Pins, parse_pins, program_pins
from trimaran.pricing.analytical.fits_device import with_buffers
from trimaran.pricing.analytical.memory import largest_rank
from trimaran.pricing.analytical.shapes import gpt_shape
from trimaran.program.strategy import Strategy, read_strategy

SHAPE = gpt_shape(layers=12, hidden=2048, heads=16, vocabulary=51200, sequence=8192)
EXPERTS = replace(SHAPE, experts=builders.experts(count=8, active=2, ffn=4096))
ALLOWED = (
    Pins(),
    Pins(special=("dualpipe", "optimizer-offload")),
    Pins(allow=("dp", "pp", "tp", "zero", "zero-bubble")),
)


@st.composite
def problems(draw: st.DrawFn) -> AnalyticalProblem:
    """Small grids, with schedules and an optimizer on the host that few frameworks have."""
    return transformer_problem(
        draw(st.sampled_from([SHAPE, EXPERTS])),
        find_machine(draw(st.sampled_from(["dgx-h100", "dgx-h100:2", "dgx-a100:4@ethernet-25g"]))),
        batch=draw(st.sampled_from([8, 16, 48, 64])),
        memory_bytes=draw(st.sampled_from([8, 16, 40])) * 10**9,
        pins=draw(st.sampled_from(ALLOWED)),
    )


@settings(max_examples=25, deadline=None)
@given(problems(), st.integers(0, 200))
def test_no_member_of_a_group_is_faster_than_its_bound(problem: AnalyticalProblem, first: int) -> None:
    model, every = AnalyticalModel(problem=problem), list(groups(problem, Counter()))
    for group in islice(every, first % len(every), None, max(1, len(every) // 4)):
        bound_s = model.bound(group)
        for strategy in islice(members(problem, group), 40):
            assert model.price(strategy).step_time_s >= bound_s * (1.0 - 1e-9), strategy.name
            assert obstacle(problem.shape, strategy) == ""
            # Each has a name that says it.
            read = read_strategy(strategy.name)
            assert replace(read, sequence_parallel=strategy.sequence_parallel).name == strategy.name


@pytest.mark.parametrize(
    ("pins", "holds"),
    [
        (parse_pins(cp=2), lambda one: one.cp == 2),
        (parse_pins(ep=4), lambda one: one.ep == 4),
        (parse_pins(etp=2), lambda one: one.expert_tp == 2),
        (parse_pins(vp=3), lambda one: one.chunks == 3),
        (parse_pins(micro_batch=2), lambda one: one.microbatch == 2),
        (parse_pins(recompute="none"), lambda one: not one.recomputed),
        (parse_pins(recompute="selective"), lambda one: one.recomputed == {"attention"}),
        (parse_pins(recompute="layers:2"), lambda one: one.recompute_layers == 2),
        (parse_pins(schedule="dualpipev"), lambda one: one.schedule == "dualpipev"),
        (parse_pins(schedule="zero-bubble"), lambda one: one.schedule == "zero-bubble"),
    ],
)
def test_each_pin_of_degrees_is_kept(pins: Pins, holds: object) -> None:
    found = search_degrees(transformer_problem(EXPERTS, find_machine("dgx-h100:2"), batch=64, pins=pins))
    assert all(holds(one.strategy) for one in found.candidates)  # type: ignore[operator]


def test_chunks_are_searched_as_far_as_they_divide_and_special_kinds_only_where_allowed() -> None:
    deep = replace(SHAPE, layers=48)
    problem = transformer_problem(deep, find_machine("dgx-h100:2"), batch=64)
    every = [one for group in groups(problem, Counter()) for one in members(problem, group)]
    assert max(one.chunks for one in every) == 12  # 24 divide too: no public run has as many
    assert {one.schedule for one in every} == {"1f1b", "interleaved"}
    assert not any(one.offload for one in every)
    allowed = replace(problem, pins=Pins(special=("dualpipe", "optimizer-offload")))
    every = [one for group in groups(allowed, Counter()) for one in members(allowed, group)]
    assert {"dualpipe", "dualpipev"} <= {one.schedule for one in every}
    assert any(one.offload for one in every)


def test_a_network_that_fits_with_some_layers_recomputed_recomputes_no_more() -> None:
    problem = transformer_problem(SHAPE, find_machine("dgx-h100"), batch=64, memory_bytes=14 * 10**9)
    found = []
    for group in groups(problem, Counter()):
        found += [one for one in members(problem, group) if one.recompute_layers is not None]

    def peak(one: Strategy) -> float:
        memory = largest_rank(SHAPE, one, bookkeeping=problem.bookkeeping)
        return with_buffers(memory, one, reserve=problem.reserve).peak

    assert found
    for one in found[:20]:
        assert peak(one) <= problem.memory_limit
        number = one.recompute_layers
        assert number is not None
        fewer = replace(one, recompute_layers=number - 1) if number > 1 else replace(one, recomputed=frozenset())
        assert peak(fewer) > problem.memory_limit


@pytest.mark.parametrize(
    ("pins", "code"),
    [
        (Pins(cp=2), "pin.not-in-programs"),
        (Pins(recompute="layers"), "pin.not-in-programs"),
        (Pins(recompute="none"), "pin.not-in-programs"),
        (Pins(schedule="dualpipe"), "pin.not-in-programs"),
        (Pins(special=("optimizer-offload",)), "pin.not-in-programs"),
        (Pins(microbatch=4), "pin.micro-batch-alone"),
        (Pins(dp=3, microbatch=4), "pin.micro-batch-does-not-divide"),
    ],
)
def test_what_no_program_has_is_refused_where_one_is_simulated(pins: Pins, code: str) -> None:
    with raises(code):
        program_pins(pins, batch=64)
    assert program_pins(Pins(dp=2, microbatch=4, cp=1), batch=64).microbatches == 8


@pytest.mark.parametrize(
    "asked",
    [
        {"vp": 4, "schedule": "1f1b"},
        {"vp": 4, "pp": 1},
        {"vp": 1, "schedule": "interleaved"},
        {"recompute": "layers", "forbid": ["memory"]},
    ],
)
def test_pins_that_contradict_each_other_are_refused(asked: dict[str, object]) -> None:
    with raises("pin.degrees-and-others"):
        parse_pins(**asked)  # type: ignore[arg-type]


def test_degrees_of_experts_are_over_all_ranks_of_a_stage() -> None:
    problem = transformer_problem(EXPERTS, find_machine("dgx-h100:2"), batch=64)
    found = {(one.tp, one.cp, one.dp, one.ep, one.expert_tp) for one in groups(problem, Counter())}
    assert (8, 1, 2, 8, 1) in found
    assert (8, 1, 2, 2, 8) in found
    assert all(tp * cp * dp % (ep * (etp or tp)) == 0 for tp, cp, dp, ep, etp in found)
    assert Strategy(tp=8, dp=2, ep=8, expert_tp=1).expert_data == 2
