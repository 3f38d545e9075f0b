"""From what ranks brought home to mean steps, by hand."""

import pytest
from tests.raising import raises
from tests.unit.measure.stalls.test_exchanges import program, span, waits

from trimaran.base.errors import ExecutionError
from trimaran.base.timeline import COMMUNICATION, COMPUTE, Span, Timeline
from trimaran.measure.stalls.findings import analyse_stalls
from trimaran.measure.stalls.page_cache import Forgotten
from trimaran.measure.stalls.rank import RankRun
from trimaran.measure.stalls.steps import TimedStep
from trimaran.runtime.data.prefetch import LoadingTimes

WAYS = ("cold", "cached", "synthetic")


def run(steps: list[TimedStep], timeline: Timeline | None = None) -> RankRun:
    return RankRun(
        steps=tuple(steps),
        timelines=() if timeline is None else (timeline,),
        reads=True,
        reads_files=False,
        forgotten=Forgotten(),
        samples=64,
        exchange=(),
        sampled=None,
    )


def of_step(number: int) -> list[Span]:
    """Rank 0 computes 4 s and waits 3 s, rank 1 computes 6 s and waits 1 s; bucket b0 leaves 1 s before the end."""
    found = [
        span(0, COMPUTE, "0B0", 0.0, 4.0),
        span(0, COMMUNICATION, "AR#b0", 3.0, 7.0),
        *waits(0, 4.0, b0=3.0),
        span(1, COMPUTE, "0B0", 0.0, 6.0),
        span(1, COMMUNICATION, "AR#b0", 5.0, 7.0),
        *waits(1, 6.0, b0=1.0),
    ]
    return [
        Span(
            rank=one.rank,
            stream=one.stream,
            start_s=one.start_s,
            end_s=one.end_s,
            instruction=one.instruction,
            step=number,
        )
        for one in found
    ]


def steps(rank: int, asked_s: float) -> list[TimedStep]:
    """A step of each way, in two rounds."""
    return [
        TimedStep(
            number=number,
            way=WAYS[number % 3],  # type: ignore[arg-type]
            block=number // 3,
            asked_s=asked_s,
            step_s=7.0,
            busy_s=4.0 + 2.0 * rank,
            loading=None if number % 3 == 2 else LoadingTimes(samples=4, read_s=2.0, prepared_s=1.0, in_line=False),
        )
        for number in range(6)
    ]


def test_ways_ranks_and_blocks_have_their_means() -> None:
    timeline = Timeline([one for number in range(6) for one in of_step(number)])
    found = analyse_stalls(program(), [run(steps(0, asked_s=0.0), timeline), run(steps(1, asked_s=2.0))])
    assert list(found.ways) == list(WAYS)
    cached = found.ways["cached"]
    assert (cached.steps, len(cached.blocks)) == (2, 2)
    first, second = cached.ranks
    assert (first.compute, first.communication, first.synchronization, first.prepare) == (4.0, 1.0, 2.0, 0.0)
    assert (second.compute, second.communication, second.synchronization, second.prepare) == (6.0, 1.0, 0.0, 2.0)
    assert cached.mean.step_s == pytest.approx(8.0)
    assert (cached.read_s, cached.prepared_s) == (2.0, 1.0)
    assert cached.calm == ((1,), (4,))
    assert found.ways["synthetic"].read_s == 0.0
    assert found.update_s == 0.0


def test_without_a_record_there_is_nothing_to_say() -> None:
    with raises("stalls.no-steps", ExecutionError):
        analyse_stalls(program(), [run(steps(0, asked_s=0.0), Timeline([])), run(steps(1, asked_s=0.0))])
