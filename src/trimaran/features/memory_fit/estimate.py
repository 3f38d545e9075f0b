"""From a job and a device of the catalog to what the job's step needs, and what a memory plan makes of it, in figures.

The step is traced on meta tensors, so neither the device nor the memory nor the data are needed. Its operations are
priced by the kernel model, as every step on a device of the catalog is. Then: live bytes without a plan, the minimum
memory, the plan, the lower bound on its time, the policies of the vDNN paper, and the largest batch. If the budget is
below the minimum memory, modules run in parts of the batch: the plan, the minimum memory and the lower bound are of the
step in parts, all else is of the whole one.

A budget in bytes stands for a card of that size, so the context and the workspace of products come off it, as in plans
of many devices; a share is of what autograd alone needs.

Where modules run in parts of the batch there are two steps. The whole one is what the job does by itself: no offload or
recompute, weights, the paper's policies. The planned one runs in parts: the plan, its minimum memory and its lower
bound. Slowdowns are all against the whole one with unlimited memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from trimaran.base.arguments import told_of_classes
from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.job import Job
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.remedies import LOSS_PARTS
from trimaran.base.units import format_bytes, format_seconds, parse_bytes
from trimaran.features.memory_fit.chunked_loss import chunked_step, loss_in_chunks
from trimaran.features.memory_fit.largest_batch import at_any_batch, find_largest_batch, most_samples
from trimaran.features.memory_fit.split import AUTO, OURS, choose_split, find_job_split
from trimaran.graph.trace.live_bytes import WEIGHTS, live_kept
from trimaran.graph.trace.types import Role, StepTrace, TraceOp, TraceStorage
from trimaran.graph.types import Phase
from trimaran.jobs.huggingface import traced_notes
from trimaran.jobs.resolve import JobSource
from trimaran.machine.catalog import find_device, plain_node, usual_node
from trimaran.machine.types import OFFLOAD_SHARE, Device
from trimaran.memory.minimum import minimum_memory, needed_bytes
from trimaran.memory.search import MemoryOutcome, plan_memory
from trimaran.memory.vdnn import vdnn_all, vdnn_conv, vdnn_dyn
from trimaran.memory_budget.options import Budget, parse_budget
from trimaran.memory_hooks.splitting import Split
from trimaran.planning.analytical import BY_SHAPE, planned_by_shape
from trimaran.planning.measured_jobs import read_measured
from trimaran.planning.precision import ChosenPrecision, choose_precision
from trimaran.planning.requests import PlanRequest
from trimaran.planning.tracing.meta_trace import JobTracer, PricedStep, PricedSteps, written
from trimaran.pricing.machine_transfers import sharing_device
from trimaran.pricing.offload_costs import MemoryCosts
from trimaran.program.memory import KEEP_ALL, Decision, MemoryPlan, parse_codec
from trimaran.report.memory import (
    Holder,
    LargestBatch,
    LeastMemory,
    LiveCurve,
    MemoryEstimate,
    PolicyFigures,
    SplitFigures,
    Usage,
    print_estimate,
    storage_lines,
)
from trimaran.report.tables import page_text
from trimaran.report.trace import PlannedStep
from trimaran.simulator.memory import LiveBytes, MemoryRun, host_peak, live_bytes, simulate_memory

# ---------------------------------------------------------------------------------------------------------------------
# Figures of plans and simulated steps


_SLOWDOWN = 0.1  # that a plan for the largest batch may cost, where nothing is said
_MOST_SLOWDOWN = 100.0  # that may be asked for: no training is worth 100 times its step
_NOTHING = 0.0005  # a slowdown that is not worth a word


@dataclass(frozen=True, kw_only=True)
class SimulatedMemoryPlan:
    """A plan with what it makes of the step.

    Attributes:
        plan: what happens to the storages
        live: live bytes under it
        run: the step under it
        note: what else there is to say of it
    """

    plan: MemoryPlan
    live: LiveBytes
    run: MemoryRun
    note: str = ""


def simulated(trace: StepTrace, plan: MemoryPlan, costs: MemoryCosts, *, note: str = "") -> SimulatedMemoryPlan:
    """Simulate a plan."""
    return SimulatedMemoryPlan(
        plan=plan, live=live_bytes(trace, plan), run=simulate_memory(trace, plan, costs), note=note
    )


def usage(trace: StepTrace, live: LiveBytes, costs: MemoryCosts) -> Usage:
    """Peak and means of live bytes, with and without weights."""
    bare = live.at - live_kept(trace, WEIGHTS)
    counted = np.zeros(trace.length)
    counted[[op.moment for op in trace.ops if op.phase != Phase.UPDATE]] = 1.0
    return Usage(
        peak_bytes=live.peak,
        mean_bytes=round(_mean(live.at, counted)),
        time_mean_bytes=round(live.mean_over(costs.durations_s)),
        bare_peak_bytes=int(bare.max(initial=0)),
        bare_mean_bytes=round(_mean(bare, counted)),
    )


def _mean(values: NDArray[np.int64], counted: NDArray[np.float64]) -> float:
    return float(values @ counted) / float(counted.sum()) if counted.any() else 0.0


def weight_bytes(trace: StepTrace) -> tuple[int, int, int]:
    """Parameters with buffers, optimizer state, gradients: each at its most [bytes]."""
    groups = ({Role.PARAMETER, Role.BUFFER}, {Role.OPTIMIZER}, {Role.GRADIENT})
    state, optimizer, gradients = (int(live_kept(trace, one).max(initial=0)) for one in groups)
    return state, optimizer, gradients


def step_parts(trace: StepTrace, live: LiveBytes) -> dict[str, int]:
    """Live bytes at the peak of a step, by what they are; they sum to the peak [bytes].

    Args:
        trace: the step
        live: bytes of it without a plan
    """
    moment = live.moment
    parts = dict.fromkeys(PARTS, 0)
    for storage in trace.storages:
        if storage.birth <= moment < storage.keep_end:
            parts[_part_of(storage)] += storage.nbytes
    # What an operation needs while it runs is of no storage.
    parts[TEMPORARY] += live.peak - sum(parts.values())
    return parts


PARAMETERS, GRADIENTS, OPTIMIZER = "parameters and buffers", "gradients", "optimizer state"
ACTIVATIONS, TEMPORARY = "activations, kept for the backward", "temporary"
PARTS = (PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, TEMPORARY)
_ROLES = {
    Role.PARAMETER: PARAMETERS,
    Role.BUFFER: PARAMETERS,
    Role.GRADIENT: GRADIENTS,
    Role.OPTIMIZER: OPTIMIZER,
}


def _part_of(storage: TraceStorage) -> str:
    return _ROLES.get(storage.role, ACTIVATIONS if storage.packs else TEMPORARY)


def policy_figures(
    trace: StepTrace,
    found: SimulatedMemoryPlan,
    costs: MemoryCosts,
    *,
    budget_bytes: int,
    kept_s: float | None = None,
) -> PolicyFigures:
    """The figures of a plan.

    Args:
        trace: the step
        found: the plan of it
        costs: of the step
        budget_bytes: that it should hold [bytes]
        kept_s: step that the plan is compared with [s]; None: the same with memory without end
    """
    run, there_bytes = found.run, host_peak(trace, found.plan)
    against_s = run.compute_s if kept_s is None else kept_s
    again = [number for number in found.plan.moved if found.plan.of(number) == Decision.RECOMPUTE]
    return PolicyFigures(
        fits=found.live.peak <= budget_bytes and (costs.host_bytes is None or there_bytes <= costs.host_bytes),
        **asdict(usage(trace, found.live, costs)),
        step_time_s=run.step_time_s,
        slowdown=run.step_time_s / against_s - 1.0 if against_s > 0 else 0.0,
        to_host_bytes=run.to_host_bytes,
        to_device_bytes=run.to_device_bytes,
        host_peak_bytes=there_bytes,
        coded_bytes=sum(trace.storages[number].copy_bytes for number in found.plan.codecs),
        recomputed_bytes=sum(trace.storages[number].nbytes for number in again),
        recompute_s=float(run.recompute_s),
        stall_s=float(run.stall_s),
        note=found.note or _beyond_host(there_bytes, costs.host_bytes),
    )


def _beyond_host(there_bytes: int, host_bytes: int | None) -> str:
    """Why a plan does not fit the host; "" where it does."""
    if host_bytes is None or there_bytes <= host_bytes:
        return ""
    return f"would put {format_bytes(there_bytes)} on the host, which has room for {format_bytes(host_bytes)}"


def holders(held: Sequence[TraceStorage]) -> tuple[Holder, ...]:
    """Storages by what they are, those of weights taken together, largest first."""
    groups: dict[tuple[str, str], list[TraceStorage]] = {}
    for storage in held:
        name = "" if storage.role in WEIGHTS else storage.module
        groups.setdefault((name, str(storage.role)), []).append(storage)
    found = [
        Holder(name=name, role=role, nbytes=sum(one.nbytes for one in storages), count=len(storages))
        for (name, role), storages in groups.items()
    ]
    return tuple(sorted(found, key=lambda holder: -holder.nbytes))


def place(trace: StepTrace, moment: int) -> str:
    """The operation at a moment, or next to it, for people."""
    after = next((event for event in trace.events[moment:] if isinstance(event, TraceOp)), None)
    op = after or (trace.ops[-1] if trace.ops else None)
    if op is None:
        return ""
    name = op.name.removeprefix("aten.").rpartition(".")[0] or op.name
    return f"{name} in {op.module}" if op.module else name


def live_curve(trace: StepTrace, kept: LiveBytes, planned: LiveBytes | None, costs: MemoryCosts) -> LiveCurve:
    """Live bytes, for drawing: moments of a phase that hold the same are one."""
    moments = zip(phases(trace), kept.at.tolist(), (kept if planned is None else planned).at.tolist(), strict=True)
    seconds: list[float] = []
    changes: list[tuple[str, int, int]] = []
    for duration, moment in zip(costs.durations_s.tolist(), moments, strict=True):
        if changes and moment == changes[-1]:
            seconds[-1] += duration
        else:
            seconds.append(duration)
            changes.append(moment)
    names, kept_bytes, plan_bytes = zip(*changes, strict=True)
    return LiveCurve(
        seconds=tuple(seconds),
        phases=names,
        kept_bytes=kept_bytes,
        plan_bytes=() if planned is None else plan_bytes,
    )


def phases(trace: StepTrace) -> tuple[str, ...]:
    """Phase of each moment; a tick has that of the next operation."""
    found: list[str] = []
    current = str(trace.ops[-1].phase) if trace.ops else "FP"
    for event in reversed(trace.events):
        if isinstance(event, TraceOp):
            current = str(event.phase)
        found.append(current)
    return tuple(reversed(found))


def bottleneck(
    shown: SimulatedMemoryPlan,
    offload_lower_bound_s: float,
    *,
    budget_bytes: int,
    kept_peak_bytes: int,
    host_bytes: int | None = None,
    again: str = "",
) -> str:
    """The bottleneck of a plan, in a sentence or two.

    Args:
        shown: the plan
        offload_lower_bound_s: below this no plan is that only offloads [s]
        budget_bytes: that it must hold [bytes]
        kept_peak_bytes: without offload or recompute [bytes]
        host_bytes: room on the host [bytes]; None: no limit is known
        again: what the forward of modules in parts costs, which runs twice; "": there are none
    """
    run = shown.run
    if again and run.slowdown < _NOTHING:
        return f"{again}. All copies overlap with the operations." if shown.plan.moved else f"{again}."
    if kept_peak_bytes <= budget_bytes and not shown.plan.moved:
        return "the operations: everything fits, and nothing has to move."
    if run.slowdown < _NOTHING:
        return "the operations: all copies overlap with them."
    recompute, wait = (100 * part / run.compute_s for part in (run.recompute_s, run.stall_s))
    first = (
        f"recomputation, {recompute:.1f} % of the step"
        if run.recompute_s >= run.stall_s
        else f"the link to the host, for which operations wait {wait:.1f} % of the step"
    )
    alone = 100 * (offload_lower_bound_s / run.compute_s - 1)
    if again:
        return f"{again}. Then {first}."
    away_bytes = kept_peak_bytes - budget_bytes
    if host_bytes is not None and away_bytes > host_bytes:
        return (
            f"{first}. Offloading alone would put at least {format_bytes(away_bytes)} on the host, which has room for "
            f"{format_bytes(host_bytes)}."
        )
    return f"{first}. Offloading alone would cost at least {alone:.1f} %."


# ---------------------------------------------------------------------------------------------------------------------
# The plans that stand side by side for one job: the paper's policies for its whole step, and ours


Policy = Literal["ours", "none", "all", "conv", "dyn"]
"""Whose plan is shown."""


def papers_policies(whole: PricedStep, budget_bytes: int) -> Mapping[str, SimulatedMemoryPlan]:
    """No policy and those of the paper, in the order in which they are shown.

    Args:
        whole: the step without a split
        budget_bytes: for the dynamic policy [bytes]
    """
    trace, costs = whole.trace, whole.costs
    found = {
        "none": simulated(trace, KEEP_ALL, costs),
        "all": simulated(trace, vdnn_all(trace), costs),
        "conv": simulated(trace, vdnn_conv(trace), costs),
    }
    try:
        plan = vdnn_dyn(trace, budget_bytes=budget_bytes, host_bytes=costs.host_bytes)
        found["dyn"] = simulated(trace, plan, costs)
    except InfeasibleError:
        found["dyn"] = replace(found["all"], note="nothing that it tries fits; its first trial, all, is shown")
    return found


def ours(outcome: MemoryOutcome, split: str | None) -> SimulatedMemoryPlan:
    """Our plan among them.

    Args:
        outcome: the plan
        split: modules that it runs in parts, for people; None: none
    """
    note = "" if split is None else f"{split}; the others have no split, and are of the whole step"
    return SimulatedMemoryPlan(plan=outcome.plan, live=outcome.live, run=outcome.run, note=note)


def all_figures(
    papers: Mapping[str, SimulatedMemoryPlan],
    our: SimulatedMemoryPlan,
    *,
    whole: PricedStep,
    planned: PricedStep,
    budget_bytes: int,
) -> dict[str, PolicyFigures]:
    """Their figures, all against the whole step with memory without end.

    Args:
        papers: none and the paper's policies
        our: plan
        whole: the step that the paper's policies are for
        planned: the step that our plan is for
        budget_bytes: that they should hold [bytes]
    """
    figures = [(name, one, whole) for name, one in papers.items()] + [("ours", our, planned)]
    kept_s = papers["none"].run.step_time_s
    return {
        name: policy_figures(step.trace, one, step.costs, budget_bytes=budget_bytes, kept_s=kept_s)
        for name, one, step in figures
    }


# ---------------------------------------------------------------------------------------------------------------------
# The estimate


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
    papers: Mapping[str, SimulatedMemoryPlan]
    policy: str
    budget_bytes: int

    @property
    def our(self) -> SimulatedMemoryPlan:
        """Our plan among the others."""
        return ours(self.outcome, None if self.split is None else self.split.name)

    @property
    def shown(self) -> SimulatedMemoryPlan:
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
    storages = storage_lines(step.trace, step.plan)
    chunked = loss_in_chunks(whole, device, budget_bytes=budget_bytes)
    return MemoryEstimate(
        job=job.name,
        local_batch_size=job.global_batch_size,
        device=device.title,
        precision=precision.name,
        precision_source=precision.source,
        source=whole.costs.source,
        budget_bytes=budget_bytes,
        weight_bytes=state,
        optimizer_bytes=optimizer,
        gradient_bytes=gradients,
        parts_bytes=step_parts(whole.trace, whole.kept),
        kept_s=whole.costs.compute_s,
        keep=usage(whole.trace, whole.kept, whole.costs),
        minimum_memory_bytes=least.nbytes,
        minimum_memory=LeastMemory(
            at=place(planned.trace, least.moment),
            held_by=holders(least.holders),
        ),
        lower_bound_s=bound.step_time_s,
        offload_lower_bound_s=bound.offload_s,
        bottleneck=bottleneck(
            found.shown,
            bound.offload_s,
            budget_bytes=budget_bytes,
            kept_peak_bytes=step.kept.peak,
            host_bytes=whole.costs.host_bytes,
            again=_again(found),
        ),
        policy=found.policy,
        policies=all_figures(found.papers, found.our, whole=whole, planned=planned, budget_bytes=budget_bytes),
        kept_bytes=sum(line.nbytes for line in storages if line.decision == "keep"),
        storages=storages,
        live_bytes=live_curve(step.trace, step.kept, step.live, (planned if found.policy == OURS else whole).costs),
        split=_split_figures(found),
        remedies=() if chunked is None else (chunked,),
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


def below_minimum(
    steps: PricedSteps, budget_bytes: int, *, samples: int, whole: PricedSteps | None, job: str = "JOB"
) -> InfeasibleError:
    """The refusal.

    Args:
        steps: of the job, as they were to run
        budget_bytes: that they must stay within [bytes]
        samples: of the step
        whole: steps of which a split is sought; None: it was sought, and none helps
        job: its reference, for the command that shards it
    """
    trace = steps.tracer.trace(samples)
    least = minimum_memory(trace)
    state, optimizer, gradients = weight_bytes(trace)
    state_bytes = int(live_kept(trace, WEIGHTS).max(initial=0))
    trace_of = at_any_batch(steps.tracer.trace, _NEAR)
    fewer = most_samples(lambda some: minimum_memory(trace_of(some)).nbytes, budget_bytes, near=_NEAR)
    card = least.nbytes + steps.costs(trace).workspace_bytes + steps.device.memory.context_bytes
    ways = [f"a card of {format_bytes(card)} or more"]
    found = None if whole is None else find_job_split(whole, budget_bytes=budget_bytes, samples=samples)
    named = None if found is None else written(found.split)
    if found is not None:
        least_split = format_bytes(found.minimum_memory.nbytes)
        ways.insert(0, f"--split {named}, with which the minimum memory is {least_split}")
    chunked = chunked_step(
        PricedStep(trace=trace, costs=steps.costs(trace), kept=live_bytes(trace, KEEP_ALL)), steps.device
    )
    if chunked is not None and (needed := minimum_memory(chunked.trace).nbytes) <= budget_bytes:
        ways.insert(
            0,
            f"the loss in {LOSS_PARTS} chunks of the tokens, each in torch.utils.checkpoint, with which the minimum "
            f"memory is {format_bytes(needed)}",
        )
    if fewer:
        ways.insert(0, f"a batch of at most {fewer}, and several of them before each update")
    devices = _devices_for(state_bytes, _rest_bytes(trace), budget_bytes)
    with_one = devices is None and samples > 1 and state_bytes > budget_bytes
    if with_one:
        devices = _devices_for(state_bytes, _rest_bytes(trace_of(1)), budget_bytes)
    what = f"one operation alone needs {least.describe()}"
    held = (
        f"parameters and buffers {format_bytes(state)}, gradients {format_bytes(gradients)}, optimizer state "
        f"{format_bytes(optimizer)}"
    )
    if state_bytes > budget_bytes:
        what = f"the model state alone needs {format_bytes(state_bytes)}: {held}"
    else:
        what += f". The model state is {format_bytes(state_bytes)} of it at most: {held}"
    if devices is not None and state_bytes > _LARGE * budget_bytes:
        node = usual_node(steps.device) or plain_node(steps.device, 1)
        command = f"`trimaran plan {job} --cluster {node.name} --devices {devices}`"
        shares = "which shard that state" + (", with a batch of 1 on each at a time" if with_one else "")
        ways.insert(0, f"ZeRO or tensor parallelism over {devices} or more devices, {shares}: {command}")
    return InfeasibleError(
        f"does not fit: no plan fits {format_bytes(budget_bytes)}; {what}. What would help: {'; '.join(ways)}",
        code="memory.nothing-fits",
        budget_bytes=budget_bytes,
        minimum_memory_bytes=least.nbytes,
        state_bytes=state_bytes,
        parameter_bytes=state,
        gradient_bytes=gradients,
        optimizer_bytes=optimizer,
        sharding_devices=devices,
        largest_batch=fewer,
        split=named,
    )


_LARGE = 0.25
"""Share of the budget above which sharding the model state is worth a word."""


def _rest_bytes(trace: StepTrace) -> int:
    """Least that forward and backward need beyond the model state, whatever is offloaded and recomputed [bytes].

    What an update needs in addition is of parameters, and is shared with them.
    """
    beyond = needed_bytes(trace) - live_kept(trace, WEIGHTS)
    moments = [op.moment for op in trace.ops if op.phase != Phase.UPDATE]
    return int(beyond[moments].max(initial=0))


def _devices_for(state_bytes: int, rest_bytes: int, budget_bytes: int) -> int | None:
    """The fewest devices, a power of two, that hold a step whose model state they share; None: sharing is not enough.

    Example:
        >>> _devices_for(100, 20, 50), _devices_for(100, 20, 20)
        (4, None)
    """
    for power in range(1, 11):
        if rest_bytes + state_bytes / 2**power <= budget_bytes:
            return int(2**power)
    return None


@dataclass(frozen=True, kw_only=True)
class MemoryStudy:
    """The result of an estimate.

    Attributes:
        estimate: the figures
        step: under the plan that is shown, for a trace viewer
    """

    estimate: MemoryEstimate
    step: PlannedStep

    def __str__(self) -> str:
        return page_text(lambda out: print_estimate(out, self.estimate))


@told_of_classes
def estimate_memory(
    job: str | JobSource,
    *,
    device: str,
    batch: int | None = None,
    budget: str | None = None,
    precision: str | None = None,
    policy: Policy = "ours",
    slowdown_limit: float = _SLOWDOWN,
    largest_batch: bool = True,
    split: str = "auto",
    sharing: int = 1,
    host: str | None = None,
    codec: str | None = None,
    measured: str | None = None,
    progress: Progress = ignore_progress,
) -> MemoryStudy:
    """Say what a step of a job needs on one device, and what a memory plan makes of it.

    Args:
        job: as for `trimaran.check`
        device: name in the catalog, such as "v100"
        batch: samples of a step; None: the job's
        budget: memory of the card, such as "12GiB", or a share of what autograd alone needs, such as "50%"; None: the
            whole card
        precision: "ieee", "fp32", "tf32", "bf16" or "fp16"; None: as for `trimaran.plan`
        policy: whose memory plan is shown
        slowdown_limit: most that a plan may cost for the largest batch: 0.1 for 10 % of the step
        largest_batch: whether to look for it
        split: modules that run in parts of the batch, such as "features:0-4:2"; "auto": where our plan's budget is
            below the minimum memory, the fastest that helps; "none": none
        sharing: devices in use on one host, this one included; they share a link to it, and its memory
        host: most that may lie on the host for this device, such as "128GiB"; None: its part of the host's memory in
            the usual machine of the device
        codec: what offloaded storages may be coded by, where that is faster: "sparse" (exact, of what comes after a
            ReLU), "sparse:2.6" with how many times fewer bytes there are, or "bf16" (rounds); None: nothing is
        measured: a step on the device, such as "batch=32, memory=9.1 GiB, step=120 ms" or a log; None: none was
        progress: told what is being done

    Raises:
        InputError: the job, the device, the budget, the host's room or the precision is wrong
        InfeasibleError: the budget is below the minimum memory, or the host has too little room
    """
    if policy not in (known := get_args(Policy)):
        raise InputError(f"policy is one of {', '.join(known)}, got {policy!r}", code="memory.unknown-policy")
    if not 0.0 <= slowdown_limit <= _MOST_SLOWDOWN:
        raise InputError(
            f"--slowdown: a plan may cost 0 to {100 * _MOST_SLOWDOWN:,.0f} % of the step, got {100 * slowdown_limit:g}",
            code="memory.bad-slowdown",
            share=slowdown_limit,
        )
    if slowdown_limit != _SLOWDOWN and not largest_batch:
        raise InputError(
            f"--slowdown {100 * slowdown_limit:g}: of the plan for the largest batch, which is not looked for: leave "
            "one of it and --no-largest-batch out",
            code="memory.slowdown-alone",
            share=slowdown_limit,
        )
    alone, coding = find_device(device), None if codec is None else parse_codec(codec)
    within = None if budget is None else parse_budget(budget)
    host_bytes, host_source = _host_room(alone, sharing, host)
    catalog_device = sharing_device(alone, sharing)
    source = job if isinstance(job, JobSource) else JobSource(reference=job, global_batch_size=batch)
    made = source.make()
    chosen = choose_precision(
        source.reference, source.precision if precision is None else precision, catalog_device, job=made
    )
    samples = made.global_batch_size
    progress("tracing the step", 0, 0)
    began_s = perf_counter()
    steps = PricedSteps(
        tracer=JobTracer(made, precision=chosen.name),
        device=catalog_device,
        precision=chosen.name,
        host_bytes=host_bytes,
        codec=coding,
    )
    whole = steps.step(samples)
    budget_bytes, card_bytes = _budget(within, catalog_device, whole)
    more_bytes, measured_notes = (0, []) if measured is None else _measured_more(measured, steps, samples)
    if budget_bytes <= more_bytes:
        raise InputError(
            f"--measured {measured}: {format_bytes(more_bytes)} more than the step's own tensors leave nothing of "
            f"{format_bytes(budget_bytes)}",
            code="memory.measured-takes-all",
        )
    budget_bytes -= more_bytes
    traced_s = perf_counter()
    progress("planning the memory", 0, 0)
    found, in_parts = _plan(
        steps,
        whole,
        asked=split,
        policy=policy,
        budget_bytes=budget_bytes,
        samples=samples,
        job=source.reference,
    )
    planned_s = perf_counter()
    batches = LargestBatch()
    if largest_batch:
        progress("looking for the largest batch", 0, 0)
        known = (samples, found.outcome.run.step_time_s / whole.costs.compute_s - 1.0)
        batches = find_largest_batch(steps, in_parts, budget_bytes, slowdown_limit=slowdown_limit, known=known)
    estimate = replace(
        estimate_of(made, catalog_device, chosen, found),
        card_bytes=card_bytes,
        context_bytes=0 if card_bytes is None else catalog_device.memory.context_bytes,
        workspace_bytes=whole.costs.workspace_bytes,
        host_bytes=host_bytes,
        host_source=host_source,
        codec="" if coding is None else coding.name,
        codec_ratio=None if coding is None else coding.ratio,
        **asdict(batches),
        trace_s=traced_s - began_s,
        planning_s=planned_s - traced_s,
        notes=tuple(
            filter(None, [*traced_notes(source.reference), _other_model(source.reference, device), *measured_notes])
        ),
    )
    return MemoryStudy(estimate=estimate, step=found.shown_step(f"{made.name}, batch {samples}"))


def _measured_more(measured: str, steps: PricedSteps, samples: int) -> tuple[int, list[str]]:
    """What a step took of the device beyond its own tensors, at a batch: as much more as there are more samples.

    Args:
        measured: a step with its memory
        steps: of the job
        samples: of the batch that is asked about

    Returns:
        It [bytes], and where the model was off.

    Raises:
        InputError: no step with memory or time was measured
    """
    found = read_measured(measured)
    if found.kind != "step" or (found.memory_bytes is None and found.step_s is None):
        raise InputError(
            f'--measured {measured}: expected a step with its memory, such as "batch=32, memory=9.1 GiB"',
            code="memory.not-a-step",
        )
    at = found.batch or samples
    priced, notes, more_bytes = steps.step(at), [], 0
    if found.memory_bytes is not None:
        context_bytes = steps.device.memory.context_bytes if found.memory_kind == "nvidia-smi" else 0
        counted = priced.kept.peak + priced.costs.workspace_bytes + context_bytes
        more_bytes = (found.memory_bytes - counted) * samples // at
        notes.append(
            f"measured with a batch of {at}: {format_bytes(found.memory_bytes)} ({found.memory_kind}), "
            f"{format_bytes(counted)} as modelled; the budget is {format_bytes(abs(more_bytes))} "
            f"{'smaller' if more_bytes >= 0 else 'larger'} for it"
        )
    if found.step_s is not None:
        modelled_s = priced.costs.compute_s
        notes.append(
            f"measured with a batch of {at}: {format_seconds(found.step_s)} a step, {format_seconds(modelled_s)} as "
            "modelled"
        )
    return more_bytes, notes


def _other_model(reference: str, device: str) -> str:
    """What is said where a plan on the device has another model; empty: it has the same."""
    by_shape = planned_by_shape(reference, PlanRequest(cluster=device)) is not None
    return f"the step is that of PyTorch; {BY_SHAPE}" if by_shape else ""


def _plan(
    steps: PricedSteps, whole: PricedStep, *, asked: str, policy: str, budget_bytes: int, samples: int, job: str
) -> tuple[Found, PricedSteps | None]:
    """The plans, and the steps in parts that ours is for; None where nothing is split."""
    split = choose_split(steps, asked, policy=policy, budget_bytes=budget_bytes, samples=samples)
    in_parts = None if split is None else steps.split(split)
    planned = whole if in_parts is None else in_parts.step(samples)
    if budget_bytes < minimum_memory(planned.trace).nbytes:
        searched = asked == AUTO and policy == OURS
        raise below_minimum(
            in_parts or steps, budget_bytes, samples=samples, whole=None if searched else steps, job=job
        )
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


def _host_room(device: Device, sharing: int, asked: str | None) -> tuple[int | None, str]:
    """Room on the host for what the device offloads, and where it comes from [bytes]."""
    if asked is not None:
        given = parse_bytes(asked)
        if given == 0:
            raise InputError(
                f'--host {asked}: every machine has some; "1 B" has nothing moved there', code="memory.no-host"
            )
        return given, "as asked for"
    node = plain_node(device, sharing)
    room = node.host_room(sharing)
    if room is None:
        return None, ""
    shares = "" if sharing == 1 else f", shared by {sharing} devices"
    return room, f"{OFFLOAD_SHARE:.0%} of {format_bytes(node.host_memory_bytes)} in {node.title}{shares}"


def _budget(budget: Budget | None, device: Device, whole: PricedStep) -> tuple[int, int | None]:
    """The budget of the step, and the card that it stands for; None where it is a share [bytes]."""
    if budget is not None and budget.nbytes is None:
        return budget.resolve(whole.kept.peak), None
    card_bytes = device.memory.nbytes if budget is None or budget.nbytes is None else budget.nbytes
    return max(0, device.budget_bytes(card_bytes) - whole.costs.workspace_bytes), card_bytes
