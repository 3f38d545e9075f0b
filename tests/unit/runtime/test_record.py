"""The record of a run."""

from trimaran.base.timeline import Span
from trimaran.runtime.record import STEPS_KEPT, RunRecorder
from trimaran.runtime.streams import HostStreams


def recorder(*, enabled: bool = True) -> RunRecorder:
    return RunRecorder(0, HostStreams(), None, enabled=enabled)


def test_spans_carry_instruction_and_step_and_start_at_the_first() -> None:
    """2 µs and 5 µs after the first start, on a clock that reads 7 s."""
    own = recorder()
    origin = 7_000_000_000
    own.add("IN0", "host", origin, origin + 2_000, 16)
    own.end_step(4)
    own.add("0F0", "compute", origin + 3_000, origin + 8_000)
    own.end_step(5)
    assert list(own.timeline()) == [
        Span(rank=0, stream="host", start_s=0.0, end_s=2e-6, instruction="r0/IN0", nbytes=16, step=4),
        Span(rank=0, stream="compute", start_s=3e-6, end_s=8e-6, instruction="r0/0F0", step=5),
    ]


def test_what_is_switched_off_records_nothing() -> None:
    own = recorder(enabled=False)
    assert own.stamp() == 0
    own.add("IN0", "host", own.stamp(), own.stamp())
    own.end_step(0)
    assert len(own.timeline()) == 0


def test_an_unfinished_step_is_forgotten() -> None:
    own = recorder()
    own.add("0F0", "compute", 1, 2)
    own.discard()
    own.end_step(0)
    assert len(own.timeline()) == 0


def test_only_the_last_steps_are_kept() -> None:
    own = recorder()
    for step in range(STEPS_KEPT + 3):
        own.add("U", "compute", step, step + 1)
        own.end_step(step)
    assert own.timeline().steps == tuple(range(3, STEPS_KEPT + 3))


def test_of_many_collectives_the_ends_of_some_are_watched() -> None:
    """In one step of eight: the first eight, then every sixteenth; messages never."""
    own = recorder()
    watched = [own.watches(collective=True) for _ in range(40)]
    assert [number for number, found in enumerate(watched, start=1) if found] == [*range(1, 9), 16, 32]
    assert not own.watches(collective=False)
    own.end_step(0)
    assert not own.watches(collective=True)
    own.end_step(7)
    assert own.watches(collective=True)
