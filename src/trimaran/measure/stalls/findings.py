"""Results of all ranks together: a mean step of each kind, and the figures for advice."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trimaran.base.errors import ExecutionError
from trimaran.base.timeline import COMMUNICATION, COMPUTE, Span
from trimaran.measure.observe.records import mean_step
from trimaran.measure.stalls.rank import RankRun
from trimaran.measure.stalls.steps import (
    WAYS,
    Exchanges,
    Split,
    TimedStep,
    Way,
    calm,
    spans_by_step,
    split_steps,
)
from trimaran.program.types import Kind, Program

_BACKWARDS = (Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)


@dataclass(frozen=True, slots=True, kw_only=True)
class WayFindings:
    """The steps of one way.

    Attributes:
        mean: step, over the ranks and the blocks of ordinary length
        blocks: the mean step of each block, over the ranks
        ranks: the mean step of each rank, over the same blocks as `mean`
        rank_blocks: the mean step of each rank, for each block
        steps: that count
        read_s: reading for a step, of the mean rank that reads, in its thread or its workers [s]
        prepared_s: preparing, likewise [s]
        taken_s: taking batches over from workers, likewise [s]
        busy_s: processor time of a step, of all ranks together, workers not counted [s]
        late_s: of the synchronization of the mean rank, waits for ranks whose data come later than its own [s]
    """

    mean: Split
    blocks: tuple[Split, ...]
    ranks: tuple[Split, ...]
    rank_blocks: tuple[tuple[Split, ...], ...]
    steps: int
    read_s: float
    prepared_s: float
    taken_s: float
    busy_s: float
    late_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyBucket:
    """A bucket of gradients, as it was seen.

    Attributes:
        label: "b0" is the first
        nbytes: of its gradients [bytes]
        before_end_s: how long before the end of the backward it was complete [s]
    """

    label: str
    nbytes: int
    before_end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StallFindings:
    """Results of a stall analysis.

    Attributes:
        ways: by name
        runs: result of each rank
        buckets: in order; none where gradients are not added up over all ranks
        backward_s: all backwards of a step, of the mean rank [s]
        update_s: the update, likewise [s]
    """

    ways: Mapping[Way, WayFindings]
    runs: tuple[RankRun, ...]
    buckets: tuple[ReadyBucket, ...]
    backward_s: float
    update_s: float


def analyse_stalls(program: Program, runs: Sequence[RankRun], *, host_blocks: bool = True) -> StallFindings:
    """Combine the runs of all ranks.

    Args:
        program: of a step
        runs: of each rank
        host_blocks: as for `split_steps`

    Raises:
        ExecutionError: no step was recorded
    """
    timelines = runs[0].timelines
    splits = split_steps(program, timelines, [run.steps for run in runs], host_blocks=host_blocks)
    ways: dict[Way, WayFindings] = {}
    for way in WAYS:
        own = [[step for step in run.steps if step.way == way and step.number in splits[0]] for run in runs]
        if own[0]:
            ways[way] = _of_way(own, splits, [run.reads for run in runs])
    if not ways:
        raise ExecutionError("no step was recorded: take more steps", code="stalls.no-steps")
    counted = {step.number for step in runs[0].steps}
    spans = {number: of for number, of in spans_by_step(timelines).items() if number in counted}
    exchanges = Exchanges(program)
    return StallFindings(
        ways=ways,
        runs=tuple(runs),
        buckets=_buckets(program, exchanges, spans.values()),
        backward_s=_mean_of(_BACKWARDS, exchanges, spans.values(), ranks=len(runs)),
        update_s=_mean_of((Kind.UPDATE, Kind.CLIP), exchanges, spans.values(), ranks=len(runs)),
    )


def _of_way(
    own: Sequence[Sequence[TimedStep]], splits: Sequence[Mapping[int, Split]], reads: Sequence[bool]
) -> WayFindings:
    numbers: dict[int, list[int]] = defaultdict(list)
    for step in own[0]:
        numbers[step.block].append(step.number)
    by_rank = [[mean_step([of[number] for number in block]) for block in numbers.values()] for of in splits]
    rank_blocks = tuple(zip(*by_rank, strict=True))
    blocks = [mean_step(block) for block in rank_blocks]
    chosen = calm(blocks)
    loadings = [
        step.loading for steps, reading in zip(own, reads, strict=True) if reading for step in steps if step.loading
    ]
    asked = sum(len(steps) for steps, reading in zip(own, reads, strict=True) if reading) or 1
    return WayFindings(
        mean=mean_step([blocks[number] for number in chosen]),
        blocks=tuple(blocks),
        ranks=tuple(mean_step([of[number] for number in chosen]) for of in by_rank),
        rank_blocks=rank_blocks,
        steps=len(own[0]),
        read_s=sum(loading.read_s for loading in loadings) / asked,
        prepared_s=sum(loading.prepared_s for loading in loadings) / asked,
        taken_s=sum(loading.taken_s for loading in loadings) / asked,
        busy_s=sum(step.busy_s for steps in own for step in steps) / len(own[0]),
        late_s=sum(_late([of[step.number] for of in splits]) for step in own[0]) / len(own[0]),
    )


def _late(ranks: Sequence[Split]) -> float:
    """How long the mean rank waits in a step for ranks whose data come later than its own [s]."""
    longest_s = max(split.loading_s for split in ranks)
    return sum(min(split.synchronization, longest_s - split.loading_s) for split in ranks) / len(ranks)


def _buckets(program: Program, exchanges: Exchanges, steps: Iterable[Sequence[Span]]) -> tuple[ReadyBucket, ...]:
    """The buckets that all ranks add up, and when they are complete, by the median of steps and ranks."""
    everyone = tuple(range(len(program.ranks)))
    wanted = {
        instruction.id: instruction
        for instruction in program
        if instruction.kind is Kind.ALL_REDUCE
        and instruction.group == everyone
        and instruction.label[:1] == "b"
        and instruction.label[1:].isdigit()
    }
    before: dict[str, list[float]] = defaultdict(list)
    for spans in steps:
        ends: dict[int, float] = {}
        for span in spans:
            instruction = exchanges.find(span.instruction)
            if span.stream == COMPUTE and instruction is not None and instruction.kind in _BACKWARDS:
                ends[span.rank] = max(ends.get(span.rank, span.end_s), span.end_s)
        for span in spans:
            if span.stream == COMMUNICATION and span.instruction in wanted and span.rank in ends:
                before[wanted[span.instruction].label].append(max(0.0, ends[span.rank] - span.start_s))
    return tuple(
        ReadyBucket(
            label=instruction.label,
            nbytes=instruction.nbytes,
            before_end_s=statistics.median(before[instruction.label]),
        )
        for instruction in program.ranks[0]
        if instruction.id in wanted and before[instruction.label]
    )


def _mean_of(kinds: Sequence[Kind], exchanges: Exchanges, steps: Iterable[Sequence[Span]], *, ranks: int) -> float:
    """Mean time of a step that a rank spends on some kinds of compute [s]."""
    total, number = 0.0, 0
    for spans in steps:
        number += 1
        for span in spans:
            instruction = exchanges.find(span.instruction)
            if span.stream == COMPUTE and instruction is not None and instruction.kind in kinds:
                total += span.seconds
    return total / (ranks * number) if number else 0.0
