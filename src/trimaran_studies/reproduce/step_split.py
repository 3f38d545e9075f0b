"""The split of a data-parallel step: FP, BP, and WU, the time that gradients and weights add.

    step = FP + BP + WU        WU = exposed + update + overhead        and: overlapped

exposed, overlapped: communication while a rank waits, and while it computes. update: optimizer. overhead: loading,
waiting for a peer without a transfer in progress, and work of the host between recorded parts. All are terms of
`report/breakdown`, averaged over the ranks.

The measured split is a mean over the middle half of the steps by length: a mean preserves the sum, and disturbed steps
do not affect it. The end of a transfer is recorded in some steps only; `overlapped` is a mean over those.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from trimaran.base.errors import InputError
from trimaran.base.timeline import Timeline
from trimaran.program.types import Program
from trimaran.report.breakdown import Breakdown, Source, break_down

TERMS = ("forward", "backward", "exposed", "update", "overhead")
"""The parts that sum to a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """A step as timed by a separate clock.

    Attributes:
        number: of the step in the recording
        seconds: from its start to the start of the next [s]
    """

    number: int
    seconds: float


Block = tuple[TimedStep, ...]
"""Consecutive steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTerms:
    """A step and its parts, all in seconds.

    Attributes:
        step_s: the step; measured by a separate clock, or simulated
        forward_s: FP
        backward_s: BP
        exposed_s: communication while a rank waits
        update_s: of the weights
        overhead_s: the rest
        overlapped_s: communication while a rank does not wait; not part of the sum
    """

    step_s: float
    forward_s: float
    backward_s: float
    exposed_s: float
    update_s: float
    overhead_s: float
    overlapped_s: float

    @property
    def wu_s(self) -> float:
        """Time that gradients and weights add to the step [s]."""
        return self.exposed_s + self.update_s + self.overhead_s

    @property
    def missing(self) -> float:
        """Difference of the sum of the parts from the step, as a share of it.

        Example:
            >>> parts = {"forward_s": 1.0, "backward_s": 2.0, "exposed_s": 0.5, "update_s": 0.2, "overhead_s": 0.2}
            >>> round(SplitTerms(step_s=4.0, overlapped_s=0.0, **parts).missing, 3)
            -0.025
        """
        return (self.forward_s + self.backward_s + self.wu_s) / self.step_s - 1.0


def predicted_terms(program: Program, timeline: Timeline) -> SplitTerms:
    """The split of a simulated step.

    Args:
        program: simulated
        timeline: of one step
    """
    parts = break_down(program, timeline, Source.PREDICTED)
    return _terms(parts, parts, fmean(part.step_s for part in parts))


def measured_terms(
    program: Program, timeline: Timeline, blocks: Sequence[Sequence[Block]], *, watched: Collection[int]
) -> SplitTerms:
    """The split of the recorded steps.

    Args:
        program: that ran
        timeline: of all blocks, all ranks
        blocks: for each rank, its blocks of timed steps; each block had one more step before and one after it
        watched: numbers of the steps in which the end of each transfer was recorded

    Raises:
        InputError: no step
    """
    parts = [part for block in blocks[0] for part in _block_parts(program, timeline, block)]
    if not parts:
        raise InputError("there is no recorded step to split", code="report.no-recorded-step")
    walls: dict[int, list[float]] = {}
    for steps in (step for of_rank in blocks for block in of_rank for step in block):
        walls.setdefault(steps.number, []).append(steps.seconds)
    kept = _middle_half({number: fmean(seconds) for number, seconds in walls.items()})
    seen = [part for part in parts if part.step in watched] or parts
    return _terms([part for part in parts if part.step in kept], seen, fmean(fmean(walls[number]) for number in kept))


def recording_cost(recorded: Sequence[Block], plain: Sequence[Block], *, every: int = 1) -> float:
    """Time that recording adds to a step, as a share of it.

    Compares the faster half of the steps with recording and the faster half without: other programs only make steps
    longer. One step of each cycle is recorded in more detail, so each place in the cycle is compared separately.

    Args:
        recorded: blocks with recording on
        plain: blocks with recording off
        every: length of the cycle [steps]

    Example:
        >>> on, off = ([TimedStep(number=n, seconds=s) for n, s in enumerate(times)] for times in (
        ...     [1.01, 1.01, 1.3, 1.5], [1.0] * 4))
        >>> round(recording_cost([tuple(on)], [tuple(off)]), 3)
        0.01
    """
    with_it, without = (_fast_steps(blocks, every) for blocks in (recorded, plain))
    shared = with_it.keys() & without.keys()
    return fmean(with_it[place] for place in shared) / fmean(without[place] for place in shared) - 1.0


def _fast_steps(blocks: Sequence[Block], every: int) -> dict[int, float]:
    """Mean of the faster half of the steps, by their place in the cycle [s]."""
    found: dict[int, list[float]] = {}
    for step in (step for block in blocks for step in block):
        found.setdefault(step.number % every, []).append(step.seconds)
    return {place: fmean(sorted(seconds)[: max(1, len(seconds) // 2)]) for place, seconds in found.items()}


def _block_parts(program: Program, timeline: Timeline, block: Block) -> list[Breakdown]:
    """The parts of the steps of a block; the steps before and after it show its start and end on each rank."""
    wanted = {step.number for step in block}
    around = wanted | {min(wanted) - 1, max(wanted) + 1}
    spans = Timeline(span for span in timeline if span.step in around)
    return [part for part in break_down(program, spans, Source.MEASURED) if part.step in wanted]


def _middle_half(lengths: Mapping[int, float]) -> set[int]:
    """Steps without the shortest and the longest quarter."""
    ordered = sorted(lengths, key=lambda step: (lengths[step], step))
    quarter = len(ordered) // 4
    return set(ordered[quarter : len(ordered) - quarter])


def _terms(parts: Sequence[Breakdown], seen: Sequence[Breakdown], step_s: float) -> SplitTerms:
    return SplitTerms(
        step_s=step_s,
        forward_s=fmean(part.forward_s for part in parts),
        backward_s=fmean(part.backward_s for part in parts),
        exposed_s=fmean(part.exposed_s for part in parts),
        update_s=fmean(part.update_s for part in parts),
        overhead_s=fmean(part.load_s + part.idle_s + part.unattributed_s for part in parts),
        overlapped_s=fmean(part.overlapped_s for part in seen),
    )
