"""From a job and a number of devices to a plan: capture, measure, search.

What was measured is kept, so that planning the same job again starts no process.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trimaran.cluster import Cluster, Link
from trimaran.cluster.catalog import catalog
from trimaran.cluster.detect import detect_cluster
from trimaran.costs import CostTable, price
from trimaran.costs.noise import Noise
from trimaran.costs.table_files import encode_table
from trimaran.costs.tables import merge
from trimaran.costs.traced import TracedStep
from trimaran.costs.transfers import has_queues
from trimaran.errors import InputError
from trimaran.graph import Graph
from trimaran.job import Job
from trimaran.planner import NO_PINS, Candidate, EpochData, Problem, Search, score
from trimaran.planner.prices import PinPrice, prices
from trimaran.planner.trials import Trials
from trimaran.planner.virtual import squeeze
from trimaran.program import (
    Plan,
    Prediction,
    Premises,
    Program,
    Strategy,
    check_against_graph,
    check_plan,
    lower_evaluation,
    plan_program,
    program_lines,
    read_plan,
)
from trimaran.program.types import Execution
from trimaran.session.calibrated import Calibrated, find_calibrated
from trimaran.session.choosing import find_best
from trimaran.session.jobs import JobSource
from trimaran.session.request import PlanRequest
from trimaran.session.rows import candidate_rows, predict
from trimaran.simulator.overflow import check_memory

Progress = Callable[[str, int, int], None]

EVERYTHING = PlanRequest()

# A plan made with other costs is still used; beyond this difference of its step time the user is told.
RESCORED_TOLERANCE = 0.1


def ignore_progress(what: str, done: int, total: int) -> None:
    """The progress of somebody who does not look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan with all that it was made from.

    Attributes:
        source: where the job comes from
        job: the job
        graph: its dataflow graph
        cluster: the devices that may take part
        table: measured costs
        plan: what was decided
        chosen: the simulation of it
        traces: steps of microbatches, by samples, where memory stood against keeping everything
        search: what it was chosen from; None for a plan that was read from a file
        prices: what each pin of the request costs
        noise: how far identical runs of so many ranks are apart here; None where that is not known
        warnings: what the user should know before running it
    """

    source: JobSource
    job: Job
    graph: Graph
    cluster: Cluster
    table: CostTable
    plan: Plan
    chosen: Candidate
    traces: Mapping[int, TracedStep] = field(default_factory=dict)
    search: Search | None = None
    prices: tuple[PinPrice, ...] = ()
    noise: Noise | None = None
    warnings: tuple[str, ...] = ()


def obtain_plan(
    source: JobSource,
    request: PlanRequest = EVERYTHING,
    *,
    path: Path | None = None,
    progress: Progress = ignore_progress,
) -> Planned:
    """Make a plan, or read it where a file is given; see `plan_job` and `load_plan`."""
    if path is None:
        return plan_job(source, request, progress=progress)
    return load_plan(path, source, request, progress=progress)


def plan_job(
    source: JobSource,
    request: PlanRequest = EVERYTHING,
    *,
    progress: Progress = ignore_progress,
) -> Planned:
    """Find the best way to train a job on this machine.

    Args:
        source: where the job comes from
        request: what to look for, within which limits
        progress: told what is being done

    Raises:
        InputError: the job is wrong, or more devices than there are
        InfeasibleError: nothing fits
    """
    calibrated = find_calibrated(request)
    job, graph, cluster, data = _prepare(source, request, progress)

    def measure(sizes: Collection[int], executions: Sequence[Execution]) -> CostTable:
        table = _measure(source, graph, cluster, sizes, executions, calibrated, progress)
        progress("searching", 0, 0)
        return table

    traces: dict[int, TracedStep] = {}

    def trace(sizes: Collection[int]) -> Mapping[int, TracedStep]:
        traces.update(_trace(source, sizes, progress))
        return traces

    def rehearse(chosen: Candidate, table: CostTable) -> CostTable | None:
        if chosen.strategy.sync == "p2p" and not has_queues(table, chosen.strategy.dp):
            sizes = {job.global_batch_size // (chosen.strategy.dp * chosen.strategy.microbatches)}
            more = _measure(source, graph, cluster, sizes, ("eager",), calibrated, progress, reduces=True)
            return merge([table, more])
        return _rehearse(source, job, graph, cluster, chosen.strategy, chosen.program, table, progress)

    found, table = find_best(job, graph, cluster, data, request, measure, trace, rehearse)
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
        objective=request.objective or "throughput",
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
        prices=_prices(found, graph, table, cluster, job, data, request, traces),
        noise=calibrated.noise_of(found.chosen.strategy),
        warnings=(*graph.notes, *calibrated.lacks(cluster.size)),
    )


def _prices(
    found: Search,
    graph: Graph,
    table: CostTable,
    cluster: Cluster,
    job: Job,
    data: EpochData,
    request: PlanRequest,
    traces: Mapping[int, TracedStep],
) -> tuple[PinPrice, ...]:
    if request.pins == NO_PINS:
        return ()
    problem = Problem(
        graph=graph,
        table=table,
        cluster=cluster,
        batch=job.global_batch_size,
        devices=cluster.size,
        clip=job.clip_norm is not None,
        executions=executions_of(found),
        epoch=data if request.objective == "epoch" else None,
        traces=traces,
        pins=request.pins,
        time_limit_s=request.time_limit_s,
        gap=request.gap,
    )
    return prices(problem, found, Trials(problem))


def executions_of(found: Search) -> tuple[Execution, ...]:
    """How segments ran in what a search simulated; eager first."""
    return tuple(sorted({one.strategy.execution for one in found.candidates}, reverse=True))


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
    calibrated = find_calibrated(request)
    job, graph, cluster, data = _prepare(source, request, progress)
    check_plan(
        plan,
        graph_digest=graph.digest,
        world_size=cluster.size,
        memory_bytes=[device.memory_bytes for device in cluster.devices],
        global_batch_size=job.global_batch_size,
    )
    program, strategy = plan_program(plan, source=str(path)), plan.strategy
    check_against_graph(program, graph, strategy, batch=job.global_batch_size)
    size = job.global_batch_size // (plan.strategy.dp * plan.strategy.microbatches)
    executions = tuple(dict.fromkeys(("eager", plan.strategy.execution)))
    reduces, gathers = strategy.sync == "p2p", strategy.zero >= 2
    table = _measure(source, graph, cluster, {size}, executions, calibrated, progress, reduces=reduces, gathers=gathers)
    traces = {} if strategy.memory_bytes is None else _trace(source, {size}, progress)
    table = _rehearse(source, job, graph, cluster, strategy, program, table, progress) or table
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
        epoch=data if request.objective == "epoch" else None,
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
            "plan again, or give one for each"
        )
    return [min(have, had) for have, had in zip(here, then, strict=False)]


def as_planned(plan: Plan, source: JobSource, request: PlanRequest) -> tuple[JobSource, PlanRequest]:
    """The batch, the devices and the objective that a plan was made for, where the user says nothing else.

    Args:
        plan: says them
        source: where the job comes from
        request: what the user asks

    Raises:
        InputError: the job is wrong
    """
    batch = plan.premises.global_batch_size
    if source.global_batch_size is None and source.make().global_batch_size != batch:
        source = replace(source, global_batch_size=batch)
    return source, replace(
        request,
        devices=request.devices or len(plan.premises.devices),
        objective=request.objective or plan.objective,
    )


def local_cluster(request: PlanRequest = EVERYTHING) -> Cluster:
    """This machine as a cluster.

    Args:
        request: how many devices, with how much memory, joined by what

    Raises:
        InputError: more devices than there are
    """
    available, devices = detect_cluster().size, request.devices
    if devices is not None and devices > available and not request.oversubscribe:
        raise InputError(
            f"{devices} devices were asked for, this machine has {available}: "
            f"use --devices {available}, or --oversubscribe to share them",
            devices=devices,
            available=available,
        )
    cluster = replace(detect_cluster(devices), link=request.link)
    most = request.memory_bytes
    if most is None:
        return cluster
    limited = tuple(replace(device, memory_bytes=min(most, device.memory_bytes)) for device in cluster.devices)
    return replace(cluster, devices=limited)


def _prepare(source: JobSource, request: PlanRequest, progress: Progress) -> tuple[Job, Graph, Cluster, EpochData]:
    from trimaran.graph.capture import capture

    progress("reading the job", 0, 0)
    job = source.make()
    cluster = local_cluster(request)
    progress("capturing the graph", 0, 0)
    graph = capture(job).graph
    return job, graph, cluster, epoch_data(job)


def epoch_data(job: Job) -> EpochData:
    """How many samples an epoch of a job has."""
    from trimaran.runtime.feed import check_length
    from trimaran.runtime.loading import dataset_length

    samples = dataset_length(job.dataset())
    check_length(samples, job)
    held_out = 0 if job.evaluation_dataset is None or job.metric is None else dataset_length(job.evaluation_dataset())
    return EpochData(samples=samples, evaluation_samples=held_out, drop_last=job.drop_last)


def _measure(
    source: JobSource,
    graph: Graph,
    cluster: Cluster,
    sizes: Collection[int],
    executions: Sequence[Execution],
    calibrated: Calibrated,
    progress: Progress,
    *,
    reduces: bool = False,
    gathers: bool = True,
) -> CostTable:
    from trimaran.measure import measure_costs

    return measure_costs(
        source.make,
        graph,
        ranks=cluster.size,
        batches=sorted(sizes),
        executions=executions,
        link=cluster.link,
        known=calibrated.tables,
        reduces=reduces,
        gathers=gathers,
        progress=progress,
    )


def _rehearse(
    source: JobSource,
    job: Job,
    graph: Graph,
    cluster: Cluster,
    strategy: Strategy,
    program: Program,
    table: CostTable,
    progress: Progress,
) -> CostTable | None:
    """Run a strategy that a library runs in a way of its own, where that was not measured; see `measure.rehearsal`."""
    from trimaran.measure.rehearsal import fit_form, is_known, rehearse

    batch = job.global_batch_size
    if is_known(strategy, graph, table, microbatch=batch // (strategy.dp * strategy.microbatches)):
        return None
    progress(f"running {strategy.name}", 0, 0)
    evaluation = lower_evaluation(graph, strategy, batch=batch)
    found = rehearse(source.make, strategy, program, evaluation, link=cluster.link)
    return fit_form(found, strategy, program, graph, table, cluster, batch=batch)


def _trace(source: JobSource, sizes: Collection[int], progress: Progress) -> Mapping[int, TracedStep]:
    from trimaran.measure.tracing import trace_steps

    return trace_steps(source.make, sorted(sizes), progress=progress)


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
