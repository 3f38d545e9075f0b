"""The step of a pipeline's rank, as it would be recorded: made from the trace of one microbatch of the whole network.

    whole network     F0 F1 F2 F3 | B3 B2 B1 B0                one microbatch; stage 1 has operations F1 and F2
    passes of a rank  F(0) F(1) B(0) F(2) B(1) B(2)             1F1B on stage 1 of 2, three microbatches
    its step          F1 F2  F1 F2  B2 B1  F1 F2  B2 B1  B2 B1

Each pass has the events of its segment in one direction, and storages for itself. Ranks hold what comes from another
segment, and what goes to one, until the backward of its microbatch ends; they receive one pass ahead. Parameters,
buffers, gradients and optimizer state are there all the time: they have no bytes here, and are counted apart. So is the
update. What a microbatch adds to a gradient is there until it has been added. The data set is there once.

Peak and minimum memory of six stages are within 4 % of what ranks recorded. A trace of each stage by itself would be a
trace more for each split; a plan for one microbatch with a share of the budget for each in flight would split evenly
what depends on what the others keep.
"""

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trimaran.graph.kernels.attribution import operations_of
from trimaran.graph.trace.live_bytes import WEIGHTS
from trimaran.graph.trace.types import Role, StepTrace, Tick, TraceOp, TraceStorage, Value
from trimaran.graph.types import OUTSIDE, Graph, Phase
from trimaran.pricing.offload_costs import TracedStep
from trimaran.program.types import Instruction, Kind


@dataclass(frozen=True, kw_only=True, eq=False)
class SegmentedTrace:
    """A traced microbatch of a whole network, and which segment each of its events belongs to.

    Attributes:
        traced: the microbatch
        segments: of each event; -1 for those of the update
    """

    traced: TracedStep
    segments: NDArray[np.int64]

    @cached_property
    def turnaround(self) -> int:
        """First moment of the backward."""
        events = self.traced.trace.events
        return next((event.moment for event in events if not _is_forward(event)), len(events))

    def events_of(self, segment: int, *, forward: bool) -> list[int]:
        """Moments of the events of a segment in one direction, ascending."""
        moments = np.flatnonzero(self.segments == segment).tolist()
        return [moment for moment in moments if _is_forward(self.traced.trace.events[moment]) == forward]


def _is_forward(event: TraceOp | Tick) -> bool:
    return event.phase is Phase.FORWARD if isinstance(event, TraceOp) else event.kind == "pack"


def segmented(traced: TracedStep, graph: Graph, parts: Sequence[Sequence[str]]) -> SegmentedTrace:
    """Give each event of a traced microbatch to a segment.

    An operation belongs to where its origin in the graph lies. What is unpacked is read by the operation after it, and
    what is packed belongs to where it is unpacked.

    Args:
        traced: the microbatch, of the whole network
        graph: the network
        parts: ids of the operations of each segment
    """
    trace = traced.trace
    of_op = {name: number for number, ops in enumerate(parts) for name in ops}
    places = [of_op[op.id] for op in graph.ops]
    found = np.full(trace.length, -1, dtype=np.int64)
    ops = [op for op in trace.ops if op.phase is not Phase.UPDATE]
    for op, owners in zip(ops, operations_of(graph, (op.origin for op in ops)), strict=True):
        found[op.moment] = places[owners[0]]
    of_pack: dict[int, int] = {}
    reader = 0
    for event in reversed(trace.events):
        if isinstance(event, TraceOp):
            reader = found[event.moment] if event.phase is Phase.BACKWARD else reader
        elif event.kind == "unpack":
            found[event.moment] = of_pack[event.pack] = int(reader)
    maker = 0
    for event in trace.events:
        if isinstance(event, TraceOp):
            maker = found[event.moment] if event.phase is Phase.FORWARD else maker
        elif event.kind == "pack":
            found[event.moment] = of_pack.get(event.index, int(maker))
    return SegmentedTrace(traced=traced, segments=found)


@dataclass(frozen=True, slots=True)
class Pass:
    """A forward or a backward of a microbatch through a segment.

    Attributes:
        segment: its number
        microbatch: its number
        forward: whether it is the forward
    """

    segment: int
    microbatch: int
    forward: bool


def passes_of(instructions: Sequence[Instruction]) -> tuple[Pass, ...]:
    """Forwards and backwards of a rank, in its order.

    Args:
        instructions: of the rank, for one step
    """
    return tuple(
        Pass(item.segment or 0, item.microbatch or 0, item.kind is Kind.FORWARD)
        for item in instructions
        if item.kind in (Kind.FORWARD, Kind.BACKWARD)
    )


_ROUNDS = 3
"""Of microbatches in flight, that stand for a whole step: while a pipeline fills, runs on, and empties."""


def repeated(passes: Sequence[Pass], group: int) -> tuple[Pass, ...]:
    """The passes of fewer microbatches that stand for those of a long step, which repeats what it does with each.

    Args:
        passes: of a rank, in its order
        group: microbatches that go through the stages together; 1 where each goes alone

    Returns:
        Those of the first microbatches, of which there are three for each in flight; all where that leaves none out, or
        where fewer would be in flight.
    """
    most = _most_in_flight(passes)
    wanted = -(-_ROUNDS * most // group) * group
    found = tuple(one for one in passes if one.microbatch < wanted)
    return found if _most_in_flight(found) == most else tuple(passes)


def _most_in_flight(passes: Iterable[Pass]) -> int:
    """Forwards whose backward is to come, at most."""
    return max(itertools.accumulate((1 if one.forward else -1 for one in passes), initial=0))


def stage_step(whole: SegmentedTrace, passes: Sequence[Pass]) -> TracedStep:
    """The step of a rank that has some segments of a network.

    Args:
        whole: one microbatch of the network
        passes: of the rank, in order; each backward after its forward

    Returns:
        The step without its update and without state, with the costs of its operations.
    """
    step = _Step(whole=whole, passes=passes)
    trace = step.trace()
    costs = whole.traced.costs
    own = replace(costs, durations_s=costs.durations_s[step.moments], codec=None)
    return replace(whole.traced, trace=trace, costs=own)


@dataclass(kw_only=True)
class _Step:
    """Builds the trace: where each pass begins, and where the lives of its storages are."""

    whole: SegmentedTrace
    passes: Sequence[Pass]
    moments: list[int] = field(default_factory=list)
    _begins: dict[Pass, int] = field(default_factory=dict)
    _numbers: dict[tuple[int, int, int], int] = field(default_factory=dict)
    _packs: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for one in self.passes:
            self._begins[one] = len(self.moments)
            self.moments += self._own(one)
        for number in sorted(self._data):
            self._number(self.passes[0], number)

    def _own(self, one: Pass) -> list[int]:
        return self._events[one.segment, one.forward]

    @cached_property
    def _events(self) -> Mapping[tuple[int, bool], list[int]]:
        kinds = {(one.segment, one.forward) for one in self.passes}
        return {(segment, forward): self.whole.events_of(segment, forward=forward) for segment, forward in kinds}

    def trace(self) -> StepTrace:
        """All of it."""
        original = self.whole.traced.trace
        events: list[TraceOp | Tick] = []
        packs = unpacks = 0
        storages: dict[int, TraceStorage] = {}
        ticks: dict[int, tuple[list[int], list[int]]] = {}
        for one in self.passes:
            for moment in self._own(one):
                event, now = original.events[moment], len(events)
                if isinstance(event, TraceOp):
                    events.append(
                        replace(
                            event,
                            moment=now,
                            reads=self._values(one, event.reads),
                            writes=self._values(one, event.writes),
                        )
                    )
                    continue
                number = self._number(one, event.storage)
                index, packs, unpacks = (
                    (packs, packs + 1, unpacks) if event.kind == "pack" else (unpacks, packs, unpacks + 1)
                )
                key = (one.segment, one.microbatch, event.pack)
                pack = self._packs.setdefault(key, index) if event.kind == "pack" else self._packs[key]
                end = self._end(one, event.end)
                events.append(replace(event, moment=now, index=index, pack=pack, storage=number, end=end))
                ticks.setdefault(number, ([], []))[event.kind == "unpack"].append(now)
        for (number, segment, microbatch), copy in self._numbers.items():
            storages[copy] = self._storage(
                original.storages[number], copy, segment, microbatch, *ticks.get(copy, ([], []))
            )
        shared = {self._numbers[key]: original.names[key[0]] for key in self._numbers if key[0] in original.names}
        return StepTrace(
            events=tuple(events),
            storages=tuple(storages[number] for number in range(len(storages))),
            names=shared,
            device=original.device,
        )

    def _values(self, one: Pass, values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple((self._number(one, number), version) for number, version in values)

    def _number(self, one: Pass, number: int) -> int:
        """Of the copy of a storage that the microbatch has; state has one."""
        storage = self.whole.traced.trace.storages[number]
        is_added = storage.role is Role.GRADIENT and storage.birth >= 0
        is_shared = (storage.role in WEIGHTS and not is_added) or number in self._data
        key = (number, -1, -1) if is_shared else (number, one.segment, one.microbatch)
        return self._numbers.setdefault(key, len(self._numbers))

    def _storage(
        self, one: TraceStorage, number: int, segment: int, microbatch: int, packs: list[int], unpacks: list[int]
    ) -> TraceStorage:
        if segment < 0:
            return replace(
                one,
                number=number,
                nbytes=0 if one.role in WEIGHTS else one.nbytes,
                birth=-1,
                outside_end=len(self.moments),
                keep_end=len(self.moments),
                packs=tuple(packs),
                unpacks=tuple(unpacks),
            )
        forward, backward = (Pass(segment, microbatch, is_forward) for is_forward in (True, False))
        made_here = one.birth >= 0 and self.whole.segments[one.birth] == segment
        crosses = one.role is not Role.INPUT and (
            not made_here or bool(self._readers.get(one.number, set()) - {segment})
        )
        first = forward if one.birth < self.whole.turnaround else backward
        birth = self._place(first, one.birth) if made_here else self._arrives(self._begins[first])
        outside_end, keep_end = (self._end(first, moment) for moment in (one.outside_end, one.keep_end))
        if one.role is Role.GRADIENT:
            outside_end = keep_end = self._next_tick(backward, birth)
        elif crosses:
            birth = birth if made_here else self._arrives(self._before[first])
            held = self._over(backward)
            outside_end, keep_end = max(outside_end, held), max(keep_end, held)
        return replace(
            one,
            number=number,
            role=one.role if made_here else Role.INPUT,
            birth=birth,
            outside_end=max(outside_end, birth),
            keep_end=max(keep_end, birth),
            packs=tuple(packs),
            unpacks=tuple(unpacks),
        )

    @cached_property
    def _data(self) -> frozenset[int]:
        """Storages of the data set: only what loads a batch reads them."""
        trace = self.whole.traced.trace
        of_model = {number for op in trace.ops if op.origin != OUTSIDE for number, _ in op.reads}
        return frozenset(
            one.number
            for one in trace.storages
            if one.role is Role.INPUT and not one.packs and one.number not in of_model
        )

    def _arrives(self, place: int) -> int:
        """From where on a storage is there that comes at a place: nothing is made at a tick, where others go."""
        events = self.whole.traced.trace.events
        while place >= 0 and isinstance(events[self.moments[place]], Tick):
            place -= 1
        return place

    @cached_property
    def _before(self) -> Mapping[Pass, int]:
        """Where the pass before each one begins: ranks receive one pass ahead."""
        begins = [0, *(self._begins[one] for one in self.passes)]
        return dict(zip(self.passes, begins, strict=False))

    @cached_property
    def _readers(self) -> Mapping[int, set[int]]:
        """Segments whose forward reads what a forward made."""
        found: dict[int, set[int]] = {}
        for op in self.whole.traced.trace.ops:
            if op.phase is Phase.FORWARD:
                for number, _ in op.reads:
                    found.setdefault(number, set()).add(int(self.whole.segments[op.moment]))
        return found

    def _next_tick(self, one: Pass, place: int) -> int:
        """Of the first tick of a pass after a place; its end where there is none."""
        events = self.whole.traced.trace.events
        end = self._over(one)
        return next((at for at in range(place + 1, end) if isinstance(events[self.moments[at]], Tick)), end)

    def _over(self, one: Pass) -> int:
        """Where a pass is over; of a backward that is not, as where all is frozen, where its forward is."""
        one = one if one in self._begins else Pass(one.segment, one.microbatch, True)
        return self._begins[one] + len(self._own(one))

    def _place(self, one: Pass, moment: int) -> int:
        """Of the first event of a pass at or after a moment; its end where there is none."""
        if one not in self._begins:
            return self._over(one)
        return self._begins[one] + bisect_left(self._own(one), moment)

    def _end(self, one: Pass, moment: int) -> int:
        """Where a life ends that ended at a moment: in the forward of its microbatch, or in its backward."""
        is_forward = moment <= self.whole.turnaround
        return self._place(Pass(one.segment, one.microbatch, is_forward), moment)
