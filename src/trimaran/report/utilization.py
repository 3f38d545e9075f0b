"""What share of a step each device computes, waits for communication, or has nothing to do."""

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean

from trimaran.program.types import Program
from trimaran.report.breakdown import Breakdown, Source, break_down
from trimaran.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """How one device spends its step; `busy_s + wait_s + bubble_s = step_s`.

    Attributes:
        rank: the rank
        step_s: length of the step, from the first start to the last end over all ranks [s]
        busy_s: forward, backward, update and loading [s]
        wait_s: communication or copies are under way and nothing else happens [s]
        bubble_s: nothing of this device happens between the first start and the last end [s]
    """

    rank: int
    step_s: float
    busy_s: float
    wait_s: float
    bubble_s: float

    @property
    def busy(self) -> float:
        """Share of the step [0..1]."""
        return self._share(self.busy_s)

    @property
    def wait(self) -> float:
        """Share of the step [0..1]."""
        return self._share(self.wait_s)

    @property
    def bubble(self) -> float:
        """Share of the step [0..1].

        In a pipeline of K equal stages and M microbatches it is (K - 1) / (M + K - 1) for GPipe and 1F1B, when
        communication takes no time.

        Source:
            Huang et al., GPipe, NeurIPS 2019, section 2.3, for the GPipe schedule.
        """
        return self._share(self.bubble_s)

    def _share(self, seconds: float) -> float:
        return seconds / self.step_s if self.step_s > 0.0 else 0.0


def utilization(program: Program, timeline: Timeline, *, warmup: int = 0) -> tuple[Utilization, ...]:
    """Busy, waiting and empty time of each device; the mean over the steps where there are several.

    Every gap counts: in a measurement, what is unattributed is part of the bubble.

    Args:
        program: what ran
        timeline: a prediction or a measurement
        warmup: steps at the beginning to leave out

    Returns:
        One entry a rank that does something, ascending.

    Raises:
        InputError: a span of an instruction that the program does not have

    Example:
        >>> from trimaran.program.types import Instruction, Kind
        >>> from trimaran.timeline import Span
        >>> forwards = [Instruction(kind=Kind.FORWARD, rank=rank, segment=rank, microbatch=0) for rank in (0, 1)]
        >>> spans = [
        ...     Span(rank=rank, stream="compute", start_s=1.0 * rank, end_s=1.0 + rank, instruction=forwards[rank].id)
        ...     for rank in (0, 1)
        ... ]
        >>> program = Program(ranks=tuple((forward,) for forward in forwards), segments=2, microbatches=1)
        >>> [device.bubble for device in utilization(program, Timeline(spans))]
        [0.5, 0.5]
    """
    left_out = set(timeline.steps[:warmup])
    of_rank: dict[int, list[Breakdown]] = defaultdict(list)
    for part in break_down(program, timeline, Source.PREDICTED):
        if part.step not in left_out:
            of_rank[part.rank].append(part)
    return tuple(_mean(rank, parts) for rank, parts in sorted(of_rank.items()))


def _mean(rank: int, parts: list[Breakdown]) -> Utilization:
    step_s = fmean(part.step_s for part in parts)
    busy_s = fmean(part.forward_s + part.backward_s + part.update_s + part.load_s for part in parts)
    wait_s = fmean(part.exposed_s for part in parts)
    return Utilization(rank=rank, step_s=step_s, busy_s=busy_s, wait_s=wait_s, bubble_s=step_s - busy_s - wait_s)
