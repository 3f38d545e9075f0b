import itertools

import pytest
from trimaran_watch import ledger as module
from trimaran_watch.ledger import BACKWARD, EXPOSED, FORWARD, KINDS, OTHER, SYNC, Ledger


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """A ledger whose clock goes on by 10 ns each time that it is read."""
    ticks = itertools.count(0, 10)
    monkeypatch.setattr(module, "_clock", lambda: next(ticks))
    return Ledger()


def spent(ledger: Ledger) -> dict[str, int]:
    times = ledger.rows[-1][3 : 3 + len(KINDS)]
    return {kind: time for kind, time in zip(KINDS, times, strict=True) if time}


def test_nested_time_belongs_to_the_innermost_and_the_kinds_sum_to_the_step(ledger: Ledger) -> None:
    """The clock is read at 0 (start), 10, 20, 30, 40, 50: other 10 + 10, forward 10 + 10, sync 10."""
    outer = ledger.enter(FORWARD)
    inner = ledger.enter(SYNC)
    ledger.leave(inner)
    ledger.leave(outer)
    ledger.end_step()
    assert spent(ledger) == {"other": 20, "forward": 20, "sync": 10}


def test_what_an_exception_left_open_is_left_with_what_is_around_it(ledger: Ledger) -> None:
    outer = ledger.enter(FORWARD)
    ledger.enter(SYNC)
    ledger.leave(outer)
    assert ledger.stack == [OTHER]


def test_a_turn_ends_one_kind_and_begins_another_at_the_same_depth(ledger: Ledger) -> None:
    depth = ledger.enter(BACKWARD)
    ledger.turn(EXPOSED)
    ledger.leave(depth)
    ledger.end_step()
    assert spent(ledger) == {"other": 20, "backward": 10, "exposed": 10}


def test_steps_begin_at_nothing(ledger: Ledger) -> None:
    ledger.counts[0] = 3
    ledger.end_step()
    ledger.end_step()
    assert spent(ledger) == {"other": 10}
    assert ledger.rows[-1][3 + len(KINDS) :] == [0] * len(module.COUNTS)
