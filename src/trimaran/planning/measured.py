"""The best strategy for a job at its own batch on this machine: measure, search, keep what was measured."""

import dataclasses
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from trimaran.base.errors import ExecutionError, InfeasibleError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.jobs.resolve import JobSource
from trimaran.machine.detect import detect_machine
from trimaran.planner.candidates import Candidate
from trimaran.planner.pins import NO_PINS
from trimaran.planner.problem import Problem
from trimaran.planner.result import Search, said_of_compression
from trimaran.planner.search import PinPrice
from trimaran.planner.search import prices as prices_of
from trimaran.planner.space import offered
from trimaran.planner.target_estimates import Contender
from trimaran.planner.target_search import contender_of
from trimaran.planner.trials import Trials
from trimaran.planning.best_strategy import find_best, microbatch_sizes
from trimaran.planning.input_pipeline import feeding_notes, room_of
from trimaran.planning.measurement import measure_job, rehearse_strategy, trace_job, with_failing
from trimaran.planning.plan_files import candidate_rows, predict
from trimaran.planning.preparation import Prepared, inexactness, prepare
from trimaran.planning.requests import EVERYTHING, NO_TARGET, PlanRequest
from trimaran.planning.results import Outlook, Planned
from trimaran.planning.target import (
    batches_to_try,
    batches_within,
    conclude,
    find_job_curve,
    goal_of,
    has_own_data,
    planned_training,
    source_as_planned,
)
from trimaran.pricing.offload_costs import TracedStep
from trimaran.pricing.table_files import encode_table
from trimaran.pricing.tables import CostTable, merge
from trimaran.pricing.transfers import has_queues
from trimaran.program.plan import Plan, PlannedLink, Premises, program_lines
from trimaran.program.strategy import Execution


def plan_at_batch(
    source: JobSource,
    request: PlanRequest = EVERYTHING,
    *,
    prepared: Prepared | None = None,
    progress: Progress = ignore_progress,
) -> Planned:
    """Find the best way to train a job on this machine at the batch that it has.

    Args:
        source: where the job comes from
        request: what to look for, within which limits
        prepared: the job at that batch, its graph and the machine; None: look
        progress: told what is being done

    Raises:
        InputError: the job is wrong, or more devices than there are
        InfeasibleError: nothing fits
    """
    prepared = prepared or prepare(source, request, progress)
    job, graph, cluster, calibrated = prepared.job, prepared.graph, prepared.cluster, prepared.calibrated

    def measure(sizes: Collection[int], executions: Sequence[Execution]) -> CostTable:
        table = measure_job(
            source, graph, cluster, sizes, executions, calibrated, progress, compressions=offered(request.pins)
        )
        progress("searching", 0, 0)
        return table

    traces: dict[int, TracedStep] = {}

    def trace(sizes: Collection[int]) -> Mapping[int, TracedStep]:
        traces.update(trace_job(source, sizes, progress))
        return traces

    def rehearse(chosen: Candidate, table: CostTable) -> CostTable | None:
        if chosen.strategy.sync == "p2p" and not has_queues(table, chosen.strategy.dp):
            sizes = {job.global_batch_size // (chosen.strategy.dp * chosen.strategy.microbatches)}
            more = measure_job(source, graph, cluster, sizes, ("eager",), calibrated, progress, reduces=True)
            return merge([table, more])
        return rehearse_strategy(source, job, graph, cluster, chosen.strategy, chosen.program, table, progress)

    try:
        found, table = find_best(job, graph, cluster, prepared.data, request, measure, trace, rehearse)
    except ExecutionError as error:
        # Parts of other sizes were measured, and are found again.
        left = replace(prepared, graph=with_failing(graph, error))
        return plan_at_batch(source, request, prepared=left, progress=progress)
    said = filter(None, [said_of_compression(found, request.pins)])
    plan = Plan(
        job=source.reference,
        strategy=found.chosen.strategy,
        premises=Premises(
            graph_digest=graph.digest,
            global_batch_size=job.global_batch_size,
            devices=tuple(device.title for device in cluster.devices),
            memory_bytes=cluster.memory_bytes,
            costs_digest=hashlib.sha256(encode_table(table)).hexdigest()[:16],
            link=PlannedLink.of(cluster.machine.node.rate_limit),
        ),
        prediction=predict(found.chosen),
        objective="epoch" if request.objective == "epoch" else "throughput",
        candidates=tuple(candidate_rows(found)),
        program=program_lines(found.chosen.program),
    )
    return Planned(
        source=source,
        job=job,
        graph=graph,
        cluster=cluster,
        table=table,
        plan=plan,
        chosen=found.chosen,
        traces=traces,
        search=found,
        prices=_prices(found, prepared, table, request, traces),
        noise=calibrated.noise_of(found.chosen.strategy),
        warnings=(
            *graph.notes,
            *inexactness(graph, found.chosen.strategy),
            *calibrated.lacks(cluster.size),
            *feeding_notes(found),
            *said,
        ),
    )


def _prices(
    found: Search, prepared: Prepared, table: CostTable, request: PlanRequest, traces: Mapping[int, TracedStep]
) -> tuple[PinPrice, ...]:
    if request.pins == NO_PINS:
        return ()
    problem = Problem(
        graph=prepared.graph,
        table=table,
        cluster=prepared.cluster,
        batch=prepared.job.global_batch_size,
        devices=prepared.cluster.size,
        clip=prepared.job.clip_norm is not None,
        executions=executions_of(found),
        epoch=prepared.data if request.objective == "epoch" else None,
        traces=traces,
        pins=request.pins,
        time_limit_s=request.time_limit_s,
        gap=request.gap,
        room=room_of(prepared.job, prepared.data),
    )
    return prices_of(problem, found, Trials(problem))


def executions_of(found: Search) -> tuple[Execution, ...]:
    """How segments ran in what a search simulated; eager first."""
    return tuple(sorted({one.strategy.execution for one in found.candidates}, reverse=True))


# ---------------------------------------------------------------------------------------------------------------------
# `trimaran plan JOB --objective time` on this machine: a search at each batch, then the choice among all of them


def plan_for_target(source: JobSource, request: PlanRequest, *, progress: Progress) -> Planned:
    """Find strategy, devices and batch that are best for reaching the target.

    Args:
        source: where the job comes from
        request: what to look for, within which limits
        progress: told what is being done

    Raises:
        InputError: the job or its curve is wrong, or more devices than there are
        InfeasibleError: nothing fits at any batch
    """
    asked = goal_of(request.objective, request.target)
    prepared = prepare(source, request, progress)
    samples = prepared.data.samples if has_own_data(source.reference) else None
    known = find_job_curve(prepared.job, source.reference, request.target, samples=samples)
    wanted = batches_to_try(
        prepared.job.global_batch_size,
        known,
        request.target,
        devices=prepared.cluster.size,
        fixed=source.global_batch_size is not None,
    )
    batches, left_out = batches_within(wanted, known)
    plain = dataclasses.replace(request, objective="throughput", target=NO_TARGET)
    _measure_all(source, prepared, batches, plain, progress)
    plans: dict[int, Planned] = {}
    contenders: list[Contender] = []
    for number, batch in enumerate(batches):
        progress(f"planning for batch {batch}", number, len(batches))
        job = dataclasses.replace(prepared.job, global_batch_size=batch)
        at_batch = dataclasses.replace(source, global_batch_size=batch)
        try:
            found = plan_at_batch(at_batch, plain, prepared=dataclasses.replace(prepared, job=job))
        except InfeasibleError as error:
            left_out.append((batch, error.message))
            continue
        plans[batch] = found
        contenders += [contender_of(one, batch) for one in (found.search.candidates if found.search else ())]
    outlook = conclude(
        contenders,
        asked=asked,
        known=known,
        request=request.target,
        batches=batches,
        left_out=left_out,
        node_devices=detect_machine().devices,
    )
    return _planned(plans[outlook.chosen.global_batch], outlook, source)


def _measure_all(
    source: JobSource, prepared: Prepared, batches: Sequence[int], request: PlanRequest, progress: Progress
) -> None:
    """Measure what all batches need in one go; each search then finds it."""
    if len(batches) < 2:
        return
    sizes = {
        size
        for batch in batches
        for size in microbatch_sizes(prepared.graph, devices=prepared.cluster.size, batch=batch, pins=request.pins)
    }
    executions: tuple[Execution, ...] = ("eager", "compiled") if request.execution == "compiled" else ("eager",)
    measure_job(
        source,
        prepared.graph,
        prepared.cluster,
        sizes,
        executions,
        prepared.calibrated,
        progress,
        compressions=offered(request.pins),
    )


def _planned(planned: Planned, outlook: Outlook, source: JobSource) -> Planned:
    """The plan at the chosen batch, with the strategy that was chosen over all batches."""
    chosen, found = outlook.chosen.contender.origin, planned.search
    search = None if found is None else dataclasses.replace(found, chosen=chosen)
    plan = dataclasses.replace(
        planned.plan,
        strategy=chosen.strategy,
        prediction=predict(chosen),
        objective=outlook.goal,
        candidates=() if search is None else tuple(candidate_rows(search)),
        program=program_lines(chosen.program),
        training=planned_training(outlook),
    )
    followed = source_as_planned(plan, source)
    return dataclasses.replace(
        planned,
        source=followed,
        job=followed.make(),
        plan=plan,
        chosen=chosen,
        search=search,
        outlook=outlook,
        warnings=(*planned.warnings, *outlook.warnings),
    )
