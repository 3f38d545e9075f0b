"""What a stall report says of its own figures: only what the spread between blocks lets be told."""

from tests import builders
from tests.unit.features.diagnose.made import findings, split, uneven, way

from trimaran.features.diagnose.stalls import _interval, _way, _without, describe_limits
from trimaran.measure.stalls.findings import WayFindings
from trimaran.measure.stalls.steps import Way


def notes(cached: WayFindings, **others: WayFindings) -> str:
    ways: dict[Way, WayFindings] = {**others, "cached": cached}  # type: ignore[dict-item]
    return " ".join(describe_limits(builders.strategy(dp=2), findings(cached, ways=ways), "cached"))


def waiting(*milliseconds: float) -> WayFindings:
    """Blocks that wait so long for their data, beside 95 ms of compute."""
    blocks = [split(prepare=one, compute=95.0) for one in milliseconds]
    return uneven(way(split(prepare=sum(milliseconds) / len(milliseconds), compute=95.0)), *blocks)


def unknown(*milliseconds: float) -> WayFindings:
    """Blocks of 100 ms, of which so much belongs to no class."""
    blocks = [split(unattributed=one, compute=100.0 - one) for one in milliseconds]
    mean = sum(milliseconds) / len(milliseconds)
    return uneven(way(split(unattributed=mean, compute=100.0 - mean)), *blocks)


def test_what_belongs_to_no_class_is_spoken_of_where_it_is_surely_much() -> None:
    """5 % on the average, of blocks that are alike and of others. Student: 2.92 × 0.5 / √3 = 0.84."""
    assert "5.0 % of the step belong to no class (90 %: 4.2 to 5.8 %)" in notes(unknown(4.5, 5.0, 5.5))
    assert "no class" not in notes(unknown(0.0, 14.0, 1.0))
    assert "no class" not in notes(unknown(5.0))


def test_more_than_the_step_was_measured_is_said_too() -> None:
    assert "-5.0 % of the step belong to no class (90 %: -5.8 to -4.2 %): what was measured adds up to more" in notes(
        unknown(-4.5, -5.0, -5.5)
    )


def test_only_what_belongs_to_no_class_can_be_negative_and_nothing_is_without_it() -> None:
    """-5 % on the average; the reads, 1 ms at most, come to less than nothing by chance alone."""
    blocks = [split(unattributed=-4.0, fetch=0.0), split(unattributed=-6.0, fetch=1.0)]
    own = uneven(way(split(unattributed=-5.0, fetch=0.5, compute=104.5)), *blocks)
    assert _interval("unattributed", own)[0] < -5e-3 < _interval("unattributed", own)[1]
    assert _interval("fetch", own)[0] == 0.0
    assert "unattributed" not in _without(own.mean)
    assert "fetch" in _without(own.mean)


def test_cold_steps_are_slower_where_that_can_be_told() -> None:
    """3 ms more of 100, where blocks are 0.1 ms apart, and where they are 10 ms apart."""
    cached = waiting(5.0, 5.1, 4.9)
    assert "waits 3.00 ms longer for its data than a cached one (90 %: 2.7" in notes(
        cached, cold=waiting(8.0, 8.1, 7.9)
    )
    unsure = notes(cached, cold=waiting(18.0, 3.0, 3.0))
    assert "waits no longer for its data than a cached one, as far as can be told (90 %: -" in unsure


def test_one_block_does_not_tell_of_cold_steps() -> None:
    assert "One block of steps does not tell" in notes(waiting(5.0), cold=waiting(18.0))


def test_an_epoch_of_one_batch_is_said_to_have_no_cold_steps() -> None:
    assert "No step was cold" in notes(waiting(5.0, 5.0))


def test_one_block_of_steps_has_no_interval_and_two_have() -> None:
    block = split(compute=100.0)
    one, two = (_way(uneven(way(block), *[block] * count)) for count in (1, 2))
    assert one.interval_s is one.share_intervals_s is None
    assert two.interval_s is not None
    assert two.share_intervals_s is not None
