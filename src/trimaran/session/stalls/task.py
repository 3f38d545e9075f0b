"""What a stall analysis runs: plain replicas on all devices, or the strategy of a plan."""

from dataclasses import dataclass, replace
from pathlib import Path

from trimaran.cluster import Cluster
from trimaran.errors import InputError
from trimaran.graph import Graph
from trimaran.job import Job
from trimaran.program import (
    Program,
    Strategy,
    check_against_graph,
    check_plan,
    lower,
    lower_evaluation,
    plan_program,
    read_plan,
)
from trimaran.program.types import Kind
from trimaran.session.jobs import JobSource
from trimaran.session.planning import Progress, as_planned, ignore_progress
from trimaran.session.preparing import prepare
from trimaran.session.request import PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class StallTask:
    """What is run.

    Attributes:
        source: where the job comes from
        job: the job
        graph: its dataflow graph
        cluster: the devices, those of the strategy first
        strategy: what is run, its feeding as asked for
        program: of a step
        evaluation: of the evaluation of a batch
    """

    source: JobSource
    job: Job
    graph: Graph
    cluster: Cluster
    strategy: Strategy
    program: Program
    evaluation: Program


def prepare_task(
    source: JobSource,
    request: PlanRequest,
    *,
    plan: Path | None,
    workers: int | None,
    progress: Progress = ignore_progress,
) -> StallTask:
    """What is run for a request.

    Args:
        source: where the job comes from
        request: how many devices, with which links
        plan: file of the plan that is run; None: plain replicas on all devices
        workers: of each rank that load; None: as the plan says, without one none
        progress: told what is being done

    Raises:
        InputError: the job, its data or the plan is wrong, or more devices than there are
    """
    found = None if plan is None else read_plan(plan)
    if found is not None:
        source, request = as_planned(found, source, request)
    prepared = prepare(source, request, progress)
    job, graph, cluster = prepared.job, prepared.graph, prepared.cluster
    batch = job.global_batch_size
    if found is None:
        if batch < cluster.size:
            raise InputError(
                f"a global batch of {batch} samples is too small for {cluster.size} devices: --devices {batch}, or a "
                "larger --batch",
                batch=batch,
                devices=cluster.size,
            )
        strategy = Strategy(dp=cluster.size)
        program = lower(graph, strategy, batch=_divisible(batch, strategy), clip=job.clip_norm is not None)
    else:
        check_plan(
            found,
            graph_digest=graph.digest,
            world_size=cluster.size,
            memory_bytes=[device.memory_bytes for device in cluster.devices],
            global_batch_size=batch,
        )
        strategy, program = found.strategy, plan_program(found, source=str(plan))
        check_against_graph(program, graph, strategy, batch=batch)
    if workers is not None:
        strategy = replace(strategy, feeding=replace(strategy.feeding, workers=workers))
    return StallTask(
        source=source,
        job=job,
        graph=graph,
        cluster=cluster,
        strategy=strategy,
        program=program,
        evaluation=lower_evaluation(graph, strategy, batch=_divisible(batch, strategy)),
    )


def summed_bytes(strategy: Strategy, program: Program) -> int:
    """Size of the gradients that all ranks add up in buckets [bytes]; 0 where that is not how they are exchanged.

    Args:
        strategy: what is run
        program: of a step
    """
    if strategy.dp < 2 or strategy.dp != strategy.devices or strategy.zero or strategy.sync != "all-reduce":
        return 0
    return sum(
        instruction.nbytes
        for instruction in program.ranks[0]
        if instruction.kind is Kind.ALL_REDUCE and instruction.label.startswith("b")
    )


def _divisible(batch: int, strategy: Strategy) -> int:
    """A batch for which a program is lowered: it must divide evenly, and the runtime takes any."""
    parts = strategy.dp * strategy.microbatches
    return -(-batch // parts) * parts
