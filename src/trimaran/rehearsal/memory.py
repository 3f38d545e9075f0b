"""Memory of a rehearsed rank: its peaks and what they are made of, whether it fits, where it runs out.

    Record ──blocks taken and given back──▶ model of the allocator ──▶ allocated and reserved over time, peaks
                                            the same, on a device of that size ──▶ first shortage: line, module, blocks

Every figure comes from playing the record through the model. What a device needs for a process in addition, and no
allocator counts, is told apart: the context of its driver (of the catalog) and buffers of NCCL, whose size is not known
well. The verdict says "not sure" where only these decide.

    fits          even with the largest buffers of NCCL
    does not fit  even with the smallest
    not sure      in between; or the record ends before a step was whole; or its script compiles, which it is rehearsed
                  without: then it takes less, how much less is known from below
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, get_args

from trimaran.base.errors import InputError
from trimaran.base.units import format_bytes, format_span
from trimaran.machine.catalog import find_device
from trimaran.pricing.analytical.fits_device import COMMUNICATOR_BYTES
from trimaran.pricing.exchange.replica_memory import CHANNELS, CONNECTION_BYTES
from trimaran.rehearsal.fusion import compiles, fused
from trimaran.rehearsal.record import (
    Empty,
    Enter,
    Frame,
    Give,
    Name,
    Part,
    Purpose,
    Record,
    Run,
    Step,
    Sync,
    Take,
    Use,
)
from trimaran.simulator.allocator import Allocator, Settings

PURPOSES: Final[tuple[Purpose, ...]] = get_args(Purpose)

MOST_STEPS = 10_000
"""In which growth is told: numbers that are kept to be printed, of 512 bytes each, fill no device in a training."""

_MOST_KINDS = 12
"""Kinds of blocks among which the line of a peak is looked for."""

# ---------------------------------------------------------------------------------------------------------------------
# What is told


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What memory is for at one moment.

    Attributes:
        event: position in the record's events
        step: number of the step, from 0
        part: of it
        allocated: rounded by the allocator [bytes]
        purposes: of `allocated` [bytes]
        line: innermost, where the largest blocks that are alike were taken; None: none of them in the user's code
    """

    event: int
    step: int
    part: Part
    allocated: int
    purposes: dict[Purpose, int]
    line: Frame | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """The first block for which a device has no room.

    Attributes:
        rank: whose device
        asked: bytes of the block [bytes]
        room: of the device for its allocator [bytes]
        at: what was there then, the block left out
        lines: the user's, innermost first; in a backward those of the forward that made the node
        module: path
    """

    rank: int
    asked: int
    room: int
    at: Moment
    lines: tuple[Frame, ...]
    module: str

    @property
    def order(self) -> tuple[int, int, int]:
        """Sorts the ranks of a job by which runs out first: by step, part of it and event."""
        return self.at.step, get_args(Part).index(self.at.part), self.at.event


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Memory of the process that no allocator counts.

    Attributes:
        context: of the driver; 0 where the device is not in the catalog [bytes]
        communicators: of NCCL that the rank connects
        least: buffers of all of them at least [bytes]
        usual: in between [bytes]
        most: at most [bytes]
    """

    context: int
    communicators: int
    least: int
    usual: int
    most: int


Verdict = Literal["fits", "does not fit", "not sure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedFit:
    """Whether a rank fits its device.

    Attributes:
        verdict: see `Verdict`
        needed: reserved at the peak; where it does not fit, with all the memory that it asks for [bytes]
        room: of the device without context and the usual buffers of NCCL [bytes]
        margin: by which the room is larger than what is needed; negative: smaller [bytes]
        why: the arithmetic, and what makes it unsure
    """

    verdict: Verdict
    needed: int
    room: int
    margin: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGrowth:
    """Memory that every step leaves behind.

    Attributes:
        nbytes: a step [bytes]
        full: step in which the device is full, from 0
        lines: where what holds it is made, as a sum of losses, else where the last of it is, innermost first
        most: where most of it is made
    """

    nbytes: int
    full: int
    lines: tuple[Frame, ...]
    most: tuple[Frame, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedMemory:
    """Memory of a rehearsed rank.

    Attributes:
        rank: global
        peak: when most is allocated, with all the memory that it asks for
        reserved: in segments at most, on the device where it fits, else with all the memory that it asks for [bytes]
        unlimited: in segments at most, with all the memory that it asks for [bytes]
        retries: how often free segments go back to the device so that it fits
        steps: allocated at the peak of each step; the first one has what comes before it, too [bytes]
        kept: what is still allocated when the last step ends is for; empty: no step was whole [bytes]
        fit: whether it fits
        short: the first shortage, with the usual buffers of NCCL, or the most where it is only then; None: none
        growth: that fills the device within `MOST_STEPS`; None: none
        notes: what was asked of the allocator and is not modelled
    """

    rank: int
    peak: Moment
    reserved: int
    unlimited: int
    retries: int
    steps: tuple[int, ...]
    kept: dict[Purpose, int]
    fit: RehearsedFit
    short: OutOfMemory | None
    growth: MemoryGrowth | None
    notes: tuple[str, ...]


def read_memory(record: Record, *, settings: Settings | None = None) -> RehearsedMemory:
    """Memory of a rank, from its record.

    Args:
        record: of the rank
        settings: of the allocator; None: those of the record
    """
    settings = Settings.parse(record.allocator) if settings is None else settings
    story = Story(record)
    free = play_blocks(story, settings, None)
    outside = outside_of(record)
    rooms = [
        record.memory_bytes - outside.context - buffers for buffers in (outside.most, outside.usual, outside.least)
    ]
    by_room: dict[int, Played] = {}

    def within(room: int) -> Played:
        if room not in by_room:
            by_room[room] = play_blocks(story, settings, max(0, room), ends_short=True)
        return by_room[room]

    lacks = [
        room
        for room in rooms
        if story.least > max(0, room) or (free.reserved > room and within(room).short is not None)
    ]
    usual = free if lacks or free.reserved <= rooms[1] else within(rooms[1])
    short = None
    compiled = play_blocks(Story(fused(record)), settings, None).reserved if lacks and compiles(record) else None
    if lacks and compiled is None:
        room = rooms[1] if rooms[1] in lacks else lacks[0]
        short = _shortage(story, within(room), room)
    return RehearsedMemory(
        rank=record.rank,
        peak=_moment(story, free, free.peak_at),
        reserved=usual.reserved,
        unlimited=free.reserved,
        retries=usual.allocator.retries,
        steps=tuple(free.step_peaks[: max(1, len(story.ends))]),
        kept=_moment(story, free, story.ends[-1]).purposes if story.ends else {},
        fit=_fit(record, usual, outside, lacks, rooms, settings, compiled),
        short=short,
        growth=_growth(story, free, rooms[1]),
        notes=settings.notes,
    )


def first_short(found: Iterable[RehearsedMemory]) -> OutOfMemory | None:
    """The rank that runs out of memory first; None: none does."""
    shortages = [one.short for one in found if one.short is not None]
    return min(shortages, key=lambda short: (*short.order, short.rank), default=None)


# ---------------------------------------------------------------------------------------------------------------------
# The device without the allocator


def outside_of(record: Record) -> Outside:
    """Memory of the process that no allocator counts: the driver's context, and NCCL's buffers.

    A communicator is made when a group's first collective is issued; in some versions another one for messages between
    two ranks outside of a batch, which counts only for the most.

    Source:
        NVIDIA, NCCL documentation: NCCL_BUFFSIZE; src/include/device.h; as in `pricing.analytical.fits_device` and
        `pricing.exchange.replica_memory`; pytorch/pytorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp.
    """
    groups: set[str] = set()
    pairs: set[tuple[str, int]] = set()
    for collective in record.collectives:
        group = record.groups.get(collective.group)
        if collective.operation.endswith("_object") or (group is not None and len(group.ranks) < 2):
            continue
        if collective.operation in ("send", "recv") and collective.coalesced < 0:
            pairs.add((collective.group, collective.peer))
        else:
            groups.add(collective.group)
    certain = max(len(groups), 1 if pairs else 0)
    low, high = COMMUNICATOR_BYTES
    try:
        context = find_device(record.device).memory.context_bytes
    except InputError:
        context = 0
    return Outside(
        context=context,
        communicators=certain,
        least=certain * low,
        usual=certain * CHANNELS * CONNECTION_BYTES,
        most=(len(groups) + len(pairs)) * high,
    )


def _fit(
    record: Record,
    played: "Played",
    outside: Outside,
    lacks: Sequence[int],
    rooms: Sequence[int],
    settings: Settings,
    compiled: int | None,
) -> RehearsedFit:
    most, usual, least = rooms
    parts = (
        f"{format_bytes(played.reserved)} reserved at the peak, of {format_bytes(record.memory_bytes)} on the device"
    )
    parts += f" less {format_bytes(outside.context)} for the driver's context" if outside.context else ""
    if outside.communicators:
        parts += (
            f" and {format_span(format_bytes(outside.least), format_bytes(outside.most))} for NCCL's buffers "
            f"of {outside.communicators} {'group' if outside.communicators == 1 else 'groups'} of ranks"
        )
    doubts = []
    if not outside.context:
        doubts.append(f'no driver context is known for "{record.device}"')
    known = len(doubts)
    if record.end.how not in ("finished", "steps", "seconds") and (record.end.how, record.end.status) != ("exit", 0):
        doubts.append(f"the rank ended by {record.end.how}")
    if not any(type(event) is Step for event in record.events):
        doubts.append("no step was whole")
    doubts += settings.notes
    is_unsure = len(doubts) > known
    verdict: Verdict = "fits"
    if compiled is not None:
        verdict = "not sure"
        parts += f"; this is without torch.compile: with it about {format_bytes(compiled)}"
    elif least in lacks:
        verdict = "does not fit"
    elif most in lacks:
        verdict = "not sure"
        parts += "; only the size of these buffers decides"
    if verdict != "does not fit" and played.allocator.retries:
        doubts.append(f"free segments go back to the device {played.allocator.retries} times, which takes time")
    if verdict == "fits" and is_unsure:
        verdict = "not sure"
    return RehearsedFit(
        verdict=verdict,
        needed=played.reserved,
        room=usual,
        margin=usual - played.reserved,
        why="; ".join([parts, *doubts]) + ".",
    )


# ---------------------------------------------------------------------------------------------------------------------
# The record as a story of blocks


_TAKE, _GIVE, _USE, _SYNC, _EMPTY = range(5)

_Move = tuple[int, int, int, int, int]
"""Kind, block or stream, bytes or other stream, stream, position of the event."""


class Story:
    """The events of a record that change memory, and where steps end.

    Attributes:
        record: that it tells
        moves: in order
        takes: of a block, the last one that had its number
        purpose: of a block, as it was known in the end
        ends: positions of the events that end steps
        least: bytes of blocks that are taken at once, at most, as asked for: no allocator has less [bytes]
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self.moves: list[_Move] = []
        self.takes: dict[int, Take] = {}
        self.purpose: dict[int, Purpose] = {}
        self.least = 0
        live: dict[int, int] = {}
        now = 0
        ends: dict[int, int] = {}
        for index, event in enumerate(record.events):
            if type(event) is Take:
                self.moves.append((_TAKE, event.block, event.nbytes, event.stream, index))
                self.takes[event.block] = event
                self.purpose[event.block] = event.purpose
                live[event.block] = event.nbytes
                now += event.nbytes
                if now > self.least:
                    self.least = now
            elif type(event) is Give:
                self.moves.append((_GIVE, event.block, 0, 0, index))
                now -= live.pop(event.block, 0)
            elif type(event) is Use:
                self.moves.append((_USE, event.block, event.stream, 0, index))
            elif type(event) is Name:
                self.purpose[event.block] = event.purpose
            elif type(event) is Sync:
                self.moves.append((_SYNC, event.stream, 0, 0, index))
            elif type(event) is Empty:
                self.moves.append((_EMPTY, 0, 0, 0, index))
            elif type(event) is Step:
                ends[event.number] = index
        self.ends = [ends[number] for number in sorted(ends)]

    def step_of(self, event: int) -> int:
        """Number of the step that an event is in; those after the last one are in the next."""
        return bisect_right(self.ends, event - 1)

    def part_of(self, event: int) -> Part:
        """Part of the step that an event is in."""
        for index in range(min(event, len(self.record.events) - 1), -1, -1):
            at = self.record.events[index]
            if isinstance(at, Take | Run | Enter):
                return at.part
        return "setup"


@dataclass(slots=True)
class Played:
    """What came of playing a story.

    Attributes:
        allocator: as it was in the end
        peak_at: position of the event after which most was allocated
        sizes: of blocks, rounded [bytes]
        reserved: at most [bytes]
        step_peaks: most that is allocated in each step [bytes]
        short_at: position of the event that found no room; -1: none
        short_asked: bytes of its block [bytes]
    """

    allocator: Allocator
    peak_at: int
    sizes: dict[int, int]
    reserved: int
    step_peaks: list[int]
    short_at: int = -1
    short_asked: int = 0

    @property
    def short(self) -> int | None:
        """Position of the event that found no room; None: none."""
        return None if self.short_at < 0 else self.short_at


def play_blocks(
    story: Story,
    settings: Settings,
    room: int | None,
    *,
    ends_short: bool = False,
) -> Played:
    """Play blocks through the allocator.

    Args:
        story: of the record
        settings: of the allocator
        room: that the device has for it; None: all that is asked for [bytes]
        ends_short: end at the first block that finds no room
    """
    allocator = Allocator(room, settings)
    take, give = allocator.take, allocator.give
    sizes: dict[int, int] = {}
    peak_at, peak = 0, -1
    ends = [*story.ends, len(story.record.events)]
    step, end, steps = 0, ends[0], [0] * len(ends)
    played = Played(allocator, 0, sizes, 0, steps)
    for kind, block, nbytes, stream, index in story.moves:
        while index > end:
            step += 1
            end, steps[step] = ends[step], allocator.allocated
        if kind == _TAKE:
            there = take(block, nbytes, stream)
            if not there and played.short_at < 0:
                played.short_at, played.short_asked = index, nbytes
                if ends_short:
                    break
            sizes[block] = allocator.size_of(block)
            allocated = allocator.allocated
            if allocated > peak:
                peak, peak_at = allocated, index
            if allocated > steps[step]:
                steps[step] = allocated
        elif kind == _GIVE:
            give(block)
        elif kind == _USE:
            allocator.use(block, nbytes)
        elif kind == _EMPTY:
            allocator.empty_cache()
        elif block < 0:
            allocator.synchronize()
        else:
            allocator.passed(block)
    played.peak_at = peak_at
    played.reserved = allocator.peak_reserved
    return played


def live_blocks(story: Story, until: int) -> set[int]:
    """Blocks that are taken after the event at a position."""
    live: set[int] = set()
    for kind, block, nbytes, _, index in story.moves:
        if index > until:
            break
        if kind == _TAKE and nbytes:
            live.add(block)
        elif kind == _GIVE:
            live.discard(block)
    return live


def _growth(story: Story, played: Played, room: int) -> MemoryGrowth | None:
    """What lines leave behind in every step after the first, of a script that would go on.

    What only the last step has left, as its loss, goes with the next one.
    """
    steps = len(story.ends) if story.record.end.how in ("steps", "seconds") else 0
    live: dict[int, int] = {}  # when a block was taken
    totals: list[int] = []
    for kind, block, nbytes, _, index in story.moves:
        while len(totals) < steps and index > story.ends[len(totals)]:
            totals.append(sum(map(played.sizes.__getitem__, live)))
        if len(totals) == steps:
            break
        if kind == _TAKE and nbytes:
            live[block] = index
        elif kind == _GIVE:
            live.pop(block, None)
    totals += [sum(map(played.sizes.__getitem__, live))] * (steps - len(totals))
    left: dict[int, list[int]] = {}
    for block, index in live.items():
        left.setdefault(story.takes[block].lines, [0] * steps)[story.step_of(index)] += played.sizes[block]
    grows = {lines: min(each[1:]) for lines, each in left.items() if all(each[1:])} if steps > 2 else {}
    nbytes = sum(grows.values())
    if not nbytes or min(late - early for early, late in pairwise(totals)) < nbytes / 2:
        return None
    full = steps - 1 + max(0, -(-(room - played.reserved) // nbytes))
    last = max((index, story.takes[block].lines) for block, index in live.items() if story.takes[block].lines in grows)
    made = (story.record.keeper or last[1], max(grows, key=grows.__getitem__))
    places = [story.record.lines[lines] if lines > 0 else () for lines in made]
    return None if full > MOST_STEPS else MemoryGrowth(nbytes=nbytes, full=full, lines=places[0], most=places[1])


def _moment(story: Story, played: Played, at: int, *, without: int = -1) -> Moment:
    """What memory is for after an event; `without` a block."""
    record = story.record
    purposes: Counter[Purpose] = Counter()
    kinds: Counter[tuple[Purpose, str, Frame | None, Part]] = Counter()
    for block in live_blocks(story, at) - {without}:
        take, size, purpose = story.takes[block], played.sizes.get(block, 0), story.purpose[block]
        stack = record.lines[take.lines] if take.lines >= 0 else ()
        purposes[purpose] += size
        kinds[purpose, starred(record.modules[take.module]), stack[0] if stack else None, take.part] += size
    largest = sorted(kinds, key=lambda kind: (-kinds[kind], kind[1]))[:_MOST_KINDS]
    return Moment(
        event=at,
        step=story.step_of(at),
        part=story.part_of(at),
        allocated=purposes.total(),
        purposes=_ordered(purposes),
        line=next((line for _, _, line, _ in largest if line is not None), None),
    )


def _ordered(purposes: Counter[Purpose]) -> dict[Purpose, int]:
    return {purpose: purposes[purpose] for purpose in PURPOSES if purposes[purpose]}


def starred(module: str) -> str:
    """The path of a module with "*" for the numbers of layers.

    Example:
        >>> starred("model.layers.17.mlp.w1")
        'model.layers.*.mlp.w1'
    """
    return ".".join("*" if part.isdecimal() else part for part in module.split("."))


def _shortage(story: Story, played: Played, room: int) -> OutOfMemory:
    take = story.record.events[played.short_at]
    if not isinstance(take, Take):
        raise InputError(f"event {played.short_at} takes no block", code="rehearse.bad-record")
    at = _moment(story, played, played.short_at, without=take.block)
    return OutOfMemory(
        rank=story.record.rank,
        asked=played.short_asked,
        room=room,
        at=at,
        lines=story.record.lines[take.lines] if take.lines >= 0 else (),
        module=story.record.modules[take.module],
    )
