"""A plan with all that it was made from."""

from dataclasses import dataclass

from trimaran.base.errors import InputError
from trimaran.base.html import fragment
from trimaran.base.precision import Precision
from trimaran.jobs.resolve import JobSource
from trimaran.machine.types import Link, Machine
from trimaran.planner.analytical.search import assumed_software
from trimaran.planner.choice import Option
from trimaran.planning.answer.evidence import Modelled, Outlook, Simulated
from trimaran.planning.answer.pages import print_plan
from trimaran.planning.requests import PlanRequest
from trimaran.program.plan_file import plan_table, plan_verdict
from trimaran.program.strategy import stale_note
from trimaran.report.tables import page_text


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
