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

Why a rank blocks in an exchange: because of the exchange itself, or because another rank came late. The two are told
apart as `observe` does: the shortest wait of a step over its ranks is the exchange, because the last rank to come does
not wait; what another one waits longer is for slower ranks, or for other stages of a pipeline.

    rank 0   F ██ B ████ b0 ▒▒▒▒▒▒ b1 ▒▒▒│ U      7 = 3 communication + 4 synchronization
    rank 1   F ██ B ████████ b0 ▒ b1 ▒▒  │ U      3 communication
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Literal, get_args

from trimaran.base.timeline import COMPUTE, HOST, WAIT, Span, Timeline
from trimaran.program.types import Kind, Program
from trimaran.runtime.data.prefetch import LoadingTimes

# ---------------------------------------------------------------------------------------------------------------------
# A step of a job by what it was spent on: classes that do not overlap and sum to it


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSplit:
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


CLASSES = tuple(field.name for field in fields(StepSplit))
"""The classes, in the order in which they are shown."""


def calm(blocks: Sequence[StepSplit]) -> list[int]:
    """Which blocks are of ordinary length: half of them, none of the quarter of the longest or of the shortest.

    What another program does for a moment makes a block longer; the classes of the blocks that are left still sum.

    Args:
        blocks: mean steps of blocks, at least one

    Returns:
        Their positions, ascending.

    Example:
        >>> parts = dict.fromkeys(CLASSES, 0.0)
        >>> calm([StepSplit(**parts | {"compute": seconds}) for seconds in (1.0, 9.0, 1.1, 1.2)])
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


def sum_loadings(loadings: Sequence[LoadingTimes]) -> LoadingTimes | None:
    """The sum of several microbatches; None for none.

    Args:
        loadings: of one step
    """
    if not loadings:
        return None
    names = ("read_s", "prepared_s", "waited_s", "taken_s", "copied_s")
    return LoadingTimes(
        samples=sum(one.samples for one in loadings),
        in_line=all(one.in_line for one in loadings),
        **{name: sum(getattr(one, name) for one in loadings) for name in names},
    )


def divide_loading(loading: LoadingTimes | None, load_s: float, *, host_blocks: bool = True) -> LoadParts:
    """Split the time that a step waited for its loading.

    Args:
        loading: what was observed of it, all microbatches together; None: nothing
        load_s: length of it as the record has it [s]
        host_blocks: the record has the host's time; False: the device's, which also holds copies that the host has
            only issued, and in which the host's loading may overlap with compute

    Returns:
        Parts that sum to `load_s`.

    Example:
        >>> divide_loading(LoadingTimes(samples=8, read_s=0.25, prepared_s=0.5), 1.0)
        LoadParts(fetch=0.25, prepare=0.5, copy=0.0, rest=0.25)
        >>> divide_loading(LoadingTimes(samples=8, read_s=3.0, prepared_s=1.0, waited_s=0.5, in_line=False), 0.5)
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
    loading: LoadingTimes | None = None


def split_steps(
    program: Program,
    timelines: Iterable[Timeline],
    steps: Sequence[Sequence[TimedStep]],
    *,
    host_blocks: bool = True,
) -> list[dict[int, StepSplit]]:
    """The split of each step of each rank.

    Args:
        program: of a step
        timelines: what was recorded of all ranks; a step may be in several
        steps: of each rank
        host_blocks: as for `divide_loading`

    Returns:
        For each rank, splits by the number of the step; steps that were not recorded are left out.
    """
    no_loads = {instruction.id for instruction in program if instruction.kind is not Kind.LOAD}
    found: list[dict[int, StepSplit]] = [{} for _ in steps]
    lanes = {number: _lanes(spans) for number, spans in spans_by_step(timelines).items()}
    waited = {
        number: [_seconds(of.get((rank, WAIT), ())) for rank in range(len(steps))] for number, of in lanes.items()
    }
    for rank, own in enumerate(steps):
        for step in own:
            if step.number not in lanes:
                continue
            of = lanes[step.number]
            loads = [span for span in of.get((rank, HOST), ()) if span.instruction not in no_loads]
            computes, waits = of.get((rank, COMPUTE), ()), of.get((rank, WAIT), ())
            found[rank][step.number] = _split(
                step,
                load_s=_seconds(loads),
                compute_s=_seconds(computes) - _shared(computes, waits),
                waited_s=waited[step.number][rank],
                shortest_s=min(waited[step.number]),
                host_blocks=host_blocks,
            )
    return found


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


def _lanes(spans: Iterable[Span]) -> Mapping[tuple[int, str], Sequence[Span]]:
    """The spans of each rank and stream, in order."""
    lanes: dict[tuple[int, str], list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start_s):
        lanes[span.rank, span.stream].append(span)
    return lanes


def _seconds(spans: Iterable[Span]) -> float:
    return sum(span.seconds for span in spans)


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


def _split(
    step: TimedStep, *, load_s: float, compute_s: float, waited_s: float, shortest_s: float, host_blocks: bool
) -> StepSplit:
    parts = divide_loading(step.loading, load_s, host_blocks=host_blocks)
    return StepSplit(
        fetch=parts.fetch,
        # Naming the share draws the order of its epoch, where it is the first of it. Workers start in a load.
        prepare=parts.prepare + step.asked_s,
        copy=parts.copy,
        compute=compute_s,
        communication=shortest_s,
        synchronization=waited_s - shortest_s,
        unattributed=parts.rest + step.step_s - (load_s + compute_s + waited_s),
    )
