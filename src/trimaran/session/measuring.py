"""What plans for this machine need measured: operations and links, trial runs of some strategies, traces of steps."""

from collections.abc import Collection, Mapping, Sequence

from trimaran.cluster import Cluster
from trimaran.costs import CostTable
from trimaran.costs.traced import TracedStep
from trimaran.graph import Graph
from trimaran.job import Job
from trimaran.program import Program, Strategy, lower_evaluation
from trimaran.program.types import Execution
from trimaran.session.calibrated import Calibrated
from trimaran.session.jobs import JobSource
from trimaran.session.planned import Progress


def measure_job(
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
    """Measure operations and links that are not known yet.

    Args:
        source: where the job comes from
        graph: the job's
        cluster: the devices
        sizes: of microbatches [samples]
        executions: how segments run
        calibrated: figures that are kept
        progress: told what is being done
        reduces: messages of sums at homes too
        gathers: of sharded parameters too
    """
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


def rehearse_strategy(
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


def trace_job(source: JobSource, sizes: Collection[int], progress: Progress) -> Mapping[int, TracedStep]:
    """Trace a step of each of some microbatches, kept by samples."""
    from trimaran.measure.tracing import trace_steps

    return trace_steps(source.make, sorted(sizes), progress=progress)
