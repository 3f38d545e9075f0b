"""Where the time of a step went, on one rank.

The step of a rank is cut into parts that do not overlap and sum to it. In this order, each takes what the ones before
it left:

    forward       spans of F and EV
    backward      spans of B, I, W, and of RE: a recomputed forward exists for the backward
    update        spans of U and CLIP
    load          spans of IN, as far as no computation runs beside them
    exposed       communication or copies under way while the rank waits
    idle          the rank waits, and nothing of its own is under way: it waits for a peer, or has nothing to do
    unattributed  the rest, in a measurement: what the host does between the spans that it records

and beside them, not part of the sum, `hidden`: communication or copies under way while the rank does not wait.

When a transfer is under way: see `transfers`. When a rank waits:

- in a prediction, whenever it does nothing else; unattributed is then only what belongs to no part, such as DEL;
- in a measurement with spans on the stream "wait", during those, as far as it neither computes nor loads in them;
- in a measurement of a rank without such spans (a host that never blocks), while a transfer or copy of it is under way
  and it neither computes nor loads.

Where a step begins and ends: on a rank it runs from the start of the rank's first span in it to the start of the
rank's first span in the next one. The first step of a timeline begins on every rank when the first rank begins it, and
the last one ends on every rank when the last rank ends it: a rank that starts late or is done early idles.
"""

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum

from trimaran.errors import InputError
from trimaran.program.types import Kind, Program
from trimaran.report.intervals import Interval, intersect, length, subtract, unite
from trimaran.report.transfers import under_way
from trimaran.timeline import COMMUNICATION, COPY, WAIT, Timeline

PARTS = ("forward", "backward", "update", "load", "exposed", "idle", "unattributed")

_WORK = ("forward", "backward", "update", "load")
_PART_OF = {
    Kind.FORWARD: "forward",
    Kind.EVALUATE: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "backward",
    Kind.BACKWARD_WEIGHT: "backward",
    Kind.RECOMPUTE: "backward",
    Kind.UPDATE: "update",
    Kind.CLIP: "update",
    Kind.LOAD: "load",
}


class Source(Enum):
    """Where a timeline comes from, which decides what a gap in it means."""

    PREDICTED = "predicted"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """The parts of one step of one rank, as the module defines them, all in seconds.

    Attributes:
        rank: the rank
        step: number of the step
        step_s: length of the step; the sum of the parts below but `hidden_s`
        forward_s: forward
        backward_s: backward
        update_s: weight update, clipping included
        load_s: loading of batches
        exposed_s: communication while the rank waits
        hidden_s: communication while it does not
        idle_s: waiting for nothing of its own
        unattributed_s: the rest
    """

    rank: int
    step: int
    step_s: float
    forward_s: float
    backward_s: float
    update_s: float
    load_s: float
    exposed_s: float
    hidden_s: float
    idle_s: float
    unattributed_s: float


def break_down(program: Program, timeline: Timeline, source: Source, *, at_once: int = 1) -> tuple[Breakdown, ...]:
    """The parts of every step of every rank.

    Args:
        program: what ran
        timeline: what happened, one step or several
        source: a prediction or a measurement
        at_once: collectives of one group that are under way at once

    Returns:
        One entry a rank and step, ordered by rank and step; ranks without a span have none.

    Raises:
        InputError: a span of an instruction that the program does not have
    """
    kinds = {instruction.id: instruction.kind for instruction in program}
    windows = _windows(timeline)
    spent: dict[tuple[int, int], dict[str, list[Interval]]] = {key: defaultdict(list) for key in windows}
    columns = timeline.columns
    waits_are_recorded = {rank for rank, stream in zip(columns.rank, columns.stream, strict=True) if stream == WAIT}
    spans = under_way(program, timeline, at_once=at_once)
    for rank, stream, name, step, (start_s, end_s, _) in zip(
        columns.rank, columns.stream, columns.instruction, columns.step, spans, strict=True
    ):
        if name not in kinds:
            raise InputError(
                f"the timeline has a span of {name}, step {step}, which the program does not have: "
                f"compare a timeline with the program that made it",
                code="report.unknown-instruction",
                instruction=name,
                step=step,
            )
        low, high = windows[rank, step]
        spent[rank, step][_part(kinds[name], stream)].append((max(start_s, low), min(end_s, high)))
    return tuple(
        _divide(rank, step, windows[rank, step], parts, source, rank in waits_are_recorded)
        for (rank, step), parts in sorted(spent.items())
    )


def _part(kind: Kind, stream: str) -> str:
    if stream in (WAIT, COMMUNICATION, COPY):
        return stream if stream == WAIT else "transfer"
    return _PART_OF.get(kind, "other")


def _windows(timeline: Timeline) -> dict[tuple[int, int], Interval]:
    """Start and end of each step of each rank."""
    columns = timeline.columns
    starts: dict[tuple[int, int], float] = {}
    for rank, step, start_s in zip(columns.rank, columns.step, columns.start_s, strict=True):
        starts[rank, step] = min(starts.get((rank, step), start_s), start_s)
    begin, end = min(columns.start_s, default=0.0), max(columns.end_s, default=0.0)
    first = min(columns.step, default=0)
    windows: dict[tuple[int, int], Interval] = {}
    following: dict[int, float] = {}
    for rank, step in sorted(starts, reverse=True):
        low = begin if step == first else starts[rank, step]
        windows[rank, step] = (low, max(low, following.get(rank, end)))
        following[rank] = low
    return windows


def _divide(
    rank: int, step: int, window: Interval, parts: dict[str, list[Interval]], source: Source, waits_are_recorded: bool
) -> Breakdown:
    busy: list[Interval] = []
    work: dict[str, float] = {}
    for name in _WORK:
        united = unite(parts[name])
        work[name] = length(subtract(united, busy))
        busy = unite([*busy, *united])
    transfers = unite(parts["transfer"])
    if source is Source.PREDICTED:
        waiting = [window]
    elif waits_are_recorded:
        waiting = unite(parts[WAIT])
    else:
        waiting = transfers
    waiting = subtract(waiting, unite([*busy, *parts["other"]]))
    exposed_s = length(intersect(waiting, transfers))
    waiting_s = length(waiting)
    step_s = window[1] - window[0]
    return Breakdown(
        rank=rank,
        step=step,
        step_s=step_s,
        forward_s=work["forward"],
        backward_s=work["backward"],
        update_s=work["update"],
        load_s=work["load"],
        exposed_s=exposed_s,
        hidden_s=length(transfers) - exposed_s,
        idle_s=waiting_s - exposed_s,
        unattributed_s=step_s - length(busy) - waiting_s,
    )
