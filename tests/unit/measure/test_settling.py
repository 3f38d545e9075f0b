"""Costs are measured when a busy machine has settled, or it is said that it has not."""

from collections.abc import Iterator

import pytest

from trimaran.measure.others import BUSY, SETTLING, settle, settling_s, unsettled_note


def waited(shares: list[float | None], *, limit_s: float = 10.0) -> tuple[float | None, int]:
    """The share in the end, and how often was looked; a look takes a second."""
    left: Iterator[float | None] = iter(shares)
    seconds = [0.0]

    def look() -> float | None:
        seconds[0] += 1.0
        return next(left)

    return settle(limit_s=limit_s, share=look, clock=lambda: seconds[0]), int(seconds[0])


def test_a_busy_machine_is_waited_for_until_it_is_idle() -> None:
    assert waited([0.9, 0.8, BUSY / 2]) == (BUSY / 2, 3)
    assert waited([0.0]) == (0.0, 1)
    assert waited([None]) == (None, 1)


def test_a_machine_that_stays_busy_is_said_to_be_busy() -> None:
    share, looks = waited([0.9] * 20, limit_s=5.0)
    assert looks <= 6
    assert "90 %" in unsettled_note(share)
    assert not unsettled_note(BUSY / 2)
    assert not unsettled_note(None)


@pytest.mark.parametrize(("text", "seconds"), [("2.5", 2.5), ("-1", 0.0), ("soon", 0.0)])
def test_the_limit_is_that_of_the_variable(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTLING, text)
    assert settling_s() == seconds
    monkeypatch.delenv(SETTLING)
    assert settling_s() == 0.0
