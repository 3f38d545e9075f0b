"""When a state is saved by the clock, which is looked at after some steps only."""

import pytest

from trimaran.base.errors import InputError
from trimaran.features.training import rank
from trimaran.runtime.communication.channels import ALONE


class Clock:
    """Time that passes where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("text", ["²", "9" * 5000, "0", "٣"])
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        rank.parse_saving(text)


def test_an_evaluation_between_steps_does_not_put_off_a_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 steps of 10 ms, then an evaluation of 20 s, again and again: saves every 10 min are about that far apart."""
    clock = Clock()
    monkeypatch.setattr(rank, "time", clock)
    cadence = rank.Cadence(rank.parse_saving("10min"), ALONE, 0)
    saves = []
    for step in range(1, 20_001):
        clock.now += 0.01 + 20.0 * (step % 100 == 0)
        if cadence.due(step):
            saves.append(clock.now)
    apart = [later - earlier for earlier, later in zip([0.0, *saves], saves, strict=False)]
    assert len(saves) >= 4
    assert max(apart) <= 2 * 600.0 + 40.0
