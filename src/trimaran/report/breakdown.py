"""Where the time of a step went, on one rank.

The step of a rank is split into parts that do not overlap and sum to it. In this order, each takes what the ones before
it left:

    forward       spans of F and EV
    backward      spans of B, I, W, and of RE: a recomputed forward exists for the backward
    update        spans of U and CLIP
    load          spans of IN, as far as no computation runs at the same time
    exposed       communication or copies under way while the rank waits
    idle          the rank waits, and no transfer of it is under way: it waits for a peer, or has nothing to do
    unattributed  the rest, in a measurement: what the host does between the spans that it records

In a measurement the host's time between two spans prepares the second, and so belongs to the phase of that one (after
the last span of a step: of its first one, which begins the next): `Breakdown.host`, whose phases are forward, backward,
update, load and communication. With it the phases sum to the step but for spans of no part, such as DEL.

And, not part of the sum, `overlapped`: communication or copies under way while the rank does not wait.

When a transfer is under way: see `transfers`. When a rank waits:

- in a prediction, whenever it does nothing else, and after the last instruction for the slowest rank
  (`Timeline.waits_s`); unattributed is then what belongs to no part, such as DEL, and what else follows the last
  instruction (`Timeline.after_s`);
- in a measurement with spans on the stream "wait", during those, as far as it neither computes nor loads in them;
- in a measurement of a rank without such spans (a host that never blocks), while a transfer or copy of it is under way
  and it neither computes nor loads.

Where a step begins and ends: on a rank it runs from the start of the rank's first span in it to the start of the
rank's first span in the next one. The first step of a timeline begins on every rank when the first rank begins it, and
the last one ends on every rank when the last rank ends it: a rank that starts late or is done early idles.

When bytes were under way, from spans that begin when somebody posted and end when somebody looked.

A simulated transfer starts when its last member is ready, and its spans are exact. A measured span starts when its own
rank posted it: a receive that was posted early spans the time during which the sender still computed. And it ends when
its rank learned of the end, which for a send or receive of gloo is when it waited for it. So a measured transfer is
taken to be under way

    from  the latest start among the spans of its members in the same step (clocks are aligned across ranks), but not
          before the one ahead of it on the same channel has ended, or all but one of two of those ahead of it in the
          same group, where two are under way at once;
    to    for a collective, the end of each member's own span;
          for a message, on both ranks, the end of the receive if that is known, else that of the send if that is known,
          else the earlier of the two, and the duration counts as not known.

An end that coincides with the end of a wait for it is known if the rank was blocked for at least half of the time that
the transfer was under way: otherwise it may have ended long before the rank looked, and the start of one that was
posted behind it is not known either. Every other end is known.

    sender    B0 ████████│post ═════                       under way: ├──┤ from the later post
    receiver  post ──────────────────── F0 ███ │wait ▒ │    to the send's end: the receiver looked too late to know

On a simulated timeline all this changes nothing.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from heapq import heappop, heappush
from statistics import fmean
from typing import Any, NamedTuple

from trimaran.base.errors import InputError
from trimaran.base.timeline import COMMUNICATION, COPY, WAIT, Timeline
from trimaran.program.rules.deadlock import Meeting, match_collectives, match_messages
from trimaran.program.types import Kind, Program
from trimaran.simulator.tasks import of_those_there

# ---------------------------------------------------------------------------------------------------------------------
# Sets of time as sorted, disjoint intervals `(start [s], end [s])`


Interval = tuple[float, float]


def unite(intervals: Iterable[Interval]) -> list[Interval]:
    """The time that lies in any of them; they may overlap and come in any order.

    Example:
        >>> unite([(3.0, 4.0), (0.0, 2.0), (1.0, 2.5), (5.0, 5.0)])
        [(0.0, 2.5), (3.0, 4.0)]
    """
    united: list[Interval] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(united[-1][1], end))
        else:
            united.append((start, end))
    return united


def intersect(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """The time that lies in both; each is sorted and disjoint.

    Example:
        >>> intersect([(0.0, 2.0), (3.0, 5.0)], [(1.0, 4.0)])
        [(1.0, 2.0), (3.0, 4.0)]
    """
    common: list[Interval] = []
    i = j = 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            common.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return common


def subtract(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """The time that lies in the first and not in the second; each is sorted and disjoint.

    Example:
        >>> subtract([(0.0, 5.0)], [(1.0, 2.0), (4.0, 6.0)])
        [(0.0, 1.0), (2.0, 4.0)]
    """
    rest: list[Interval] = []
    j = 0
    for start, end in first:
        while j < len(second) and second[j][1] <= start:
            j += 1
        at, k = start, j
        while k < len(second) and second[k][0] < end:
            if at < second[k][0]:
                rest.append((at, second[k][0]))
            at = max(at, second[k][1])
            k += 1
        if at < end:
            rest.append((at, end))
    return rest


def length(intervals: Iterable[Interval]) -> float:
    """Length of disjoint intervals [s].

    Example:
        >>> length([(0.0, 2.0), (3.0, 4.0)])
        3.0
    """
    return sum(end - start for start, end in intervals)


class UnderWay(NamedTuple):
    """When something happened.

    Attributes:
        start_s: start [s]
        end_s: end [s]
        known: the end was observed; False: it happened at `end_s` or before
    """

    start_s: float
    end_s: float
    known: bool


def under_way(program: Program, timeline: Timeline, *, at_once: int = 1) -> list[UnderWay]:
    """When the bytes of each transfer were under way; other spans as they are.

    Args:
        program: what ran
        timeline: what happened
        at_once: collectives of one group that are under way at once (`ProgramCosts.at_once`)

    Returns:
        One entry for each span of the timeline, in its order.
    """
    columns = timeline.columns
    result = [UnderWay(start_s, end_s, True) for start_s, end_s in zip(columns.start_s, columns.end_s, strict=True)]
    rows: dict[tuple[int, str], int] = {}
    waits: dict[tuple[int, str], Interval] = {}
    for row, key in enumerate(zip(columns.step, columns.instruction, strict=True)):
        if columns.stream[row] == WAIT:
            # The last wait for it; one before that is the time that posting it took.
            waits[key] = (columns.start_s[row], columns.end_s[row])
        else:
            rows[key] = row
    if program.behind:
        # A rank notes a transfer when it has waited for it, which may be some steps after the other end: how long it
        # was under way is known only where it was simulated.
        return [
            span._replace(known=bool(timeline.period_s) or stream != COMMUNICATION)
            for span, stream in zip(result, columns.stream, strict=True)
        ]
    messages = match_messages(program)
    for number, queue in enumerate((*messages, *match_collectives(of_those_there(program)))):
        names = [_names(program, meeting) for meeting in queue]
        is_channel = number < len(messages)
        for step in timeline.steps:
            meetings = [[(step, name) for name in meeting] for meeting in names]
            _settle(meetings, is_channel, 1 if is_channel else at_once, rows, waits, result)
    return result


def _names(program: Program, meeting: Meeting) -> list[str]:
    return [program.ranks[spot.rank][spot.position].id for spot in meeting]


def _settle(
    queue: Sequence[Sequence[tuple[int, str]]],
    is_channel: bool,
    workers: int,
    rows: Mapping[tuple[int, str], int],
    waits: Mapping[tuple[int, str], Interval],
    result: list[UnderWay],
) -> None:
    """Settle the transfers of one channel or group in one step, in their order."""
    # When each worker is free again, and whether that is known; the one that is first takes the next transfer.
    free = [(float("-inf"), True)] * workers
    for members in queue:
        found = {key: result[rows[key]] for key in members if key in rows}
        if not found:
            continue
        free_s, is_known = heappop(free)
        posted_s = max(span.start_s for span in found.values())
        start_s = max(free_s, posted_s)
        settled = {key: _from_last_post(start_s, span, waits.get(key)) for key, span in found.items()}
        if free_s > posted_s and not is_known:
            # It began when the one ahead had ended, which may have been long before.
            settled = {key: span._replace(known=False) for key, span in settled.items()}
        if is_channel:
            joint = _message_end(start_s, list(settled.values()))
            settled = dict.fromkeys(settled, joint)
        for key, span in settled.items():
            result[rows[key]] = span
        first = min(settled.values(), key=lambda span: span.end_s)
        heappush(free, (first.end_s, first.known))


def _from_last_post(start_s: float, span: UnderWay, wait: Interval | None) -> UnderWay:
    """One span from the time on at which everyone had posted."""
    start_s = min(start_s, span.end_s)
    if wait is None or span.end_s < wait[1]:
        return UnderWay(start_s, span.end_s, True)
    blocked_s = span.end_s - max(wait[0], start_s)
    return UnderWay(start_s, span.end_s, blocked_s >= 0.5 * (span.end_s - start_s))


def _message_end(start_s: float, ends: Sequence[UnderWay]) -> UnderWay:
    """The transfer of a message, from its send and its receive, in this order."""
    receive = ends[-1]
    if receive.known:
        return receive
    # A send that ended before the receive was posted was buffered: its end says nothing about the arrival.
    sends = [send for send in ends[:-1] if start_s < send.end_s < receive.end_s]
    if not sends:
        return receive
    return UnderWay(start_s, sends[0].end_s, sends[0].known)


PARTS = ("forward", "backward", "update", "load", "exposed", "idle", "unattributed")

PHASES = ("forward", "backward", "update", "load", "communication")
"""Parts that the host prepares; communication: exposed and idle."""

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
        step_s: length of the step; the sum of the parts below but `overlapped_s`
        forward_s: forward
        backward_s: backward
        update_s: weight update, clipping included
        load_s: loading of batches
        exposed_s: communication while the rank waits
        overlapped_s: communication while it does not
        idle_s: waiting while no transfer of the rank is under way
        unattributed_s: the rest
        host: of the rest, in a measurement, what precedes the spans of each of `PHASES` [s]
    """

    rank: int
    step: int
    step_s: float
    forward_s: float
    backward_s: float
    update_s: float
    load_s: float
    exposed_s: float
    overlapped_s: float
    idle_s: float
    unattributed_s: float
    host: Mapping[str, float] = field(default_factory=dict)

    @property
    def host_s(self) -> float:
        """What the host takes between the spans of the step [s]."""
        return sum(self.host.values())

    @property
    def phases(self) -> Mapping[str, float]:
        """Each of `PHASES` with what the host takes before its spans [s]."""
        spent = (self.forward_s, self.backward_s, self.update_s, self.load_s, self.exposed_s + self.idle_s)
        return {name: seconds + self.host.get(name, 0.0) for name, seconds in zip(PHASES, spent, strict=True)}

    @property
    def busy_s(self) -> float:
        """Forward, backward, update and loading [s]."""
        return self.forward_s + self.backward_s + self.update_s + self.load_s

    @property
    def bubble_s(self) -> float:
        """The rest: neither busy nor exposed communication [s]."""
        return self.step_s - self.busy_s - self.exposed_s

    @property
    def busy(self) -> float:
        """Share of the step [0..1]."""
        return self._share(self.busy_s)

    @property
    def wait(self) -> float:
        """Share of the step that is exposed communication [0..1]."""
        return self._share(self.exposed_s)

    @property
    def bubble(self) -> float:
        """Share of the step [0..1].

        In a pipeline of K equal stages and M microbatches it is (K - 1) / (M + K - 1) for GPipe and 1F1B, when
        communication takes no time.

        Source:
            Huang et al., GPipe, NeurIPS 2019, section 2.3, for the GPipe schedule.
        """
        return self._share(self.bubble_s)

    def _share(self, seconds: float) -> float:
        return seconds / self.step_s if self.step_s > 0.0 else 0.0


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
    windows = _windows(timeline, overlapping=program.behind > 0)
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
        # A step in which a rank only ends earlier transfers has no window.
        if (rank, step) not in windows:
            continue
        low, high = windows[rank, step]
        spent[rank, step][part_of(kinds[name], stream)] += _within(start_s, end_s, low, high, timeline.period_s)
    return tuple(
        _divide(rank, step, windows[rank, step], parts, source, rank in waits_are_recorded, timeline)
        for (rank, step), parts in sorted(spent.items())
    )


def _within(start_s: float, end_s: float, low_s: float, high_s: float, period_s: float) -> list[Interval]:
    """The part of a span in a step; of a predicted one that comes again each period also what then lies in the step."""
    if not period_s:
        return [(max(start_s, low_s), min(end_s, high_s))]
    first, last = math.ceil((low_s - end_s) / period_s), math.floor((high_s - start_s) / period_s)
    shifted = ((start_s + count * period_s, end_s + count * period_s) for count in range(first, last + 1))
    return [(max(start, low_s), min(end, high_s)) for start, end in shifted]


def part_of(kind: Kind, stream: str) -> str:
    """The part of a step that a span is counted in: of `PARTS`, or "wait", "transfer", "other".

    Args:
        kind: of its instruction
        stream: that it is on
    """
    if stream in (WAIT, COMMUNICATION, COPY):
        return stream if stream == WAIT else "transfer"
    return _PART_OF.get(kind, "other")


def _windows(timeline: Timeline, *, overlapping: bool) -> dict[tuple[int, int], Interval]:
    """Start and end of each step of each rank; of a predicted one that overlaps, a period from the first work on.

    A transfer that was posted in an earlier step does not begin one that overlaps.
    """
    columns = timeline.columns
    if timeline.period_s:
        begins: dict[tuple[int, int], float] = {}
        for rank, step, stream, start_s in zip(
            columns.rank, columns.step, columns.stream, columns.start_s, strict=True
        ):
            if stream != COMMUNICATION:
                begins[rank, step] = min(begins.get((rank, step), start_s), start_s)
        return {key: (start_s, start_s + timeline.period_s) for key, start_s in begins.items()}
    starts: dict[tuple[int, int], float] = {}
    for rank, step, stream, start_s in zip(columns.rank, columns.step, columns.stream, columns.start_s, strict=True):
        if stream != COMMUNICATION or not overlapping:
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
    rank: int,
    step: int,
    window: Interval,
    parts: dict[str, list[Interval]],
    source: Source,
    waits_are_recorded: bool,
    timeline: Timeline,
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
    phases = {**{name: parts[name] for name in _WORK}, "communication": waiting}
    gaps = subtract([window], unite([*busy, *waiting, *parts["other"]]))
    step_s = window[1] - window[0] + timeline.after_s
    return Breakdown(
        rank=rank,
        step=step,
        step_s=step_s,
        forward_s=work["forward"],
        backward_s=work["backward"],
        update_s=work["update"],
        load_s=work["load"],
        exposed_s=exposed_s,
        overlapped_s=length(transfers) - exposed_s,
        idle_s=waiting_s - exposed_s + timeline.waits_s,
        unattributed_s=step_s - length(busy) - waiting_s - timeline.waits_s,
        host=_prepared(gaps, phases, window[1]) if source is Source.MEASURED else {},
    )


def _prepared(gaps: Sequence[Interval], phases: Mapping[str, Sequence[Interval]], end_s: float) -> dict[str, float]:
    """What the host takes before the spans of each phase [s].

    Example:
        >>> _prepared([(1.0, 2.0), (5.0, 6.0)], {"load": [(0.0, 1.0)], "forward": [(2.0, 5.0)]}, 6.0)
        {'forward': 1.0, 'load': 1.0}
    """
    begins = sorted((start_s, name) for name, spans in phases.items() for start_s, _ in spans)
    prepared: dict[str, float] = {}
    place = 0
    for low_s, high_s in gaps:
        while place < len(begins) and begins[place][0] < high_s:
            place += 1
        following = begins[place] if place < len(begins) else None
        # What ends a gap otherwise is the next step, or a span of no part: then the gap belongs to what comes next.
        name = following[1] if following and high_s < end_s else begins[0][1] if begins else "load"
        prepared[name] = prepared.get(name, 0.0) + high_s - low_s
    return prepared


def utilization(program: Program, timeline: Timeline, *, warmup: int = 0, devices: int = 0) -> tuple[Breakdown, ...]:
    """The step of each device: busy, waiting, empty; the mean over the steps where there are several.

    Every gap counts: in a measurement, what is unattributed is part of the bubble.

    Args:
        program: what ran
        timeline: a prediction or a measurement
        warmup: steps at the beginning to leave out
        devices: of the strategy, where the program may be that of one replica, which stands for all; 0: it is not

    Returns:
        One entry a rank that does something, ascending.

    Raises:
        InputError: a span of an instruction that the program does not have

    Example:
        >>> from trimaran.program.types import Instruction, Kind
        >>> from trimaran.base.timeline import Span
        >>> forwards = [Instruction(kind=Kind.FORWARD, rank=rank, segment=rank, microbatch=0) for rank in (0, 1)]
        >>> spans = [
        ...     Span(rank=rank, stream="compute", start_s=1.0 * rank, end_s=1.0 + rank, instruction=forwards[rank].id)
        ...     for rank in (0, 1)
        ... ]
        >>> program = Program(ranks=tuple((forward,) for forward in forwards), segments=2, microbatches=1)
        >>> [device.bubble for device in utilization(program, Timeline(spans))]
        [0.5, 0.5]
    """
    left_out = set(timeline.steps[:warmup])
    of_rank: dict[int, list[Breakdown]] = defaultdict(list)
    for part in break_down(program, timeline, Source.PREDICTED):
        if part.step not in left_out:
            of_rank[part.rank].append(part)
    means = {rank: mean_step(parts) for rank, parts in sorted(of_rank.items())}
    there = len(program.ranks)
    alike = ((rank, means.get(rank % there)) for rank in range(max(devices, there)))
    return tuple(replace(mean, rank=rank) for rank, mean in alike if mean is not None)


def mean_step(parts: Sequence[Breakdown]) -> Breakdown:
    """The mean over some steps of one rank, with the number of the first.

    Args:
        parts: at least one
    """
    names = [one.name for one in fields(Breakdown) if one.name.endswith("_s")]
    means: dict[str, Any] = {name: fmean(getattr(part, name) for part in parts) for name in names}
    phases = {name for part in parts for name in part.host}
    host = {name: fmean(part.host.get(name, 0.0) for part in parts) for name in PHASES if name in phases}
    return replace(parts[0], **means, host=host)
