"""Explanation of a plan: the plan, its search, and the planner's explanation of both."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trimaran.base.errors import InputError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.units import format_bytes
from trimaran.jobs.resolve import JobSource
from trimaran.planner.analytical.candidates import AnalyticalModel
from trimaran.planner.candidates import Candidate
from trimaran.planner.explanation.exchange_doubt import doubts_of_exchange
from trimaran.planner.explanation.explain import (
    AnalyticalCase,
    Case,
    SimulatedCase,
    StrategyFilter,
    compressions_of,
    explain,
    pins_of_kind,
    read_family,
)
from trimaran.planner.explanation.remedies import Replan, is_same
from trimaran.planner.explanation.what_if import check_analytical, parse_change
from trimaran.planner.pins import NO_PINS, read_pins
from trimaran.planner.problem import Problem
from trimaran.planner.result import Search
from trimaran.planner.search import prices
from trimaran.planner.trials import Trials
from trimaran.planning.analytical import Analytical, decoder_shape, shape_of, with_prices
from trimaran.planning.answer.documents import goal_of_plan
from trimaran.planning.answer.explained import Explained
from trimaran.planning.answer.results import Planned
from trimaran.planning.best_strategy import chooser, search_within_memory
from trimaran.planning.estimated import StepTracer, as_planned_there, does_not_fit, load_plan_there, on_its_machine
from trimaran.planning.loaded_plans import as_planned, load_plan
from trimaran.planning.measurement import find_calibrated, trace_job, with_compressions
from trimaran.planning.plan import check_is_made, make_plan, strategy_options
from trimaran.planning.requests import EVERYTHING, PlanRequest
from trimaran.pricing.offload_costs import TracedStep
from trimaran.pricing.tables import Curve, CurveKey, merge
from trimaran.program.plan_file import Plan, check_plan, read_plan
from trimaran.program.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExplanationAsked:
    """The request for an explanation, in terms of plans.

    Attributes:
        source: where the job comes from
        request: objective and devices of the plan
        path: of a plan; None: plan the job
        plan: in that file
        why_not: kinds of strategies to compare with, as they were written
        what_if: changes to try, as they were written
        progress: called with the current work
    """

    source: JobSource
    request: PlanRequest
    path: Path | None
    plan: Plan | None
    why_not: Sequence[str]
    what_if: Sequence[str]
    progress: Progress


def explain_plan(
    job: JobSource | str,
    request: PlanRequest = EVERYTHING,
    *,
    path: Path | None = None,
    why_not: Sequence[str] = (),
    what_if: Sequence[str] = (),
    progress: Progress = ignore_progress,
) -> Explained:
    """Explain the plan in a file, or the best one for a job, on this machine or on one of the catalog.

    Args:
        job: a reference, or where it comes from
        request: objective and devices of the plan
        path: of a plan; None: plan the job
        why_not: kinds of strategies to compare with
        what_if: changes to try, as written on the command line; none: the usual ones
        progress: called with the current work

    Raises:
        InputError: a kind or a change that does not exist, or no such job or machine; the plan is wrong, or cannot be
            what such a machine runs
        InfeasibleError: nothing fits, or the plan does not
    """
    source = job if isinstance(job, JobSource) else JobSource(reference=job)
    plan = None if path is None else read_plan(path)
    if plan is not None and path is not None:
        check_is_made(path, _against(request, plan.strategy))
        request = on_its_machine(plan, request)
        if not strategy_options(request):
            decided, fed = read_pins(plan.premises.decided), request.pins
            workers = decided.workers if fed.workers is None else fed.workers
            forbid = tuple(dict.fromkeys((*decided.forbid, *fed.forbid)))
            request = replace(request, pins=replace(decided, workers=workers, forbid=forbid))
    asked = _ExplanationAsked(
        source=source, request=request, path=path, plan=plan, why_not=why_not, what_if=what_if, progress=progress
    )
    is_modelled = not request.is_here and plan is None and shape_of(source.reference, request) is not None
    if is_modelled or (plan is not None and not plan.has_program):
        planned, case, notes = _modelled(asked)
    else:
        planned, case, notes = _simulated(asked)
    progress("pricing alternatives", 0, 0)
    evidence = planned.evidence
    explanation = explain(case, chosen=evidence.chosen, paid=evidence.prices, goal=goal_of_plan(planned.outlook))
    return Explained(planned=planned, found=case.found, explanation=explanation, notes=notes)


def _against(request: PlanRequest, strategy: Strategy) -> tuple[str, ...]:
    """Options that the strategy of a plan does not keep; others decide what it is compared with."""
    found = tuple(filter(lambda option: option.startswith("--"), [request.pins.objection(strategy)]))
    if request.execution in ("any", strategy.execution):
        return found
    return (*found, f"--execution {request.execution}")


def _simulated(asked: _ExplanationAsked) -> tuple[Planned, Case, tuple[str, ...]]:
    """A plan with a program, the model of its explanation, and notes."""
    # Before anything is measured: a name that does not exist costs no wait.
    families = [read_family(name) for name in asked.why_not]
    changes = [parse_change(text) for text in asked.what_if] or None
    notes: tuple[str, ...] = ()
    if asked.request.is_here:
        planned, found, problem, notes = _here(asked, families)
    else:
        planned, found = _there(asked)
        problem, notes = planned.simulated.problem, planned.notes
    case = SimulatedCase(
        problem=problem, found=found, why_not=families, changes=changes, replan=_replan(_tracer(asked, planned))
    )
    return planned, case, notes


TraceThere = Callable[[Collection[int], Problem], Mapping[int, TracedStep]]
"""Traces steps at some sizes of a microbatch [samples], for the devices of a problem."""


def _tracer(asked: _ExplanationAsked, planned: Planned) -> TraceThere:
    """Traces steps of a plan's job, each once."""
    problem = planned.simulated.problem
    if not asked.request.is_here:
        return StepTracer(planned.reference, problem, planned.request).traces
    known = dict(problem.traces)

    def trace(sizes: Collection[int], _: Problem) -> Mapping[int, TracedStep]:
        lacking = set(sizes) - known.keys()
        known.update(trace_job(planned.source, lacking, asked.progress) if lacking else {})
        return {size: known[size] for size in sizes if size in known}

    return trace


def _replan(trace: TraceThere) -> Replan:
    """The choice after a change, as a plan for that problem would make it, with memory plans of it."""

    def replan(problem: Problem, change: Callable[[Problem], Problem]) -> Candidate:
        after = change(replace(problem, traces={}, squeezed=None))

        def changed_trace(sizes: Collection[int]) -> Mapping[int, TracedStep]:
            return change(replace(problem, traces=trace(sizes, after))).traces

        return search_within_memory(after, changed_trace, choice_only=True)[1].chosen

    return replan


def search_of(planned: Planned) -> Search[Candidate]:
    """The alternatives of a plan.

    Raises:
        InputError: it was read from a file
    """
    found = planned.simulated.search
    if found is None:
        raise InputError(f"{planned.reference} was planned without a search: there is nothing to explain")
    return found


def _here(
    asked: _ExplanationAsked, families: Sequence[StrategyFilter]
) -> tuple[Planned, Search[Candidate], Problem, tuple[str, ...]]:
    """A plan for this machine, the result of a search by present costs, the problem, and notes."""
    source, request, plan, progress = asked.source, asked.request, asked.plan, asked.progress
    given: Planned | None = None
    if plan is not None and asked.path is not None:
        source, request = as_planned(plan, source, request)
        premises = plan.premises
        request = replace(
            request,
            link=request.link or premises.rate_limit,
            memory_bytes=request.memory_bytes or min(premises.memory_bytes, default=None),
        )
        given = load_plan(asked.path, source, request, progress=progress)
    planned = make_plan(source, request, progress=progress)
    found, problem = search_of(planned), problem_of(planned)
    shown, notes = planned, planned.notes
    if given is not None:
        # Costs of the plan's execution and microbatch, which the search may not have needed.
        before = given.simulated
        traces = {**before.problem.traces, **problem.traces}
        problem = replace(problem, table=merge([problem.table, before.table]), traces=traces)
        shown = replace(given, evidence=replace(before, prices=planned.simulated.prices))
        notes = (*given.notes, *outdated(before.plan.strategy, found))
    # A plan that does not opt in measures no compression.
    methods = [method for family in families for method in compressions_of(family)]
    problem = with_compressions(problem, planned.source, methods, find_calibrated(request), progress)
    return shown, found, problem, notes


def _there(asked: _ExplanationAsked) -> tuple[Planned, Search[Candidate]]:
    """A plan for a machine of the catalog with the prices of its pins, and the result of a search there."""
    if asked.path is not None:
        planned, found = _of_file(asked.path, asked.request, asked.progress)
    else:
        planned = make_plan(asked.source, asked.request, progress=asked.progress)
        found = search_of(planned)
    run = planned.simulated
    if run.problem.pins != NO_PINS:
        steps, trials = StepTracer(planned.reference, run.problem, planned.request), Trials(run.problem)
        paid = prices(run.problem, found, chooser(steps.traces, trials))
        planned = replace(planned, evidence=replace(run, prices=paid))
    return planned, found


def problem_of(planned: Planned) -> Problem:
    """The problem of a plan, with known costs of links between local ranks that are not limited."""
    problem = planned.simulated.problem
    bare = {} if planned.request.link is None else _bare_curves(problem.cluster.size)
    return replace(problem, bare_curves=bare)


def _bare_curves(ranks: int) -> Mapping[CurveKey, Curve]:
    """Transfers between local ranks that nothing holds back, as far as they are known."""
    from trimaran.measure.cache import load_cached
    from trimaran.measure.costs import fingerprint_here

    return load_cached(fingerprint_here(ranks)).curves


def outdated(strategy: Strategy, found: Search[Any]) -> tuple[str, ...]:
    """That a search would choose another strategy now than the plan in a file has; nothing where it would not.

    Args:
        strategy: of the plan
        found: the search
    """
    if is_same(strategy, found.chosen.strategy):
        return ()
    return (f"the plan is {strategy.name}; planned again now, {found.chosen.strategy.name} would be chosen",)


# ---------------------------------------------------------------------------------------------------------------------
# A plan of the analytical model: it has no program, so no critical path, and nothing is simulated otherwise


def _modelled(asked: _ExplanationAsked) -> tuple[Planned, Case, tuple[str, ...]]:
    """A plan of the analytical model, the model of its explanation, and notes."""
    source, request, plan = asked.source, asked.request, asked.plan
    changes = [parse_change(text) for text in asked.what_if] or None
    for change in changes or ():
        check_analytical(change)
    kinds = [(name, pins_of_kind(name)) for name in asked.why_not]
    if plan is not None:
        source, request = replace(source, reference=plan.job), as_modelled(plan, request, asked.path)
    shape = decoder_shape(source.reference, request)
    if shape is None:
        raise InputError(
            f"{asked.path} has degrees for {source.reference}, which is no decoder that the analytical model knows",
            code="explain.unknown-decoder",
            reference=source.reference,
        )
    backend = Analytical(source, request, shape, asked.progress)
    planned = make_plan(source, request, backend=backend, progress=asked.progress)
    evidence, notes = planned.modelled, planned.notes
    found = evidence.search
    if plan is not None:
        model = AnalyticalModel(problem=evidence.problem)
        chosen = model.price(plan.strategy, model.taken(plan.strategy).admitted(plan.strategy))
        needed, room = chosen.memory.peak, evidence.problem.memory_limit
        if needed > room:
            lack = f"its fullest rank needs {format_bytes(needed)}, a device leaves {format_bytes(room)}"
            raise does_not_fit(asked.path, plan.strategy.name, request.cluster, lack)
        evidence = replace(evidence, plan=plan, chosen=chosen)
        notes = (*notes, *outdated(plan.strategy, found))
    evidence = with_prices(evidence)
    case = AnalyticalCase(problem=evidence.problem, found=found, why_not=kinds, changes=changes)
    return replace(planned, evidence=evidence), case, notes


def as_modelled(plan: Plan, request: PlanRequest, path: Path | None = None) -> PlanRequest:
    """As `as_planned_there`, with the precision and the sequence of a plan of degrees.

    Args:
        plan: of the analytical model
        request: says the machine
        path: of the plan's file, for errors

    Raises:
        InputError: no machine, or a plan that is wrong
    """
    if request.is_here:
        raise InputError(
            f"{path} does not say for which machine it was made: give it as --cluster",
            code="explain.cluster-needed",
            path=str(path),
        )
    premises = plan.premises
    length = {} if premises.sequence_length is None else {"sequence": str(premises.sequence_length)}
    asked = as_planned_there(plan, request)
    check_plan(plan, needs_program=False, world_size=asked.devices, global_batch_size=asked.batch)
    # Degrees have no program, so nothing is run eagerly or compiled.
    return replace(asked, execution=request.execution, options={**length, **asked.options})


# ---------------------------------------------------------------------------------------------------------------------
# A plan from a file on a machine of the catalog


def _of_file(path: Path, request: PlanRequest, progress: Progress) -> tuple[Planned, Search[Candidate]]:
    """The plan in a file by the costs of the machine, and the result of a search there."""
    planned = load_plan_there(path, request, progress=progress)
    evidence = planned.simulated
    progress("searching", 0, 0)
    steps = StepTracer(planned.reference, evidence.problem, planned.request)
    problem, found = search_within_memory(evidence.problem, steps.traces)
    problem = replace(problem, traces={**problem.traces, **evidence.problem.traces})
    return (
        replace(
            planned,
            evidence=replace(evidence, problem=problem, search=found),
            notes=(
                *planned.notes,
                *outdated(evidence.chosen.strategy, found),
                *doubts_of_exchange(evidence.chosen, found.candidates, problem),
            ),
        ),
        found,
    )
