"""When bytes were under way, from spans that begin when somebody posted and end when somebody looked.

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

An end that coincides with the end of a wait for it is known if the rank stood still for at least half of the time that
the transfer was under way: otherwise it may have ended long before somebody looked. Every other end is known.

    sender    B0 ████████│post ═════                       under way: ├──┤ from the later post
    receiver  post ──────────────────── F0 ███ │wait ▒ │    to the send's end: the receiver looked too late to know

On a simulated timeline all this changes nothing.
"""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from trimaran.program.matching import Meeting, match_collectives, match_messages
from trimaran.program.types import Program
from trimaran.report.intervals import Interval
from trimaran.timeline import WAIT, Timeline


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
    messages = match_messages(program)
    for number, queue in enumerate((*messages, *match_collectives(program))):
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
    # When each worker is free again; the one that is first takes the next transfer.
    free_s = [float("-inf")] * workers
    for members in queue:
        found = {key: result[rows[key]] for key in members if key in rows}
        if not found:
            continue
        start_s = max(heappop(free_s), *(span.start_s for span in found.values()))
        settled = {key: _cut(start_s, span, waits.get(key)) for key, span in found.items()}
        if is_channel:
            joint = _message_end(start_s, list(settled.values()))
            settled = dict.fromkeys(settled, joint)
        for key, span in settled.items():
            result[rows[key]] = span
        heappush(free_s, min(span.end_s for span in settled.values()))


def _cut(start_s: float, span: UnderWay, wait: Interval | None) -> UnderWay:
    """One span from the time on at which everyone had posted."""
    start_s = min(start_s, span.end_s)
    if wait is None or span.end_s < wait[1]:
        return UnderWay(start_s, span.end_s, True)
    stood_still_s = span.end_s - max(wait[0], start_s)
    return UnderWay(start_s, span.end_s, stood_still_s >= 0.5 * (span.end_s - start_s))


def _message_end(start_s: float, ends: Sequence[UnderWay]) -> UnderWay:
    """What both ends of a message have in common, from its send and its receive, in this order."""
    receive = ends[-1]
    if receive.known:
        return receive
    # A send that ended before the receive was posted was buffered: its end says nothing about the arrival.
    sends = [send for send in ends[:-1] if start_s < send.end_s < receive.end_s]
    if not sends:
        return receive
    return UnderWay(start_s, sends[0].end_s, sends[0].known)
