"""From a job and a request to a plan, by one of three backends; or a plan from a file.

    measured.py       this machine: operations and links are measured, and kept for the next plan
    estimated.py      a machine of the catalog: operations are estimated, every rank is simulated
    analytical.py     a transformer on many devices of the catalog: the analytical model of its layers

Each searches at one batch. A training to a target is one loop around all of them: a curve says which batches, the
backend for the alternatives at each, and `target.conclude` chooses.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.jobs.huggingface import traced_notes
from trimaran.jobs.resolve import JobSource
from trimaran.planner.choice import Option
from trimaran.planner.pins import program_pins
from trimaran.planner.target_estimates import Contender, Goal
from trimaran.planner.target_search import contender_of
from trimaran.planning.analytical import (
    Analytical,
    decoder_shape,
    is_traceable,
    of_interest,
    reason_to_trace,
)
from trimaran.planning.answer.evidence import Modelled, Outlook, Simulated
from trimaran.planning.answer.results import Planned
from trimaran.planning.estimated import Estimated, load_plan_there
from trimaran.planning.loaded_plans import load_plan
from trimaran.planning.long_runs import check_tokens, runs_of
from trimaran.planning.measured import Measured
from trimaran.planning.refusals import LACKS, refused
from trimaran.planning.requests import EVERYTHING, PlanRequest, check_not_analytical
from trimaran.planning.target import (
    Backend,
    Known,
    batches_to_try,
    batches_within,
    check_least_saved,
    check_price,
    conclude,
    goal_of,
    known_by_tokens,
    planned_training,
    source_as_planned,
)


def obtain_plan(
    source: JobSource,
    request: PlanRequest = EVERYTHING,
    *,
    path: Path | None = None,
    progress: Progress = ignore_progress,
) -> Planned:
    """Make a plan, or read it where a file is given; see `make_plan`, `load_plan` and `load_plan_there`.

    Raises:
        InputError: as of `make_plan` and `load_plan`; a plan that is there, and a curve, batches,
            pins or an execution for another
    """
    if path is None:
        return make_plan(source, request, progress=progress)
    if request.target.is_asked:
        raise InputError(
            f"--curve and its options choose the batch of a new plan, and {path} is one already: leave them out, or "
            "make a plan with the curve (`trimaran plan … --output FILE`)",
            path=str(path),
        )
    check_is_made(path, _for_new_plans(request))
    if not request.is_here:
        return load_plan_there(path, request, progress=progress)
    return load_plan(path, source, request, progress=progress)


def check_is_made(path: Path, decided: Sequence[str]) -> None:
    """Refuse options of a new plan, with a plan that is made already.

    Args:
        path: of the plan
        decided: the options

    Raises:
        InputError: there are some
    """
    if decided:
        raise InputError(
            f"{path} is a plan that is made already: leave {', '.join(decided)} out, or make a plan with "
            f"{'it' if len(decided) == 1 else 'them'} (`trimaran plan … --output FILE`)",
            code="plan.option-needs-new-plan",
            path=str(path),
        )


def strategy_options(request: PlanRequest) -> tuple[str, ...]:
    """The options that decide about the strategy of a new plan; its feeding may be decided anew (`fed_as_asked`)."""
    pins = request.pins
    forbid = tuple(kind for kind in pins.forbid if kind != "cache")
    found = replace(pins, workers=None, forbid=forbid).options
    return found if request.execution == "any" else (*found, f"--execution {request.execution}")


def _for_new_plans(request: PlanRequest) -> tuple[str, ...]:
    """The options that a plan from a file has no use for."""
    found = strategy_options(request)
    if request.documents is not None:
        found += (f"--lengths {request.documents.source}",)
    if request.objective in ("time", "cost"):
        found += (f"--objective {request.objective}",)
    if request.expert_imbalance != 1.0:
        found += (f"--expert-imbalance {request.expert_imbalance:g}",)
    if request.gap:
        found += (f"--gap {request.gap:g}",)
    if request.time_limit_s is not None:
        found += (f"--time-limit {request.time_limit_s:g}",)
    return found


def find_backend(source: JobSource, request: PlanRequest, progress: Progress = ignore_progress) -> Backend:
    """Measured costs for this machine; for one of the catalog estimated costs, or the analytical model.

    A decoder with a known shape is planned by the analytical model on any number of devices, unless it is small and
    something is asked that only a simulation answers; the plan then says so.

    Args:
        source: where the job comes from
        request: which machine, and how many of its devices
        progress: called with the current work

    Raises:
        InputError: no such job or machine, or more devices than there are
    """
    if request.is_here:
        _check_order(source, request)
        check_not_analytical(request)
        return Measured(source, _for_programs(source, request), progress)
    progress("reading the job and the machine", 0, 0)
    shape = decoder_shape(source.reference, request)
    why = ""
    if shape is not None and is_traceable(shape, request):
        why = reason_to_trace(source.reference, request)
        shape = None if why else shape
    if shape is None:
        check_not_analytical(request)
    if shape is not None:
        return Analytical(source, request, shape, progress)
    if request.measured is not None:
        raise InputError(
            f"--measured {request.measured.text}: {source.reference} is planned by simulating kernels, which no single "
            "step corrects: leave it out, or ask `trimaran scale`, `memory` or `rehearse`, which take it",
            code="measured.not-a-decoder",
            reference=source.reference,
        )
    if request.documents is not None or request.expert_imbalance != 1.0:
        option = "--lengths" if request.documents is not None else "--expert-imbalance"
        raise InputError(
            f"{option}: {source.reference} is no decoder that the analytical model plans; leave it out, or ask for one "
            "such as llama3:8b",
            code="lengths.not-a-decoder",
            reference=source.reference,
        )
    _check_order(source, request)
    notes = traced_notes(source.reference)
    if why:
        notes = (f"simulated operation by operation, not by the analytical model of decoders, for {why}", *notes)
    return Estimated(source, _for_programs(source, request), progress, notes=notes)


def _for_programs(source: JobSource, request: PlanRequest) -> PlanRequest:
    """A request whose pins a program can keep; see `program_pins`."""
    pins = program_pins(request.pins, batch=request.batch or source.global_batch_size)
    return request if pins is request.pins else replace(request, pins=pins)


def _check_order(source: JobSource, request: PlanRequest) -> None:
    """Refuse an order of ranks where programs have their own.

    Raises:
        InputError: there is one
    """
    if request.pins.rank_order is not None:
        raise InputError(
            f"--rank-order: {source.reference} is planned there as a program, whose ranks are placed by what they "
            "exchange: leave it out; decoders such as llama3:8b are planned by the analytical model, which takes it",
            code="rank-order.not-of-programs",
            job=source.reference,
        )


def make_plan(
    job: JobSource | str,
    request: PlanRequest = EVERYTHING,
    *,
    backend: Backend | None = None,
    progress: Progress = ignore_progress,
) -> Planned:
    """Find the best way to train a job on this machine or on one of the catalog.

    The batch is the request's or the job's, unless a training to a target or a choice of batches is asked for.

    Args:
        job: a built-in name, a network, `file.py:factory`, a Hugging Face configuration; or where it comes from
        request: objective, devices and limits
        backend: prices strategies; None: as `find_backend` says
        progress: called with the current work

    Raises:
        InputError: no such job, machine or curve, a curve of another task, more devices than there are, or a seed that
            nothing would depend on
        InfeasibleError: nothing fits; on a machine of the catalog `figures["ways"]` has what would (`Way`)
    """
    source = job if isinstance(job, JobSource) else JobSource(reference=job)
    batch = request.batch or source.global_batch_size
    source, request = replace(source, global_batch_size=batch), replace(request, batch=batch)
    if source.seed is not None and not request.is_here:
        raise InputError(
            f"--seed {source.seed} has no effect with --cluster: it seeds weights, order and dropout; leave it out, "
            "and give it to `trimaran train`",
            code="plan.seed-elsewhere",
            seed=source.seed,
        )
    if request.loading.is_given and request.asks_for_outlook:
        raise InputError(
            "batches are compared with their data ready: leave --loader and its like out, or --objective time, --curve "
            "and their options, and ask at one batch (--batch)",
            code="loading.and-target",
        )
    found = backend or find_backend(source, request, progress)
    try:
        if request.asks_for_outlook:
            goal = goal_of(request.objective, request.target)
            planned = _plan_for_target(found, goal, check_tokens(source.reference, request))
        else:
            planned = found.plan()
    except InfeasibleError as error:
        if request.is_here or backend is not None or error.code not in LACKS:
            raise
        raise refused(error, request, lambda other: find_backend(source, other)) from error
    request.pins.check_said(planned.chosen.strategy)
    return planned


def _plan_for_target(backend: Backend, goal: Goal, sample_tokens: float) -> Planned:
    """Strategy, devices and batch that are best for reaching the target."""
    request = backend.request
    if sample_tokens:
        known = known_by_tokens(request.target, sample_tokens=sample_tokens, job_batch=backend.batch)
    else:
        known = backend.curve()
    check_price(request.target, says_length=known.says_length)
    compares = request.target.compares or (known.curve is not None and backend.devices > 1)
    check_least_saved(request.target, compares=known.says_length and compares)
    alone = known.tokens is not None and not request.target.compares and not request.target.batches
    if (known.curve is None and not request.target.is_asked) or (alone and request.objective != "cost"):
        return _as_planned(backend, goal, known)
    wanted = batches_to_try(
        backend.batch, known, request.target, devices=backend.devices, fixed=request.batch is not None
    )
    batches, too_large = batches_within(wanted, known)
    found = backend.compare(batches, known, goal)

    outlook = conclude(
        found.contenders,
        asked=goal,
        known=known,
        request=request.target,
        batches=batches,
        left_out=[*too_large, *found.left_out],
        price=backend.price,
        node_devices=backend.node_devices,
        is_complete=found.is_complete,
        runs=runs_of(backend, known),
    )
    return _with_outlook(found.plan_of(outlook.chosen.contender), outlook)


def _as_planned(backend: Backend, goal: Goal, known: Known) -> Planned:
    """An ordinary plan: nothing says the time to the target, or it is that of a number of tokens, at any batch."""
    planned, batch = backend.plan(), backend.batch
    contenders = contenders_of(planned, batch)
    outlook = conclude(
        contenders,
        asked=goal,
        known=known,
        request=backend.request.target,
        batches=(batch,),
        price=backend.price,
        node_devices=backend.node_devices,
        chosen=next(one for one in contenders if one.origin is planned.chosen),
        runs=runs_of(backend, known),
    )
    return _with_outlook(planned, outlook)


def contenders_of(planned: Planned, batch: int) -> list[Contender]:
    """Alternatives of a plan, for comparison with other batches.

    Args:
        planned: of a search
        batch: samples of one update
    """
    evidence = planned.evidence
    if isinstance(evidence, Modelled):
        options: Iterable[Option] = of_interest(evidence.problem, evidence.search)
    else:
        options = evidence.search.candidates if evidence.search else ()
    return [contender_of(one, batch) for one in options]


def _with_outlook(planned: Planned, outlook: Outlook) -> Planned:
    """A plan with its training to the target; a plan for this machine also sets the job's training."""
    notes, evidence = (*planned.notes, *outlook.warnings), planned.evidence
    plan = replace(evidence.plan, objective=outlook.goal, training=planned_training(outlook))
    evidence = replace(evidence, plan=plan)
    if not planned.request.is_here or not isinstance(evidence, Simulated):
        return replace(planned, evidence=evidence, outlook=outlook, notes=notes)
    source = source_as_planned(plan, planned.source)
    job, room = source.make(), evidence.problem.room
    problem = replace(evidence.problem, room=None if room is None else replace(room, epochs=max(1, job.epochs)))
    evidence = replace(evidence, job=job, problem=problem)
    return replace(planned, source=source, evidence=evidence, outlook=outlook, notes=notes)
