"""Each step split by what it was spent on, from the records of ranks.

A step of a rank lasts from when it asks for its share of a batch until its loss is known. Of this time the record has
the spans of loads, of waits for exchanges, and of compute: forwards, backwards, clipping, the update with its zeroing.
A wait may lie in the middle of a backward, and is then no compute. Time in no span belongs to no class: the
interpreter between two instructions, and all else that is not measured.

    ask │ IN ▓▓▓▓▓▓▓ │ F ████ │ B ███ ▒▒ ███ │ wait ▒▒▒▒ │ U ██ │ loss
        fetch, prepare, copy    compute        communication, synchronization

Why a step waits for its loading: reading, preparing, or the copy to the device.

Where the training's thread loads, its times are known. Where workers load, the thread only waits; its wait is shared
out to reading and preparing in the proportion of the workers' times.

Why a rank blocks in an exchange: because of the exchange itself, or because another rank came late.

For collectives the two are separated as `observe` does: the shortest
wait over the ranks is the exchange, because the last one to come does not wait; a longer wait of another one is
for slower ranks. Waits between which a rank computes nothing are one wait, as there only their sum says when
the rank could go on:

    rank 0   F ██ B ████ b0 ▒▒▒▒▒▒ b1 ▒▒▒│ U      7 = 3 communication + 4 synchronization
    rank 1   F ██ B ████████ b0 ▒ b1 ▒▒  │ U      3 communication

A message has two ends. Before both have posted it, a rank that waits does so for the other rank; after that for the
link. Packing and posting, which come first, are communication.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import Literal, get_args

from trimaran.base.timeline import COMMUNICATION, COMPUTE, HOST, WAIT, Span, Timeline
from trimaran.program.rules.deadlock import match_messages
from trimaran.program.types import COLLECTIVES, Instruction, Kind, Program
from trimaran.runtime.data.prefetch import Loading

# ---------------------------------------------------------------------------------------------------------------------
# A step of a job by what it was spent on: classes that do not overlap and sum to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Time of a step of one rank, or of the mean of many [s].

    Attributes:
        fetch: blocked while data are read
        prepare: work of data set and collate function, a worker's start and handing over, waiting for a core meanwhile
        copy: from the host to the device
        compute: forward, backward, clipping, update
        communication: exposed exchanges: the shortest wait for each over its ranks
        synchronization: longer waits of a rank than that: for slower ranks, or for earlier stages of a pipeline
        unattributed: the step less all that was measured, such as the interpreter between instructions; clocks that
            disagree can make it negative
    """

    fetch: float
    prepare: float
    copy: float
    compute: float
    communication: float
    synchronization: float
    unattributed: float

    @property
    def step_s(self) -> float:
        """The whole step [s]."""
        return float(sum(astuple(self)))

    @property
    def loading_s(self) -> float:
        """All that a step spends on its data [s]."""
        return self.fetch + self.prepare + self.copy


CLASSES = tuple(field.name for field in fields(Split))
"""The classes, in the order in which they are shown."""


def calm(blocks: Sequence[Split]) -> list[int]:
    """Which blocks are of ordinary length: half of them, none of the quarter of the longest or of the shortest.

    What another program does for a moment makes a block longer; the classes of the blocks that are left still sum.

    Args:
        blocks: mean steps of blocks, at least one

    Returns:
        Their positions, ascending.

    Example:
        >>> parts = dict.fromkeys(CLASSES, 0.0)
        >>> calm([Split(**parts | {"compute": seconds}) for seconds in (1.0, 9.0, 1.1, 1.2)])
        [2, 3]
    """
    aside = len(blocks) // 4
    ordered = sorted(range(len(blocks)), key=lambda number: blocks[number].step_s)
    return sorted(ordered[aside : len(ordered) - aside])


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadParts:
    """The time that a step's loading took of the training's thread [s].

    Attributes:
        fetch: for reading
        prepare: for preparing
        copy: for the way to the device
        rest: for none of these, or not known
    """

    fetch: float = 0.0
    prepare: float = 0.0
    copy: float = 0.0
    rest: float = 0.0


def sum_loadings(loadings: Sequence[Loading]) -> Loading | None:
    """The sum of several microbatches; None for none.

    Args:
        loadings: of one step
    """
    if not loadings:
        return None
    names = ("read_s", "prepared_s", "waited_s", "taken_s", "copied_s")
    return Loading(
        samples=sum(one.samples for one in loadings),
        in_line=all(one.in_line for one in loadings),
        **{name: sum(getattr(one, name) for one in loadings) for name in names},
    )


def divide_loading(loading: Loading | None, load_s: float, *, host_blocks: bool = True) -> LoadParts:
    """Split the time that a step waited for its loading.

    Args:
        loading: what was observed of it, all microbatches together; None: nothing
        load_s: length of it as the record has it [s]
        host_blocks: the record has the host's time; False: the device's, which also holds copies that the host has
            only issued, and in which the host's loading may overlap with compute

    Returns:
        Parts that sum to `load_s`.

    Example:
        >>> divide_loading(Loading(samples=8, read_s=0.25, prepared_s=0.5), 1.0)
        LoadParts(fetch=0.25, prepare=0.5, copy=0.0, rest=0.25)
        >>> divide_loading(Loading(samples=8, read_s=3.0, prepared_s=1.0, waited_s=0.5, in_line=False), 0.5)
        LoadParts(fetch=0.375, prepare=0.125, copy=0.0, rest=0.0)
    """
    if loading is None:
        return LoadParts(rest=load_s)
    if loading.in_line:
        fetch, prepare = loading.read_s, loading.prepared_s
    else:
        behind = loading.read_s + loading.prepared_s
        read_share = loading.read_s / behind if behind > 0 else 0.0
        fetch = loading.waited_s * read_share
        prepare = loading.waited_s * (1.0 - read_share) + loading.taken_s
    copy = loading.copied_s
    known = fetch + prepare + copy
    if known > load_s:
        # The rest was done while something else ran.
        scale = load_s / known
        fetch, prepare, copy, known = fetch * scale, prepare * scale, copy * scale, load_s
    rest = load_s - known
    return LoadParts(fetch=fetch, prepare=prepare, copy=copy if host_blocks else copy + rest, rest=rest * host_blocks)


@dataclass(slots=True, kw_only=True)
class Waited:
    """How long one rank blocked in the exchanges of a step.

    Attributes:
        communication: because of the exchanges themselves [s]
        synchronization: because other ranks came later [s]
    """

    communication: float = 0.0
    synchronization: float = 0.0


@dataclass(slots=True)
class _Standing:
    """The waits of one rank in the collectives of one group, by the compute between which they lie."""

    tokens: dict[int, list[str]] = field(default_factory=dict)
    seconds: dict[int, list[float]] = field(default_factory=dict)

    def add(self, part: int, token: str, seconds: float) -> None:
        self.tokens.setdefault(part, []).append(token)
        self.seconds.setdefault(part, []).append(seconds)

    @property
    def order(self) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(tokens) for tokens in self.tokens.values())

    def by_part(self) -> dict[str, float]:
        return {str(number): sum(seconds) for number, seconds in enumerate(self.seconds.values())}

    def by_token(self) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for part, tokens in self.tokens.items():
            for token, seconds in zip(tokens, self.seconds[part], strict=True):
                found[token] += seconds
        return found


class Exchanges:
    """The exchanges of a program.

    Args:
        program: of a step
    """

    def __init__(self, program: Program) -> None:
        self._instructions = {instruction.id: instruction for instruction in program}
        self._other: dict[str, str] = {}
        for channel in match_messages(program):
            for send, receive in channel:
                one, two = (program.ranks[spot.rank][spot.position].id for spot in (send, receive))
                self._other |= {one: two, two: one}

    def find(self, name: str) -> Instruction | None:
        """The instruction of a span; None: the program has none of that name."""
        return self._instructions.get(name)

    def divide(self, spans: Iterable[Span]) -> dict[int, Waited]:
        """How long each rank blocked in one step, and why.

        Args:
            spans: of one step, all ranks

        Returns:
            By rank, for those that waited at all.
        """
        waits: list[Span] = []
        posted: dict[str, float] = {}
        busy: dict[int, list[float]] = defaultdict(list)
        for span in spans:
            if span.stream == WAIT:
                waits.append(span)
            elif span.stream == COMMUNICATION:
                posted[span.instruction] = span.start_s
            else:
                busy[span.rank].append(span.start_s)
        for starts in busy.values():
            starts.sort()
        found: dict[int, Waited] = defaultdict(Waited)
        groups: dict[tuple[int, ...], dict[int, _Standing]] = defaultdict(lambda: defaultdict(_Standing))
        for wait in waits:
            instruction = self._instructions.get(wait.instruction)
            if instruction is not None and instruction.kind in COLLECTIVES:
                part = bisect_right(busy[wait.rank], wait.start_s)
                groups[instruction.group][wait.rank].add(part, instruction.token, wait.seconds)
                continue
            on_link_s = self._on_the_link(wait, posted)
            found[wait.rank].communication += on_link_s
            found[wait.rank].synchronization += wait.seconds - on_link_s
        for group, standing in groups.items():
            _divide_group(group, standing, found)
        return dict(found)

    def _on_the_link(self, wait: Span, posted: Mapping[str, float]) -> float:
        """How much of the wait for a message was because of the link [s]."""
        own_s = posted.get(wait.instruction, wait.start_s)
        other_s = posted.get(self._other.get(wait.instruction, ""), own_s)
        if wait.start_s <= own_s:
            # Packing it, and handing it over.
            return wait.seconds
        return min(wait.seconds, max(0.0, wait.end_s - max(own_s, other_s)))


def _divide_group(group: Sequence[int], standing: Mapping[int, _Standing], found: dict[int, Waited]) -> None:
    alike = len({one.order for one in standing.values()}) == 1
    waited = {rank: one.by_part() if alike else one.by_token() for rank, one in standing.items()}
    for key in sorted({key for parts in waited.values() for key in parts}):
        shortest = min(waited.get(rank, {}).get(key, 0.0) for rank in group)
        for rank, parts in waited.items():
            own = parts.get(key, 0.0)
            found[rank].communication += min(own, shortest)
            found[rank].synchronization += own - min(own, shortest)


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
        asked_s: from asking the input pipeline until it had named the share [s]
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
    """Compute of each rank without the waits inside it [s]."""
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
