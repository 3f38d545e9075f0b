"""Measurements for plans on this machine: operations and links, trial runs of some strategies, traces of steps."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from trimaran.base.errors import ExecutionError
from trimaran.base.job import Job
from trimaran.base.progress import Progress
from trimaran.graph.types import Graph
from trimaran.jobs.resolve import JobSource
from trimaran.machine.types import Allocation
from trimaran.measure.calibration.results import Calibration, check_machine, kept_calibration, read_calibration
from trimaran.planner.problem import Problem
from trimaran.planning.requests import PlanRequest
from trimaran.pricing.gradient_compression import is_priced
from trimaran.pricing.noise import Noise, noise_for
from trimaran.pricing.offload_costs import TracedStep
from trimaran.pricing.tables import CostTable, merge
from trimaran.program.gradients import Compression
from trimaran.program.lowering.lower import lower_evaluation
from trimaran.program.strategy import IN_LINE, Execution, Strategy
from trimaran.program.types import Program

# ---------------------------------------------------------------------------------------------------------------------
# Figures of a calibration for a plan: costs where it was asked for, and always the noise of repeated runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """The calibration that a plan goes by.

    Attributes:
        calibration: of this machine; None where there is none
        file: it was asked for by its name, so that its costs count before those of the cache
    """

    calibration: Calibration | None = None
    file: str = ""

    @property
    def tables(self) -> tuple[CostTable, ...]:
        """Costs that count before those of the cache."""
        return self.calibration.tables if self.calibration is not None and self.file else ()

    def noise_of(self, strategy: Strategy) -> Noise | None:
        """How far identical runs on the ranks of a strategy are apart."""
        return None if self.calibration is None else noise_for(self.calibration.noise, ranks=strategy.devices)

    def lacks(self, ranks: int) -> tuple[str, ...]:
        """Note on a calibration that has no figures for that number of ranks.

        Args:
            ranks: that may take part
        """
        known = sorted({table.fingerprint.ranks for table in self.tables})
        if not known or ranks in known:
            return ()
        return (
            f"{self.file} has costs measured with {', '.join(map(str, known))} ranks busy, not with {ranks}: "
            "costs were taken from the cache, or measured",
        )


def find_calibrated(request: PlanRequest) -> Calibrated:
    """The calibration that a request names, or the one that is kept of this machine.

    Args:
        request: names a file, or none

    Raises:
        InputError: no such file, or the calibration of another machine
        CorruptDataError: the file is truncated or was edited
    """
    from trimaran.measure.costs import fingerprint_here

    path = request.calibration
    if path is None:
        return Calibrated(calibration=kept_calibration(fingerprint_here(1)))
    calibration = read_calibration(path)
    check_machine(calibration, fingerprint_here(calibration.fingerprint.ranks), source=str(path))
    return Calibrated(calibration=calibration, file=str(path))


def measure_job(
    source: JobSource,
    graph: Graph,
    cluster: Allocation,
    sizes: Collection[int],
    executions: Sequence[Execution],
    calibrated: Calibrated,
    progress: Progress,
    *,
    reduces: bool = False,
    gathers: bool = True,
    compressions: Sequence[Compression] = (),
) -> CostTable:
    """Measure operations and links that are not known yet.

    Args:
        source: where the job comes from
        graph: the job's
        cluster: the devices
        sizes: of microbatches [samples]
        executions: how segments run
        calibrated: figures that are kept
        progress: called with the current work
        reduces: messages of sums at owners too
        gathers: of sharded parameters too
        compressions: of gradients too, sent so
    """
    from trimaran.measure.costs import measure_costs

    return measure_costs(
        source.make,
        graph,
        ranks=cluster.size,
        batches=sorted(sizes),
        executions=executions,
        link=cluster.machine.node.rate_limit,
        known=calibrated.tables,
        reduces=reduces,
        gathers=gathers,
        compressions=compressions,
        samples=True,
        progress=progress,
    )


def with_failing(graph: Graph, error: ExecutionError) -> Graph:
    """A graph whose job was seen to fail with the sizes of parts with which it failed when it was measured.

    Args:
        graph: with effects traced before
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
    """A problem with the costs of some compressions of gradients; the same where it has them.

    Args:
        problem: on this machine, or on one of the catalog, where all are known
        source: where the job comes from
        methods: of compression
        calibrated: figures that are kept
        progress: called with the current work
    """
    lacking = [one for one in dict.fromkeys(methods) if not is_priced(one, problem.table, problem.cluster)]
    if not lacking or problem.devices < 2:
        return problem
    size = max(1, problem.batch // problem.devices)
    more = measure_job(
        source, problem.graph, problem.cluster, {size}, ("eager",), calibrated, progress, compressions=lacking
    )
    return replace(problem, table=merge([problem.table, more]))


def try_strategy(
    source: JobSource,
    job: Job,
    graph: Graph,
    cluster: Allocation,
    strategy: Strategy,
    program: Program,
    table: CostTable,
    progress: Progress,
) -> CostTable | None:
    """Run a strategy that a library runs by itself, where that was not measured; see `measure.trial_runs`."""
    from trimaran.measure.trial_runs import fit_form, is_known, run_trial

    # Only compute is looked at, and workers at the same time would blur that.
    strategy = replace(strategy, feeding=IN_LINE)

    batch = job.global_batch_size
    if is_known(strategy, graph, table, microbatch=batch // (strategy.dp * strategy.microbatches)):
        return None
    progress(f"running {strategy.name}", 0, 0)
    evaluation = lower_evaluation(graph, strategy, batch=batch)
    found = run_trial(source.make, strategy, program, evaluation, link=cluster.machine.node.rate_limit)
    return fit_form(found, strategy, program, graph, table, cluster, batch=batch)


def trace_job(source: JobSource, sizes: Collection[int], progress: Progress) -> Mapping[int, TracedStep]:
    """Trace a step of each of some microbatches, kept by samples."""
    from trimaran.measure.tracing import trace_steps

    return trace_steps(source.make, sorted(sizes), progress=progress)
