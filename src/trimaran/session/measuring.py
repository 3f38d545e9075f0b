"""What plans for this machine need measured: operations and links, trial runs of some strategies, traces of steps."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from trimaran.cluster import Cluster
from trimaran.costs import CostTable
from trimaran.costs.tables import merge
from trimaran.costs.traced import TracedStep
from trimaran.costs.wire import is_priced
from trimaran.errors import ExecutionError
from trimaran.graph import Graph
from trimaran.job import Job
from trimaran.planner.problem import Problem
from trimaran.program import Program, Strategy, lower_evaluation
from trimaran.program.compression import Compression
from trimaran.program.feeding import IN_LINE
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
    compressions: Sequence[Compression] = (),
    samples: bool = True,
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
        compressions: of gradients too, sent so
        samples: of the data set too, by which it is chosen how ranks are fed
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
        compressions=compressions,
        samples=samples,
        progress=progress,
    )


def with_failing(graph: Graph, error: ExecutionError) -> Graph:
    """A graph whose job was seen to fail with the sizes of parts with which it failed when it was measured.

    Args:
        graph: with what was seen before
        error: of `measure_job`

    Raises:
        ExecutionError: the same, where it is not for the size of parts
    """
    seen, failed = graph.behaviour, error.figures.get("failed")
    if seen is None or not isinstance(failed, dict) or failed.keys() <= dict(seen.failing).keys():
        raise error
    failing = tuple(sorted({**dict(seen.failing), **failed}.items()))
    return replace(graph, behaviour=replace(seen, failing=failing))


def with_compressions(
    problem: Problem,
    source: JobSource,
    methods: Iterable[Compression],
    calibrated: Calibrated,
    progress: Progress,
) -> Problem:
    """A problem that knows what some compressions of gradients take; the same where it does already.

    Args:
        problem: on this machine, or on one of the catalog, where all are known
        source: where the job comes from
        methods: of compression
        calibrated: figures that are kept
        progress: told what is being done
    """
    lacking = [one for one in dict.fromkeys(methods) if not is_priced(one, problem.table, problem.cluster)]
    if not lacking or problem.devices < 2:
        return problem
    size = max(1, problem.batch // problem.devices)
    more = measure_job(
        source, problem.graph, problem.cluster, {size}, ("eager",), calibrated, progress, compressions=lacking
    )
    return replace(problem, table=merge([problem.table, more]))


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

    # Only compute is looked at, and workers beside it would blur that.
    strategy = replace(strategy, feeding=IN_LINE)

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
