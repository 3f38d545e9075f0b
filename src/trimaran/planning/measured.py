"""The backend of plans for this machine: costs are measured, and the choice is tried out."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from trimaran.base.errors import ExecutionError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.jobs.resolve import JobSource
from trimaran.machine.detect import detect_machine
from trimaran.machine.prices import Price
from trimaran.planner.candidates import Candidate
from trimaran.planner.pins import NO_PINS
from trimaran.planner.result import Search, said_of_codec, said_of_compression
from trimaran.planner.search import prices
from trimaran.planner.space import offered
from trimaran.planner.target_estimates import Contender, Goal
from trimaran.planner.target_search import contender_of
from trimaran.planner.trials import Trials
from trimaran.planning.answer.evidence import Simulated
from trimaran.planning.answer.results import Planned
from trimaran.planning.answer.written_plans import plan_of, predict
from trimaran.planning.best_strategy import chooser, find_best, priced_sizes
from trimaran.planning.input_pipeline import feeding_notes
from trimaran.planning.measurement import measure_job, trace_job, try_strategy, with_failing
from trimaran.planning.preparation import Prepared, inexactness, prepare, problem_here
from trimaran.planning.requests import NO_TARGET, PlanRequest
from trimaran.planning.target import Cell, Compared, Known, compare_each, find_job_curve, has_own_data
from trimaran.pricing.offload_costs import TracedStep
from trimaran.pricing.table_files import encode_table
from trimaran.pricing.tables import CostTable, merge
from trimaran.pricing.transfers import has_queues
from trimaran.program.plan_file import PlannedLink, program_lines
from trimaran.program.strategy import Execution


class Measured:
    """Plans a job for this machine.

    Attributes:
        source: where the job comes from
        request: objective and limits
        prepared: the job, its graph and data, the devices
    """

    price: Price | None = None

    def __init__(self, source: JobSource, request: PlanRequest, progress: Progress = ignore_progress) -> None:
        """Make the job, capture its graph and look at the machine.

        Raises:
            InputError: the job is wrong, or more devices than there are
        """
        self.source = source
        self.request = request
        self.prepared = prepare(source, request, progress)
        self._progress = progress

    @property
    def batch(self) -> int:
        """Samples of one update, where no others are asked for."""
        return self.prepared.job.global_batch_size

    @property
    def devices(self) -> int:
        """Most that may take part."""
        return self.prepared.cluster.size

    @property
    def node_devices(self) -> int:
        """Devices of a node."""
        return detect_machine().devices

    def curve(self) -> Known:
        """The job's convergence curve; see `find_job_curve`."""
        reference = self.source.reference
        samples = self.prepared.data.samples if has_own_data(reference) else None
        return find_job_curve(self.prepared.job, reference, self.request.target, samples=samples)

    def plan(self) -> Planned:
        """The best plan at the batch that is asked for, or the job's.

        Raises:
            InfeasibleError: nothing fits
        """
        return plan_at_batch(self.source, self.request, self.prepared, self._progress)

    def compare(self, batches: Sequence[int], known: Known, goal: Goal) -> Compared:
        """The strategies of a search at each batch; common costs are measured once before.

        Args:
            batches: samples of one update
            known: the curve, which a search at one batch does not need
            goal: objective over all batches; at one batch it is the time of a step
        """
        del known, goal
        plain = replace(self.request, objective="throughput", target=NO_TARGET)
        _measure_all(self.source, self.prepared, batches, plain, self._progress)
        plans: dict[int, Planned] = {}

        def plan_cell(cell: Cell) -> list[Contender]:
            self._progress(f"planning for batch {cell.batch}", len(plans), len(batches))
            job = replace(self.prepared.job, global_batch_size=cell.batch)
            source = replace(self.source, global_batch_size=cell.batch)
            plans[cell.batch] = plan_at_batch(source, plain, replace(self.prepared, job=job), ignore_progress)
            found = plans[cell.batch].simulated.search
            return [contender_of(one, cell.batch) for one in (found.candidates if found else ())]

        def plan_chosen(contender: Contender) -> Planned:
            found = replace(plans[contender.global_batch], source=self.source, request=self.request)
            return _with_chosen(found, contender.origin)

        return compare_each([Cell(batch=batch, devices=self.devices) for batch in batches], plan_cell, plan_chosen)


def plan_at_batch(source: JobSource, request: PlanRequest, prepared: Prepared, progress: Progress) -> Planned:
    """Find the best way to train a job on this machine at the batch that it has.

    Args:
        source: where the job comes from
        request: objective and limits
        prepared: the job at that batch, its graph and the machine
        progress: called with the current work

    Raises:
        InputError: the job is wrong
        InfeasibleError: nothing fits
    """
    job, graph, cluster, calibrated = prepared.job, prepared.graph, prepared.cluster, prepared.calibrated

    def measure(sizes: Collection[int], executions: Sequence[Execution]) -> CostTable:
        table = measure_job(
            source, graph, cluster, sizes, executions, calibrated, progress, compressions=offered(request.pins)
        )
        progress("searching", 0, 0)
        return table

    traces: dict[int, TracedStep] = {}

    def trace(sizes: Collection[int]) -> Mapping[int, TracedStep]:
        lacking = set(sizes) - traces.keys()
        traces.update(trace_job(source, lacking, progress) if lacking else {})
        return traces

    def try_choice(chosen: Candidate, table: CostTable) -> CostTable | None:
        if chosen.strategy.sync == "p2p" and not has_queues(table, chosen.strategy.dp):
            sizes = {job.global_batch_size // (chosen.strategy.dp * chosen.strategy.microbatches)}
            more = measure_job(source, graph, cluster, sizes, ("eager",), calibrated, progress, reduces=True)
            return merge([table, more])
        return try_strategy(source, job, graph, cluster, chosen.strategy, chosen.program, table, progress)

    try:
        found, table = find_best(prepared, request, measure, trace, try_choice)
    except ExecutionError as error:
        # Parts of other sizes were measured, and are found again.
        left = replace(prepared, graph=with_failing(graph, error))
        return plan_at_batch(source, request, left, progress)
    problem = problem_here(prepared, request, table, executions=executions_of(found), traces=traces)
    plan = plan_of(
        source.reference,
        request,
        problem,
        found,
        costs_digest=hashlib.sha256(encode_table(table)).hexdigest()[:16],
        objective="epoch" if request.objective == "epoch" else "throughput",
        link=PlannedLink.of(cluster.machine.node.rate_limit),
    )
    return Planned(
        source=source,
        request=request,
        evidence=Simulated(
            job=job,
            problem=problem,
            plan=replace(plan, program=program_lines(found.chosen.program)),
            chosen=found.chosen,
            search=found,
            prices=() if request.pins == NO_PINS else prices(problem, found, chooser(trace, Trials(problem))),
            noise=calibrated.noise_of(found.chosen.strategy),
        ),
        notes=(
            *graph.notes,
            *inexactness(graph, found.chosen.strategy),
            *calibrated.lacks(cluster.size),
            *feeding_notes(found),
            *filter(None, [said_of_compression(found, request.pins), said_of_codec(problem, found.chosen)]),
        ),
    )


def executions_of(found: Search[Candidate]) -> tuple[Execution, ...]:
    """How segments ran in the simulations of a search; eager first."""
    return tuple(sorted({one.strategy.execution for one in found.candidates}, reverse=True))


def _measure_all(
    source: JobSource, prepared: Prepared, batches: Sequence[int], request: PlanRequest, progress: Progress
) -> None:
    """Measure the costs of all batches once; each search then has them."""
    if len(batches) < 2:
        return
    sizes = {
        size
        for batch in batches
        for size in priced_sizes(prepared.graph, devices=prepared.cluster.size, batch=batch, pins=request.pins)
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


def _with_chosen(planned: Planned, chosen: Candidate) -> Planned:
    """The plan at the chosen batch, with the strategy that was chosen over all batches."""
    evidence = planned.simulated
    search = None if evidence.search is None else replace(evidence.search, chosen=chosen)
    plan = replace(
        evidence.plan,
        strategy=chosen.strategy,
        prediction=predict(chosen),
        candidates=(),
        program=program_lines(chosen.program),
    )
    return replace(planned, evidence=replace(evidence, plan=plan, chosen=chosen, search=search))
