import pytest
from tests.unit.report.memory_steps import COSTS, PLAN, TRACE

from trimaran.features.memory_fit.estimate import (
    bottleneck,
    holders,
    live_curve,
    phases,
    place,
    policy_figures,
    simulated,
    usage,
    weight_bytes,
)
from trimaran.program.memory import KEEP_ALL
from trimaran.report.memory import storage_lines
from trimaran.simulator.memory import live_bytes


def test_peak_and_means_of_a_step_that_keeps_everything() -> None:
    """The most lives in b_back: 1000 + 2000 + 4 + 500 + 100 = 3604 B, 100 of them weights.

    Over the five operations of forward and backward: (1100 + 3100 + 3104 + 3604 + 1700) / 5 = 2521.6 B. Weights are
    100 B of that, and 200 B in the last of the five: 120 B in the mean.
    By time: 1100 × 1 s, 3100 × 1 s, 3104 × 1 s, 3604 × 2 s, 1700 × 2 s, 200 × 1 s; 18 112 / 8 s = 2264 B.
    """
    found = usage(TRACE, live_bytes(TRACE, KEEP_ALL), COSTS)
    assert (found.peak_bytes, found.bare_peak_bytes) == (3604, 3504)
    assert (found.mean_bytes, found.bare_mean_bytes) == (2522, 2402)
    assert found.time_mean_bytes == 2264


def test_weights_optimizer_state_and_gradients_are_told_apart() -> None:
    assert weight_bytes(TRACE) == (100, 0, 100)


def test_a_plan_that_offloads_one_storage() -> None:
    """s0 is away from moment 3 to 7, so b_back has 2604 B; its return takes 1000 B / 500 B/s = 2 s of waiting.

    The step takes 8 s without it: a quarter longer.
    """
    figures = policy_figures(TRACE, simulated(TRACE, PLAN, COSTS), COSTS, budget_bytes=3100)
    assert (figures.peak_bytes, figures.fits) == (3100, True)
    assert (figures.step_time_s, figures.slowdown, figures.stall_s) == pytest.approx((10.0, 0.25, 2.0))
    assert (figures.to_host_bytes, figures.to_device_bytes, figures.recomputed_bytes) == (1000, 1000, 0)


def test_a_policy_above_the_budget_does_not_fit() -> None:
    assert not policy_figures(TRACE, simulated(TRACE, KEEP_ALL, COSTS), COSTS, budget_bytes=3603).fits


def test_each_movable_storage_has_a_line_with_its_reason_largest_first() -> None:
    first, second = storage_lines(TRACE, PLAN)
    assert (first.number, first.decision, first.module) == (1, "keep", "b")
    assert (second.number, second.decision, second.reason) == (0, "offload", "it is away for 4 s")


def test_weights_are_taken_together_among_what_holds_the_floor() -> None:
    first, second, third = holders([TRACE.storages[number] for number in (4, 5, 1)])
    assert (first.name, first.nbytes) == ("b", 2000)
    assert {(second.role, second.count), (third.role, third.count)} == {("parameter", 1), ("gradient", 1)}


def test_a_tick_is_placed_at_the_operation_behind_it() -> None:
    assert place(TRACE, 5) == place(TRACE, 6) == "b_back in b"


def test_a_tick_has_the_phase_of_the_operation_behind_it() -> None:
    assert phases(TRACE) == ("FP",) * 5 + ("BP",) * 4 + ("WU",)


def test_the_curve_has_both_lives_at_every_moment() -> None:
    kept, planned = live_bytes(TRACE, KEEP_ALL), live_bytes(TRACE, PLAN)
    curve = live_curve(TRACE, kept, planned, COSTS)
    assert (max(curve.kept_bytes), max(curve.plan_bytes)) == (3604, 3100)
    assert len(curve.seconds) == len(curve.phases) == len(curve.plan_bytes) <= TRACE.length
    assert sum(curve.seconds) == sum(COSTS.durations_s)


def test_what_decides_is_the_larger_of_waiting_and_making_again() -> None:
    """The plan waits 2 s of 8 s; the least that offloading alone takes is 9 s."""
    text = bottleneck(simulated(TRACE, PLAN, COSTS), 9.0, budget_bytes=3100, kept_peak_bytes=3604)
    assert text.startswith("the link to the host, for which operations wait 25.0 % of the step.")
    assert "at least 12.5 %" in text


def test_where_everything_fits_the_operations_decide() -> None:
    text = bottleneck(simulated(TRACE, KEEP_ALL, COSTS), 8.0, budget_bytes=4000, kept_peak_bytes=3604)
    assert "nothing has to move" in text
