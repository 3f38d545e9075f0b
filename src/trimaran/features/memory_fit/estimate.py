"""From a job and a device of the catalog to what the job's step needs, and what a memory plan makes of it.

The step is traced on meta tensors, so neither the device nor the memory nor the data are needed. Its operations are
priced by the kernel model, as every step on a device of the catalog is. Then: live bytes without a plan, the minimum
memory, the plan, the lower bound on its time, the policies of the vDNN paper, and the largest batch. If the budget is
below the minimum memory, modules run in parts of the batch: the plan, the minimum memory and the lower bound are of the
step in parts, all else is of the whole one.

A budget in bytes stands for a card of that size, so the context comes off it; a share is of what autograd alone needs.

Where modules run in parts of the batch there are two steps. The whole one is what the job does by itself: no offload or
recompute, weights, the paper's policies. The planned one runs in parts: the plan, its minimum memory and its lower
bound. Slowdowns are all against the whole one with unlimited memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Literal

from trimaran.base.errors import InfeasibleError
from trimaran.base.job import Job
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.units import format_bytes
from trimaran.features.memory_fit.figures import (
    Simulated,
    all_figures,
    bottleneck,
    holders,
    live_curve,
    ours,
    papers_policies,
    place,
    usage,
    weight_bytes,
)
from trimaran.features.memory_fit.largest_batch import at_any_batch, find_largest_batch, most_samples
from trimaran.features.memory_fit.split import AUTO, OURS, choose_split, find_job_split
from trimaran.jobs.resolve import JobSource
from trimaran.machine.catalog import find_device
from trimaran.machine.types import Device
from trimaran.memory.minimum import minimum_memory
from trimaran.memory.search import MemoryOutcome, plan_memory
from trimaran.memory_budget.options import parse_budget
from trimaran.memory_hooks.microbatching import Split
from trimaran.planning.meta_trace import JobTracer, PricedStep, PricedSteps, written
from trimaran.planning.precision import ChosenPrecision, choose_precision
from trimaran.pricing.machine_transfers import HostPath, sharing_device
from trimaran.report.memory import LargestBatch, MemoryEstimate, SplitFigures, storage_lines
from trimaran.report.trace import PlannedStep
from trimaran.simulator.storage_lifetimes import LiveBytes


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """The result of an estimate.

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


def estimate_of(job: Job, device: Device, precision: ChosenPrecision, found: Found) -> MemoryEstimate:
    """The figures of a planned step.

    Args:
        job: whose step it is
        device: that it is for
        precision: in which products are computed, and who chose it
        found: what was found
    """
    whole, planned, budget_bytes = found.whole, found.planned, found.budget_bytes
    least, bound = found.outcome.minimum_memory, found.outcome.bound
    state, optimizer, gradients = weight_bytes(whole.trace)
    step = found.shown_step("")
    return MemoryEstimate(
        job=job.name,
        batch=job.global_batch_size,
        device=device.title,
        precision=precision.name,
        precision_source=precision.source,
        source=whole.costs.source,
        budget_bytes=budget_bytes,
        weight_bytes=state,
        optimizer_bytes=optimizer,
        gradient_bytes=gradients,
        kept_s=whole.costs.compute_s,
        keep=usage(whole.trace, whole.kept, whole.costs),
        minimum_memory_bytes=least.nbytes,
        minimum_at=place(planned.trace, least.moment),
        minimum_held_by=holders(planned.trace, [holder.storage for holder in least.holders]),
        lower_bound_s=bound.step_time_s,
        offload_lower_bound_s=bound.offload_s,
        bottleneck=bottleneck(
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
    """The cost of the second forward of modules in parts, in words."""
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
        whole_minimum_bytes=minimum_memory(found.whole.trace).nbytes,
        kept_s=found.planned.costs.compute_s,
        keep_peak_bytes=found.planned.kept.peak,
    )


# ---------------------------------------------------------------------------------------------------------------------
# A budget below the minimum memory of a job's step: refused, with what needs that memory and what would help


_NEAR = 4  # samples from which to look for the largest batch


def below_minimum(steps: PricedSteps, budget_bytes: int, *, samples: int, whole: PricedSteps | None) -> InfeasibleError:
    """The refusal.

    Args:
        steps: of the job, as they were to run
        budget_bytes: that they must stay within [bytes]
        samples: of the step
        whole: steps of which a split is sought; None: it was sought, and none helps
    """
    least = minimum_memory(steps.tracer.trace(samples))
    trace_of = at_any_batch(steps.tracer.trace, _NEAR)
    fewer = most_samples(lambda some: minimum_memory(trace_of(some)).nbytes, budget_bytes, near=_NEAR)
    card = least.nbytes + steps.device.memory.context_bytes
    ways = [f"a card of {format_bytes(card)} or more"]
    found = None if whole is None else find_job_split(whole, budget_bytes=budget_bytes, samples=samples)
    named = None if found is None else written(found.split)
    if found is not None:
        least_split = format_bytes(found.minimum_memory.nbytes)
        ways.insert(0, f"--split {named}, with which the minimum memory is {least_split}")
    if fewer:
        ways.insert(0, f"a batch of at most {fewer}, and several of them before each update")
    return InfeasibleError(
        f"no plan fits {format_bytes(budget_bytes)}: one operation alone needs {least.describe()}. "
        f"What would help: {'; '.join(ways)}",
        code="memory.nothing-fits",
        budget_bytes=budget_bytes,
        minimum_memory_bytes=least.nbytes,
        largest_batch=fewer,
        split=named,
    )


@dataclass(frozen=True, kw_only=True)
class MemoryStudy:
    """The result of an estimate.

    Attributes:
        estimate: the figures
        step: under the plan that is shown, for a trace viewer
    """

    estimate: MemoryEstimate
    step: PlannedStep


def estimate_memory(
    job: str | JobSource,
    *,
    device: str,
    batch: int | None = None,
    budget: str | None = None,
    precision: str | None = None,
    policy: Literal["ours", "none", "all", "conv", "dyn"] = "ours",
    slowdown_limit: float = 0.1,
    largest_batch: bool = True,
    split: str = "auto",
    sharing: int = 1,
    progress: Progress = ignore_progress,
) -> MemoryStudy:
    """Say what a step of a job needs on one device, and what a memory plan makes of it.

    Args:
        job: as for `trimaran.check`
        device: name in the catalog, such as "v100"
        batch: samples of a step; None: the job's
        budget: memory of the card, such as "12GiB", or a share of what autograd alone needs, such as "50%"; None: the
            whole card
        precision: "fp32", "tf32", "bf16" or "fp16"; None: as for `trimaran.plan`
        policy: whose memory plan is shown
        slowdown_limit: most that a plan may cost for the largest batch: 0.1 for 10 % of the step
        largest_batch: whether to look for it
        split: modules that run in parts of the batch, such as "features:0-4:2"; "auto": where our plan's budget is
            below the minimum memory, the fastest that helps; "none": none
        sharing: devices that share a link to the host, this one included
        progress: told what is being done

    Raises:
        InputError: the job, the device, the budget or the precision is wrong
        InfeasibleError: the budget is below the minimum memory
    """
    catalog_device = sharing_device(find_device(device), HostPath(sharing=sharing))
    source = job if isinstance(job, JobSource) else JobSource(reference=job, global_batch_size=batch)
    made = source.make()
    chosen = choose_precision(source.reference, precision or source.precision, catalog_device, job=made)
    samples = made.global_batch_size
    progress("tracing the step", 0, 0)
    began_s = perf_counter()
    steps = PricedSteps(tracer=JobTracer(made, precision=chosen.name), device=catalog_device, precision=chosen.name)
    whole = steps.step(samples)
    budget_bytes, card_bytes = _budget(budget, catalog_device, whole.kept)
    traced_s = perf_counter()
    progress("planning the memory", 0, 0)
    found, in_parts = _plan(steps, whole, asked=split, policy=policy, budget_bytes=budget_bytes, samples=samples)
    planned_s = perf_counter()
    batches: LargestBatch | None = None
    if largest_batch:
        progress("looking for the largest batch", 0, 0)
        known = (samples, found.outcome.run.step_time_s / whole.costs.compute_s - 1.0)
        batches = find_largest_batch(steps, in_parts, budget_bytes, slowdown_limit=slowdown_limit, known=known)
    estimate = replace(
        estimate_of(made, catalog_device, chosen, found),
        card_bytes=card_bytes,
        context_bytes=0 if card_bytes is None else catalog_device.memory.context_bytes,
        largest_batch=batches,
        trace_s=traced_s - began_s,
        planning_s=planned_s - traced_s,
    )
    return MemoryStudy(estimate=estimate, step=found.shown_step(f"{made.name}, batch {samples}"))


def _plan(
    steps: PricedSteps, whole: PricedStep, *, asked: str, policy: str, budget_bytes: int, samples: int
) -> tuple[Found, PricedSteps | None]:
    """The plans, and the steps in parts that ours is for; None where nothing is split."""
    split = choose_split(steps, asked, policy=policy, budget_bytes=budget_bytes, samples=samples)
    in_parts = None if split is None else steps.split(split)
    planned = whole if in_parts is None else in_parts.step(samples)
    if budget_bytes < minimum_memory(planned.trace).nbytes:
        searched = asked == AUTO and policy == OURS
        raise below_minimum(in_parts or steps, budget_bytes, samples=samples, whole=None if searched else steps)
    found = Found(
        whole=whole,
        planned=planned,
        split=split,
        outcome=plan_memory(planned.trace, planned.costs, budget_bytes=budget_bytes),
        papers=papers_policies(whole, budget_bytes),
        policy=policy,
        budget_bytes=budget_bytes,
    )
    return found, in_parts


def _budget(asked: str | None, device: Device, kept: LiveBytes) -> tuple[int, int | None]:
    """The budget of the step, and the card that it stands for; None where it is a share [bytes]."""
    budget = None if asked is None else parse_budget(asked)
    if budget is not None and budget.nbytes is None:
        return budget.resolve(kept.peak), None
    card_bytes = device.memory.nbytes if budget is None or budget.nbytes is None else budget.nbytes
    return device.budget_bytes(card_bytes), card_bytes
