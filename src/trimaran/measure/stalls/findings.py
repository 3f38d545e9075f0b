"""Results of all ranks together: a mean step of each way."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimaran.base.errors import ExecutionError
from trimaran.base.timeline import COMPUTE
from trimaran.measure.observe.records import mean_step
from trimaran.measure.stalls.rank import RankRun
from trimaran.measure.stalls.steps import WAYS, StepSplit, TimedStep, Way, calm, spans_by_step, split_steps
from trimaran.program.types import Kind, Program


@dataclass(frozen=True, slots=True, kw_only=True)
class WayFindings:
    """The steps of one way.

    Attributes:
        mean: step, over the ranks and the blocks of ordinary length
        blocks: the mean step of each block, over the ranks
        ranks: the mean step of each rank, over the same blocks as `mean`
        steps: that count
        calm: numbers of the steps of each of these blocks
        read_s: reading for a step, of the mean rank that reads, in its thread or its workers [s]
        prepared_s: preparing, likewise [s]
    """

    mean: StepSplit
    blocks: tuple[StepSplit, ...]
    ranks: tuple[StepSplit, ...]
    steps: int
    calm: tuple[tuple[int, ...], ...]
    read_s: float
    prepared_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StallFindings:
    """Results of a stall analysis.

    Attributes:
        ways: by name
        runs: result of each rank
        splits: of each rank, of each step by its number
        update_s: the update and clipping of a step, of the mean rank [s]
    """

    ways: Mapping[Way, WayFindings]
    runs: tuple[RankRun, ...]
    splits: Sequence[Mapping[int, StepSplit]]
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
    updates = {item.id for item in program if item.kind in (Kind.UPDATE, Kind.CLIP)}
    spans = [span for number, of in spans_by_step(timelines).items() if number in splits[0] for span in of]
    update_s = sum(span.seconds for span in spans if span.stream == COMPUTE and span.instruction in updates)
    return StallFindings(
        ways=ways, runs=tuple(runs), splits=splits, update_s=update_s / (len(runs) * max(1, len(splits[0])))
    )


def _of_way(
    own: Sequence[Sequence[TimedStep]], splits: Sequence[Mapping[int, StepSplit]], reads: Sequence[bool]
) -> WayFindings:
    numbers: dict[int, list[int]] = defaultdict(list)
    for step in own[0]:
        numbers[step.block].append(step.number)
    by_rank = [[mean_step([of[number] for number in block]) for block in numbers.values()] for of in splits]
    blocks = [mean_step(block) for block in zip(*by_rank, strict=True)]
    chosen = calm(blocks)
    reading = [step for steps, here in zip(own, reads, strict=True) if here for step in steps]
    loadings = [step.loading for step in reading if step.loading]
    asked = len(reading) or 1
    return WayFindings(
        mean=mean_step([blocks[number] for number in chosen]),
        blocks=tuple(blocks),
        ranks=tuple(mean_step([of[number] for number in chosen]) for of in by_rank),
        steps=len(own[0]),
        calm=tuple(tuple([*numbers.values()][place]) for place in chosen),
        read_s=sum(loading.read_s for loading in loadings) / asked,
        prepared_s=sum(loading.prepared_s for loading in loadings) / asked,
    )
