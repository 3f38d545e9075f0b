"""A plan for a machine that is not here, with what it was made from."""

from dataclasses import dataclass

from trimaran.planner import Candidate, Search
from trimaran.planner.problem import Problem
from trimaran.session.accuracy.types import Outlook
from trimaran.session.cluster_planning.request import ClusterRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePlan:
    """A plan for a machine that is not here, with what it was made from.

    Attributes:
        reference: of the job
        request: what was asked
        problem: what was searched
        search: what was found
        one_device_s: a step of one device with the whole batch at once, whether it fits or not [s]
        one_device_fits: it does
        outlook: what a training to the target takes, where that or a choice of batches was asked for
        notes: what the reader should know
    """

    reference: str
    request: ClusterRequest
    problem: Problem
    search: Search
    one_device_s: float
    one_device_fits: bool
    outlook: Outlook | None = None
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> Candidate:
        """The candidate to run."""
        return self.search.chosen

    @property
    def speedup(self) -> float:
        """Samples a second of the chosen strategy over those of one device that has the whole batch."""
        return self.one_device_s / self.chosen.step_time_s
