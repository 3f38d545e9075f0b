"""A plan from a file: checked against the job and this machine, and scored by the costs measured here.

A plan for a machine of the catalog is an ordinary plan file too: its premises name the devices and the graph. A plan of
the analytical model has degrees, the network's layers and no program.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimaran.base.errors import InputError
from trimaran.base.precision import product_dtype
from trimaran.base.progress import Progress, ignore_progress
from trimaran.jobs.resolve import JobSource
from trimaran.machine.catalog import catalog
from trimaran.machine.types import Allocation, Link
from trimaran.planner.analytical.candidates import AnalyticalCandidate, AnalyticalProblem
from trimaran.planner.candidates import Candidate, score
from trimaran.planner.choice import Option
from trimaran.planner.problem import Problem, effect_of_memory
from trimaran.planner.result import Search, said_of_codec
from trimaran.planning.input_pipeline import fed_as_asked
from trimaran.planning.measurement import measure_job, trace_job, try_strategy
from trimaran.planning.preparation import inexactness, local_cluster, prepare, problem_here
from trimaran.planning.requests import EVERYTHING, PlanRequest, cost_options
from trimaran.planning.results import Planned, Simulated
from trimaran.planning.target import source_as_planned
from trimaran.pricing.program import price
from trimaran.program.lowering.lower import lower
from trimaran.program.memory import check_codec_runs
from trimaran.program.plan_file import (
    CandidateRow,
    Objective,
    Plan,
    PlannedLink,
    Prediction,
    Premises,
    Verdict,
    check_has_program,
    check_plan,
    plan_program,
    program_lines,
    read_plan,
    write_plan,
)
from trimaran.program.refusals import check_exact
from trimaran.program.rules.against_graph import check_against_graph
from trimaran.program.types import Program
from trimaran.simulator.memory_check import check_memory

# ---------------------------------------------------------------------------------------------------------------------
# Result of a search in a plan file


def predict(candidate: Option) -> Prediction:
    """Predicted costs of a candidate."""
    return Prediction(
        step_time_s=candidate.step_time_s,
        interval_s=candidate.interval_s,
        peak_bytes=candidate.peak_bytes,
        epoch_s=candidate.epoch_s,
        epoch_interval_s=candidate.epoch_interval_s,
    )


def candidate_rows(found: Search[Any]) -> Iterator[CandidateRow]:
    """The alternatives of a plan: priced ones, best first, then rejected ones.

    Args:
        found: the search
    """
    front, references = ({id(one) for one in some} for some in (found.pareto, found.references))
    known = {id(one) for one in found.candidates}
    for candidate in (*found.candidates, *(one for one in found.references if id(one) not in known)):
        verdict: Verdict = "runner-up"
        if candidate is found.chosen:
            verdict = "chosen"
        elif id(candidate) in references:
            verdict = "baseline"
        yield CandidateRow(
            strategy=candidate.strategy,
            verdict=verdict,
            prediction=predict(candidate),
            limiter=candidate.limiter,
            pareto=id(candidate) in front,
        )
    for rejection in found.rejected:
        yield CandidateRow(strategy=rejection.strategy, verdict="rejected", reason=rejection.reason)


# A plan made with other costs is still used; beyond this difference of its step time the user is told.
RESCORED_TOLERANCE = 0.1


def load_plan(
    path: Path,
    source: JobSource,
    request: PlanRequest = EVERYTHING,
    *,
    progress: Progress = ignore_progress,
) -> Planned:
    """Read a plan, check it against the job and this machine, and score it by the costs measured here.

    Args:
        path: of the plan
        source: where the job comes from
        request: as for `make_plan`; options without a value are those of the plan (`as_planned`)
        progress: called with the current work

    Raises:
        InputError: the plan is wrong, or was made for something else
        CorruptDataError: the plan was damaged or edited
        InfeasibleError: it does not fit the memory of the devices
    """
    plan = read_plan(path)
    check_has_program(plan, source=str(path))
    _check_kind(plan, local_cluster(replace(request, devices=None)))
    source, request = as_planned(plan, source, request)
    prepared = prepare(source, request, progress)
    job, graph, cluster, calibrated = prepared.job, prepared.graph, prepared.cluster, prepared.calibrated
    check_plan(
        plan,
        graph_digest=graph.digest,
        world_size=cluster.size,
        memory_bytes=list(cluster.memory_bytes),
        global_batch_size=job.global_batch_size,
    )
    strategy = fed_as_asked(plan.strategy, request.pins)
    check_exact(graph.behaviour, strategy)
    check_codec_runs(strategy.codec, on_gpu=cluster.machine.node.device.kind == "cuda")
    program, plan = plan_program(plan, source=str(path)), replace(plan, strategy=strategy)
    check_against_graph(program, graph, strategy, batch=job.global_batch_size)
    size = job.global_batch_size // (plan.strategy.dp * plan.strategy.microbatches)
    executions = tuple(dict.fromkeys(("eager", plan.strategy.execution)))
    table = measure_job(
        source,
        graph,
        cluster,
        {size},
        executions,
        calibrated,
        progress,
        reduces=strategy.sync == "p2p",
        gathers=strategy.zero >= 2,
        compressions=() if strategy.compression is None else (strategy.compression,),
    )
    traces = {} if strategy.memory_bytes is None else trace_job(source, {size}, progress)
    table = try_strategy(source, job, graph, cluster, strategy, program, table, progress) or table
    if strategy.memory_bytes is None:
        costs = price(program, graph, strategy, table, cluster, batch=job.global_batch_size)
        check_memory(program, costs, _memory_to_use(plan, cluster, request))
    problem = problem_here(prepared, request, table, executions=executions, traces=traces)
    chosen = score(program, strategy, problem, effect=effect_of_memory(strategy, problem))
    return Planned(
        source=source,
        request=request,
        evidence=Simulated(
            job=job,
            problem=problem,
            plan=replace(plan, prediction=predict(chosen)),
            chosen=chosen,
            noise=calibrated.noise_of(plan.strategy),
        ),
        notes=(
            *graph.notes,
            *inexactness(graph, strategy),
            *calibrated.lacks(cluster.size),
            *_rejoined(plan.premises.rate_limit, cluster.machine.node.rate_limit),
            *_rescored(plan.prediction, chosen),
            *filter(None, [said_of_codec(problem, chosen)]),
        ),
    )


def is_device_here(plan: Plan) -> bool:
    """Whether this machine may have the devices that a plan was made for: GPUs of the catalog need some GPU here."""
    return _missing_device(plan, local_cluster(EVERYTHING)) is None


def use_of_plan(plan: Plan, shown: str) -> tuple[list[str], str]:
    """What runs a plan: a training here or on its cluster, or another runtime where the plan has no program.

    Args:
        plan: of any kind
        shown: how its file is named

    Returns:
        Words of a command that is not refused, and where it is to be run: "" for this machine.
    """
    if not plan.has_program:
        # This target takes every plan of degrees; a script of plain PyTorch is not written for all of them.
        return ["trimaran", "export", shown, "--to", "torchtitan", "--output", "trimaran_torchtitan.py"], ""
    cluster = plan.premises.cluster
    return ["trimaran", "train", plan.job, "--plan", shown], f"on {cluster}" if cluster else ""


def check_runs_here(path: Path) -> None:
    """Refuse a plan that can never be run on this machine, before the model is made.

    Args:
        path: of the plan

    Raises:
        InputError: it has no program, or is for GPUs and there is none; with where it can be used
        CorruptDataError: it was damaged or edited
    """
    plan = read_plan(path)
    check_has_program(plan, source=str(path))
    _check_kind(plan, local_cluster(EVERYTHING))


def _missing_device(plan: Plan, cluster: Allocation) -> str | None:
    titles = {catalog()[name].title for name in catalog()}
    wanted = next((name for name in plan.premises.devices if name in titles), None)
    return wanted if cluster.devices[0].kind == "cpu" else None


def _check_kind(plan: Plan, cluster: Allocation) -> None:
    """Refuse a plan for GPUs of the catalog on a machine without any: its costs here would say nothing.

    Raises:
        InputError: with where the plan can be used
    """
    wanted = _missing_device(plan, cluster)
    if wanted is not None:
        machine = plan.premises.cluster or "the name of its machine"
        raise InputError(
            f"the plan for {plan.job!r} was made for {len(plan.premises.devices)} × {wanted}, and this machine has "
            f"none: use it there, look at it with `trimaran simulate` or `trimaran explain` and --cluster {machine}, "
            "or plan again for this machine",
            code="plan.other-device",
            device=wanted,
        )


def _memory_to_use(plan: Plan, cluster: Allocation, request: PlanRequest) -> list[int]:
    """Memory of each device [bytes]: no more than the plan was made for, unless the user says how much there is.

    Raises:
        InputError: the plan says it of another number of devices than it names
    """
    here = list(cluster.memory_bytes)
    then, devices = plan.premises.memory_bytes, plan.premises.devices
    if not then or request.memory_bytes is not None:
        return here
    if len(then) != len(devices):
        raise InputError(
            f"premises.memory_bytes of the plan for {plan.job!r} has {len(then)} entries for {len(devices)} devices: "
            "plan again, or give one for each",
            code="plan.wrong-budget-count",
        )
    return [min(have, had) for have, had in zip(here, then, strict=False)]


def as_planned(plan: Plan, source: JobSource, request: PlanRequest) -> tuple[JobSource, PlanRequest]:
    """The batch, the rates, the devices and the objective that a plan was made for, where the user says nothing else.

    Args:
        plan: says them
        source: where the job comes from
        request: of the user

    Raises:
        InputError: the job is wrong
    """
    return source_as_planned(plan, source), replace(
        request,
        devices=request.devices or len(plan.premises.devices),
        # At the batch of the plan the fastest is also the first at the target.
        objective=request.objective or ("throughput" if plan.objective in ("time", "cost") else plan.objective),
    )


def _rejoined(then: Link | None, now: Link | None) -> tuple[str, ...]:
    from trimaran.measure.costs import name_link

    before, after = ("nothing" if link is None else name_link(link) for link in (then, now))
    if before == after:
        return ()
    return (
        f"the plan was made for links limited to {before}, and here they are limited to {after}: it has been scored "
        "again, and another plan may be better",
    )


def _rescored(before: Prediction, now: Candidate) -> tuple[str, ...]:
    if before.step_time_s <= 0.0:
        # Written by hand, without a prediction.
        return ()
    change = now.step_time_s / before.step_time_s - 1
    if abs(change) <= RESCORED_TOLERANCE:
        return ()
    return (
        f"the plan was made with other costs: by those measured here its step time changes by {change:+.0%}; "
        "plan again to find the best plan here",
    )


def write_planned(path: Path, planned: Planned) -> None:
    """Write a plan to a file.

    Args:
        path: of the file
        planned: as it was made

    Raises:
        EnvironmentProblem: the file cannot be written
    """
    evidence = planned.evidence
    write_plan(path, whole_plan(evidence) if isinstance(evidence, Simulated) else evidence.plan)


def plan_of_degrees(
    reference: str, request: PlanRequest, problem: AnalyticalProblem, found: Search[AnalyticalCandidate]
) -> Plan:
    """Plan file of a search by the analytical model.

    Args:
        reference: of the job
        request: of the user, for a machine of the catalog
        problem: of the search
        found: result of the search
    """
    return Plan(
        job=reference,
        strategy=found.chosen.strategy,
        premises=Premises(
            graph_digest="",
            global_batch_size=problem.batch,
            devices=(problem.machine.node.device.title,) * problem.devices,
            memory_bytes=(problem.device_bytes,) * problem.devices,
            cluster=request.cluster,
            precision=problem.program.precision,
            layers=problem.shape.layers,
            sequence_length=problem.shape.sequence,
            framework=problem.program.framework,
            gradients=found.chosen.fits_as.gradients or "",
            optimizer_state=found.chosen.fits_as.optimizer_state or "",
            options=cost_options(request),
            decided=request.pins.options,
        ),
        prediction=predict(found.chosen),
        candidates=tuple(candidate_rows(found)),
    )


def plan_of(
    reference: str,
    problem: Problem,
    found: Search[Candidate],
    *,
    costs_digest: str,
    objective: Objective,
    link: PlannedLink | None = None,
    cluster: str = "",
    precision: str = "",
    options: tuple[str, ...] = (),
) -> Plan:
    """Plan file of a search, without its candidates and the lines of its program: `whole_plan` adds both.

    Args:
        reference: of the job
        problem: of the search
        found: result of the search
        costs_digest: of the costs by which
        objective: of the search
        link: rate limit of the links between local ranks; None: not limited
        cluster: machine of the catalog; empty: this one
        precision: of products on it; empty: that of the job
        options: others that the costs there depend on
    """
    return Plan(
        job=reference,
        strategy=found.chosen.strategy,
        premises=Premises(
            graph_digest=problem.graph.digest,
            global_batch_size=problem.batch,
            devices=tuple(device.title for device in problem.cluster.devices),
            memory_bytes=problem.cluster.memory_bytes,
            costs_digest=costs_digest,
            link=link,
            cluster=cluster,
            precision=precision,
            options=options,
            decided=problem.pins.options,
        ),
        prediction=predict(found.chosen),
        objective=objective,
    )


def whole_plan(evidence: Simulated) -> Plan:
    """A plan with its candidates and the lines of its program, as a file holds it.

    Args:
        evidence: of the plan
    """
    plan, search = evidence.plan, evidence.search
    if not plan.candidates and search is not None:
        plan = replace(plan, candidates=tuple(candidate_rows(search)))
    return plan if plan.program else replace(plan, program=program_lines(_whole_program(evidence)))


def costs_digest(problem: Problem, request: PlanRequest) -> str:
    """Digest of the costs that a plan for a machine of the catalog is scored by: machine, software and precision.

    Args:
        problem: has the costs
        request: of the user
    """
    # As files written before have it, so that their costs are still known to be these.
    precision = request.precision and ("tf32" if request.precision == "tf32" else product_dtype(request.precision))
    costs = f"{request.cluster} {problem.table.fingerprint.torch} {precision}"
    if request.loading.is_given:
        costs += f" {request.loading}"
    return hashlib.sha256(costs.encode()).hexdigest()[:16]


def _whole_program(evidence: Simulated) -> Program:
    """The program on all ranks; that of a candidate may be that of one replica, where all are alike."""
    problem, chosen = evidence.problem, evidence.chosen
    if len(chosen.program.ranks) == chosen.strategy.devices:
        return chosen.program
    return lower(problem.graph, chosen.strategy, batch=problem.batch, clip=problem.clip)
