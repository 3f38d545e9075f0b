"""When the target was reached, between evaluations."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from trimaran.measure.convergence.runs import best_metric, find_crossing, is_due

METRICS = st.lists(st.floats(0, 1), min_size=1, max_size=20)


def test_a_line_between_two_evaluations() -> None:
    """0.6 at 2 epochs, 0.8 at 3: 0.75 is three quarters of the way."""
    assert find_crossing([(1.0, 0.5), (2.0, 0.6), (3.0, 0.8)], 0.75) == 2.75


def test_the_first_evaluation_has_none_before_it() -> None:
    assert find_crossing([(0.5, 0.9)], 0.8) == 0.5


def test_what_falls_again_has_been_reached() -> None:
    assert find_crossing([(1.0, 0.0), (2.0, 1.0), (3.0, 0.0)], 0.5) == 1.5


@given(METRICS, st.floats(0, 1))
def test_reached_exactly_where_the_best_is_as_good(metrics: list[float], target: float) -> None:
    evaluations = [(1.0 + number, metric) for number, metric in enumerate(metrics)]
    crossing = find_crossing(evaluations, target)
    best = best_metric(evaluations)
    assert best is not None
    assert (crossing is not None) == (best >= target)
    if crossing is not None:
        first = next(epochs for epochs, metric in evaluations if metric >= target)
        assert first - 1 <= crossing <= first


@given(METRICS, st.floats(0, 1), st.floats(0, 1))
def test_a_lower_target_is_not_reached_later(metrics: list[float], one: float, other: float) -> None:
    evaluations = [(1.0 + number, metric) for number, metric in enumerate(metrics)]
    low, high = (find_crossing(evaluations, target) for target in sorted((one, other)))
    if high is not None:
        assert low is not None
        assert low <= high


def test_no_evaluation_reaches_nothing() -> None:
    assert find_crossing([], 0.5) is None
    assert best_metric([]) is None


def test_evaluations_grow_rarer_with_the_epochs() -> None:
    """100 updates an epoch, 40 epochs, at most four evaluations of each: 4 · 5 until 5 epochs, then one each 5 %."""
    last, evaluated = 0.0, []
    for update in range(1, 4001):
        if is_due(update / 100, last, per_epoch=4):
            last = update / 100
            evaluated.append(last)
    assert evaluated[:20] == [number / 4 for number in range(1, 21)]
    assert all(later / epochs <= 1.05 + 0.011 / epochs for epochs, later in itertools.pairwise(evaluated[20:]))
    assert len(evaluated) < 70
