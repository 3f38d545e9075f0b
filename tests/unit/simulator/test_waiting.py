"""Instructions that stand still at marks."""

from typing import Any

from tests import builders
from tests.raising import raises
from tests.unit.simulator.building import all_reduce, costs, forward, program, span_of, transfer

from trimaran.program.types import Mark
from trimaran.simulator.engine import simulate

GROUP = (0, 1)


def step(rank: int, *marks: tuple[str, str], **fields: Any) -> Any:
    """A forward with marks, each with what it waits for."""
    return forward(rank, marks=tuple(Mark(name=name, op=name, waits_for=token) for name, token in marks), **fields)


def summed(rank: int, label: str, *, after: str | None = None) -> Any:
    return all_reduce(rank, GROUP, label, after=(after or f"{rank}F0!{label}",))


def places(**fractions: float) -> dict[tuple[str, str], float]:
    return {(f"r{rank}/{rank}F0", name.replace("_", ".")): at for rank in (0, 1) for name, at in fractions.items()}


def test_a_step_stands_still_until_the_sum_that_it_started_has_ended() -> None:
    """4 s of work with a sum of 1 s after each half: 2 + 1 + 2 + 1 = 6 s on both ranks, in one span each."""
    works = [step(rank, ("f0", "AR#f0"), ("f1", "AR#f1")) for rank in GROUP]
    sums = [[summed(rank, label) for label in ("f0", "f1")] for rank in GROUP]
    entries = dict.fromkeys(works, 4.0) | {sums[0][0]: transfer(1.0), sums[0][1]: transfer(1.0)}
    timeline = simulate(
        program(*((work, *found) for work, found in zip(works, sums, strict=True))),
        costs(entries, marks=places(f0=0.5, f1=1.0)),
    )
    assert [span_of(timeline, work) for work in works] == [(0.0, 6.0), (0.0, 6.0)]
    assert span_of(timeline, sums[0][0]) == (2.0, 3.0)
    assert span_of(timeline, sums[1][1]) == (5.0, 6.0)


def test_the_faster_rank_waits_for_the_slower_one_at_each_sum() -> None:
    """2 s and 6 s of work, a sum of 1 s in the middle: it runs from 3 to 4; the fast one ends at 5, the slow at 7."""
    works = [step(rank, ("f0", "AR#f0")) for rank in GROUP]
    sums = [summed(rank, "f0") for rank in GROUP]
    entries = {works[0]: 2.0, works[1]: 6.0, sums[0]: transfer(1.0)}
    timeline = simulate(
        program(*zip(works, sums, strict=True)),
        costs(entries, marks=places(f0=0.5)),
    )
    assert span_of(timeline, sums[0]) == (3.0, 4.0)
    assert [span_of(timeline, work)[1] for work in works] == [5.0, 7.0]


def test_what_was_started_ahead_is_waited_for_only_as_long_as_it_still_takes() -> None:
    """Started at 1 s, needed at 3 s, ends at 4 s: 4 s of work end at 5 s. Had it taken 1 s, at 4 s."""
    for flow_s, end_s in ((3.0, 5.0), (1.0, 4.0)):
        works = [step(rank, ("u1", ""), ("u1.wait", "AR#u1")) for rank in GROUP]
        gathers = [summed(rank, "u1") for rank in GROUP]
        entries = {works[0]: 4.0, works[1]: 4.0, gathers[0]: transfer(flow_s)}
        timeline = simulate(
            program(*zip(works, gathers, strict=True)),
            costs(entries, marks=places(u1=0.25, u1_wait=0.75)),
        )
        assert span_of(timeline, works[0]) == (0.0, end_s)


def test_a_rank_does_not_slow_down_what_flows_while_it_stands_still() -> None:
    """Compute makes transfers beside it twice as long; the sum of 1 s runs alone, so 2 + 1 + 2 s."""
    works = [step(rank, ("f0", "AR#f0")) for rank in GROUP]
    sums = [summed(rank, "f0") for rank in GROUP]
    entries = {works[0]: 4.0, works[1]: 4.0, sums[0]: transfer(1.0)}
    timeline = simulate(
        program(*zip(works, sums, strict=True)),
        costs(entries, marks=places(f0=0.5), interference=builders.interference(compute=2.0, communication=2.0)),
    )
    assert span_of(timeline, works[0]) == (0.0, 5.0)


def test_what_comes_after_in_the_list_waits_for_the_last_piece() -> None:
    works = [step(rank, ("f0", "AR#f0")) for rank in GROUP]
    sums = [summed(rank, "f0") for rank in GROUP]
    later = forward(0, 1)
    entries = {works[0]: 4.0, works[1]: 4.0, sums[0]: transfer(1.0), later: 1.0}
    timeline = simulate(
        program((works[0], sums[0], later), (works[1], sums[1])),
        costs(entries, marks=places(f0=0.5), host_blocks=True),
    )
    assert span_of(timeline, later) == (5.0, 6.0)


def test_a_mark_after_the_last_wait_starts_what_it_starts_then() -> None:
    """The scatter s0 starts at 3/4 of 4 s of work, which stood still for 1 s before: at 4 s."""
    works = [step(rank, ("f0", "AR#f0"), ("s0", "")) for rank in GROUP]
    sums = [[summed(rank, label) for label in ("f0", "s0")] for rank in GROUP]
    entries = dict.fromkeys(works, 4.0) | {sums[0][0]: transfer(1.0), sums[0][1]: transfer(2.0)}
    timeline = simulate(
        program(*((work, *found) for work, found in zip(works, sums, strict=True))),
        costs(entries, marks=places(f0=0.5, s0=0.75)),
    )
    assert span_of(timeline, sums[0][1]) == (4.0, 6.0)
    assert span_of(timeline, works[0]) == (0.0, 5.0)


def test_a_waiting_mark_without_a_place_is_refused() -> None:
    works = [step(rank, ("f0", "AR#f0")) for rank in GROUP]
    sums = [summed(rank, "f0") for rank in GROUP]
    entries = {works[0]: 4.0, works[1]: 4.0, sums[0]: transfer(1.0)}
    with raises("simulator.mark-without-place", mark="r0/0F0!f0"):
        simulate(program(*zip(works, sums, strict=True)), costs(entries))
