"""Where the time of a step goes, on the hand-made run of `runs`."""

from dataclasses import asdict

import pytest
from tests.raising import raises
from tests.unit.report.runs import FORWARDS, LOAD, PROGRAM, measured, measured_step, predicted, span

from trimaran.base.timeline import COPY, WAIT, Timeline
from trimaran.program.types import Instruction, Kind, Program
from trimaran.report.breakdown import PARTS, Source, break_down


def parts(program: Program, timeline: Timeline, source: Source, *, rank: int, step: int = 0) -> dict[str, float]:
    (found,) = (item for item in break_down(program, timeline, source) if (item.rank, item.step) == (rank, step))
    return {name.removesuffix("_s"): value for name, value in asdict(found).items() if name.endswith("_s")}


def test_the_first_rank_of_a_measurement() -> None:
    """A step of 10 s. It waits from 3.5 to 7.5, and in 9.7 to 9.75.

    The backward message is under way from 6.5 to 7.5: 1 s exposed. The forward one is from 3 to 4: the rank waits from
    3.5 on, 0.5 s exposed and 0.5 s hidden. Idle is the rest of waiting, 4.05 - 1.5 = 2.55. Work is 1 + 2 + 1.5 + 0.5.
    Unattributed: 3 to 3.5, 9.5 to 9.7, 9.75 to 10: 0.95.
    """
    assert parts(PROGRAM, measured(), Source.MEASURED, rank=0) == pytest.approx(
        {
            "step": 10.0,
            "load": 1.0,
            "forward": 2.0,
            "backward": 1.5,
            "update": 0.5,
            "exposed": 1.5,
            "overlapped": 0.5,
            "idle": 2.55,
            "unattributed": 0.95,
        }
    )


def test_the_second_rank_of_a_measurement() -> None:
    """It waits from 0 to 4, where the message is under way from 3 on: idle 3, exposed 1. And from 9 to 9.25: idle.

    The backward message, from 6.5 to 7.5, finds the host between two spans: hidden. Work is 1 + 1.5 + 1.
    Unattributed: 6.5 to 8 and 9.25 to 10: 2.25.
    """
    assert parts(PROGRAM, measured(), Source.MEASURED, rank=1) == pytest.approx(
        {
            "step": 10.0,
            "load": 0.0,
            "forward": 1.0,
            "backward": 1.5,
            "update": 1.0,
            "exposed": 1.0,
            "overlapped": 1.0,
            "idle": 3.25,
            "unattributed": 2.25,
        }
    )


def test_a_prediction_has_nothing_unattributed() -> None:
    """A step of 9 s on both ranks. Rank 1 works 1 + 1.5 + 1, its message of 0.5 s is exposed, the other one hidden."""
    assert parts(PROGRAM, predicted(), Source.PREDICTED, rank=1) == pytest.approx(
        {
            "step": 9.0,
            "load": 0.0,
            "forward": 1.0,
            "backward": 1.5,
            "update": 1.0,
            "exposed": 0.5,
            "overlapped": 0.5,
            "idle": 5.0,
            "unattributed": 0.0,
        }
    )


@pytest.mark.parametrize(
    ("rank", "host"),
    [
        (0, {"communication": 0.5 + 0.2, "load": 0.25}),
        (1, {"update": 1.5, "communication": 0.75}),
    ],
)
def test_what_the_host_takes_belongs_to_the_phase_that_it_prepares(rank: int, host: dict[str, float]) -> None:
    """Gaps of rank 0: 3 to 3.5 and 9.5 to 9.7 before waits, 9.75 to 10 before the next step, which loads first.

    Of rank 1: 6.5 to 8 before its update, 9.25 to 10 before the next step, which waits first.
    """
    found = next(one for one in break_down(PROGRAM, measured(), Source.MEASURED) if one.rank == rank)
    assert found.host == pytest.approx(host)
    assert sum(found.phases.values()) == pytest.approx(found.step_s, abs=1e-12)


def test_a_span_of_no_part_stays_out_of_the_phases() -> None:
    """A forward until 1, a release until 3, an update from 4 on: the gap before the update is the update's."""
    release, last = Instruction(kind=Kind.RELEASE, rank=0, microbatch=0), Instruction(kind=Kind.UPDATE, rank=0)
    program = Program(ranks=((FORWARDS[0], release, last),), segments=1, microbatches=1)
    spans = [span(FORWARDS[0], 0.0, 1.0), span(release, 1.0, 3.0), span(last, 4.0, 5.0)]
    (found,) = break_down(program, Timeline(spans), Source.MEASURED)
    assert (found.host, found.host_s, found.unattributed_s) == ({"update": 1.0}, 1.0, 3.0)
    assert break_down(program, Timeline(spans), Source.PREDICTED)[0].host == {}


@pytest.mark.parametrize("source", list(Source))
@pytest.mark.parametrize("timeline", [measured(), predicted()], ids=["measured", "predicted"])
def test_parts_sum_to_the_step(source: Source, timeline: Timeline) -> None:
    for found in break_down(PROGRAM, timeline, source):
        assert sum(getattr(found, f"{name}_s") for name in PARTS) == pytest.approx(found.step_s, abs=1e-12)


def test_a_step_ends_where_the_next_one_starts_on_the_rank() -> None:
    """Rank 1 starts its second step at 10.5, half a second late: its first step is 10.5 s long and its second 9.25."""
    second = [item for item in measured_step(1, start_s=10.0) if item.rank == 0]
    second += [item for item in measured_step(1, start_s=10.5) if item.rank == 1]
    timeline = Timeline([*measured_step(0), *second])
    lengths = {(item.rank, item.step): item.step_s for item in break_down(PROGRAM, timeline, Source.MEASURED)}
    assert lengths == {(0, 0): 10.0, (1, 0): 10.5, (0, 1): 9.75, (1, 1): 9.25}


def test_the_first_step_starts_with_the_first_rank_and_the_last_ends_with_the_last() -> None:
    """Rank 0 runs from 0 to 1 and rank 1 from 1 to 3: both steps are 3 s long, and rank 0 idles 2 of them."""
    timeline = Timeline([span(FORWARDS[0], 0.0, 1.0), span(FORWARDS[1], 1.0, 3.0)])
    program = Program(ranks=((FORWARDS[0],), (FORWARDS[1],)), segments=2, microbatches=1)
    found = break_down(program, timeline, Source.PREDICTED)
    assert [(item.step_s, item.idle_s) for item in found] == [(3.0, 2.0), (3.0, 1.0)]


def test_without_recorded_waits_a_rank_waits_while_a_transfer_is_under_way() -> None:
    """A copy runs from 1 to 3 and the rank computes until 2: 1 s exposed, 1 s hidden, and 3 to 4 is unattributed."""
    copy = Instruction(kind=Kind.PREFETCH, rank=0, microbatch=0, stream=COPY)
    last = Instruction(kind=Kind.UPDATE, rank=0)
    program = Program(ranks=((FORWARDS[0], copy, last),), segments=1, microbatches=1)
    timeline = Timeline([span(FORWARDS[0], 0.0, 2.0), span(copy, 1.0, 3.0), span(last, 4.0, 5.0)])
    found = parts(program, timeline, Source.MEASURED, rank=0)
    assert (found["exposed"], found["overlapped"], found["idle"], found["unattributed"]) == (1.0, 1.0, 0.0, 1.0)


def test_loading_beside_compute_is_not_counted_twice() -> None:
    """A load from 0 to 3 beside a forward from 1 to 2: forward 1 s, load 2 s."""
    program = Program(ranks=((LOAD, FORWARDS[0]),), segments=1, microbatches=1)
    found = parts(program, Timeline([span(LOAD, 0.0, 3.0), span(FORWARDS[0], 1.0, 2.0)]), Source.PREDICTED, rank=0)
    assert (found["forward"], found["load"], found["idle"]) == (1.0, 2.0, 0.0)


def test_compute_inside_a_wait_is_compute() -> None:
    """A wait from 0 to 3 with a forward from 1 to 2 in it: 2 s idle."""
    program = Program(ranks=((FORWARDS[0],),), segments=1, microbatches=1)
    timeline = Timeline([span(FORWARDS[0], 1.0, 2.0), span(FORWARDS[0], 0.0, 3.0, stream=WAIT)])
    assert parts(program, timeline, Source.MEASURED, rank=0)["idle"] == 2.0


def test_a_span_of_another_program_is_refused() -> None:
    with raises("report.unknown-instruction", instruction="r0/0F0", step=0):
        break_down(
            Program(ranks=((),), segments=1, microbatches=1), Timeline([span(FORWARDS[0], 0, 1)]), Source.MEASURED
        )


@pytest.mark.parametrize("source", list(Source))
def test_work_of_no_part_is_unattributed(source: Source) -> None:
    """A forward until 1, then a release of storages until 3: neither waiting nor a part."""
    release = Instruction(kind=Kind.RELEASE, rank=0, microbatch=0)
    program = Program(ranks=((FORWARDS[0], release),), segments=1, microbatches=1)
    found = parts(program, Timeline([span(FORWARDS[0], 0.0, 1.0), span(release, 1.0, 3.0)]), source, rank=0)
    assert (found["forward"], found["idle"], found["unattributed"]) == (1.0, 0.0, 2.0)
