"""Where more devices stop helping."""

import pytest
from tests.unit.planner.target.estimates import contender, timed

from trimaran.planner.target_estimates import estimate, find_stop


def test_devices_stop_helping_where_a_doubling_saves_less_than_the_share() -> None:
    """10, 5, 4.8 s on 1, 2, 4 devices: the first doubling saves 50 %, the second 4 %."""
    some = [timed(devices=n, step_ms=ms) for n, ms in ((1, 10.0), (2, 5.0), (4, 4.8))]
    found = find_stop(some, share=0.1)
    assert found.devices == 2
    assert found.saved == pytest.approx({1: 0.5, 2: 0.04})
    assert found.counts == (1, 2, 4)


def test_devices_that_make_it_slower_are_found() -> None:
    found = find_stop([timed(devices=1, step_ms=10.0), timed(devices=2, step_ms=11.0)], share=0.0)
    assert found.devices == 1
    assert found.saved[1] == pytest.approx(-0.1)


def test_where_every_doubling_helps_there_is_no_end() -> None:
    assert find_stop([timed(devices=n, step_ms=10.0 / n) for n in (1, 2, 4)]).devices is None


def test_a_step_that_is_no_doubling_counts_by_the_doublings_that_it_is() -> None:
    """From 1 to 8 devices 10 s become 1.25 s: three doublings of 50 % each."""
    assert find_stop([timed(devices=1, step_ms=10.0), timed(devices=8, step_ms=1.25)]).saved[1] == pytest.approx(0.5)


def test_the_fastest_of_each_count_stands_for_it() -> None:
    some = [timed(devices=1, step_ms=10.0), timed(devices=2, step_ms=9.9), timed(devices=2, step_ms=5.0, batch=128)]
    assert find_stop(some).saved[1] == pytest.approx(0.5)


def test_an_unsure_curve_widens_where_to_stop() -> None:
    """20 % are saved at twice the batch: by a curve known within 15 % at each batch it may be none, or far more."""
    some = [
        timed(devices=1, batch=64, step_ms=10.0, curve=1.15),
        timed(devices=2, batch=128, step_ms=8.0, curve=1.15),
        timed(devices=4, batch=128, step_ms=7.9, curve=1.15),
    ]
    found = find_stop(some, share=0.1)
    assert found.devices == 2
    assert found.interval == (1, 2)
    sure = find_stop([timed(devices=1, step_ms=10.0), timed(devices=2, step_ms=8.0), timed(devices=4, step_ms=7.9)])
    assert sure.interval == (2, 2)


def test_what_has_no_time_does_not_count() -> None:
    found = find_stop([timed(devices=1), estimate(contender(devices=2), None)])
    assert found.counts == (1,)
    assert found.devices is None
