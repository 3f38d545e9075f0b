"""From a job and a device that need not be here to what the job's step needs, and what a plan makes of it.

The step is traced on meta tensors, so neither the device nor the memory nor the data are needed. Its operations are
priced by the roofline of the device. Then: live bytes with everything kept, the floor, the plan and the limit of its
time, the policies of the vDNN paper beside it, and the largest batch.

A budget in bytes stands for a card of that size, so the context comes off it; a share is of what autograd alone needs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import perf_counter

from trimaran.cluster.catalog import CatalogDevice, find_device
from trimaran.costs.memory_costs import MemoryCosts
from trimaran.costs.roofline import memory_costs
from trimaran.errors import InfeasibleError, InputError
from trimaran.graph.trace.types import StepTrace
from trimaran.job import Job
from trimaran.planner.memory import MemoryOutcome, floor, plan_memory
from trimaran.planner.memory.vdnn import vdnn_all, vdnn_conv
from trimaran.planner.memory.vdnn_dynamic import vdnn_dyn
from trimaran.program.memory import KEEP_ALL
from trimaran.report.memory import LargestBatch, MemoryEstimate
from trimaran.report.memory_trace import PlannedStep
from trimaran.session.jobs import JobSource
from trimaran.session.memory_batches import most_samples, most_with_plan
from trimaran.session.memory_figures import (
    Simulated,
    decides,
    holders,
    live_curve,
    place,
    policy_figures,
    simulated,
    storage_lines,
    usage,
    weight_bytes,
)
from trimaran.session.memory_line import BatchLine
from trimaran.session.memory_tracing import JobTracer
from trimaran.session.planning import Progress, ignore_progress
from trimaran.session.virtual.budget import parse_budget
from trimaran.simulator.memory import live_bytes
from trimaran.units import format_bytes

_PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}

# Planning of one of the batches that are tried for the largest one stops here [s].
_TRIAL_S = 2.0


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
    """

    device: str
    budget: str | None = None
    precision: str | None = None
    policy: str = "ours"
    slowdown_limit: float = 0.1
    largest_batch: bool = True


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
    device = find_device(request.device)
    job, precision = _in_precision(source.make(), request.precision)
    progress("tracing the step", 0, 0)
    began_s = perf_counter()
    tracer = JobTracer(job)
    priced = _Priced(tracer=tracer, device=device, precision=precision)
    trace, costs = priced.step(job.global_batch_size)
    traced_s = perf_counter()
    budget_bytes, card_bytes = _budget(request.budget, device, trace)
    progress("planning the memory", 0, 0)
    outcome = _plan(priced, trace, costs, budget_bytes)
    policies = _policies(trace, costs, outcome, budget_bytes)
    bound = outcome.bound
    planned_s = perf_counter()
    shown = policies[request.policy]
    least, kept = floor(trace), live_bytes(trace, KEEP_ALL)
    state, optimizer, gradients = weight_bytes(trace)
    estimate = MemoryEstimate(
        job=job.name,
        batch=job.global_batch_size,
        device=device.title,
        precision=precision,
        source=costs.source,
        card_bytes=card_bytes,
        context_bytes=device.memory.context_bytes if card_bytes is not None else 0,
        budget_bytes=budget_bytes,
        weight_bytes=state,
        optimizer_bytes=optimizer,
        gradient_bytes=gradients,
        kept_s=costs.compute_s,
        keep=usage(trace, kept, costs),
        floor_bytes=least.nbytes,
        floor_at=place(trace, least.moment),
        floor_held_by=holders(trace, [holder.storage for holder in least.holders]),
        bound_s=bound.step_time_s,
        offload_bound_s=bound.offload_s,
        decides=decides(shown, bound.offload_s, budget_bytes=budget_bytes, kept_peak_bytes=kept.peak),
        policy=request.policy,
        policies=tuple(
            policy_figures(name, trace, found, costs, budget_bytes=budget_bytes) for name, found in policies.items()
        ),
        storages=storage_lines(trace, shown.plan),
        curve=live_curve(trace, kept, shown.live, costs),
        largest_batch=_largest_batch(
            priced,
            request,
            budget_bytes,
            planned=(job.global_batch_size, outcome.run.slowdown),
            progress=progress,
        ),
        trace_s=traced_s - began_s,
        planning_s=planned_s - traced_s,
    )
    step = PlannedStep(
        title=f"{estimate.job}, batch {estimate.batch}",
        trace=trace,
        plan=shown.plan,
        run=shown.run,
        live=shown.live,
        kept=kept,
        budget_bytes=budget_bytes,
    )
    return MemoryStudy(estimate=estimate, step=step)


def _in_precision(job: Job, asked: str | None) -> tuple[Job, str]:
    """The job as it computes in a precision, and the name of that."""
    if asked is None:
        if job.precision not in _PRECISIONS:
            raise InputError(
                f"{job.name} trains in {job.precision}, for which the catalog has no figures: ask for --precision "
                "float32, tf32 or bfloat16",
                precision=job.precision,
            )
        return job, _PRECISIONS[job.precision]
    return replace(job, precision="bf16" if asked == "bfloat16" else "fp32"), asked


def _budget(asked: str | None, device: CatalogDevice, trace: StepTrace) -> tuple[int, int | None]:
    """What the step may use, and the card that this stands for; None where it is a share [bytes]."""
    budget = None if asked is None else parse_budget(asked)
    if budget is not None and budget.nbytes is None:
        return budget.resolve(live_bytes(trace, KEEP_ALL).peak), None
    card_bytes = device.memory.nbytes if budget is None or budget.nbytes is None else budget.nbytes
    return device.budget_bytes(card_bytes), card_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Priced:
    """Steps of a job with what they cost on a device."""

    tracer: JobTracer
    device: CatalogDevice
    precision: str

    def step(self, samples: int) -> tuple[StepTrace, MemoryCosts]:
        trace = self.tracer.trace(samples)
        return trace, memory_costs(trace, self.device, precision=self.precision)


def _plan(priced: _Priced, trace: StepTrace, costs: MemoryCosts, budget_bytes: int) -> MemoryOutcome:
    """Our plan.

    Raises:
        InfeasibleError: the budget is below the floor
    """
    if budget_bytes < floor(trace).nbytes:
        raise _below_floor(priced, trace, budget_bytes)
    return plan_memory(trace, costs, budget_bytes=budget_bytes)


def _policies(
    trace: StepTrace, costs: MemoryCosts, outcome: MemoryOutcome, budget_bytes: int
) -> Mapping[str, Simulated]:
    """The paper's policies and ours, in the order in which they are shown."""
    found = {
        "none": simulated(trace, KEEP_ALL, costs),
        "all": simulated(trace, vdnn_all(trace), costs),
        "conv": simulated(trace, vdnn_conv(trace), costs),
    }
    try:
        found["dyn"] = simulated(trace, vdnn_dyn(trace, budget_bytes=budget_bytes), costs)
    except InfeasibleError:
        found["dyn"] = replace(found["all"], note="nothing that it tries fits; its first trial, all, is shown")
    found["ours"] = Simulated(plan=outcome.plan, live=outcome.live, run=outcome.run)
    return found


def _below_floor(priced: _Priced, trace: StepTrace, budget_bytes: int) -> InfeasibleError:
    least = floor(trace)
    samples = most_samples(lambda some: floor(priced.tracer.trace(some)).nbytes, budget_bytes, near=4)
    context = priced.device.memory.context_bytes
    ways = [f"a card of {format_bytes(least.nbytes + context)} or more"]
    if samples:
        ways.insert(0, f"a batch of at most {samples}, and several of them before each update")
    return InfeasibleError(
        f"no plan fits {format_bytes(budget_bytes)}: one operation alone needs {least.describe()}. "
        f"What would help: {'; '.join(ways)}",
        budget_bytes=budget_bytes,
        floor_bytes=least.nbytes,
        largest_batch=samples,
    )


def _largest_batch(
    priced: _Priced,
    request: MemoryRequest,
    budget_bytes: int,
    *,
    planned: tuple[int, float],
    progress: Progress,
) -> LargestBatch | None:
    """The largest batch; `planned` is one with what its plan costs."""
    if not request.largest_batch:
        return None
    progress("looking for the largest batch", 0, 0)
    trace_of = _step_at_any_batch(priced.tracer, planned[0])

    def cost(samples: int) -> float | None:
        trace = trace_of(samples)
        costs = memory_costs(trace, priced.device, precision=priced.precision)
        try:
            return plan_memory(trace, costs, budget_bytes=budget_bytes, limit_s=_TRIAL_S).run.slowdown
        except InfeasibleError:
            return None

    kept = most_samples(lambda some: live_bytes(trace_of(some), KEEP_ALL).peak, budget_bytes, near=planned[0])
    at_floor = most_samples(lambda some: floor(trace_of(some)).nbytes, budget_bytes, near=planned[0])
    with_plan, slowdown = most_with_plan(cost, at_most=request.slowdown_limit, fits=kept, floor=at_floor, known=planned)
    return LargestBatch(
        without_help=kept,
        with_plan=with_plan,
        at_floor=at_floor,
        slowdown_limit=request.slowdown_limit,
        slowdown=slowdown,
    )


def _step_at_any_batch(tracer: JobTracer, samples: int) -> Callable[[int], StepTrace]:
    """The step as a function of its batch: by a line through two traces where it keeps to one."""
    try:
        line = BatchLine(tracer.trace(samples), tracer.trace(2 * samples), (samples, 2 * samples))
    except InputError:
        return tracer.trace
    far = 3 * samples
    same = floor(line.at(far)).nbytes == floor(tracer.trace(far)).nbytes
    return line.at if same else tracer.trace
