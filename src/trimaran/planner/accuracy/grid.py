"""What is searched on the way to a target, and what was found: batches × counts of devices."""

import dataclasses
from collections.abc import Mapping, Sequence

from trimaran.planner.accuracy.types import Contender
from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import largest_peak, simplicity
from trimaran.planner.problem import Problem
from trimaran.planner.space import Rejection


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is searched: one problem for each batch, on counts of devices.

    Attributes:
        problems: by batch; alike but for it
        counts: of devices, ascending
        weights: by batch, what a step is multiplied by to compare batches: updates to the target, or 1 over the batch
        most_local_batch: samples of a replica in one update; None: any number
        time_limit_s: for what spreads a network [s]; None: none
        by_cost: the choice is by the time of all devices together, not by time
    """

    problems: Mapping[int, Problem]
    counts: Sequence[int]
    weights: Mapping[int, float]
    most_local_batch: int | None = None
    time_limit_s: float | None = None
    by_cost: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GridSearch:
    """What was found.

    Attributes:
        candidates: simulated and fit, by batch
        rejected: what was not simulated or does not fit, by batch
        is_complete: nothing that may be chosen was left out when the time ran out, if it did
        seconds: that it took [s]
    """

    candidates: Mapping[int, tuple[Candidate, ...]]
    rejected: Mapping[int, tuple[Rejection, ...]]
    is_complete: bool
    seconds: float = dataclasses.field(default=0.0, compare=False)

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """All candidates, for comparison."""
        return tuple(contender_of(one, batch) for batch, found in self.candidates.items() for one in found)


def contender_of(candidate: Candidate, batch: int) -> Contender:
    """A simulated strategy as one of those that are compared.

    Args:
        candidate: simulated
        batch: samples of one update
    """
    strategy = candidate.strategy
    return Contender(
        name=strategy.name,
        devices=strategy.devices,
        global_batch=batch,
        replicas=strategy.dp,
        microbatches=strategy.microbatches,
        cases=(candidate.interval_s[0], candidate.step_time_s, candidate.interval_s[1]),
        peak_bytes=largest_peak(candidate),
        simplicity=simplicity(strategy),
        is_hybrid=strategy.pp * strategy.tp > 1,
        limiter=candidate.limiter,
        samples_factor=candidate.samples_factor,
        origin=candidate,
    )
