"""A plan with all that it was made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trimaran.base.job import Job
from trimaran.graph.types import Graph
from trimaran.jobs.resolve import JobSource
from trimaran.machine.types import Allocation, Price
from trimaran.planner.candidates import Candidate
from trimaran.planner.problem import Problem
from trimaran.planner.result import Search
from trimaran.planner.search import PinPrice
from trimaran.planner.target_estimates import Estimate, Goal, Rivals, Stop
from trimaran.planning.requests import ClusterRequest
from trimaran.pricing.noise import Noise
from trimaran.pricing.offload_costs import TracedStep
from trimaran.pricing.tables import CostTable
from trimaran.program.plan import Plan

if TYPE_CHECKING:
    from trimaran.pricing.convergence.curve import Curve


# ---------------------------------------------------------------------------------------------------------------------
# What was found of a training to a target


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A choice of strategy, batch and devices, and what it was chosen from.

    Attributes:
        asked: what was to be made best
        goal: what was: throughput, where there is no curve
        curve: by which; None: there is none
        curve_name: as it was asked for
        estimates: all that were compared
        chosen: one of them
        front: not beaten in time and cost, fastest first
        rivals: the best hybrid against the best data parallelism
        stop: where more devices no longer help; None without a curve, or for a single count
        batches: that were looked at
        left_out: batches that were not, with the reason
        price: of devices; None: nobody says
        is_complete: the time of the search did not run out
        warnings: what the user should know
    """

    asked: Goal
    goal: Goal
    curve: "Curve | None"
    curve_name: str
    estimates: tuple[Estimate, ...]
    chosen: Estimate
    front: tuple[Estimate, ...]
    rivals: Rivals
    stop: Stop | None
    batches: tuple[int, ...]
    left_out: tuple[tuple[int, str], ...] = ()
    price: Price | None = None
    is_complete: bool = True
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan with all that it was made from.

    Attributes:
        source: where the job comes from
        job: the job
        graph: its dataflow graph
        cluster: the devices that may take part
        table: measured costs
        plan: what was decided
        chosen: the simulation of it
        traces: steps of microbatches, by samples, where memory stood against keeping everything
        search: what it was chosen from; None for a plan that was read from a file
        prices: what each pin of the request costs
        noise: how far identical runs of so many ranks are apart here; None where that is not known
        outlook: what a training to the target takes, where that or a choice of batches was asked for
        warnings: what the user should know before running it
    """

    source: JobSource
    job: Job
    graph: Graph
    cluster: Allocation
    table: CostTable
    plan: Plan
    chosen: Candidate
    traces: Mapping[int, TracedStep] = field(default_factory=dict)
    search: Search | None = None
    prices: tuple[PinPrice, ...] = ()
    noise: Noise | None = None
    outlook: Outlook | None = None
    warnings: tuple[str, ...] = ()


# ---------------------------------------------------------------------------------------------------------------------
# A plan for a machine that is not here, with what it was made from


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
