"""The best strategy for a job at its own batch on this machine: measure, search, keep what was measured."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from trimaran.costs import CostTable
from trimaran.costs.table_files import encode_table
from trimaran.costs.tables import merge
from trimaran.costs.traced import TracedStep
from trimaran.costs.transfers import has_queues
from trimaran.errors import ExecutionError
from trimaran.planner import NO_PINS, Candidate, Problem, Search
from trimaran.planner.compressing import offered
from trimaran.planner.prices import PinPrice
from trimaran.planner.prices import prices as prices_of
from trimaran.planner.trials import Trials
from trimaran.planner.worth import said_of_compression
from trimaran.program import Plan, Premises, program_lines
from trimaran.program.types import Execution
from trimaran.session.choosing import find_best
from trimaran.session.feeding import feeding_notes, room_of
from trimaran.session.jobs import JobSource
from trimaran.session.measuring import measure_job, rehearse_strategy, trace_job, with_failing
from trimaran.session.planned import Planned, Progress, ignore_progress
from trimaran.session.preparing import Prepared, inexactness, prepare
from trimaran.session.request import EVERYTHING, PlanRequest
from trimaran.session.rows import candidate_rows, predict


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
            devices=tuple(device.name for device in cluster.devices),
            memory_bytes=tuple(device.memory_bytes for device in cluster.devices),
            costs_digest=hashlib.sha256(encode_table(table)).hexdigest()[:16],
            link=cluster.link,
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
