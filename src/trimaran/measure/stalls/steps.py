"""From the records of ranks to a split of each step.

A step of a rank lasts from when it asks for its share of a batch until its loss is known. Of this time the record has
the spans of loads, of waits for exchanges, and of compute: forwards, backwards, clipping, the update with its zeroing.
A wait may lie in the middle of a backward, and is then no compute. What is in no span belongs to no class: the
interpreter that goes from one instruction to the next, and whatever else nobody measured.

    ask │ IN ▓▓▓▓▓▓▓ │ F ████ │ B ███ ▒▒ ███ │ wait ▒▒▒▒ │ U ██ │ loss
        fetch, prepare, copy    compute        communication, synchronization
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from trimaran.measure.stalls.exchanges import Exchanges, Waited
from trimaran.measure.stalls.loading import divide_loading
from trimaran.measure.stalls.splits import Split
from trimaran.program.types import Kind, Program
from trimaran.runtime.feed.types import Loading
from trimaran.timeline import COMPUTE, HOST, WAIT, Span, Timeline

Way = Literal["cold", "cached", "synthetic"]
"""How a step gets its batch: samples that are read for the first time; the same ones again; the same batch again."""

WAYS: tuple[Way, ...] = get_args(Way)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """One step of one rank, by its own clock.

    Attributes:
        number: of the step, as the timeline has it
        way: how it got its batch
        block: number of the block of consecutive steps that it is in
        asked_s: from asking the feed until it had named the share [s]
        step_s: from then until the loss was known [s]
        busy_s: processor time of the process meanwhile [s]
        loading: what was observed of its loading; None: nothing
    """

    number: int
    way: Way
    block: int
    asked_s: float
    step_s: float
    busy_s: float = 0.0
    loading: Loading | None = None


def split_steps(
    program: Program,
    timelines: Iterable[Timeline],
    steps: Sequence[Sequence[TimedStep]],
    *,
    host_blocks: bool = True,
) -> list[dict[int, Split]]:
    """The split of each step of each rank.

    Args:
        program: of a step
        timelines: what was recorded of all ranks; a step may be in several
        steps: of each rank
        host_blocks: as for `divide_loading`

    Returns:
        For each rank, splits by the number of the step; steps that were not recorded are left out.
    """
    spans = spans_by_step(timelines)
    exchanges = Exchanges(program)
    waited = {number: exchanges.divide(of) for number, of in spans.items()}
    loads = {number: _loads(of, exchanges) for number, of in spans.items()}
    computed = {number: _computed(of) for number, of in spans.items()}
    return [
        {
            step.number: _split(
                step,
                loads[step.number].get(rank, 0.0),
                computed[step.number].get(rank, 0.0),
                waited[step.number].get(rank, Waited()),
                host_blocks,
            )
            for step in own
            if step.number in spans
        }
        for rank, own in enumerate(steps)
    ]


def spans_by_step(timelines: Iterable[Timeline]) -> dict[int, list[Span]]:
    """The spans of each step, of all ranks; of timelines that both have a step, the first counts."""
    found: dict[int, list[Span]] = {}
    for timeline in timelines:
        own: dict[int, list[Span]] = defaultdict(list)
        for span in timeline:
            if span.step not in found:
                own[span.step].append(span)
        found |= own
    return found


def _loads(spans: Sequence[Span], exchanges: Exchanges) -> Mapping[int, float]:
    """Time of the loads of each rank [s]."""
    found: dict[int, float] = defaultdict(float)
    for span in spans:
        instruction = exchanges.find(span.instruction)
        if span.stream == HOST and (instruction is None or instruction.kind is Kind.LOAD):
            found[span.rank] += span.seconds
    return found


def _computed(spans: Sequence[Span]) -> Mapping[int, float]:
    """What each rank computed, the waits in the middle of it left out [s]."""
    lanes: dict[tuple[int, str], list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start_s):
        lanes[span.rank, span.stream].append(span)
    return {
        rank: sum(span.seconds for span in lane) - _shared(lane, lanes.get((rank, WAIT), ()))
        for (rank, stream), lane in lanes.items()
        if stream == COMPUTE
    }


def _shared(one: Sequence[Span], other: Sequence[Span]) -> float:
    """Time that lies in spans of both lanes [s]; those of a lane are in order and do not overlap."""
    ends = [span.end_s for span in other]
    found = 0.0
    for span in one:
        for near in other[bisect_right(ends, span.start_s) :]:
            if near.start_s >= span.end_s:
                break
            found += min(span.end_s, near.end_s) - max(span.start_s, near.start_s)
    return found


def _split(step: TimedStep, load_s: float, compute_s: float, waited: Waited, host_blocks: bool) -> Split:
    parts = divide_loading(step.loading, load_s, host_blocks=host_blocks)
    recorded_s = load_s + compute_s + waited.communication + waited.synchronization
    return Split(
        fetch=parts.fetch,
        # Naming the share draws the order of its epoch, where it is the first of it. Workers start in a load.
        prepare=parts.prepare + step.asked_s,
        copy=parts.copy,
        compute=compute_s,
        communication=waited.communication,
        synchronization=waited.synchronization,
        unattributed=parts.rest + step.step_s - recorded_s,
    )
