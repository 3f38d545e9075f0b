"""A prediction and a measurement: rank by rank, kind by kind, instruction by instruction.

Errors are `predicted / measured - 1`: +0.1 is a prediction that is 10 % too long.

By rank, the parts of the step are those of `breakdown`, so that they sum to the step in both columns. The measured
column is the mean over the middle half of the steps by length, the shortest and the longest quarter left out, the same
steps for all ranks: a mean keeps the sum, and a disturbed step does not move it. By instruction, the measured figure is
the median over all steps but the warm-up. By kind, both figures are medians over the instructions of the kind.

The duration of a transfer is the time that it was under way (`transfers`), on both sides. Where its end was not seen in
any step, because nobody looked in time, it has no measured duration and is left out of the figure of its kind. So is an
instruction that the run did not record, such as one that a library does in its own way.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import fmean, median
from typing import ClassVar

from trimaran.base.decoding import Count, Real
from trimaran.base.errors import InputError
from trimaran.base.timeline import WAIT, Timeline
from trimaran.program.types import Kind, Program
from trimaran.report.breakdown import Breakdown, Source, break_down, mean_step, under_way


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One duration, predicted and measured.

    Attributes:
        predicted_s: as simulated [s]
        measured_s: as it was [s]; None where nobody could see it
    """

    derived: ClassVar = ("error",)
    predicted_s: Real
    measured_s: Real | None

    @property
    def error(self) -> float | None:
        """`predicted / measured - 1`; None where nothing was measured.

        Example:
            >>> Figure(predicted_s=1.5, measured_s=1.0).error
            0.5
        """
        return self.predicted_s / self.measured_s - 1.0 if self.measured_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankComparison:
    """The step of one rank and its parts, predicted and measured.

    Attributes:
        rank: the rank
        predicted: as simulated
        measured: mean over the middle half of the steps
    """

    rank: int
    predicted: Breakdown
    measured: Breakdown

    def figure(self, part: str) -> Figure:
        """The step, or a part of it.

        Args:
            part: "step", one of `breakdown.PARTS`, or "overlapped", which is no part of the sum
        """
        return Figure(predicted_s=getattr(self.predicted, f"{part}_s"), measured_s=getattr(self.measured, f"{part}_s"))

    @property
    def step(self) -> Figure:
        """Length of the step."""
        return self.figure("step")


@dataclass(frozen=True, slots=True, kw_only=True)
class KindComparison(Figure):
    """The instructions of one kind: median duration of one of the observed, in both columns.

    Attributes:
        kind: the kind
        count: instructions of it in a step
        observed: those of them with a measured duration
    """

    kind: Kind
    count: Count
    observed: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How far a run was from its prediction.

    Attributes:
        step: length of a step, mean over the ranks
        ranks: each rank with its parts
        kinds: each kind of instruction that the program has
        instructions: each instruction, by id
        steps: measured steps that were compared
        warmup: measured steps before them that were left out
    """

    step: Figure
    ranks: tuple[RankComparison, ...]
    kinds: tuple[KindComparison, ...]
    instructions: Mapping[str, Figure]
    steps: int
    warmup: int


def compare(
    program: Program, predicted: Timeline, measured: Timeline, *, warmup: int = 1, at_once: int = 1
) -> Comparison:
    """Compare a prediction with a measurement.

    Args:
        program: what ran
        predicted: one step, as simulated
        measured: several steps, clocks aligned across ranks
        warmup: measured steps at the beginning to leave out
        at_once: collectives of one group that are under way at once, as the prediction has it (`ProgramCosts.at_once`)

    Returns:
        Predicted and measured figures of each rank, kind and instruction.

    Raises:
        InputError: no steps are left after the warm-up; a timeline that is not of this program; an instruction that
            the prediction does not have, or a rank that the measurement does not have
    """
    steps = set(measured.steps[warmup:])
    if not steps:
        raise InputError(
            f"{len(measured.steps)} steps were measured and {warmup} of them are warm-up: run more steps than that",
            code="report.only-warmup",
            steps=len(measured.steps),
            warmup=warmup,
        )
    instructions = _by_instruction(program, predicted, measured, steps, at_once)
    found = break_down(program, measured, Source.MEASURED, at_once=at_once)
    ranks = _by_rank(
        break_down(program, predicted, Source.PREDICTED, at_once=at_once),
        [part for part in found if part.step in steps],
    )
    return Comparison(
        step=Figure(
            predicted_s=fmean(rank.step.predicted_s for rank in ranks),
            measured_s=fmean(rank.step.measured_s or 0.0 for rank in ranks),
        ),
        ranks=ranks,
        kinds=_by_kind(program, instructions),
        instructions=instructions,
        steps=len(steps),
        warmup=warmup,
    )


def _by_rank(predicted: Sequence[Breakdown], measured: Sequence[Breakdown]) -> tuple[RankComparison, ...]:
    kept = _middle_half(measured)
    of_rank: dict[int, list[Breakdown]] = defaultdict(list)
    for part in measured:
        if part.step in kept:
            of_rank[part.rank].append(part)
    rows = []
    for expected in predicted:
        found = of_rank.get(expected.rank)
        if not found:
            raise InputError(
                f"rank {expected.rank} is in the prediction and not in the measurement",
                code="report.rank-missing",
                rank=expected.rank,
            )
        rows.append(RankComparison(rank=expected.rank, predicted=expected, measured=mean_step(found)))
    return tuple(rows)


def _middle_half(parts: Sequence[Breakdown]) -> set[int]:
    """Steps without the shortest and the longest quarter, by their mean length over the ranks."""
    lengths: dict[int, list[float]] = defaultdict(list)
    for part in parts:
        lengths[part.step].append(part.step_s)
    ordered = sorted(lengths, key=lambda step: (fmean(lengths[step]), step))
    quarter = len(ordered) // 4
    return set(ordered[quarter : len(ordered) - quarter])


def _by_instruction(
    program: Program, predicted: Timeline, measured: Timeline, steps: Set[int], at_once: int
) -> dict[str, Figure]:
    expected = _durations(program, predicted, set(predicted.steps), at_once)
    found = _durations(program, measured, steps, at_once)
    figures = {}
    for instruction in program:
        name = instruction.id
        if name not in expected:
            raise InputError(
                f"{name} has no span in the predicted timeline", code="report.span-missing", instruction=name
            )
        observed = found.get(name)
        figures[name] = Figure(predicted_s=median(expected[name]), measured_s=median(observed) if observed else None)
    return figures


def _durations(program: Program, timeline: Timeline, steps: Set[int], at_once: int) -> dict[str, list[float]]:
    durations: dict[str, list[float]] = defaultdict(list)
    columns = timeline.columns
    spans = under_way(program, timeline, at_once=at_once)
    for name, stream, step, span in zip(columns.instruction, columns.stream, columns.step, spans, strict=True):
        if stream != WAIT and step in steps:
            durations[name].extend([span.end_s - span.start_s] if span.known else [])
    return durations


def _by_kind(program: Program, instructions: Mapping[str, Figure]) -> tuple[KindComparison, ...]:
    of_kind: dict[Kind, list[Figure]] = defaultdict(list)
    for instruction in program:
        of_kind[instruction.kind].append(instructions[instruction.id])
    return tuple(_kind(kind, of_kind[kind]) for kind in Kind if kind in of_kind)


def _kind(kind: Kind, figures: Sequence[Figure]) -> KindComparison:
    measured = [figure.measured_s for figure in figures if figure.measured_s is not None]
    observed = [figure for figure in figures if figure.measured_s is not None] or figures
    return KindComparison(
        kind=kind,
        count=len(figures),
        observed=len(measured),
        predicted_s=median(figure.predicted_s for figure in observed),
        measured_s=median(measured) if measured else None,
    )
