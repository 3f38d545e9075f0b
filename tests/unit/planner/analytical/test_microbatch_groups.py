"""Interleaved pipelines whose microbatches do not divide over their stages: groups that leave no further idle time."""

from dataclasses import replace

import pytest
from tests import builders

from trimaran.base.errors import InputError
from trimaran.machine.find import find_machine
from trimaran.planner.analytical.candidates import AnalyticalProblem, _group, members, passes
from trimaran.planner.analytical.given import complete_strategy, microbatch_group
from trimaran.planner.analytical.search import transformer_problem
from trimaran.pricing.analytical.shapes import passes_in_flight
from trimaran.pricing.kernels.software import Software
from trimaran.program.strategy import Degrees, Schedule, Strategy

Pass = tuple[str, int, int]
"""Forward or backward, its chunk, its microbatch."""


def order_of(stage: int, degrees: Degrees) -> list[Pass]:
    """Passes of a stage as Megatron orders them: forwards ahead of the first backward, then one of each."""
    count, chunks = degrees.microbatches, range(degrees.chunks)
    firsts = range(0, count, degrees.microbatch_group)
    turns = [
        (chunk, each)
        for first in firsts
        for chunk in chunks
        for each in range(first, min(first + degrees.microbatch_group, count))
    ]
    forwards: list[Pass] = [("forward", *turn) for turn in turns]
    backwards: list[Pass] = [("backward", degrees.chunks - 1 - chunk, each) for chunk, each in turns]
    ahead = len(passes_in_flight(degrees, stage)) - 1
    both = [one for pair in zip(forwards[ahead:], backwards, strict=False) for one in pair]
    return [*forwards[:ahead], *both, *backwards[len(forwards) - ahead :]]


def needed(one: Pass, stage: int, degrees: Degrees) -> list[tuple[Pass, int]]:
    """Passes whose results a pass waits for, with their stages."""
    kind, chunk, each = one
    last = degrees.pp - 1
    if kind == "forward":
        if stage > 0:
            return [(one, stage - 1)]
        return [(("forward", chunk - 1, each), last)] if chunk else []
    own = [(("forward", chunk, each), stage)]
    if stage < last:
        return [*own, (one, stage + 1)]
    return [*own, (("backward", chunk + 1, each), 0)] if chunk < degrees.chunks - 1 else own


def played(degrees: Degrees) -> float:
    """The pipeline's time, where a stage's forward takes 1 and its backward 2, and sends nothing."""
    orders = [order_of(stage, degrees) for stage in range(degrees.pp)]
    clocks, done, ends = [0.0] * degrees.pp, [0] * degrees.pp, dict[tuple[Pass, int], float]()
    while any(at < len(order) for at, order in zip(done, orders, strict=True)):
        before = sum(done)
        for stage, order in enumerate(orders):
            while done[stage] < len(order):
                one = order[done[stage]]
                waits = needed(one, stage, degrees)
                if not all(each in ends for each in waits):
                    break
                clocks[stage] = max([clocks[stage], *(ends[each] for each in waits)])
                clocks[stage] += (1.0 if one[0] == "forward" else 2.0) / degrees.chunks
                ends[one, stage] = clocks[stage]
                done[stage] += 1
        assert sum(done) > before, "stages wait for each other"
    return max(clocks)


@pytest.mark.parametrize("stages", range(2, 9))
@pytest.mark.parametrize("chunks", [2, 3, 5])
def test_a_played_pipeline_idles_as_the_formula_says_for_any_number_of_microbatches(stages: int, chunks: int) -> None:
    """`m` passes of 3, and `(p - 1) / v` of one more: as where microbatches divide."""
    for count in range(stages, 40):
        group = microbatch_group(stages, count)
        degrees = Degrees(pp=stages, chunks=chunks, microbatches=count, microbatch_group=group)
        assert played(degrees) == pytest.approx(3.0 * (count + (stages - 1) / chunks)), degrees


def test_a_group_that_does_not_fill_the_stages_idles_for_longer() -> None:
    """Why Megatron refuses it: 25 microbatches in groups of three leave one for the last group."""
    degrees = Degrees(pp=3, chunks=2, microbatches=25, microbatch_group=3)
    assert played(degrees) > 3.0 * (25 + 2 / 2)


def problem(software: str = "megatron:2025", **changed: object) -> AnalyticalProblem:
    shape = builders.transformer_shape(layers=24, hidden=1024, heads=16, kv_heads=16, head_size=64, ffn=2816)
    name, _, year = software.partition(":")
    settings = {"batch": 25, "software": Software(framework=name, year=float(year), source="said")} | changed
    return transformer_problem(shape, find_machine("dgx-h100:3"), **settings)  # type: ignore[arg-type]


def chunked(asked: AnalyticalProblem, stages: int, microbatches: int) -> set[tuple[Schedule, int]]:
    """Schedules with several chunks that are tried, with their groups."""
    found = members(asked, Strategy(pp=stages, microbatches=microbatches, schedule="1f1b"))
    return {(one.schedule, one.microbatch_group) for one in found if one.chunks > 1}


def test_microbatches_that_do_not_divide_are_interleaved_in_groups() -> None:
    """25 on 3 stages: groups of 5. The bound counts chunks, as the strategies have them."""
    asked = problem()
    assert chunked(asked, 3, 25) == {("interleaved", 5)}
    assert chunked(asked, 3, 24) == {("interleaved", 0)}
    assert chunked(asked, 3, 2) == set()
    assert passes(asked, 3, 25) == 25 + 2 / 8


@pytest.mark.parametrize(
    ("software", "microbatches", "group"),
    [
        ("megatron:2023", 25, 0),
        ("megatron:2023", 24, 3),
        ("fsdp:2025", 25, 0),
        ("fsdp:2025", 5, 5),
        ("megatron:2025", 5, 5),
    ],
)
def test_a_framework_has_the_groups_that_it_can_run(software: str, microbatches: int, group: int) -> None:
    """Old Megatron asks that microbatches divide; torch makes equal rounds, 5 in one, 25 not in eight."""
    assert _group(problem(software), 3, microbatches) == group


def test_a_given_strategy_is_priced_with_a_group_that_fills_its_stages_or_refused_with_one() -> None:
    shape = problem().shape
    given = complete_strategy("pp3 vp2 dp1 m25 group5", shape, most_devices=24)
    assert given.strategy.microbatch_group == 5
    with pytest.raises(InputError, match=r"groups of 3 do not fill 3 stages .*: say group5"):
        complete_strategy("pp3 vp2 dp1 m25", shape, most_devices=24)


def test_with_experts_a_batch_with_a_large_prime_factor_is_interleaved_in_groups() -> None:
    """544 is 32 · 17: 34 microbatches do not divide over four stages; of 512 = 2^9 others do."""
    shape = builders.transformer_shape(experts=builders.experts(count=8, active=2, ffn=512))
    asked = transformer_problem(shape, find_machine("dgx-h100:17"), batch=544)
    assert _group(asked, 4, 34) == 5
    assert _group(replace(asked, batch=512), 4, 34) == 0
