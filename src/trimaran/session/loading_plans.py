"""A plan from a file: checked against the job and this machine, and scored by what things cost here."""

from dataclasses import replace
from pathlib import Path

from trimaran.cluster import Cluster, Link
from trimaran.cluster.catalog import catalog
from trimaran.costs import price
from trimaran.errors import InputError
from trimaran.planner import Candidate, score
from trimaran.planner.virtual import squeeze
from trimaran.program import Plan, Prediction, check_against_graph, check_plan, plan_program, read_plan
from trimaran.program.exactness import check_exact
from trimaran.session.accuracy.following import source_as_planned
from trimaran.session.feeding import fed_as_asked
from trimaran.session.jobs import JobSource
from trimaran.session.measuring import measure_job, rehearse_strategy, trace_job
from trimaran.session.planned import Planned, Progress, ignore_progress
from trimaran.session.preparing import inexactness, local_cluster, prepare
from trimaran.session.request import EVERYTHING, PlanRequest
from trimaran.session.rows import predict
from trimaran.simulator.overflow import check_memory

# A plan made with other costs is still used; beyond this difference of its step time the user is told.
RESCORED_TOLERANCE = 0.1


def load_plan(
    path: Path,
    source: JobSource,
    request: PlanRequest = EVERYTHING,
    *,
    progress: Progress = ignore_progress,
) -> Planned:
    """Read a plan, check it against the job and this machine, and score it by what things cost here.

    Args:
        path: of the plan
        source: where the job comes from
        request: as for `plan_job`; what neither says is as the plan was made for (`as_planned`)
        progress: told what is being done

    Raises:
        InputError: the plan is wrong, or was made for something else
        CorruptDataError: the plan was damaged or edited
        InfeasibleError: it does not fit the memory of the devices
    """
    plan = read_plan(path)
    _check_kind(plan, local_cluster(replace(request, devices=None)))
    source, request = as_planned(plan, source, request)
    prepared = prepare(source, request, progress)
    job, graph, cluster, calibrated = prepared.job, prepared.graph, prepared.cluster, prepared.calibrated
    check_plan(
        plan,
        graph_digest=graph.digest,
        world_size=cluster.size,
        memory_bytes=[device.memory_bytes for device in cluster.devices],
        global_batch_size=job.global_batch_size,
    )
    strategy = fed_as_asked(plan.strategy, request.pins)
    check_exact(graph.behaviour, strategy)
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
    table = rehearse_strategy(source, job, graph, cluster, strategy, program, table, progress) or table
    if not traces:
        costs = price(program, graph, strategy, table, cluster, batch=job.global_batch_size)
        check_memory(program, costs, _memory_to_use(plan, cluster, request))
    chosen = score(
        program,
        strategy,
        graph,
        table,
        cluster,
        batch=job.global_batch_size,
        clip=job.clip_norm is not None,
        epoch=prepared.data if request.objective == "epoch" else None,
        effect=squeeze(strategy, traces[size]) if traces else None,
    )
    return Planned(
        source=source,
        job=job,
        graph=graph,
        cluster=cluster,
        table=table,
        plan=replace(plan, prediction=predict(chosen)),
        chosen=chosen,
        traces=traces,
        noise=calibrated.noise_of(plan.strategy),
        warnings=(
            *graph.notes,
            *inexactness(graph, strategy),
            *calibrated.lacks(cluster.size),
            *_rejoined(plan.premises.link, cluster.link),
            *_rescored(plan.prediction, chosen),
        ),
    )


def _check_kind(plan: Plan, cluster: Cluster) -> None:
    """Refuse a plan for GPUs of the catalog on a machine without any: its costs here would say nothing.

    Raises:
        InputError: with where the plan can be used
    """
    titles = {catalog()[name].title for name in catalog()}
    wanted = next((name for name in plan.premises.devices if name in titles), None)
    if wanted is not None and cluster.devices[0].kind == "cpu":
        raise InputError(
            f"the plan for {plan.job!r} was made for {len(plan.premises.devices)} × {wanted}, and this machine has "
            "none: use it there, look at it with --cluster and the name of its machine, or plan again for what is here",
            code="plan.other-device",
            device=wanted,
        )


def _memory_to_use(plan: Plan, cluster: Cluster, request: PlanRequest) -> list[int]:
    """Memory of each device [bytes]: no more than the plan was made for, unless the user says how much there is.

    Raises:
        InputError: the plan says it of another number of devices than it names
    """
    here = [device.memory_bytes for device in cluster.devices]
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
        request: what the user asks

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
        f"the plan was made for links held to {before}, and here they are held to {after}: it has been scored again, "
        "and another plan may be better",
    )


def _rescored(before: Prediction, now: Candidate) -> tuple[str, ...]:
    if before.step_time_s <= 0.0:
        # Written by hand, without a prediction.
        return ()
    change = now.step_time_s / before.step_time_s - 1
    if abs(change) <= RESCORED_TOLERANCE:
        return ()
    return (
        f"the plan was made with other costs: by those measured here its step takes {change:+.0%} of what it said; "
        "plan again to see what is best here",
    )
