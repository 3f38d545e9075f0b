"""Why a plan is what it is: the plan, the search that it came from, and what the planner says of both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trimaran.costs.tables import Curve, CurveKey, merge
from trimaran.errors import InputError
from trimaran.planner import Search
from trimaran.planner.changes import parse_change
from trimaran.planner.choice import MODEL_ERROR
from trimaran.planner.explain import Explanation, explain
from trimaran.planner.families import compressions_of, read_family
from trimaran.planner.outcomes import is_same
from trimaran.planner.problem import Problem
from trimaran.planner.prospects import Prospect
from trimaran.program import Strategy, read_plan
from trimaran.report.remedies import Remedy
from trimaran.session.calibrated import find_calibrated
from trimaran.session.feeding import room_of
from trimaran.session.jobs import JobSource
from trimaran.session.measuring import with_compressions
from trimaran.session.planning import (
    EVERYTHING,
    Planned,
    Progress,
    as_planned,
    epoch_data,
    executions_of,
    ignore_progress,
    load_plan,
    plan_job,
)
from trimaran.session.request import PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A plan with its explanation.

    Attributes:
        planned: the plan and what it was made from; of a machine that is not here, without a measured table
        found: the search, by what things cost now
        explanation: why
        remedies: the known remedies that are worth it, most gain first
        not_worth_it: those that save less than the model leaves out, most gain first
        notes: what the user should know
    """

    planned: Planned
    found: Search
    explanation: Explanation
    remedies: tuple[Remedy, ...]
    not_worth_it: tuple[Remedy, ...]
    notes: tuple[str, ...] = ()


def explain_plan(
    source: JobSource,
    request: PlanRequest = EVERYTHING,
    *,
    path: Path | None = None,
    why_not: Sequence[str] = (),
    what_if: Sequence[str] = (),
    progress: Progress = ignore_progress,
) -> Explained:
    """Explain the plan in a file, or the best one for a job.

    Args:
        source: where the job comes from
        request: what the plan is to look for
        path: of a plan; None: plan the job
        why_not: kinds of strategies to compare with
        what_if: changes to try, as written on the command line; none: what is worth asking of any plan
        progress: told what is being done

    Raises:
        InputError: a kind or a change that does not exist; the plan or the job is wrong
        InfeasibleError: nothing fits
    """
    # Before anything is measured: a name that does not exist costs no wait.
    families = [read_family(name) for name in why_not]
    changes = [parse_change(text) for text in what_if] or None
    given: Planned | None = None
    if path is not None:
        plan = read_plan(path)
        source, request = as_planned(plan, source, request)
        premises = plan.premises
        request = replace(
            request,
            link=request.link or premises.link,
            memory_bytes=request.memory_bytes or min(premises.memory_bytes, default=None),
        )
        given = load_plan(path, source, request, progress=progress)
    planned = plan_job(source, request, progress=progress)
    found = planned.search
    if found is None:
        raise InputError(f"{source.reference} was planned without a search: there is nothing to explain")
    problem = problem_of(planned, found, request)
    paid = planned.prices
    if given is not None:
        # What the plan's own execution and microbatch cost, which a search may have had no use for.
        traces = {**given.traces, **problem.traces}
        problem = replace(problem, table=merge([problem.table, given.table]), traces=traces)
    # A plan without consent measures no compression.
    methods = [method for family in families for method in compressions_of(family)]
    problem = with_compressions(problem, planned.source, methods, find_calibrated(request), progress)
    progress("simulating what could be otherwise", 0, 0)
    chosen = None if given is None else given.chosen
    explanation = explain(problem, found, chosen=chosen, why_not=families, changes=changes)
    shown = replace(planned if given is None else given, prices=paid)
    late = () if given is None else outdated(given.plan.strategy, found)
    return conclude(shown, found, explanation, (*shown.warnings, *late))


def conclude(planned: Planned, found: Search, explanation: Explanation, notes: tuple[str, ...]) -> Explained:
    """A plan with its explanation, its remedies told apart by whether they are worth it.

    Args:
        planned: the plan
        found: the search, by what things cost now
        explanation: why
        notes: what the user should know
    """
    worth = [remedy for remedy in explanation.remedies if remedy.gain > MODEL_ERROR]
    rest = [remedy for remedy in explanation.remedies if remedy.gain <= MODEL_ERROR]
    return Explained(
        planned=planned,
        found=found,
        explanation=explanation,
        remedies=tuple(_remedy(prospect) for prospect in worth),
        not_worth_it=tuple(_remedy(prospect) for prospect in rest),
        notes=notes,
    )


def problem_of(planned: Planned, found: Search, request: PlanRequest) -> Problem:
    """What a plan was searched for."""
    data = epoch_data(planned.job)
    return Problem(
        graph=planned.graph,
        table=planned.table,
        cluster=planned.cluster,
        batch=planned.job.global_batch_size,
        devices=planned.cluster.size,
        clip=planned.job.clip_norm is not None,
        executions=executions_of(found),
        epoch=data if request.objective == "epoch" else None,
        traces=planned.traces,
        bare_curves={} if request.link is None else _bare_curves(planned.cluster.size),
        pins=request.pins,
        time_limit_s=request.time_limit_s,
        gap=request.gap,
        room=room_of(planned.job, data),
    )


def _bare_curves(ranks: int) -> Mapping[CurveKey, Curve]:
    """Transfers between local ranks that nothing holds back, as far as they are known."""
    from trimaran.measure.cache import load_cached
    from trimaran.measure.costs import fingerprint_here

    return load_cached(fingerprint_here(ranks)).curves


def _remedy(prospect: Prospect) -> Remedy:
    return Remedy(
        limiter=prospect.limiter,
        name=prospect.name,
        action=prospect.action,
        predicted_gain=prospect.gain,
        gain_interval=prospect.gain_interval,
        basis=prospect.basis,
        assumption=prospect.assumption,
    )


def outdated(strategy: Strategy, found: Search) -> tuple[str, ...]:
    """That a search would choose another strategy now than the plan in a file has; nothing where it would not.

    Args:
        strategy: of the plan
        found: the search
    """
    if is_same(strategy, found.chosen.strategy):
        return ()
    return (f"the plan is {strategy.name}; planned again now, {found.chosen.strategy.name} would be chosen",)
