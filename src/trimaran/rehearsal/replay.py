"""Recorded ranks as tasks of the simulator's engine: streams, events, the host that runs ahead, collectives that meet.

    host        ──launch─launch─launch─launch──────────────┤ waits for stream 0 ├─launch──   a task up to each wait
    stream 0         ▓▓▓▓▓▓ ▓▓▓▓▓▓▓▓ ▓▓▓▓▓▓ ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓                                  a task a kernel
    group 1                 ░arrives──═══════ all-gather ════                                one transfer for all ranks

- A kernel starts when its host has launched it and its stream has done all before it, and what that stream was told to
  wait for: collectives and events. A launch is a mark inside the host's task.
- A collective starts when each rehearsed member has issued it, after what its stream had before, and those of its group
  before it have ended. A member that is not rehearsed arrives as its representative does at the same place of a group
  alike: one of the same description and size. Messages of one batch go together; who waits for one waits for all.
- A kernel takes longer by its part of what the host and the device of a step hold each other up, as plans have it.
- Kernels of several streams of a rank share its device; kernels are slower while bytes of a collective flow, which has
  some of the multiprocessors.

A step lasts from the moment when the streams of all ranks have done what was asked of them before one `Step`, to that
of the next. Collectives that no stream and no host waits for go on beyond it. Where steps do not exchange the same, as
those of local SGD or after which weights are averaged, a period of them is played, and what is told is their mean.
Left out: the script's own Python between launches, loading of data, and messages through files.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose
from typing import Literal

from trimaran.base.errors import InputError
from trimaran.pricing.exchange.unknowns import INTERFERENCE
from trimaran.pricing.types import Interference, Transfer
from trimaran.rehearsal.prices import KernelPrice, Links
from trimaran.rehearsal.record import (
    Await,
    Collective,
    Enter,
    Event,
    EventMark,
    Group,
    Issue,
    Record,
    Run,
    Step,
    Sync,
    Wait,
)
from trimaran.simulator.engine import Engine, Resources
from trimaran.simulator.tasks import Tasks, wait

What = Literal["kernel", "host", "arrival", "collective", "join"]

_SIDE_BY_SIDE = Interference(compute=INTERFERENCE.value, source=INTERFERENCE.source)

_EVERYTHING = -1

_LOGGED = 512
"""Bytes that ranks give each other to be logged, at most: 64 numbers."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The steps of a record that are played.

    Attributes:
        record: of the rank
        events: from the end of a step, or from the first forward, to the end of the last one
        steps: their numbers; what is before the timed ones leads up to them
        timed: steps that are timed, the last ones
        last: events of these
        issued: collectives before these events
    """

    record: Record
    events: Sequence[Event]
    steps: tuple[int, ...]
    timed: int
    last: Sequence[Event]
    issued: Sequence[int]

    @property
    def lead(self) -> int:
        """Steps before those that are timed."""
        return len(self.steps) - self.timed


def last_steps(record: Record, timed: int = 1) -> Excerpt:
    """The last whole steps of a record, and the one before them if there is one.

    Raises:
        InputError: it has no whole step
    """
    ends = step_ends(record)
    numbers = sorted(ends)
    if not numbers:
        raise InputError(
            f"rank {record.rank} did not come to the end of a step ({record.end.how}"
            f"{': ' + record.end.text if record.end.text else ''}): no step to take the time of; an optimizer's step() "
            "ends one",
            code="rehearse.no-whole-step",
            rank=record.rank,
        )
    begins = [first_forward(record), *(ends[number] + 1 for number in numbers)]
    first = max(0, len(numbers) - timed)
    start = begins[max(0, first - 1)]
    return Excerpt(
        record,
        events=record.events[start : begins[-1]],
        steps=tuple(numbers[max(0, first - 1) :]),
        timed=len(numbers) - first,
        last=record.events[begins[first] : begins[-1]],
        issued=[event.collective for event in record.events[:start] if type(event) is Issue],
    )


def step_ends(record: Record) -> dict[int, int]:
    """Position of the last event of each step, by its number; several optimizers of one share it."""
    return {event.number: place for place, event in enumerate(record.events) if type(event) is Step}


def find_period(records: Sequence[Record]) -> tuple[int, bool]:
    """Steps after which ranks exchange the same again, and whether they were seen to; else all after the first.

    What is less than a hundredth of the largest of a rank is not looked at, nor losses that are logged. The first step
    has what is done once. DDP with a static graph takes other buckets, of the same bytes, from the third step on.
    """
    counts: defaultdict[int, Counter[tuple[int, str, str]]] = defaultdict(Counter)
    volumes: defaultdict[int, Counter[tuple[int, str, str]]] = defaultdict(Counter)
    steps = 0
    for record in records:
        ends = sorted(step_ends(record).values())
        steps = len(ends) if record is records[0] else min(steps, len(ends))
        least = max([_LOGGED, *(one.nbytes / 100 for one in record.collectives if one.part != "setup")])
        for place, event in enumerate(record.events):
            if type(event) is Issue and (one := record.collectives[event.collective]).nbytes > least:
                counts[bisect_left(ends, place)][record.rank, one.operation, one.group] += 1
                volumes[bisect_left(ends, place)][record.rank, one.operation, one.group] += one.nbytes
    later = range(1, steps)
    exchanged = [counts[next(k for k in later if _are_alike(volumes[k], volumes[number]))] for number in later]
    late = counts[steps] if all(record.end.how == "steps" for record in records) else Counter()
    if not any(late <= one for one in exchanged):
        return max(1, len(exchanged)), not exchanged
    for period in range(1, len(exchanged)):
        if exchanged[period:] == exchanged[:-period] and all(exchanged.count(one) > 1 for one in exchanged):
            return period, True
    return len(exchanged), len(exchanged) < 2


def _are_alike(one: Counter[tuple[int, str, str]], other: Counter[tuple[int, str, str]]) -> bool:
    """Whether the bytes of two steps are the same but for a hundredth, as buckets that are not looked at have it."""
    return one.keys() == other.keys() and all(isclose(one[key], other[key], rel_tol=0.01) for key in one)


def first_forward(record: Record) -> int:
    """Where a record's first forward begins; what a script does before that belongs to no step."""
    for place, event in enumerate(record.events):
        if isinstance(event, Enter) and event.part == "forward":
            return place
    return 0


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a step on a rank.

    Attributes:
        tasks: the last ones of its streams
        host: the host's task that has asked for them
        host_s: how far into that [s]
    """

    tasks: Sequence[int]
    host: int
    host_s: float


@dataclass(slots=True)
class Play:
    """Tasks of some ranks, and what each of them is.

    Attributes:
        tasks: for the engine; `lane` is the place of a rank in `ranks`
        ranks: rehearsed, ascending
        what: of each task
        index: of each task, of its kernel or collective in the rank's record
        rank: of each task; of a collective a member
        stream: of each task; -1: of none
        step: of each task, place of its step in the excerpt
        transfers: of each collective's task
        arrivals: of each collective's task, that of each rehearsed member
        ends: of each collective's task, the directions in which each rehearsed member's links are used
        endings: for each rank, of each step
    """

    tasks: Tasks
    ranks: tuple[int, ...]
    what: list[What] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    transfers: dict[int, Transfer] = field(default_factory=dict)
    arrivals: dict[int, dict[int, int]] = field(default_factory=dict)
    ends: dict[int, dict[int, tuple[str, ...]]] = field(default_factory=dict)
    endings: list[list["Ending"]] = field(default_factory=list)

    def add(self, what: What, *, index: int, rank: int, stream: int, step: int, work_s: float) -> int:
        """Add a task and return its number."""
        lane = self.ranks.index(rank) if what == "kernel" else -1
        task = self.tasks.add(len(self.what), work_s=work_s, lane=lane)
        self.what.append(what)
        self.index.append(index)
        self.rank.append(rank)
        self.stream.append(stream)
        self.step.append(step)
        return task

    def follow(self, task: int, prerequisites: Sequence[int]) -> None:
        """Let a task wait for the ends of others."""
        for prerequisite in dict.fromkeys(prerequisites):
            wait(self.tasks, task, prerequisite)

    def name(self, task: int) -> str:
        """Of a task, for people."""
        return f"r{self.rank[task]}/{self.what[task]} {self.index[task]}"


@dataclass(frozen=True, slots=True)
class Times:
    """When tasks ran.

    Attributes:
        start_s: of each task [s]
        end_s: of each task [s]
    """

    start_s: Sequence[float]
    end_s: Sequence[float]


def run(play: Play, *, kernels: float = 1.0, transfers: Mapping[int, float] | None = None) -> Times:
    """Run the tasks; they can be run any number of times.

    Args:
        play: the tasks
        kernels: factor on the time of kernels
        transfers: factor on the time of collectives, by task; None: 1

    Raises:
        InputError: ranks wait for each other
    """
    plain = play.tasks
    work_s, latency_s = list(plain.work_s), list(plain.latency_s)
    if kernels != 1.0:
        work_s = [work * kernels if what == "kernel" else work for work, what in zip(work_s, play.what, strict=True)]
    for task, factor in (transfers or {}).items():
        work_s[task] *= factor
        latency_s[task] *= factor
    tasks = replace(
        plain,
        identifiers=_Names(play),
        work_s=work_s,
        latency_s=latency_s,
        waits=list(plain.waits),
        marks={task: list(places) for task, places in plain.marks.items()},
    )
    resources = Resources(ranks=len(play.ranks), links=plain.links, interference=_SIDE_BY_SIDE, shares=True)
    engine = Engine(tasks, resources)
    engine.run()
    return Times(engine.start_s, engine.end_s)


class _Names(Sequence[str]):
    """Names of tasks, made when they are asked for."""

    def __init__(self, play: Play) -> None:
        self._play = play

    def __len__(self) -> int:
        return len(self._play.what)

    def __getitem__(self, task):  # type: ignore[no-untyped-def]  # the engine asks for single ones
        return self._play.name(task)


Key = tuple[object, ...]
"""What collectives of several ranks have in common that are one transfer, or that run one after another."""


@dataclass(frozen=True, slots=True)
class _TransferSide:
    """A rank's side of a transfer."""

    task: int
    arrival: int
    group: Group


_Meetings = dict[Key, dict[int, _TransferSide]]


def play_of(
    excerpts: Sequence[Excerpt],
    prices: Mapping[int, Sequence[KernelPrice]],
    launch_s: float,
    links: Links,
    *,
    drag: Mapping[int, float],
    kinds: Mapping[int, int],
) -> Play:
    """The tasks of some rehearsed ranks.

    Args:
        excerpts: of each rank, with the same steps
        prices: by rank, of its record's kernels
        launch_s: of the host, to issue a collective [s]
        links: prices transfers
        drag: by rank, what each second of its host adds to the kernels that it launches
        kinds: by rank, the rehearsed one that does the same
    """
    records = {excerpt.record.rank: excerpt.record for excerpt in excerpts}
    play = Play(tasks=Tasks(identifiers=(), first=(), number=[], members=[]), ranks=tuple(sorted(records)))
    meetings: _Meetings = defaultdict(dict)
    for excerpt in sorted(excerpts, key=lambda one: one.record.rank):
        rank = excerpt.record.rank
        _RankTasks(play, excerpt, prices[rank], launch_s, drag[rank], meetings, links).play()
    _lay_flows(play)
    if kinds:
        _let_arrive(play, meetings, records, kinds)
    return play


def _lay_flows(play: Play) -> None:
    """Say which ranks and links the bytes of each transfer take."""
    numbers: dict[tuple[int, str, str], int] = {}
    for task, transfer in play.transfers.items():
        there = play.arrivals[task]
        taken = {(rank, where, end) for rank in there for where in transfer.links for end in play.ends[task][rank]}
        play.tasks.flow[task] = (
            tuple(play.ranks.index(rank) for rank in there),
            tuple(numbers.setdefault(name, len(numbers)) for name in sorted(taken)),
        )
    play.tasks.links = len(numbers)


def _let_arrive(play: Play, meetings: _Meetings, records: Mapping[int, Record], kinds: Mapping[int, int]) -> None:
    """Let members that are not rehearsed arrive as those do that stand for them, at their own transfer alike."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], dict[int, int]] = {}  # many transfers are of few groups
    for key, there in list(meetings.items()):
        me, place = next(iter(there.items()))
        ends = tuple(end for end in key[1:3] if isinstance(end, int))
        members = place.group.ranks if key[0] == "group" else ends
        if (members, tuple(there)) not in found:
            absent = sorted(set(members) - set(there), reverse=True)
            found[members, tuple(there)] = {kinds[rank]: rank for rank in absent if rank in kinds}
        for stand_in in found[members, tuple(there)].items():
            other = _alike(key, me, place.group, stand_in, meetings, records)
            if other is not None and place.task not in play.tasks.followers[other.arrival]:
                play.follow(place.task, [other.arrival])


def _alike(
    key: Key,
    me: int,
    group: Group,
    stand_in: tuple[int, int],
    meetings: _Meetings,
    records: Mapping[int, Record],
) -> _TransferSide | None:
    """The place of a stand-in that is like that of the rank it stands for; None: it has none, or is there itself.

    Args:
        key: of the transfer
        me: a rank that is there
        group: of the transfer
        stand_in: it, and the rank that it stands for
        meetings: of all transfers
        records: of all rehearsed ranks
    """
    other, absent = stand_in
    if other not in records:
        return None
    groups = _alike_groups(records[other], group, records[me])
    keys: list[Key] = []
    if key[0] == "group":
        keys = [("group", each.ranks, key[2]) for each in groups if each.ranks != group.ranks]
    else:
        peers = [each.ranks[group.ranks.index(me)] for each in groups if me in group.ranks]
        sends = key[1] == absent
        keys = [
            ("message", other, peer, key[3]) if sends else ("message", peer, other, key[3])
            for peer in (*peers, other + me - absent)
        ]
    return next((meetings[one][other] for one in keys if one in meetings and other in meetings[one]), None)


def _alike_groups(record: Record, group: Group, mine: Record) -> list[Group]:
    """The group of a record that has the place of another record's: same description and size, same number of these."""

    def of(one: Record) -> list[Group]:
        found = [
            each
            for each in one.groups.values()
            if (each.description, len(each.ranks)) == (group.description, len(group.ranks))
        ]
        return sorted(found, key=lambda each: each.order)

    places = [place for place, each in enumerate(of(mine)) if each.ranks == group.ranks]
    return of(record)[places[0] : places[0] + 1] if places else []


class _RankTasks:
    """Adds the tasks of one rank."""

    def __init__(
        self,
        play: Play,
        excerpt: Excerpt,
        prices: Sequence[KernelPrice],
        launch_s: float,
        drag: float,
        meetings: _Meetings,
        links: Links,
    ) -> None:
        self._play, self._excerpt, self._prices = play, excerpt, prices
        self._launch_s, self._drag, self._meetings, self._links = launch_s, drag, meetings, links
        self._record, self._rank = excerpt.record, excerpt.record.rank
        self._step = 0
        self._tails: dict[int, int] = {}
        self._pending: dict[int, list[int]] = defaultdict(list)
        self._marks: dict[int, list[int]] = {}
        self._queues: dict[Key, list[int]] = defaultdict(list)
        self._issued: dict[int, int] = {}
        self._batches: dict[int, list[int]] = defaultdict(list)
        self._before_batch: dict[tuple[int, Key], list[int]] = {}
        self._counts: dict[Key, int] = defaultdict(int)
        self._launches: list[tuple[float, int]] = []
        self._host = self._add("host", index=0, stream=-1, work_s=0.0)
        self._host_s = 0.0

    def play(self) -> None:
        """Add all of them. What was issued before them counts, so that ranks agree on which collective is which."""
        for number in self._excerpt.issued:
            collective = self._record.collectives[number]
            self._counts[self._alike(collective, self._group(collective))] += 1
        found: list[Ending] = []
        for event in self._excerpt.events:
            match event:
                case Run():
                    self._run(event)
                case Issue():
                    self._issue(event.collective)
                case Wait():
                    self._pending[event.stream] += self._with_batch(event.collective)
                case EventMark():
                    self._marks[event.event] = self._joined(event.stream)
                case Await():
                    self._pending[event.stream] += self._marks.get(event.event, ())
                case Sync():
                    self._wait_for(event.stream)
                case Step() if event.number in self._excerpt.steps:
                    place = self._excerpt.steps.index(event.number)
                    # Several optimizers of one step share its number: the last of them ends it.
                    found[place:] = [Ending(self._of_streams(), self._host, self._host_s)]
                    self._step = min(place + 1, len(self._excerpt.steps) - 1)
                case _:
                    pass
        self._end_host()
        self._play.endings.append(found)

    def _add(self, what: What, *, index: int, stream: int, work_s: float) -> int:
        return self._play.add(what, index=index, rank=self._rank, stream=stream, step=self._step, work_s=work_s)

    def _run(self, event: Run) -> None:
        price = self._prices[event.kernel]
        if not price.kind:
            return
        work_s = price.device_s + self._drag * price.host_s
        task = self._add("kernel", index=event.kernel, stream=event.stream, work_s=work_s)
        self._launch(task, price.host_s)
        self._play.follow(task, self._all_of(event.stream))
        self._tails[event.stream] = task
        self._pending.pop(event.stream, None)

    def _launch(self, task: int, seconds: float) -> None:
        self._host_s += seconds
        self._launches.append((self._host_s, task))

    def _all_of(self, stream: int) -> list[int]:
        """What the next thing on a stream waits for."""
        tail = self._tails.get(stream)
        return [*([] if tail is None else [tail]), *self._pending.get(stream, ())]

    def _joined(self, stream: int) -> list[int]:
        """The same as one task, so that events of events do not add up."""
        tasks = self._all_of(stream)
        if len(tasks) < 2:
            return tasks
        join = self._add("join", index=0, stream=stream, work_s=0.0)
        self._play.follow(join, tasks)
        self._tails[stream] = join
        self._pending.pop(stream, None)
        return [join]

    def _of_streams(self) -> list[int]:
        """What the next things on all streams wait for: no collective that nobody waits for."""
        streams = dict.fromkeys([*self._tails, *self._pending])
        return list(dict.fromkeys(task for stream in streams for task in self._all_of(stream)))

    def _wait_for(self, stream: int) -> None:
        """The host goes on when a stream, or all of them, has done what it was asked for."""
        ended = self._all_of(stream)
        if stream == _EVERYTHING:
            ended = [*self._of_streams(), *(task for queue in self._queues.values() for task in queue)]
        before = self._host
        self._end_host()
        self._host, self._host_s = self._add("host", index=0, stream=-1, work_s=0.0), 0.0
        self._play.follow(self._host, [before, *ended])

    def _end_host(self) -> None:
        """The host's task is as long as its launches; each is a mark of it."""
        tasks, whole_s = self._play.tasks, self._host_s
        tasks.work_s[self._host] = whole_s
        for _, task in self._launches:
            tasks.waits[task] += 1
        if self._launches:
            places = [(at_s / whole_s if whole_s else 1.0, [task]) for at_s, task in reversed(self._launches)]
            tasks.marks[self._host] = places
        self._launches = []

    def _with_batch(self, collective: int) -> list[int]:
        """The tasks of a collective and those of its batch; none where it was issued before these steps."""
        if collective not in self._issued:
            return []
        batch = self._record.collectives[collective].coalesced
        return self._batches[batch] if batch >= 0 else [self._issued[collective]]

    def _issue(self, number: int) -> None:
        collective = self._record.collectives[number]
        group = self._group(collective)
        arrival = self._add("arrival", index=number, stream=collective.stream, work_s=0.0)
        self._launch(arrival, self._launch_s)
        self._play.follow(arrival, self._all_of(collective.stream))
        task = self._meet(number, collective, group, arrival)
        queue: Key = ("group", group.ranks)
        if collective.operation.startswith(("send", "recv")) and collective.coalesced < 0:
            queue = ("pair", group.ranks, *sorted((self._rank, collective.peer)))
        self._play.follow(task, [arrival, *self._before_in(queue, collective.coalesced)])
        self._enter(queue, task, collective.coalesced)
        self._issued[number] = task
        if not collective.asynchronous:
            self._pending[collective.stream].append(task)

    def _group(self, collective: Collective) -> Group:
        found = self._record.groups.get(collective.group)
        return found or Group(name=collective.group, ranks=(self._rank,), description="", order=-1, lines=0)

    def _ends(self, collective: Collective) -> tuple[int, int]:
        """Sender and receiver of a message; -1 of a collective. Any sender is this rank itself, which takes no time."""
        peer = collective.peer if collective.peer >= 0 else self._rank
        if collective.operation.startswith("send"):
            return self._rank, peer
        return (peer, self._rank) if collective.operation.startswith("recv") else (-1, -1)

    def _alike(self, collective: Collective, group: Group) -> Key:
        """What collectives are counted by: the messages of a pair, one way; all others of a group."""
        source, target = self._ends(collective)
        return ("group", group.ranks) if source < 0 else ("message", source, target)

    def _meet(self, number: int, collective: Collective, group: Group, arrival: int) -> int:
        """The task of a transfer, which all of its ranks that are rehearsed have in common."""
        play, alike = self._play, self._alike(collective, group)
        source, target = self._ends(collective)
        ends = ("out", "in") if source < 0 else ("out",) if source == self._rank else ("in",)
        key = (*alike, self._counts[alike])
        self._counts[alike] += 1
        there = self._meetings[key]
        if there:
            task = next(iter(there.values())).task
        else:
            transfer = self._links.transfer(collective, group.ranks, source=source, target=target)
            task = self._add("collective", index=number, stream=-1, work_s=transfer.flow_s)
            play.tasks.latency_s[task] = transfer.latency_s
            play.tasks.flow[task] = ((), ())
            play.transfers[task], play.arrivals[task], play.ends[task] = transfer, {}, {}
        there[self._rank] = _TransferSide(task, arrival, group)
        play.arrivals[task][self._rank] = arrival
        play.ends[task][self._rank] = ends
        return task

    def _before_in(self, queue: Key, batch: int) -> list[int]:
        """What runs before on the same communicator; those of a batch go together."""
        if batch < 0:
            return self._queues[queue]
        return self._before_batch.setdefault((batch, queue), self._queues[queue])

    def _enter(self, queue: Key, task: int, batch: int) -> None:
        if batch < 0:
            self._queues[queue] = [task]
            return
        first = not self._batches[batch]
        self._batches[batch].append(task)
        self._queues[queue] = [task] if first else [*self._queues[queue], task]
