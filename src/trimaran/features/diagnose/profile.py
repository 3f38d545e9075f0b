"""The profile of a job on this machine: what was measured for planning it, and two simulated steps.

Operations, the whole model, the update and the loading are measured with all ranks busy. The step on one device and
the step of data parallelism on all devices are simulated from them, as the planner does. So a profile costs nothing
beyond a plan, and its figures are those that plans are made of.
"""

from dataclasses import dataclass, replace

from trimaran.base.progress import Progress, ignore_progress
from trimaran.jobs.resolve import JobSource
from trimaran.planner.candidates import Candidate, at_end
from trimaran.planner.problem import Problem, assess, costs_of
from trimaran.planning.explanation import problem_of
from trimaran.planning.plan import make_plan
from trimaran.planning.requests import EVERYTHING, PlanRequest
from trimaran.pricing.compute import form_of
from trimaran.pricing.memory import rank_states
from trimaran.pricing.types import Cost, IntervalEnd, ProgramCosts
from trimaran.program.strategy import Strategy
from trimaran.program.types import Kind
from trimaran.report.breakdown import Breakdown, Source, break_down
from trimaran.report.profile import (
    Grouping,
    MemoryClasses,
    PhaseFigure,
    Profile,
    StepProfile,
    find_spots,
    kind_of,
)
from trimaran.simulator.engine import simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phase:
    """A part of a breakdown: its name, its figure, and the instructions whose costs it is made of."""

    name: str
    figure: str
    kinds: frozenset[Kind]


_EXCHANGES = frozenset({Kind.ALL_REDUCE, Kind.BROADCAST, Kind.REDUCE_SCATTER, Kind.ALL_GATHER})
"""Collectives of replicas in a step."""

_PHASES = (
    _Phase(name="load", figure="load_s", kinds=frozenset({Kind.LOAD})),
    _Phase(name="FP", figure="forward_s", kinds=frozenset({Kind.FORWARD})),
    _Phase(name="BP", figure="backward_s", kinds=frozenset({Kind.BACKWARD})),
    _Phase(name="WU update", figure="update_s", kinds=frozenset({Kind.UPDATE, Kind.CLIP})),
    _Phase(name="WU exchange", figure="exposed_s", kinds=_EXCHANGES),
    _Phase(name="idle", figure="idle_s", kinds=frozenset()),
    _Phase(name="between instructions", figure="unattributed_s", kinds=frozenset()),
)


def profile_job(
    source: JobSource,
    request: PlanRequest = EVERYTHING,
    *,
    by: Grouping = "module",
    progress: Progress = ignore_progress,
) -> Profile:
    """Profile a job on this machine.

    Args:
        source: where the job comes from
        request: how many devices, with which links
        by: what one line of the compute stands for
        progress: told what is being done

    Raises:
        InputError: the job is wrong, or more devices than there are
        InfeasibleError: nothing fits
    """
    # Its steps are eager: nothing is compiled for it.
    request = replace(request, execution="eager")
    planned = make_plan(source, request, progress=progress)
    problem = problem_of(planned)
    strategies = [Strategy()]
    if problem.devices > 1 and problem.batch % problem.devices == 0:
        strategies.append(Strategy(dp=problem.devices))
    steps = tuple(profile_step(strategy, problem) for strategy in strategies)
    widest = strategies[-1]
    samples, form = problem.batch // widest.dp, form_of(widest)
    table = problem.table
    spots, overhead = find_spots(problem.graph, table, batch=samples, form=form, by=by)
    return Profile(
        job=planned.simulated.job.name,
        device=table.fingerprint.device,
        ranks=table.fingerprint.ranks,
        global_batch_size=problem.batch,
        steps=steps,
        by=by,
        samples=samples,
        spots=spots,
        overhead=overhead,
        unseen=unseen(problem),
    )


def profile_step(strategy: Strategy, problem: Problem) -> StepProfile:
    """One simulated step of a strategy with one stage, by phase and by class of memory.

    Args:
        strategy: one device, or data parallelism
        problem: the job, its costs and its devices

    Raises:
        InputError: the table lacks something
    """
    candidate = assess(strategy, problem)
    costs = costs_of(candidate, problem)
    median = break_down(candidate.program, candidate.timeline, Source.PREDICTED)[0]
    low, high = _at_end(candidate, costs, "low"), _at_end(candidate, costs, "high")
    return StepProfile(
        strategy=strategy.name,
        samples=problem.batch // strategy.dp,
        step_time_s=candidate.step_time_s,
        interval_s=candidate.interval_s,
        phases=tuple(_figure(phase, (low, median, high), candidate, costs) for phase in _PHASES),
        overlapped_s=median.overlapped_s,
        memory=_memory(candidate, problem),
    )


def unseen(problem: Problem) -> tuple[str, ...]:
    """The blind spots of a profile."""
    graph, table = problem.graph, problem.table
    contents = {op.content for op in graph.ops}
    points = [cost for key, costs in table.operations.items() if key.content in contents for cost in costs.values()]
    alone = {kind_of(cost.forward.source) for cost in points}
    found = list(graph.notes)
    if "assumed" in alone:
        found.append("operations that do not run by themselves: their time falls to the others")
    if "analytic" in alone:
        found.append("operations one by one: the model's time is shared out by their FLOP and bytes")
    found += [
        "what happens inside an operation: kernels, caches, the allocator",
        "data whose cost differs: one batch of the job's own stands for all",
        "what a loop does between steps: logging, schedules, checkpoints",
    ]
    return tuple(found)


def _at_end(candidate: Candidate, costs: ProgramCosts, end: IntervalEnd) -> Breakdown:
    timeline = simulate(candidate.program, at_end(costs, end))
    return break_down(candidate.program, timeline, Source.PREDICTED)[0]


def _figure(
    phase: _Phase, cases: tuple[Breakdown, Breakdown, Breakdown], candidate: Candidate, costs: ProgramCosts
) -> PhaseFigure:
    low_s, median_s, high_s = (getattr(case, phase.figure) for case in cases)
    step_s = candidate.step_time_s
    return PhaseFigure(
        name=phase.name,
        seconds=median_s,
        low=min(low_s, median_s, high_s),
        high=max(low_s, median_s, high_s),
        share=median_s / step_s if step_s else 0.0,
        source=_source(phase, candidate, costs),
    )


def _source(phase: _Phase, candidate: Candidate, costs: ProgramCosts) -> str:
    """Where the longest of the instructions on rank 0 has its figure from."""
    longest: tuple[float, str] = (-1.0, "simulated")
    for instruction in candidate.program.ranks[0]:
        if instruction.kind not in phase.kinds:
            continue
        if instruction.communicates:
            transfer = costs.transfers[instruction.id]
            entry = (transfer.latency_s + transfer.flow_s, transfer.source)
        else:
            cost: Cost = costs.compute[instruction.id]
            entry = (cost.seconds, cost.source)
        longest = max(longest, entry)
    return longest[1]


def _memory(candidate: Candidate, problem: Problem) -> MemoryClasses:
    rank = max(range(len(candidate.peak_bytes)), key=lambda one: candidate.peak_bytes[one])
    state = rank_states(candidate.program, problem.graph, candidate.strategy)[rank]
    step = problem.table.steps.get(problem.graph.digest)
    optimizer = round(state.trained * (step.state_bytes_per_byte if step else 0.0))
    resident = state.parameters + state.trained + optimizer + state.buffers
    return MemoryClasses(
        parameters=state.parameters,
        gradients=state.trained,
        optimizer_state=optimizer,
        buffers=state.buffers,
        activations=candidate.peak_bytes[rank] - resident,
    )
