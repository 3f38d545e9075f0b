"""Why a plan for a machine of the catalog is what it is: the best one of a job there, or that of a file."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from trimaran.costs.traced import TracedStep
from trimaran.errors import InfeasibleError, InputError
from trimaran.planner import NO_PINS, Candidate, Search, score
from trimaran.planner.changes import parse_change
from trimaran.planner.explain import explain
from trimaran.planner.families import read_family
from trimaran.planner.prices import prices
from trimaran.planner.problem import Problem, arrange, effect_of_memory, lack_of_memory
from trimaran.planner.trials import Trials
from trimaran.program import Plan, Premises, check_against_graph, check_plan, plan_program, read_plan
from trimaran.program.feeding import IN_LINE
from trimaran.session.cluster_planning.divided import shape_of
from trimaran.session.cluster_planning.files import costs_digest
from trimaran.session.cluster_planning.planning import plan_on_machine
from trimaran.session.cluster_planning.problem import machine_problem
from trimaran.session.cluster_planning.reasons import placement_notes
from trimaran.session.cluster_planning.request import ClusterRequest
from trimaran.session.cluster_planning.squeezing import search_within_memory, traces_of
from trimaran.session.cluster_planning.types import MachinePlan
from trimaran.session.explaining import Explained, conclude, outdated
from trimaran.session.explaining_divisions import ExplainedDivision, explain_division
from trimaran.session.jobs import JobSource
from trimaran.session.planned import Planned, Progress, ignore_progress
from trimaran.session.rows import predict
from trimaran.units import format_bytes, format_seconds


def explain_there(
    reference: str,
    request: ClusterRequest,
    *,
    path: Path | None = None,
    why_not: Sequence[str] = (),
    what_if: Sequence[str] = (),
    progress: Progress = ignore_progress,
) -> Explained | ExplainedDivision:
    """Explain the plan in a file on a machine of the catalog, or the best one of a job for it.

    Args:
        reference: of the job
        request: what the plan is to look for
        path: of a plan; None: plan the job
        why_not: kinds of strategies to compare with
        what_if: changes to try; none: what is worth asking of any plan there
        progress: told what is being done

    Raises:
        InputError: a kind or a change that does not exist, or no such job or machine; the plan is wrong, or cannot be
            what such a machine runs
        InfeasibleError: nothing fits, or the plan does not
    """
    if path is None and shape_of(reference, request) is not None:
        return explain_division(reference, request, why_not=why_not, what_if=what_if, progress=progress)
    families = [read_family(name) for name in why_not]
    changes = [parse_change(text) for text in what_if] or None
    if path is None:
        planned, problem, found, notes = _best(reference, request, progress)
    else:
        planned, problem, found, notes = _of_file(path, request, progress)
    progress("simulating what could be otherwise", 0, 0)
    explanation = explain(problem, found, chosen=planned.chosen, why_not=families, changes=changes)
    paid = prices(problem, found, Trials(problem)) if problem.pins != NO_PINS else ()
    return conclude(replace(planned, prices=paid), found, explanation, notes)


_Answer = tuple[Planned, Problem, Search, tuple[str, ...]]
"""A plan, what was searched, what was found, and what the user should know."""


def _best(reference: str, request: ClusterRequest, progress: Progress) -> _Answer:
    found = plan_on_machine(reference, request, progress=progress)
    if not isinstance(found, MachinePlan):
        raise InputError(f"{reference} on {request.cluster} has no program to explain", reference=reference)
    problem, chosen = found.problem, found.search.chosen
    plan = Plan(
        job=reference,
        strategy=chosen.strategy,
        premises=Premises(
            graph_digest=problem.graph.digest,
            global_batch_size=problem.batch,
            devices=tuple(device.name for device in problem.cluster.devices),
            memory_bytes=tuple(device.memory_bytes for device in problem.cluster.devices),
        ),
        prediction=predict(chosen),
        program=(),
    )
    return _planned(plan, problem, found.search, chosen), problem, found.search, found.notes


def _of_file(path: Path, request: ClusterRequest, progress: Progress) -> _Answer:
    """The plan in a file by the costs of the machine, and what a search finds there."""
    plan = read_plan(path)
    memory = _memory_of(plan, request)
    request = as_planned_there(plan, request)
    progress("reading the job and the machine", 0, 0)
    problem = machine_problem(plan.job, request)
    chosen, traces = _score(path, plan, problem, request)
    progress("searching", 0, 0)
    problem, found = search_within_memory(plan.job, problem, request)
    problem = replace(problem, traces={**problem.traces, **traces})
    notes = (
        *problem.graph.notes,
        *placement_notes(problem, chosen.strategy),
        *memory,
        *_rescored(plan, chosen, problem, request),
        *outdated(chosen.strategy, found),
    )
    kept = replace(plan, strategy=chosen.strategy, prediction=predict(chosen))
    return _planned(kept, problem, found, chosen), problem, found, notes


def as_planned_there(plan: Plan, request: ClusterRequest) -> ClusterRequest:
    """The batch, devices, their memory and the execution that a plan was made for, where the user says nothing else.

    Args:
        plan: says them
        request: what the user asks

    Raises:
        InputError: a choice of batches, which the plan has made
    """
    if request.asks_for_outlook:
        raise InputError(
            "--curve and --objective time or cost choose a batch, and the plan has one: leave them out",
            code="explain.curve-and-plan",
        )
    premises = plan.premises
    return replace(
        request,
        devices=request.devices or len(premises.devices),
        batch=request.batch or premises.global_batch_size,
        memory_bytes=request.memory_bytes or min(premises.memory_bytes, default=None),
        execution=plan.strategy.execution if request.execution == "any" else request.execution,
    )


def _score(
    path: Path, plan: Plan, problem: Problem, request: ClusterRequest
) -> tuple[Candidate, Mapping[int, TracedStep]]:
    """The program of a plan, simulated by the costs of a machine, and the traces that its memory plan is of.

    Its ranks have the devices that the plan names; where it names none, those that suit it best. Data are taken to be
    there, so how ranks are fed is left out.
    """
    check_plan(
        plan,
        graph_digest=problem.graph.digest,
        world_size=problem.devices,
        global_batch_size=problem.batch,
    )
    program = plan_program(plan, source=str(path))
    check_against_graph(program, problem.graph, plan.strategy, batch=problem.batch)
    strategy = replace(plan.strategy, feeding=IN_LINE)
    traces: Mapping[int, TracedStep] = {}
    if strategy.memory_bytes is not None:
        traces = traces_of(plan.job, {problem.batch // (strategy.dp * strategy.microbatches)}, problem, request)
        problem = replace(problem, traces=traces)
    try:
        chosen = score(
            program,
            strategy if strategy.device_order else arrange(strategy, problem),
            problem.graph,
            problem.table,
            problem.cluster,
            batch=problem.batch,
            clip=problem.clip,
            effect=effect_of_memory(strategy, problem),
        )
    except InputError as error:
        raise InputError(
            f"{path} has {strategy.name}, which has no costs on {request.cluster}: {error.message}; "
            "leave --cluster out to explain it on this machine",
            path=str(path),
        ) from error
    lack = lack_of_memory(chosen.peak_bytes, problem)
    if lack:
        raise InfeasibleError(
            f"{path} has {strategy.name}, which does not fit {request.cluster}: {lack}; give devices more (--memory), "
            "or plan again",
            code="explain.plan-does-not-fit",
            path=str(path),
        )
    return chosen, traces


def _memory_of(plan: Plan, request: ClusterRequest) -> tuple[str, ...]:
    known = plan.premises.memory_bytes
    if request.memory_bytes is not None or not known:
        return ()
    return (f"each device counts with {format_bytes(min(known))}, as in the file, whatever it has (--memory)",)


def _rescored(plan: Plan, chosen: Candidate, problem: Problem, request: ClusterRequest) -> tuple[str, ...]:
    if plan.premises.costs_digest == costs_digest(problem, request):
        return ()
    said = plan.prediction.step_time_s
    before = f"its file says {format_seconds(said)} a step; " if said > 0.0 else ""
    return (
        f"the plan was made by other costs than those of {request.cluster} in {request.precision}: {before}here it "
        f"takes {format_seconds(chosen.step_time_s)}. --cluster, --precision and --software say which costs are meant",
    )


def _planned(plan: Plan, problem: Problem, found: Search, chosen: Candidate) -> Planned:
    """A plan for another machine in the form of one for this machine, for those who only read it."""
    source = JobSource(reference=plan.job, global_batch_size=problem.batch)
    return Planned(
        source=source,
        job=source.make(),
        graph=problem.graph,
        cluster=problem.cluster,
        table=problem.table,
        plan=plan,
        chosen=chosen,
        traces=problem.traces,
        search=found,
    )
