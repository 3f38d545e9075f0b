"""Which sizes of a curve are left out because they would take too long, and what comes of one round."""

from tests import builders

from trimaran.measure.calibration.links import LONGEST_S, _CurvePoint, _curves, _expected_s


def points(*seconds_by_size: tuple[int, float]) -> list[_CurvePoint]:
    return [
        _CurvePoint(key=builders.curve_key("AR", 8), nbytes=nbytes, seconds=seconds)
        for nbytes, seconds in seconds_by_size
    ]


def test_what_small_sizes_differ_by_leaves_out_nothing() -> None:
    """Eight ranks on two cores: 5.4 ms for 16 B and 20.5 ms for 1 KiB, a line that has 16 KiB take 0.25 s more."""
    assert _expected_s(points((16, 5.4e-3), (1024, 20.5e-3)), 16 << 10) < LONGEST_S


def test_what_bytes_take_is_carried_on() -> None:
    """128 KiB in 5 ms and 1 MiB in 42 ms: 896 KiB in 37 ms, so 3 MiB more in 127 ms."""
    known = points((128 << 10, 5e-3), (1 << 20, 42e-3))
    assert round(_expected_s(known, 4 << 20), 3) == 0.169


def test_a_round_has_the_transfers_that_are_not_timed_too() -> None:
    """Of 50 ms three are timed after one that is not, of 200 ms one alone; what 50 ms of handling are has its own."""
    short, long = points((128 << 10, 0.05), (1 << 20, 0.2))
    assert (round(short.round_s, 6), round(long.round_s, 6)) == (0.2, 0.2)
    handled = _CurvePoint(key=builders.curve_key("AR host", 2), nbytes=1024, seconds=0.05)
    assert round(handled.round_s, 6) == round(handled.repeats * 0.05, 6)


def test_one_round_of_one_sample_is_no_certainty() -> None:
    """The sample of the first pass stands beside that of the round."""
    (point,) = points((128 << 10, 0.3))
    point.first, point.rounds = [0.27], [[0.25]]
    ((_, cost),) = _curves([point], how="one round")[point.key]
    assert (cost.low, cost.high) == (0.25, 0.27)
