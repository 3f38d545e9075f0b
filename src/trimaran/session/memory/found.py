"""What was found of a job's step, whole and as planned, and the figures of a report from it.

Where modules run in parts of the batch there are two steps. The whole one is what the job does by itself: everything
kept, weights, the paper's policies. The planned one runs in parts: the plan, its floor and its limit. Slowdowns are all
against the whole one with memory without end.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.cluster.catalog import CatalogDevice
from trimaran.job import Job
from trimaran.planner.memory import MemoryOutcome, floor
from trimaran.report.memory.estimate import MemoryEstimate
from trimaran.report.memory.split import SplitFigures
from trimaran.report.memory.trace import PlannedStep
from trimaran.runtime.split import Split
from trimaran.session.memory.choosing import OURS
from trimaran.session.memory.figures import (
    Simulated,
    decides,
    holders,
    live_curve,
    place,
    storage_lines,
    usage,
    weight_bytes,
)
from trimaran.session.memory.policies import all_figures, ours
from trimaran.session.memory.split import written
from trimaran.session.memory.steps import PricedStep


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What was found.

    Attributes:
        whole: the step without a split
        planned: the step that our plan is for; the same where nothing is split
        split: what makes the difference; None: nothing is split
        outcome: our plan
        papers: plans of the paper's policies, for the whole step
        policy: whose plan is shown
        budget_bytes: that it should hold [bytes]
    """

    whole: PricedStep
    planned: PricedStep
    split: Split | None
    outcome: MemoryOutcome
    papers: Mapping[str, Simulated]
    policy: str
    budget_bytes: int

    @property
    def our(self) -> Simulated:
        """Our plan among the others."""
        return ours(self.outcome, None if self.split is None else self.split.name)

    @property
    def shown(self) -> Simulated:
        """The plan that is shown."""
        return self.our if self.policy == OURS else self.papers[self.policy]

    def shown_step(self, title: str) -> PlannedStep:
        """The step under the plan that is shown, for a viewer."""
        shown, step = self.shown, self.planned if self.policy == OURS else self.whole
        return PlannedStep(
            title=title,
            trace=step.trace,
            plan=shown.plan,
            run=shown.run,
            live=shown.live,
            kept=step.kept,
            budget_bytes=self.budget_bytes,
        )


def estimate_of(job: Job, device: CatalogDevice, precision: str, found: Found) -> MemoryEstimate:
    """The figures of a planned step.

    Args:
        job: whose step it is
        device: that it is for
        precision: in which products are computed
        found: what was found
    """
    whole, planned, budget_bytes = found.whole, found.planned, found.budget_bytes
    least, bound = found.outcome.floor, found.outcome.bound
    state, optimizer, gradients = weight_bytes(whole.trace)
    step = found.shown_step("")
    return MemoryEstimate(
        job=job.name,
        batch=job.global_batch_size,
        device=device.title,
        precision=precision,
        source=whole.costs.source,
        budget_bytes=budget_bytes,
        weight_bytes=state,
        optimizer_bytes=optimizer,
        gradient_bytes=gradients,
        kept_s=whole.costs.compute_s,
        keep=usage(whole.trace, whole.kept, whole.costs),
        floor_bytes=least.nbytes,
        floor_at=place(planned.trace, least.moment),
        floor_held_by=holders(planned.trace, [holder.storage for holder in least.holders]),
        bound_s=bound.step_time_s,
        offload_bound_s=bound.offload_s,
        decides=decides(
            found.shown,
            bound.offload_s,
            budget_bytes=budget_bytes,
            kept_peak_bytes=step.kept.peak,
            again=_again(found),
        ),
        policy=found.policy,
        policies=all_figures(found.papers, found.our, whole=whole, planned=planned, budget_bytes=budget_bytes),
        storages=storage_lines(step.trace, step.plan),
        curve=live_curve(step.trace, step.kept, step.live, (planned if found.policy == OURS else whole).costs),
        split=_split_figures(found),
    )


def _again(found: Found) -> str:
    """What the second forward of modules in parts costs, in words."""
    if found.split is None:
        return ""
    share = found.planned.costs.compute_s / found.whole.costs.compute_s - 1
    return f"running {found.split.name}, their forward once more, {100 * share:.1f} % of the whole step"


def _split_figures(found: Found) -> SplitFigures | None:
    if found.split is None:
        return None
    return SplitFigures(
        name=found.split.name,
        written=written(found.split),
        whole_floor_bytes=floor(found.whole.trace).nbytes,
        kept_s=found.planned.costs.compute_s,
        keep_peak_bytes=found.planned.kept.peak,
    )
