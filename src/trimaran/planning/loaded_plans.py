"""A plan from a file: checked against the job and this machine, and scored by the costs measured here.

A plan for a machine of the catalog is an ordinary plan file too: its premises name the devices and the graph. A plan of
the analytical model has degrees, the network's layers and no program.
"""

from dataclasses import replace
from pathlib import Path

from trimaran.base.errors import InputError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.jobs.resolve import JobSource
from trimaran.machine.catalog import catalog
from trimaran.machine.detect import lacks_gpus
from trimaran.machine.types import Allocation, Link
from trimaran.planner.candidates import Candidate, score
from trimaran.planner.problem import effect_of_memory
from trimaran.planner.result import said_of_codec
from trimaran.planning.answer.evidence import Simulated
from trimaran.planning.answer.results import Planned
from trimaran.planning.answer.written_plans import predict
from trimaran.planning.input_pipeline import fed_as_asked
from trimaran.planning.measurement import measure_job, trace_job, try_strategy
from trimaran.planning.preparation import inexactness, local_cluster, prepare, problem_here
from trimaran.planning.requests import EVERYTHING, PlanRequest, check_not_analytical
from trimaran.planning.target import source_as_planned
from trimaran.pricing.program import price
from trimaran.program.memory import check_codec_runs
from trimaran.program.plan_file import (
    Plan,
    Prediction,
    check_has_program,
    check_plan,
    plan_program,
    read_plan,
)
from trimaran.program.refusals import check_exact
from trimaran.program.rules.against_graph import check_against_graph
from trimaran.simulator.memory_check import check_memory

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
    check_not_analytical(request)
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
        gathers=strategy.zero >= 2 or strategy.splits_sequences,
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
    if _wanted_gpu(plan) is None:
        return True
    return not lacks_gpus() and _missing_device(plan, local_cluster(EVERYTHING)) is None


def use_of_plan(plan: Plan, shown: str) -> tuple[list[str], str]:
    """What runs a plan: a training here or on its cluster, or another runtime where the plan has no program.

    Args:
        plan: of any kind
        shown: how its file is named

    Returns:
        Words of a command that is not refused, and where it is to be run: "" for this machine.
    """
    if not plan.has_program:
        # A plan of degrees is of Megatron's software, unless another was asked for.
        return ["trimaran", "export", shown, "--to", "megatron", "--output", "trimaran_megatron.args"], ""
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


def _wanted_gpu(plan: Plan) -> str | None:
    titles = {catalog()[name].title for name in catalog()}
    return next((name for name in plan.premises.devices if name in titles), None)


def _missing_device(plan: Plan, cluster: Allocation) -> str | None:
    return _wanted_gpu(plan) if cluster.devices[0].kind == "cpu" else None


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
            f"none: use it there, look at it with `trimaran plan` or `trimaran explain` and --cluster {machine}, "
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
        InputError: the job is wrong, or a choice of batches, which the plan has made
    """
    check_batch_is_chosen(request)
    source = replace(source, global_batch_size=request.batch or source.global_batch_size)
    return source_as_planned(plan, source), replace(
        request,
        devices=request.devices or len(plan.premises.devices),
        # At the batch of the plan the fastest is also the first at the target.
        objective=request.objective or ("throughput" if plan.objective in ("time", "cost") else plan.objective),
    )


def check_batch_is_chosen(request: PlanRequest) -> None:
    """Refuse a choice of batches, which a plan from a file has made.

    Raises:
        InputError: with its options
    """
    if request.asks_for_outlook:
        raise InputError(
            "--curve and --objective time or cost choose a batch, and the plan has one: leave them out",
            code="explain.curve-and-plan",
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
