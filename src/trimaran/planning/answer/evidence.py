"""What a plan was chosen by: the alternatives of its backend, and an outlook on the training."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trimaran.base.job import Job
from trimaran.graph.types import Graph
from trimaran.machine.prices import Price
from trimaran.machine.types import Allocation, Link
from trimaran.planner.analytical.candidates import AnalyticalCandidate, AnalyticalProblem
from trimaran.planner.analytical.search import NearbyBatch
from trimaran.planner.candidates import Candidate
from trimaran.planner.problem import Problem
from trimaran.planner.result import Search
from trimaran.planner.search import PinPrice
from trimaran.planner.target_estimates import Goal, HybridComparison, Stop, TargetEstimate
from trimaran.planning.answer.written_plans import candidate_rows
from trimaran.pricing.noise import Noise
from trimaran.pricing.tables import CostTable
from trimaran.program.lowering.lower import lower
from trimaran.program.plan_file import Plan, program_lines

if TYPE_CHECKING:
    from trimaran.convergence.curve import Curve


# ---------------------------------------------------------------------------------------------------------------------
# Result of planning a training to a target


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A choice of strategy, batch and devices, and its alternatives.

    Attributes:
        asked: the requested objective
        goal: the used objective: throughput, where there is no curve
        curve: by which; None: there is none
        curve_name: as it was asked for
        estimates: all that were compared
        chosen: one of them
        front: not beaten in time and cost, fastest first
        hybrid_comparison: the best hybrid against the best data parallelism
        stop: where more devices no longer help; None without a curve, or for a single count
        batches: that were looked at
        left_out: batches that were not, with the reason
        price: of devices; None: not given
        warnings: for the user
        tokens: that are trained on; None: a curve says how much training there is, or nothing does
        within_s: limit of the time that was asked for [s]; None: none
        budget: limit of the cost, in the currency of the price; None: none
        met: whether the choice is within these limits; None: there are none
        compares: several numbers of devices were asked for
    """

    asked: Goal
    goal: Goal
    curve: "Curve | None"
    curve_name: str
    estimates: tuple[TargetEstimate, ...]
    chosen: TargetEstimate
    front: tuple[TargetEstimate, ...]
    hybrid_comparison: HybridComparison
    stop: Stop | None
    batches: tuple[int, ...]
    left_out: tuple[tuple[int, str], ...] = ()
    price: Price | None = None
    warnings: tuple[str, ...] = ()
    tokens: float | None = None
    within_s: float | None = None
    budget: float | None = None
    met: bool | None = None
    compares: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Evidence of a plan of which every step was simulated, by measured or by estimated costs.

    Attributes:
        job: the job at the batch of the plan
        problem: of the search: the graph, its costs, the devices
        plan: the content of a plan file, which may lack the candidates and the program that `whole_plan` has
        chosen: the simulation of it
        search: its alternatives; None for a plan that was read from a file
        prices: cost of each pin of the request
        noise: how far identical runs of that number of ranks are apart here; None where that is not known
        alone: a step of one device with the whole batch at once, whether it fits or not; None: it was not simulated
    """

    job: Job
    problem: Problem
    plan: Plan
    chosen: Candidate
    search: Search[Candidate] | None = None
    prices: tuple[PinPrice, ...] = ()
    noise: Noise | None = None
    alone: Candidate | None = None

    @property
    def graph(self) -> Graph:
        """The dataflow graph of the job."""
        return self.problem.graph

    @property
    def cluster(self) -> Allocation:
        """The devices that may take part."""
        return self.problem.cluster

    @property
    def link(self) -> Link | None:
        """The rate limit of links; None: there is none."""
        return self.cluster.machine.node.rate_limit

    @property
    def whole_plan(self) -> Plan:
        """The plan with its candidates and the lines of its program on all ranks, as a file holds it."""
        plan, problem, chosen = self.plan, self.problem, self.chosen
        if not plan.candidates and self.search is not None:
            plan = replace(plan, candidates=tuple(candidate_rows(self.search)))
        if plan.program:
            return plan
        program = chosen.program
        if len(program.ranks) < chosen.strategy.devices:
            # That of one replica, where all are alike.
            program = lower(problem.graph, chosen.strategy, batch=problem.batch, clip=problem.clip)
        return replace(plan, program=program_lines(program))

    @property
    def after_words(self) -> str:
        """What a step has that no instruction shows, for people."""
        if self.chosen.strategy.devices == 1:
            return "the overhead of the loop, what Python does between instructions"
        if self.table.software is None:
            return "what ranks do between instructions, and waiting for the slowest"
        return "copies of gradients into buffers and out of them, and waiting for the slowest rank"

    @property
    def table(self) -> CostTable:
        """Measured or estimated costs."""
        return self.problem.table

    @property
    def speedup(self) -> float:
        """Samples a second of the chosen strategy over those of one device with the whole batch; 1 where unknown."""
        return 1.0 if self.alone is None else self.alone.step_time_s / self.chosen.step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Modelled:
    """Evidence of a plan for a transformer that the analytical model priced: it has no program.

    Attributes:
        problem: of the search
        plan: the content of a plan file
        chosen: the strategy to run
        search: its alternatives
        prices: cost of each pin of the request
        nearby: batches that are faster per sample, where they were looked for
    """

    problem: AnalyticalProblem
    plan: Plan
    chosen: AnalyticalCandidate
    search: Search[AnalyticalCandidate]
    prices: tuple[PinPrice, ...] = ()
    nearby: tuple[NearbyBatch, ...] = ()

    @property
    def whole_plan(self) -> Plan:
        """The plan as a file holds it."""
        return self.plan
