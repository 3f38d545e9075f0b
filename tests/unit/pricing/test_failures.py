"""Failures of long runs: the exact expectation against a simulation of the process, limits, spare nodes, texts."""

import math
import random
import statistics
from dataclasses import replace

import pytest
from tests.raising import raises

from trimaran.base.errors import InfeasibleError
from trimaran.pricing.failures import (
    DAY_S,
    Cluster,
    Recovery,
    Reliability,
    assumed,
    best_checkpoints,
    best_period,
    daly_period,
    expected_seconds,
    long_run,
    longest_period,
    parse_reliability,
    spare_nodes,
    survival,
    variance,
    young_period,
)

CASES = [
    (1000.0, 10, Recovery(rate=1 / 300, restart_s=20.0, stall_s=5.0, write_s=30.0)),
    (1000.0, 10, Recovery(rate=1 / 300, restart_s=20.0, stall_s=35.0)),
    (600.0, 3, Recovery(rate=1 / 150, restart_s=60.0, stall_s=1.0, write_s=150.0)),
    (500.0, 1, Recovery(rate=1 / 400, restart_s=10.0, stall_s=5.0, write_s=10.0)),
    (5000.0, 25, Recovery(rate=1 / 10_000, restart_s=300.0, stall_s=2.0, write_s=20.0)),
]


def simulated(work_s: float, checkpoints: int, recovery: Recovery, draw: random.Random) -> float:
    """One run, event by event: segments, checkpoints that become usable, failures, restarts that may fail."""
    segment = work_s / checkpoints + recovery.stall_s
    clock, done, usable = 0.0, 0, 0
    failure, end = draw.expovariate(recovery.rate), segment
    writing: tuple[int, float] | None = None
    while True:
        ready = writing[1] if writing else math.inf
        if failure < min(ready, end):
            clock, writing, done = failure, None, usable
            while True:
                failure = clock + draw.expovariate(recovery.rate)
                if failure >= clock + recovery.restart_s:
                    clock += recovery.restart_s
                    break
                clock = failure
            end = clock + segment
        elif ready <= end:
            assert writing is not None
            usable, writing = writing[0], None
            if usable == checkpoints:
                return ready
        else:
            done += 1
            writing = done, end + recovery.write_s
            end = end + segment if done < checkpoints else math.inf


@pytest.mark.parametrize(("work_s", "checkpoints", "recovery"), CASES)
def test_the_expected_time_is_that_of_the_process(work_s: float, checkpoints: int, recovery: Recovery) -> None:
    draw = random.Random(7)
    runs = [simulated(work_s, checkpoints, recovery, draw) for _ in range(4000)]
    mean, deviation = statistics.fmean(runs), statistics.stdev(runs)
    assert expected_seconds(work_s, checkpoints, recovery) == pytest.approx(mean, abs=4 * deviation / math.sqrt(4000))
    assert math.sqrt(variance(work_s, checkpoints, recovery)) == pytest.approx(deviation, rel=0.08)


@pytest.mark.parametrize("stall_s", [0.1, 5.0, 60.0, 2000.0])
def test_the_best_period_is_the_least_of_the_expected_time(stall_s: float) -> None:
    """A long run of n periods: none of a fine grid of other numbers of checkpoints is better."""
    recovery = Recovery(rate=1e-4, restart_s=300.0, stall_s=stall_s)
    work = 2000 * best_period(recovery)
    count = best_checkpoints(work, recovery)
    best = expected_seconds(work, count, recovery)
    assert all(expected_seconds(work, max(1, other), recovery) >= best for other in range(count - 500, count + 500, 7))
    assert work / count == pytest.approx(best_period(recovery), rel=1e-3)


def test_young_and_daly_are_limits() -> None:
    """The more rarely a run fails, the nearer; Daly's second-order formula is nearer than Young's."""
    distances = []
    for rate in (1e-3, 1e-5, 1e-7):
        exact = best_period(Recovery(rate=rate, stall_s=10.0))
        young, daly = abs(young_period(10.0, rate) / exact - 1), abs(daly_period(10.0, rate) / exact - 1)
        assert daly < young / 10
        distances.append(young)
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 1e-3


def test_a_checkpoint_is_not_begun_before_the_one_before_it_is_written() -> None:
    recovery = Recovery(rate=1e-3, stall_s=0.01, write_s=200.0)
    count = best_checkpoints(10_000.0, recovery)
    assert 10_000.0 / count + recovery.stall_s >= recovery.write_s


def test_up_to_the_longest_period_costs_one_percent() -> None:
    recovery = Recovery(rate=1e-4, restart_s=60.0, stall_s=5.0)
    count = best_checkpoints(1e6, recovery)
    fewer = round(1e6 / longest_period(1e6, recovery, checkpoints=count))
    best = expected_seconds(1e6, count, recovery)
    assert expected_seconds(1e6, fewer, recovery) <= 1.01 * best < expected_seconds(1e6, fewer - 1, recovery)


def cluster(devices: int = 1024, **said: object) -> Cluster:
    reliability = replace(Reliability(), **said)  # type: ignore[arg-type]
    return Cluster(
        devices=devices,
        node_devices=8,
        checkpoint_bytes=1e12,
        to_host_bytes_per_s=25e9,
        reliability=reliability,
    )


def test_what_is_worse_makes_no_run_shorter() -> None:
    work = 20 * DAY_S
    given = {"mtbf_s": 100 * DAY_S, "checkpoint_bytes_per_s": 50e9, "restart_s": 300.0}
    base = long_run(work, cluster(**given))
    assert base.work_s < base.wall_s
    for worse in (
        {"mtbf_s": 50 * DAY_S},
        {"checkpoint_bytes_per_s": 10e9},
        {"restart_s": 900.0},
        {"waits": True},
        {"every_s": 7200.0},
    ):
        assert long_run(work, cluster(**given | worse)).wall_s > base.wall_s


def test_the_parts_are_the_whole() -> None:
    run = long_run(20 * DAY_S, cluster())
    assert run.work_s + run.checkpoint_s + run.restart_s + run.lost_s == pytest.approx(run.wall_s, rel=1e-9)
    assert run.overhead[0] <= run.overhead[1] <= run.overhead[2]
    assert run.overhead[1] == pytest.approx(1.0 / run.goodput)


def test_given_figures_leave_the_interval_to_chance_alone() -> None:
    given = {"mtbf_s": 100 * DAY_S, "checkpoint_bytes_per_s": 50e9, "restart_s": 300.0}
    narrow, wide = long_run(20 * DAY_S, cluster(**given)), long_run(20 * DAY_S, cluster())
    assert narrow.overhead[2] / narrow.overhead[1] < 1.01 < wide.overhead[2] / wide.overhead[1]


def test_a_mean_time_of_a_node_is_that_of_its_devices() -> None:
    node = long_run(DAY_S, cluster(mtbf_s=100 * DAY_S, mtbf_of="node"))
    device = long_run(DAY_S, cluster(mtbf_s=800 * DAY_S, mtbf_of="device"))
    assert node.wall_s == pytest.approx(device.wall_s)
    assert node.recovery.rate == pytest.approx(128 / (100 * DAY_S))


def test_a_restart_that_never_ends_between_two_failures_is_without_end() -> None:
    assert long_run(DAY_S, cluster(mtbf_s=128.0, restart_s=1e5)).wall_s == math.inf


def test_spares_against_a_simulation() -> None:
    load, spares, repairs = 3.0, 7, 20.0
    draw, kept = random.Random(3), 0
    for _ in range(3000):
        down, clock, alive = 0, 0.0, True
        while alive:
            clock += draw.expovariate(load + down)
            if clock > repairs:
                break
            down += 1 if draw.random() < load / (load + down) else -1
            alive = down <= spares
        kept += alive
    assert survival(spares, load=load, repairs=repairs) == pytest.approx(kept / 3000, abs=0.03)


def test_more_nodes_longer_runs_and_higher_probabilities_take_more_spares() -> None:
    asked = {"rate": 0.005 / DAY_S, "repair_s": DAY_S, "seconds": 30 * DAY_S, "probability": 0.99}
    base = spare_nodes(100, **asked)
    assert spare_nodes(2000, **asked) > base
    assert spare_nodes(100, **asked | {"repair_s": 7 * DAY_S}) > base
    assert spare_nodes(100, **asked | {"probability": 0.99999}) > base
    chosen = spare_nodes(2000, **asked)
    load = 2000 * 0.005
    assert survival(chosen, load=load, repairs=30.0) >= 0.99 > survival(chosen - 1, load=load, repairs=30.0)


def test_repairs_without_end_are_refused() -> None:
    with raises("failures.repairs-too-long", InfeasibleError):
        spare_nodes(2000, rate=1.0 / DAY_S, repair_s=10 * DAY_S, seconds=30 * DAY_S, probability=0.99)
    # In a run that is shorter than a repair only its failures count.
    assert spare_nodes(2, rate=0.1 / DAY_S, repair_s=1e9 * DAY_S, seconds=DAY_S, probability=0.9) == 1


def test_what_is_assumed_has_an_interval_and_a_source() -> None:
    known = assumed()
    for ends in (known.device_rates, known.restart_s):
        assert ends[0] < ends[1] < ends[2]
    for ends in (known.write, known.read):
        assert ends[0] > ends[1] > ends[2]
    assert set(known.sources) == {"failures", "storage", "restart", "repair"}
    assert known.device_rates[0] * 8 * DAY_S * 1000 == pytest.approx(2.34)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"mtbf": "180 days"}, "failures.mtbf-of-what"),
        ({"mtbf": "180 days/rack"}, "failures.mtbf-of-what"),
        ({"mtbf": "0 s/node"}, "failures.no-time"),
        ({"mtbf": "often/node"}, "quantity.malformed"),
        ({"checkpoint_every": "0"}, "failures.no-time"),
        ({"checkpoint_rate": "fast"}, "quantity.malformed"),
        ({"spares": "1.0"}, "failures.bad-spares"),
        ({"spares": "100%"}, "failures.bad-spares"),
        ({"spares": "5000"}, "failures.bad-spares"),
        ({"spares": "-1"}, "failures.bad-spares"),
    ],
)
def test_texts_that_mean_nothing_are_refused(options: dict[str, object], code: str) -> None:
    with raises(code):
        parse_reliability(**options)  # type: ignore[arg-type]
