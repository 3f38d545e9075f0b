"""Ranks' calls are played against each other: who waits for whom, and for ever?

A device runs what is on one stream in order. A call is ready when what was on its stream before is done and when what
was asked of its communicator before is done. It ends when every other side is ready with the same call.

    host      asks in order and goes on, except at a barrier, an exchange of objects, and where it waits for a stream
    stream    a synchronous call is part of it; an asynchronous one only starts after what it had, until `wait()`
    batch     its messages progress together; messages of one batch to one peer go in order

    rank 0    all_reduce of A ── all_reduce of B       A waits for rank 1, which is at B and waits for rank 0:
    rank 1    all_reduce of B ── all_reduce of A       neither call ends

The rules are those of NCCL's user guide (collectives: same order on every rank of a communicator; "point-to-point
calls within a group will be blocking until that group of calls completes", https://docs.nvidia.com/deeplearning/nccl/
user-guide/docs/usage/p2p.html) and of torch's ProcessGroupNCCL: a synchronous call runs on the current stream, an
asynchronous one on a stream of its communicator after what the current one had, `wait()` lets the current stream wait
and not the host; messages outside of a batch run on a communicator of the two ranks, batched ones on the group's
(that of the group for both where `init_process_group` is given a device). That small messages may leave before they
are received is not counted on: NCCL does not promise it.

Ranks that are not compared are taken to be on time. A rank whose rehearsal ended before its script is taken to arrive
at whatever comes after.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from trimaran.rehearsal.calls import CommunicationCall, LaunchUnit, Member, Order, Waits, disagreement
from trimaran.rehearsal.record import Await, EventMark, Frame


@dataclass(frozen=True, slots=True)
class Blocked:
    """A call that never ends.

    Attributes:
        call: that waits
        position: in the order of its group, or among the messages from one rank to another
        waits_for: ranks that never come to it; empty: all come, and with calls that do not go together
        held_at: line at which the host itself waits, innermost first; empty: it went on
    """

    call: CommunicationCall
    position: int
    waits_for: tuple[int, ...]
    held_at: tuple[Frame, ...]


@dataclass(slots=True, eq=False)
class _StreamPoint:
    """A place in a stream, or a unit, that is reached when what it waits for is."""

    unit: LaunchUnit | None = None
    missing: int = 0
    before: list["_StreamPoint"] = field(default_factory=list)
    after: list["_StreamPoint"] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    parts: int = 0
    is_ready: bool = False
    is_done: bool = False


_Meeting = tuple[object, ...]


@dataclass(slots=True)
class _Host:
    member: Member
    next: int = 0
    streams: dict[int, _StreamPoint] = field(default_factory=dict)
    communicators: dict[_Meeting, _StreamPoint] = field(default_factory=dict)
    events: dict[int, _StreamPoint] = field(default_factory=dict)
    points: dict[LaunchUnit, _StreamPoint] = field(default_factory=dict)
    held_at: tuple[Frame, ...] = ()
    waits: _StreamPoint | None = None


class Game:
    """One run of all ranks' orders.

    Args:
        members: by rank
        one_at_a_time: the host waits for each collective before it asks for the next, as where kernels of several
            communicators cannot run at the same time
    """

    def __init__(self, members: Mapping[int, Member], *, one_at_a_time: bool = False) -> None:
        self._hosts = {rank: _Host(member) for rank, member in members.items()}
        self._one_at_a_time = one_at_a_time
        self._meetings: dict[int, _Meeting] = {}
        self._positions: dict[int, int] = {}
        self._arrived: dict[_Meeting, dict[int, tuple[_StreamPoint, CommunicationCall]]] = {}
        self._asked: dict[tuple[int, _Meeting], int] = {}
        self._ready: deque[_StreamPoint] = deque()
        self._number_calls()

    def play(self) -> tuple[Blocked, ...]:
        """Run until nothing moves.

        Returns:
            The first call of each rank that never ends, by rank; empty: every call ends.
        """
        moving = deque(self._hosts)
        while moving:
            self._go_on(self._hosts[moving.popleft()])
            while self._ready:
                self._arrive(self._ready.popleft(), moving)
        found = [blocked for rank in sorted(self._hosts) if (blocked := self._blocked(self._hosts[rank])) is not None]
        return tuple(found)

    # -----------------------------------------------------------------------------------------------------------------

    def _number_calls(self) -> None:
        """Give each call the place at which its sides meet."""
        for host in self._hosts.values():
            seen: Counter[_Meeting] = Counter()
            for call in host.member.all_calls():
                way: _Meeting = ("message", call.group, *call.ends) if call.is_message else ("group", call.group)
                self._meetings[id(call)] = (*way, seen[way])
                self._positions[id(call)] = seen[way]
                seen[way] += 1
            self._asked.update(((host.member.rank, way), number) for way, number in seen.items())

    def _sides(self, call: CommunicationCall) -> list[int]:
        """Ranks that take part in a call and are compared."""
        ranks = (call.rank, call.peer) if call.is_message else call.group.ranks
        sides = []
        for rank in ranks:
            host = self._hosts.get(rank)
            if host is None:
                continue
            # To whom a rank that is played sends is not known, whatever else it asks of the group.
            if host.member.is_rehearsed or (not call.is_message and call.group in host.member.calls):
                sides.append(rank)
        return sides

    def _missing(self, call: CommunicationCall, there: Mapping[int, object]) -> list[int]:
        """Ranks that take part in a call, are not there, and are not ones that would come to it after their record."""
        way = self._meetings[id(call)][:-1]
        position = self._positions[id(call)]
        return [
            rank
            for rank in self._sides(call)
            if rank not in there
            and not (self._hosts[rank].member.is_open and self._asked.get((rank, way), 0) <= position)
        ]

    def _point(self, before: list[_StreamPoint | None], unit: LaunchUnit | None = None) -> _StreamPoint:
        point = _StreamPoint(unit=unit)
        for other in before:
            if other is not None and not other.is_done:
                point.before.append(other)
                other.after.append(point)
        point.missing = len(point.before)
        if not point.missing:
            self._reach(point)
        return point

    def _reach(self, point: _StreamPoint) -> None:
        """All that a point waits for is done."""
        point.is_ready = True
        self._ready.append(point)

    def _go_on(self, host: _Host) -> None:
        """Let a host ask until it has to wait."""
        if host.waits is not None and not host.waits.is_done:
            return
        host.waits, host.held_at = None, ()
        orders = host.member.orders
        while host.next < len(orders):
            order = orders[host.next]
            host.next += 1
            waits = self._ask(host, order)
            if waits is not None:
                host.waits = waits
                waits.held.append(host.member.rank)
                return

    def _ask(self, host: _Host, order: Order) -> _StreamPoint | None:
        """Ask for one thing; what the host itself waits for, if it does."""
        if isinstance(order, LaunchUnit):
            call = order.first
            stream = call.asked.stream
            communicator = _communicator(order)
            point = self._point([host.streams.get(stream), host.communicators.get(communicator)], order)
            host.communicators[communicator] = host.points[order] = point
            if not call.asked.asynchronous:
                host.streams[stream] = point
            blocks = call.asked.operation == "barrier" or call.asked.operation.endswith("_object")
            if (blocks and not call.asked.asynchronous) or (self._one_at_a_time and not call.is_message):
                host.held_at = call.lines
                return point
        elif isinstance(order, Waits):
            host.streams[order.stream] = self._point([host.streams.get(order.stream), host.points.get(order.unit)])
        elif isinstance(order, EventMark):
            if order.stream in host.streams:
                host.events[order.event] = host.streams[order.stream]
        elif isinstance(order, Await):
            host.streams[order.stream] = self._point([host.streams.get(order.stream), host.events.get(order.event)])
        else:
            streams = [host.streams.get(order.stream)]
            if order.stream < 0:
                streams = [*host.streams.values(), *host.communicators.values()]
            host.held_at = host.member.record.lines[order.lines]
            return self._point(streams)
        return None

    def _arrive(self, point: _StreamPoint, moving: deque[int]) -> None:
        """A point has all that it waits for: a unit's calls meet their other sides, anything else is done."""
        if point.unit is None:
            self._finish(point, moving)
            return
        point.parts = len(point.unit.calls)
        for call in point.unit.calls:
            meeting = self._meetings[id(call)]
            self._arrived.setdefault(meeting, {})[call.rank] = (point, call)
            self._meet(meeting, moving)

    def _meet(self, meeting: _Meeting, moving: deque[int]) -> None:
        """End a call when all of its sides are there and go together."""
        there = self._arrived.get(meeting, {})
        if not there:
            return
        calls = [call for _, call in there.values()]
        if self._missing(calls[0], there):
            return
        if len(calls) > 1 and disagreement(calls):
            return
        del self._arrived[meeting]
        for point, _ in there.values():
            point.parts -= 1
            if not point.parts:
                self._finish(point, moving)

    def _finish(self, point: _StreamPoint, moving: deque[int]) -> None:
        point.is_done = True
        moving.extend(point.held)
        for other in point.after:
            other.missing -= 1
            if not other.missing:
                self._reach(other)
        point.before, point.after, point.held = [], [], []

    def _blocked(self, host: _Host) -> Blocked | None:
        """The earliest call of a rank that is ready and never ends."""
        for order in host.member.orders[: host.next]:
            if not isinstance(order, LaunchUnit):
                continue
            point = host.points[order]
            if not point.is_ready or point.is_done:
                continue
            for call in order.calls:
                there = self._arrived.get(self._meetings[id(call)])
                if there is None:
                    continue
                missing = tuple(self._missing(call, there))
                return Blocked(call, self._positions[id(call)], waits_for=missing, held_at=host.held_at)
        return None


def _communicator(unit: LaunchUnit) -> _Meeting:
    """What a unit's kernels share with others, one after another."""
    call = unit.first
    if call.is_message and not unit.is_batch:
        return ("two", call.group, *sorted((call.rank, call.peer)))
    return ("all", call.group)
