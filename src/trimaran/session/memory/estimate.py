"""From a job and a device that need not be here to what the job's step needs, and what a plan makes of it.

The step is traced on meta tensors, so neither the device nor the memory nor the data are needed. Its operations are
priced by the roofline of the device. Then: live bytes with everything kept, the floor, the plan and the limit of its
time, the policies of the vDNN paper beside it, and the largest batch. Below the floor, modules run in parts of the
batch: then the plan, the floor and the limit are of the step in parts, all else is of the whole one.

A budget in bytes stands for a card of that size, so the context comes off it; a share is of what autograd alone needs.
"""

from dataclasses import dataclass, replace
from time import perf_counter

from trimaran.cluster.catalog import CatalogDevice, find_device
from trimaran.costs.host_sharing import HostPath, sharing_device
from trimaran.costs.roofline import check_precision
from trimaran.errors import InputError
from trimaran.job import Job
from trimaran.planner.memory import floor, plan_memory
from trimaran.report.memory.estimate import LargestBatch, MemoryEstimate
from trimaran.report.memory.trace import PlannedStep
from trimaran.session.jobs import JobSource
from trimaran.session.memory.choosing import AUTO, OURS, choose_split
from trimaran.session.memory.found import Found, estimate_of
from trimaran.session.memory.largest import largest_batch
from trimaran.session.memory.policies import papers_policies
from trimaran.session.memory.refusing import below_floor
from trimaran.session.memory.steps import PricedStep, PricedSteps
from trimaran.session.memory.tracing import JobTracer
from trimaran.session.planning import Progress, ignore_progress
from trimaran.session.virtual.budget import parse_budget
from trimaran.simulator.memory import LiveBytes

_PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """What is asked of a job's memory.

    Attributes:
        device: name in the catalog
        budget: memory of the card, such as "12GiB", or a share of what autograd alone needs, such as "50%"; None: the
            whole card
        precision: "float32", "tf32" or "bfloat16"; None: the job's
        policy: whose plan is shown: "ours", "none", "all", "conv" or "dyn"
        slowdown_limit: most that a plan may cost for the largest batch, 0.1 for 10 %
        largest_batch: whether to look for it
        split: modules that run in parts of the batch, such as "features:0-4:2"; "auto": where our plan's budget is
            below the floor, the fastest that helps; "none": none
        sharing: devices that share a link to the host, this one included
    """

    device: str
    budget: str | None = None
    precision: str | None = None
    policy: str = "ours"
    slowdown_limit: float = 0.1
    largest_batch: bool = True
    split: str = AUTO
    sharing: int = 1


@dataclass(frozen=True, kw_only=True)
class MemoryStudy:
    """What was found.

    Attributes:
        estimate: the figures
        step: under the plan that is shown, for a trace viewer
    """

    estimate: MemoryEstimate
    step: PlannedStep


def estimate_memory(source: JobSource, request: MemoryRequest, *, progress: Progress = ignore_progress) -> MemoryStudy:
    """Say what a job's step needs on a device, and what a plan makes of it.

    Args:
        source: where the job comes from
        request: device, budget, precision
        progress: told what is being done

    Raises:
        InputError: the job, the device, the budget or the precision is wrong
        InfeasibleError: the budget is below the floor
    """
    device = sharing_device(find_device(request.device), HostPath(sharing=request.sharing))
    job, precision = _in_precision(source.make(), request.precision, device)
    samples = job.global_batch_size
    progress("tracing the step", 0, 0)
    began_s = perf_counter()
    steps = PricedSteps(tracer=JobTracer(job), device=device, precision=precision)
    whole = steps.step(samples)
    budget_bytes, card_bytes = _budget(request.budget, device, whole.kept)
    traced_s = perf_counter()
    progress("planning the memory", 0, 0)
    found, in_parts = _plan(steps, whole, request, budget_bytes, samples)
    planned_s = perf_counter()
    batches: LargestBatch | None = None
    if request.largest_batch:
        progress("looking for the largest batch", 0, 0)
        known = (samples, found.outcome.run.step_time_s / whole.costs.compute_s - 1.0)
        batches = largest_batch(steps, in_parts, budget_bytes, slowdown_limit=request.slowdown_limit, known=known)
    estimate = replace(
        estimate_of(job, device, precision, found),
        card_bytes=card_bytes,
        context_bytes=0 if card_bytes is None else device.memory.context_bytes,
        largest_batch=batches,
        trace_s=traced_s - began_s,
        planning_s=planned_s - traced_s,
    )
    return MemoryStudy(estimate=estimate, step=found.shown_step(f"{job.name}, batch {samples}"))


def _plan(
    steps: PricedSteps, whole: PricedStep, request: MemoryRequest, budget_bytes: int, samples: int
) -> tuple[Found, PricedSteps | None]:
    """The plans, and the steps in parts that ours is for; None where nothing is split."""
    split = choose_split(steps, request.split, policy=request.policy, budget_bytes=budget_bytes, samples=samples)
    in_parts = None if split is None else steps.split(split)
    planned = whole if in_parts is None else in_parts.step(samples)
    if budget_bytes < floor(planned.trace).nbytes:
        searched = request.split == AUTO and request.policy == OURS
        raise below_floor(in_parts or steps, budget_bytes, samples=samples, whole=None if searched else steps)
    found = Found(
        whole=whole,
        planned=planned,
        split=split,
        outcome=plan_memory(planned.trace, planned.costs, budget_bytes=budget_bytes),
        papers=papers_policies(whole, budget_bytes),
        policy=request.policy,
        budget_bytes=budget_bytes,
    )
    return found, in_parts


def _in_precision(job: Job, asked: str | None, device: CatalogDevice) -> tuple[Job, str]:
    """The job as it computes in a precision, and the name of that."""
    if asked is None and job.precision not in _PRECISIONS:
        raise InputError(
            f"{job.name} trains in {job.precision}, for which the catalog has no figures: ask for --precision "
            "float32, tf32 or bfloat16",
            precision=job.precision,
        )
    precision = _PRECISIONS[job.precision] if asked is None else asked
    check_precision(precision, device)
    return replace(job, precision="bf16" if precision == "bfloat16" else "fp32"), precision


def _budget(asked: str | None, device: CatalogDevice, kept: LiveBytes) -> tuple[int, int | None]:
    """What the step may use, and the card that this stands for; None where it is a share [bytes]."""
    budget = None if asked is None else parse_budget(asked)
    if budget is not None and budget.nbytes is None:
        return budget.resolve(kept.peak), None
    card_bytes = device.memory.nbytes if budget is None or budget.nbytes is None else budget.nbytes
    return device.budget_bytes(card_bytes), card_bytes
