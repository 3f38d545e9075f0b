"""A plan with all that it was made from."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trimaran.base.errors import InputError
from trimaran.base.html import fragment
from trimaran.base.job import Job
from trimaran.base.precision import Precision
from trimaran.graph.types import Graph
from trimaran.jobs.resolve import JobSource
from trimaran.machine.prices import Price
from trimaran.machine.types import Allocation, Link, Machine
from trimaran.planner.analytical.candidates import AnalyticalCandidate, AnalyticalProblem
from trimaran.planner.analytical.search import NearbyBatch, assumed_software
from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import Option
from trimaran.planner.problem import Problem
from trimaran.planner.result import Search
from trimaran.planner.search import PinPrice
from trimaran.planner.target_estimates import Estimate, Goal, HybridComparison, Stop
from trimaran.planning.answer.written_plans import candidate_rows
from trimaran.planning.requests import PlanRequest
from trimaran.pricing.noise import Noise
from trimaran.pricing.tables import CostTable
from trimaran.program.lowering.lower import lower
from trimaran.program.plan_file import Plan, plan_table, plan_verdict, program_lines
from trimaran.program.strategy import stale_note
from trimaran.report.tables import page_text

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
    estimates: tuple[Estimate, ...]
    chosen: Estimate
    front: tuple[Estimate, ...]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan with all that it was made from, by whichever backend.

    Attributes:
        source: where the job comes from
        request: of the user
        evidence: the alternatives of the backend, and its costs
        outlook: training to the target, where that or a choice of batches was asked for
        notes: for the user before running it
    """

    source: JobSource
    request: PlanRequest
    evidence: Simulated | Modelled
    outlook: Outlook | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        strategy = self.evidence.chosen.strategy
        if strategy.is_stale:
            # Wherever it comes from, and once.
            object.__setattr__(self, "notes", tuple(dict.fromkeys((*self.notes, stale_note(strategy)))))

    def __str__(self) -> str:
        from trimaran.planning.answer.pages import print_plan

        return page_text(lambda out: print_plan(out, self))

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        plan = self.evidence.whole_plan
        return fragment(plan_verdict(plan), plan_table(plan), self.notes)

    @property
    def reference(self) -> str:
        """Of the job."""
        return self.source.reference

    @property
    def name(self) -> str:
        """Of the job, for people."""
        return self.evidence.job.name if isinstance(self.evidence, Simulated) else self.reference

    @property
    def chosen(self) -> Option:
        """The strategy to run, with its time, its memory and its devices."""
        return self.evidence.chosen

    @property
    def global_batch_size(self) -> int:
        """Samples of one update."""
        return self.evidence.problem.batch

    @property
    def devices(self) -> int:
        """That may take part."""
        return self.evidence.problem.devices

    @property
    def machine(self) -> Machine:
        """That the plan is for."""
        evidence = self.evidence
        return evidence.cluster.machine if isinstance(evidence, Simulated) else evidence.problem.machine

    @property
    def link(self) -> Link | None:
        """The rate limit of links; None: there is none."""
        return self.machine.node.rate_limit

    @property
    def precision(self) -> Precision:
        """Of compute: here that of the job, on a machine of the catalog that of the request."""
        evidence = self.evidence
        own = evidence.job.precision if isinstance(evidence, Simulated) else evidence.problem.program.precision
        return self.request.precision or own

    @property
    def precision_source(self) -> str:
        """Who chose the precision."""
        return self.request.precision_source if self.request.precision else "as the job says"

    @property
    def software(self) -> str:
        """By which it computes: here torch, for a target cluster what `--software` says, or would say."""
        evidence = self.evidence
        if isinstance(evidence, Modelled):
            return (self.request.software or assumed_software(self.machine.node.device)).text
        if evidence.table.software is not None:
            return evidence.table.software.text
        return f"pytorch {evidence.table.fingerprint.torch.partition('+')[0]}"

    @property
    def memory_bytes(self) -> float:
        """Memory limit of a rank [bytes]."""
        evidence = self.evidence
        return min(evidence.cluster.memory_bytes) if isinstance(evidence, Simulated) else evidence.problem.memory_limit

    @property
    def simulated(self) -> Simulated:
        """The evidence of a plan that has a program.

        Raises:
            InputError: it was planned by the analytical model
        """
        if isinstance(self.evidence, Modelled):
            raise InputError(
                f"{self.reference} on {self.request.cluster} is planned by the analytical model, so it has no program "
                "to simulate: `trimaran plan` says its step and what that is made of, `trimaran explain` why",
                code="plan.no-program",
                reference=self.reference,
            )
        return self.evidence

    @property
    def modelled(self) -> Modelled:
        """The evidence of a plan of the analytical model.

        Raises:
            InputError: its program was simulated
        """
        if isinstance(self.evidence, Simulated):
            raise InputError(
                f"{self.reference} was simulated, not planned by the analytical model",
                code="plan.has-program",
                reference=self.reference,
            )
        return self.evidence
