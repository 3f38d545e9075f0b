"""Inputs of a plan for this machine: the job, its graph, its data, the devices."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.base.progress import Progress
from trimaran.base.units import format_some
from trimaran.graph.behaviour import weighed
from trimaran.graph.types import Graph
from trimaran.jobs.resolve import JobSource, check_room
from trimaran.machine.detect import detect_machine
from trimaran.machine.types import Allocation
from trimaran.planner.epoch import EpochData
from trimaran.planner.problem import Problem
from trimaran.planning.input_pipeline import room_of
from trimaran.planning.measurement import Calibrated, find_calibrated
from trimaran.planning.requests import EVERYTHING, PlanRequest
from trimaran.pricing.offload_costs import TracedStep
from trimaran.pricing.tables import CostTable
from trimaran.program.memory import check_codec_runs
from trimaran.program.refusals import difference
from trimaran.program.strategy import IN_LINE, Execution, Feeding, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Inputs that need no measurement.

    Attributes:
        job: the job
        graph: its dataflow graph, the same for any batch
        cluster: the devices that may take part
        data: how many samples an epoch has
        calibrated: figures of this machine that are kept
    """

    job: Job
    graph: Graph
    cluster: Allocation
    data: EpochData
    calibrated: Calibrated


def local_cluster(request: PlanRequest = EVERYTHING) -> Allocation:
    """This machine as a cluster.

    Args:
        request: number of devices, their memory and links

    Raises:
        InputError: more devices than there are
    """
    available, devices = detect_machine().devices, request.devices
    if devices is not None and devices > available and not request.oversubscribe:
        raise InputError(
            f"{devices} devices were asked for, this machine has {available}: "
            f"use --devices {available}; commands with --oversubscribe share them",
            code="machine.lacks-devices",
            devices=devices,
            available=available,
        )
    return detect_machine(devices).rate_limited(request.link).allocate(memory_bytes=request.memory_bytes)


def prepare(source: JobSource, request: PlanRequest, progress: Progress) -> Prepared:
    """Make the job, capture its graph and look at the machine.

    Args:
        source: where the job comes from
        request: which devices
        progress: called with the current work

    Raises:
        InputError: the job is wrong, or more devices than there are
    """
    from trimaran.graph.capture.capture import capture_and_look

    calibrated = find_calibrated(request)
    progress("reading the job", 0, 0)
    job = source.make()
    check_room(job, source.reference)
    cluster = local_cluster(request)
    check_codec_runs(request.pins.codec_choice, on_gpu=cluster.machine.node.device.kind == "cuda")
    progress("capturing the graph", 0, 0)
    graph = capture_and_look(job).graph
    if graph.behaviour is not None:
        graph = replace(graph, behaviour=replace(graph.behaviour, accepted=request.accept_inexact))
    data = epoch_data(job)
    if not data.numbered and request.pins.workers:
        from trimaran.runtime.data.datasets import check_streamed

        check_streamed(job, Feeding(workers=request.pins.workers))
    if request.objective == "epoch":
        data.check_known()
    return Prepared(job=weighed(job, graph.behaviour), graph=graph, cluster=cluster, data=data, calibrated=calibrated)


def problem_here(
    prepared: Prepared,
    request: PlanRequest,
    table: CostTable,
    *,
    executions: tuple[Execution, ...],
    traces: Mapping[int, TracedStep] | None = None,
) -> Problem:
    """The problem of a plan for this machine.

    Args:
        prepared: the job, its graph and data, the devices
        request: objective and limits
        table: measured costs
        executions: how segments may run
        traces: steps of microbatches, by samples, where memory stood against keeping everything; None: none
    """
    job, data = prepared.job, prepared.data
    return Problem(
        graph=prepared.graph,
        table=table,
        cluster=prepared.cluster,
        batch=job.global_batch_size,
        devices=prepared.cluster.size,
        clip=job.clip_norm is not None,
        executions=executions,
        epoch=data if request.objective == "epoch" else None,
        traces=traces or {},
        pins=request.pins,
        time_limit_s=request.time_limit_s,
        gap=request.gap,
        room=room_of(job, data),
        by_devices=request.asks_for_outlook,
    )


def epoch_data(job: Job) -> EpochData:
    """How many samples an epoch of a job has; with a sampler its first one.

    Random states are restored afterwards.

    Raises:
        InputError: the data or the sampler will not do
    """
    from trimaran.runtime.data.datasets import (
        check_length,
        check_streamed,
        data_length,
        make_dataset,
        make_evaluation_dataset,
    )
    from trimaran.runtime.data.orders import draw_order
    from trimaran.user_code.datasets import is_stream
    from trimaran.user_code.randomness import preserved_randomness

    with preserved_randomness():
        dataset = make_dataset(job)
        samples, numbered = data_length(dataset), not is_stream(dataset)
        if not numbered:
            check_streamed(job, IN_LINE)
        elif samples is not None:
            if job.sampler is not None:
                samples = len(draw_order(job, dataset, samples, 0))
            check_length(samples, job)
        held_out: int | None = 0
        if job.evaluation_dataset is not None and job.metric is not None:
            held_out = data_length(make_evaluation_dataset(job))
    return EpochData(samples=samples, evaluation_samples=held_out, drop_last=job.drop_last, numbered=numbered)


def inexactness(graph: Graph, strategy: Strategy) -> tuple[str, ...]:
    """How far a strategy that was accepted trains something else, or that it is not known, in words.

    Args:
        graph: of the job, with traced effects
        strategy: that is run
    """
    seen = graph.behaviour
    drawn: tuple[str, ...] = ()
    if seen is not None and seen.collate_draws and strategy.dp * strategy.microbatches > 1:
        drawn = (
            "Job.collate draws random numbers, for each part of a batch its own: what it draws for each sample is "
            "drawn as in one process, what it draws once for a batch (as mixup does) is drawn once for each part; draw "
            "it in the forward, or use one device without microbatches, where that matters",
        )
    whole = strategy.microbatches == 1 and strategy.segments == 1 and strategy.tp == 1
    carried = () if seen is None else seen.carried_of_samples if whole else seen.carried
    if carried and strategy.dp * strategy.microbatches * strategy.segments * strategy.tp > 1:
        drawn += (
            f"each step changes {format_some(carried)}, which is kept in Python: here each microbatch does so, each "
            "replica by its own samples, and a rank that has a part of the model runs the graph of its capture. The "
            "trial compares the first steps: keep in a buffer (register_buffer) what later ones go by",
        )
    if seen is not None and seen.not_looked and strategy.dp * strategy.microbatches > 1:
        return (
            f"not known whether parts of a batch train this job exactly: {seen.not_looked}; the trial of "
            "trimaran train compares the first steps with one process",
            *drawn,
        )
    found = difference(seen, strategy) if seen is not None and seen.accepted else None
    return drawn if found is None else (f"accepted, though it trains something else: {found}", *drawn)


# ---------------------------------------------------------------------------------------------------------------------
# Environment of a result: kept with it


def cluster_environment(cluster: Allocation) -> dict[str, str]:
    """Versions and devices, to be kept with results on them.

    Args:
        cluster: the devices, and the rate limit of their links
    """
    import torch

    from trimaran.measure.costs import name_link

    link = cluster.machine.node.rate_limit
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(terse=True),
        "devices": f"{cluster.size} × {cluster.devices[0].title}",
    } | ({} if link is None else {"link": name_link(link)})
