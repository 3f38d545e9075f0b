"""What a search found: the choice, what it was chosen over, and how good anything could be."""

from dataclasses import dataclass, field

from trimaran.planner.baselines import Baseline
from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import fastest
from trimaran.planner.space import Rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What a search found.

    Attributes:
        candidates: those that were simulated, fit and go against no pin, best first
        chosen: the one to run
        baseline: plain data parallelism on all devices, or what comes nearest
        rejected: what was not simulated or does not fit
        references: what people do without a plan, as far as it fits: plain data parallelism, one device, data
            parallelism with a smaller local batch or with sharded state; the baseline is among them. Where a pin is
            against one, it is here and not among the candidates
        pareto: those of the candidates that no other one beats in the time of a step, the largest peak of memory and
            the number of devices
        baselines: what people do, by role, with the reason where it is not to be had
        bound_s: nothing that goes against no pin takes less [s]
        seconds: that the search took [s]
        is_complete: its time did not run out
        feeding: why ranks are fed as they are; empty where it was not asked
    """

    candidates: tuple[Candidate, ...]
    chosen: Candidate
    baseline: Candidate
    rejected: tuple[Rejection, ...]
    references: tuple[Candidate, ...] = ()
    pareto: tuple[Candidate, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    bound_s: float = 0.0
    seconds: float = field(default=0.0, compare=False)
    is_complete: bool = True
    feeding: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """How much longer the fastest takes than anything takes at least, as a share of the latter."""
        return max(0.0, fastest(self.candidates).objective_s / self.bound_s - 1.0) if self.bound_s > 0 else 0.0
