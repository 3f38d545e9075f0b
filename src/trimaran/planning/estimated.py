"""The backend of plans for a machine of the catalog: costs of operations are estimated, and the planner searches.

A search that offloads and recomputes where nothing fits otherwise.

A strategy with a memory budget needs the step of its microbatch, traced without weights, and the costs of operations
and copies on the device. Traces and memory plans take far longer than a search, so they are made only where needed:
where no strategy fits, or where memory policies are asked for by name.

A plan from a file, scored by the costs of a machine of the catalog: nothing here is measured or run.

Limits of a placement: the longest chain of operations, and the number of branches that run in parallel.

However many devices there are, and however fast their links, a step takes at least the longest chain of forwards to the
loss and the longest chain of backwards from it. Its share of all work bounds the speedup of any placement.

`trimaran plan JOB --cluster NAME --objective time`: strategies, batches and numbers of catalog devices.

One graph and one table of estimated costs serve all batches. Bounds over all batches decide which strategies are
simulated (`planner/target_search.py`), and a choice of many batches takes little longer than one.
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.precision import parse_precision
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.units import format_bytes, format_seconds
from trimaran.graph.trace.live_bytes import WEIGHTS
from trimaran.graph.types import Graph
from trimaran.jobs.resolve import JobSource, resolve
from trimaran.machine.find import find_machine
from trimaran.memory.minimum import minimum_memory
from trimaran.planner.bounds import earliest_ends
from trimaran.planner.candidates import Candidate, score
from trimaran.planner.choice import MODEL_ERROR
from trimaran.planner.explanation.exchange_doubt import doubts_of_exchange
from trimaran.planner.input_pipeline import feed, with_samples
from trimaran.planner.pins import NO_PINS
from trimaran.planner.problem import Problem, arrange, assess, effect_of_memory, lack_of_memory, least
from trimaran.planner.result import Search, said_of_codec, said_of_compression, simulated_search
from trimaran.planner.search import (
    MOST_STAGED,
    lacking_pipelines,
    lacking_replicas,
    promising,
    search,
    untried_memory_plans,
    with_memory_plans,
)
from trimaran.planner.target_estimates import Contender, Goal
from trimaran.planner.target_search import Grid, GridSearch, device_counts, nothing_fits_at_any, search_grid
from trimaran.planning.answer.evidence import Simulated
from trimaran.planning.answer.results import Planned
from trimaran.planning.answer.written_plans import costs_digest, plan_of, predict
from trimaran.planning.best_strategy import MOST_SHARES, budgeted_sizes, search_within_memory
from trimaran.planning.estimated_problem import machine_problem, machine_problems, softwares_of
from trimaran.planning.input_pipeline import fed_as_asked, pipeline_words
from trimaran.planning.loaded_plans import check_batch_is_chosen, is_device_here
from trimaran.planning.precision import choose_precision, settle_precision
from trimaran.planning.preparation import inexactness
from trimaran.planning.requests import (
    NO_LOADING,
    Loading,
    PlanRequest,
    check_not_analytical,
    cost_options,
    loading_of,
    with_cost_options,
)
from trimaran.planning.target import CatalogBackend, Compared, Known, find_job_curve, own_samples, training_at
from trimaran.planning.tracing.request import make_request
from trimaran.pricing.compute import operation_phases
from trimaran.pricing.copy_codecs import gpu_coding_rates
from trimaran.pricing.exchange.frameworks import DDP, recipe_of
from trimaran.pricing.exchange.replica_memory import holds_words
from trimaran.pricing.kernels.software import RUNTIME
from trimaran.pricing.offload_costs import TracedStep
from trimaran.program.plan_file import Plan, check_has_program, check_plan, plan_program, read_plan
from trimaran.program.rules.against_graph import check_against_graph
from trimaran.program.strategy import IN_LINE, Strategy

if TYPE_CHECKING:
    from trimaran.planning.tracing.meta_trace import PricedSteps

_GLANCE_S = 0.3
"""Work of a short search [s on the reference]."""

MOST_SQUEEZED = 4 * MOST_SHARES
"""Numbers of replicas and microbatches for which memory plans are tried where several batches or numbers of devices
are compared, of all of them together."""


class StepTracer:
    """Steps of a job's microbatches as they would run on a device of a machine, each traced once.

    Args:
        reference: of the job
        problem: has the machine, and traces so far
        request: says precision and software
    """

    def __init__(self, reference: str, problem: Problem, request: PlanRequest) -> None:
        self._reference, self._problem, self._request = reference, problem, request
        self._known = dict(problem.traces)

    @functools.cached_property
    def _steps(self) -> "PricedSteps":
        from trimaran.planning.tracing.meta_trace import JobTracer, PricedSteps
        from trimaran.planning.tracing.workload_tracing import job_of

        reference, request, executions = self._reference, self._request, self._problem.executions
        device = self._problem.cluster.machine.node.device
        precision = choose_precision(reference, request.precision, device).name
        asked = make_request(reference, precision=precision, options=request.options or None, optimizer=None)
        return PricedSteps(
            tracer=JobTracer(job_of(asked), precision=precision),
            device=device,
            precision=precision,
            software=softwares_of(request.software or RUNTIME, executions)[executions[0]],
        )

    def traces(self, sizes: Collection[int], problem: Problem | None = None) -> Mapping[int, TracedStep]:
        """The steps, by samples.

        Where the minimum memory of one is more than a device has, though devices share its state, larger ones are left
        out: they need no less.

        Args:
            sizes: of the microbatches [samples]
            problem: whose devices and memory count; None: those of the machine as it is
        """
        there = problem or self._problem
        found = {}
        for size in sorted(sizes):
            found[size] = traced = self._traced(size)
            state_bytes = sum(one.nbytes for one in traced.trace.storages if one.role in WEIGHTS)
            least_bytes = minimum_memory(traced.trace).nbytes - state_bytes + state_bytes // there.devices
            if least_bytes > max(there.cluster.memory_bytes):
                break
        return found

    def _traced(self, size: int) -> TracedStep:
        if size not in self._known:
            trace = self._steps.tracer.trace(size)
            rates = gpu_coding_rates(self._steps.device)
            self._known[size] = TracedStep(trace=trace, costs=self._steps.costs(trace), coding_bytes_per_s=rates)
        return self._known[size]


def placement_notes(problem: Problem, strategy: Strategy) -> tuple[str, ...]:
    """Bounds on the placement of a network's branches.

    Args:
        problem: has the graph and its costs
        strategy: a placement; of anything else nothing is said
    """
    if not strategy.parts:
        return ()
    microbatch = problem.batch // (strategy.dp * strategy.microbatches)
    forward, backward = operation_phases(problem.graph, problem.table, batch=microbatch, execution=strategy.execution)
    total_s = sum(forward.values()) + sum(backward.values())
    chain_s = longest_chain_s(problem.graph, forward) + longest_chain_s(problem.graph, backward)
    widths = shares_of_widths(problem.graph, {name: forward[name] + backward[name] for name in forward})
    alone = widths.get(1, 0.0)
    few = sum(share for width, share in widths.items() if width <= 2)
    return (
        f"on any number of devices a placement takes at least {format_seconds(chain_s)} of {format_seconds(total_s)}: "
        f"that long is the chain of operations of which each needs the one before it, so it is at most "
        f"{total_s / chain_s:.2f} times as fast as one device",
        f"{alone:.0%} of that chain has no parallel branch and {few:.0%} at most one, so devices beyond the second "
        "find little to do",
    )


def longest_chain_s(graph: Graph, seconds: Mapping[str, float]) -> float:
    """The longest way through a graph [s].

    Args:
        graph: of a network
        seconds: of each operation, by id [s]
    """
    ends = earliest_ends(graph, seconds)
    return max((ends[op.id] for op in graph.ops), default=0.0)


def shares_of_widths(graph: Graph, seconds: Mapping[str, float]) -> dict[int, float]:
    """How many operations would run side by side on as many devices as one likes, each as soon as it can.

    Args:
        graph: of a network
        seconds: of each operation, by id [s]

    Returns:
        By the number of operations, the share of the time in which that number runs [0..1].
    """
    ends = earliest_ends(graph, seconds)
    events: list[tuple[float, int]] = []
    for op in graph.ops:
        if seconds[op.id] > 0.0:
            events += [(ends[op.id] - seconds[op.id], 1), (ends[op.id], -1)]
    return _shares(sorted(events))


def _shares(events: Sequence[tuple[float, int]]) -> dict[int, float]:
    total = events[-1][0] if events else 0.0
    found: dict[int, float] = {}
    running, since = 0, 0.0
    for at, change in events:
        if at > since and running:
            found[running] = found.get(running, 0.0) + (at - since) / total
        running, since = running + change, at
    return dict(sorted(found.items()))


def one_device(problem: Problem) -> Candidate:
    """A step with the whole batch on one device, in one piece, whether it fits there or not."""
    alone = replace(problem, devices=1, pins=NO_PINS)
    room = problem.room
    if room is None or room.pipeline is None:
        return assess(Strategy(execution=problem.executions[0]), alone)
    ready = replace(alone, table=with_samples(problem.table, None))
    return feed(assess(Strategy(execution=problem.executions[0]), ready), alone)


def software_notes(problem: Problem, strategy: Strategy) -> tuple[str, ...]:
    """Whose memory and whose exchange of gradients the figures are; nothing for one replica."""
    software = problem.table.software
    if software is None or strategy.dp == 1:
        return ()
    recipe = recipe_of(software)
    if recipe is DDP:
        return (holds_words(software),)
    return (
        holds_words(software),
        f"gradients are exchanged in the buckets of PyTorch's DDP, with the cost of a call of {recipe.name}: "
        f"`trimaran scale` prices the exchange of {software.text} itself, and its figure differs from this one",
    )


def pipeline_notes(problem: Problem, found: Search[Candidate]) -> tuple[str, ...]:
    """What the input pipeline is taken to be, and whether a plan waits for it; nothing where it was not given.

    Args:
        problem: of the plan
        found: the search
    """
    room = problem.room
    if room is None or room.pipeline is None:
        return ()
    return (pipeline_words(room.pipeline), *found.feeding)


class Estimated(CatalogBackend):
    """Plans a job for a machine of the catalog, operation by operation.

    Attributes:
        source: where the job comes from
        request: of the user
    """

    def __init__(
        self,
        source: JobSource,
        request: PlanRequest,
        progress: Progress = ignore_progress,
        *,
        notes: tuple[str, ...] = (),
    ) -> None:
        """Only the precision is settled; nothing else is read before it is needed.

        Args:
            source: where the job comes from
            request: of the user
            progress: called with the current work
            notes: for the user, with every plan

        Raises:
            InputError: no such machine, or a precision that it does not compute in
        """
        chosen = choose_precision(source.reference, request.precision, find_machine(request.cluster).node.device)
        self.source = source
        self.request = settle_precision(request, chosen)
        self._progress = progress
        self._notes = notes

    @property
    def batch(self) -> int:
        """Samples of one update, where no others are asked for."""
        return self.request.batch or resolve(self.source.reference).global_batch_size

    def curve(self) -> Known:
        """The job's convergence curve; see `find_job_curve`."""
        reference = self.source.reference
        return find_job_curve(resolve(reference), reference, self.request.target, samples=own_samples(reference))

    def plan(self) -> Planned:
        """The best plan at the batch that is asked for, or the job's.

        Raises:
            InputError: no such job or machine, or more devices than there are
            InfeasibleError: nothing fits
        """
        reference, request = self.source.reference, self.request
        problem = machine_problem(reference, request)
        self._progress("searching", 0, 0)
        problem, found = search_within_memory(problem, StepTracer(reference, problem, request).traces)
        said = filter(None, [said_of_compression(found, request.pins), said_of_codec(problem, found.chosen)])
        notes = (
            *problem.graph.notes,
            *placement_notes(problem, found.chosen.strategy),
            *said,
            *doubts_of_exchange(found.chosen, found.candidates, problem),
            *pipeline_notes(problem, found),
            *software_notes(problem, found.chosen.strategy),
            *untried_memory_plans(problem, found),
        )
        return self._planned(problem, found, notes)

    def glance(self) -> Candidate | None:
        """The choice of a short search, without memory plans; None: it finds none."""
        reference, request = self.source.reference, self.request
        problem = replace(machine_problem(reference, request), time_limit_s=_GLANCE_S)
        try:
            return search(problem, choice_only=True).chosen
        except InfeasibleError:
            return None

    def compare(self, batches: Sequence[int], known: Known, goal: Goal) -> Compared:
        """The strategies of one search over all batches and counts of devices, which bounds leave out of each other.

        Args:
            batches: samples of one update
            known: the curve
            goal: the objective
        """
        problems = machine_problems(self.source.reference, self.request, batches)
        self._progress("searching", 0, 0)
        grid = Grid(
            problems=problems,
            counts=self.request.target.counts or device_counts(self.devices),
            weights=_weights(known, batches, goal),
            most_local_batch=self.request.target.most_local_batch,
            time_limit_s=self.request.time_limit_s,
            by_cost=goal == "cost" and known.says_length,
        )
        found = self._with_memory_plans(grid, search_grid(grid))

        def plan_chosen(contender: Contender) -> Planned:
            batch = contender.global_batch
            problem, search = problems[batch], _search_at(grid, found, batch, contender.origin)
            return self._planned(problem, search, problem.graph.notes)

        return Compared(
            contenders=found.contenders,
            plan_of=plan_chosen,
            left_out=tuple((batch, _why(found, batch)) for batch in batches if batch not in found.candidates),
            is_complete=found.is_complete,
        )

    def _with_memory_plans(self, grid: Grid, found: GridSearch) -> GridSearch:
        """The result with memory plans, of what was named with a budget or of the replicas that they may make faster.

        The most promising cells come first. Where nothing fits without, a few pipelines are tried too.

        Raises:
            InfeasibleError: nothing fits at any batch, with a memory plan or without
        """
        candidates, rejected = dict(found.candidates), dict(found.rejected)
        if self.request.pins.budget_bytes is not None:
            lacking: dict[int, list[Strategy]] = {batch: [] for batch in grid.problems}
            sizes = {batch: budgeted_sizes(problem) for batch, problem in grid.problems.items()}
        else:
            lacking, sizes = {}, {}
            for _, batch, one in self._worth_memory_plans(grid, found):
                lacking.setdefault(batch, []).append(one)
                sizes.setdefault(batch, set()).add(batch // (one.dp * one.microbatches))
        every = {size for some in sizes.values() for size in some}
        problem = grid.problems[min(grid.problems)]
        traces = StepTracer(self.source.reference, problem, self.request).traces(every) if every else {}
        for batch, strategies in lacking.items():
            traced = replace(
                grid.problems[batch], traces={size: traces[size] for size in sizes[batch] if size in traces}
            )
            candidates[batch], rejected[batch] = with_memory_plans(
                traced, candidates.get(batch, ()), rejected[batch], strategies
            )
        candidates = {batch: fitting for batch, fitting in candidates.items() if fitting}
        if not candidates:
            raise nothing_fits_at_any(rejected)
        return replace(found, candidates=candidates, rejected=rejected)

    def _worth_memory_plans(self, grid: Grid, found: GridSearch) -> list[tuple[float, int, Strategy]]:
        """Strategies for which memory plans are made: the lowest weighted bounds, with the batch of each."""
        if "memory" in self.request.pins.forbid or "eager" not in grid.problems[min(grid.problems)].executions:
            return []
        known = [(grid.weights[batch] * one.objective_s, one) for batch, fit in found.candidates.items() for one in fit]
        wanted: list[tuple[float, int, Strategy]] = []
        staged: list[tuple[float, int, Strategy]] = []
        for batch, problem in grid.problems.items():
            weight, fitting = grid.weights[batch], found.candidates.get(batch, ())
            those = [(weight * one.objective_s, one) for one in fitting] or known
            for count in grid.counts:
                best_s = min((time_s for time_s, one in those if one.strategy.devices <= count), default=inf) / weight
                near = promising(lacking_replicas(problem, count), best_s, problem)
                if grid.most_local_batch is None or batch <= grid.most_local_batch * count:
                    wanted += [(weight * least(one, problem).objective_s, batch, one) for one, _ in near]
            if not known:
                pipelines = lacking_pipelines(problem, found.rejected.get(batch, ()))
                staged += [(weight * least_s, batch, split) for least_s, split in pipelines]
        lowest = itemgetter(0)
        return sorted(wanted, key=lowest)[:MOST_SQUEEZED] + sorted(staged, key=lowest)[:MOST_STAGED]

    def _planned(self, problem: Problem, found: Search[Candidate], notes: tuple[str, ...]) -> Planned:
        source = replace(self.source, global_batch_size=problem.batch)
        return Planned(
            source=source,
            request=self.request,
            evidence=Simulated(
                job=source.make(),
                problem=problem,
                plan=plan_of(
                    source.reference,
                    self.request,
                    problem,
                    found,
                    costs_digest=costs_digest(problem, self.request),
                    objective="throughput",
                    cluster=self.request.cluster,
                    precision=self.request.precision or "",
                    options=cost_options(self.request),
                ),
                chosen=found.chosen,
                search=found,
                alone=one_device(problem),
            ),
            notes=(*self._notes, *notes, *inexactness(problem.graph, found.chosen.strategy)),
        )


def _weights(known: Known, batches: Sequence[int], goal: Goal) -> Mapping[int, float]:
    """Factor on a step of each batch to compare them: updates to the target, or 1 over the batch."""
    trainings = {batch: None if goal == "throughput" else training_at(known, batch) for batch in batches}
    return {
        batch: 1.0 / batch if training is None else training.updates.amount for batch, training in trainings.items()
    }


def _why(found: GridSearch, batch: int) -> str:
    return next((one.reason for one in found.rejected.get(batch, ())), "beyond the limits")


def _search_at(grid: Grid, found: GridSearch, batch: int, chosen: Candidate) -> Search[Candidate]:
    """Simulations at the chosen batch, in the form of a search of that batch alone."""
    problem = grid.problems[batch]
    return simulated_search(
        problem,
        found.candidates[batch],
        found.rejected.get(batch, ()),
        chosen=chosen,
        bound_s=_bound(grid, found, batch) if found.is_complete and not grid.by_cost else 0.0,
        seconds=found.seconds,
        is_complete=found.is_complete,
    )


def _bound(grid: Grid, found: GridSearch, batch: int) -> float:
    """Lower bound on a step at a batch [s]: no skipped strategy beats the best by more than the model's error."""
    best = min(grid.weights[other] * one.worth_s for other, those in found.candidates.items() for one in those)
    fastest = min(one.worth_s for one in found.candidates[batch])
    return min(fastest, best / grid.weights[batch] / (1.0 + MODEL_ERROR))


# ---------------------------------------------------------------------------------------------------------------------
# A plan from a file, by the costs of a machine of the catalog


def asked_of_file(plan: Plan | None, *, cluster: str | None, loading: Loading = NO_LOADING) -> dict[str, Any]:
    """What a request about a plan from a file is read with: options are those of the machine that it is looked at on.

    Args:
        plan: from the file; None: the request is about a job
        cluster: that the user names; None: none
        loading: that the user says
    """
    if plan is None:
        return {"cluster": cluster, "loading": loading}
    cluster = cluster or _machine_of(plan)
    return {"cluster": cluster, "loading": loading if cluster is None else loading_of(plan.premises.options, loading)}


def on_its_machine(plan: Plan, request: PlanRequest) -> PlanRequest:
    """The request, for the machine that a plan from a file was made for where it names none and that is not here.

    Args:
        plan: from the file
        request: of the user
    """
    return replace(request, cluster=request.cluster or _machine_of(plan) or "")


def _machine_of(plan: Plan) -> str | None:
    """The cluster that a plan was made for, unless this machine has its devices and it has a program; None: here."""
    cluster = plan.premises.cluster
    return None if not cluster or (plan.has_program and is_device_here(plan)) else cluster


def load_plan_there(path: Path, request: PlanRequest, *, progress: Progress = ignore_progress) -> Planned:
    """Read a plan, check it against the job, and score it by the costs of a machine of the catalog.

    Args:
        path: of the plan
        request: says the machine; options without a value are those of the plan
        progress: called with the current work

    Raises:
        InputError: the plan is wrong or has no program, or the machine cannot run it
        CorruptDataError: the plan was damaged or edited
        InfeasibleError: it does not fit the memory of the devices
    """
    plan = read_plan(path)
    check_has_program(plan, source=str(path))
    if request.documents is not None or request.expert_imbalance != 1.0:
        raise InputError(
            f"--lengths and --expert-imbalance: {path} has a program, whose operations have one size; leave them out "
            "or ask for a new plan of a decoder",
            code="lengths.not-of-programs",
            path=str(path),
        )
    check_not_analytical(request)
    memory = _memory_of(plan, request)
    request = as_planned_there(plan, request)
    device = find_machine(request.cluster).node.device
    request = settle_precision(request, choose_precision(plan.job, request.precision, device))
    progress("reading the job and the machine", 0, 0)
    problem = machine_problem(plan.job, request)
    progress("simulating", 0, 0)
    chosen, traces = _score(path, plan, problem, request)
    problem = replace(problem, traces={**problem.traces, **traces})
    source = JobSource(reference=plan.job, global_batch_size=problem.batch)
    return Planned(
        source=source,
        request=request,
        evidence=Simulated(
            job=source.make(),
            problem=problem,
            plan=replace(plan, strategy=chosen.strategy, prediction=predict(chosen)),
            chosen=chosen,
            alone=one_device(problem),
        ),
        notes=(
            *problem.graph.notes,
            *placement_notes(problem, chosen.strategy),
            *memory,
            *software_notes(problem, chosen.strategy),
            *_rescored(plan, chosen, problem, request),
        ),
    )


def as_planned_there(plan: Plan, request: PlanRequest) -> PlanRequest:
    """The batch, devices, memory, execution, precision and costs of a plan, where the user says nothing else.

    Args:
        plan: says them
        request: of the user

    Raises:
        InputError: a choice of batches, which the plan has made
    """
    check_batch_is_chosen(request)
    premises = plan.premises
    if request.precision is None and premises.precision:
        precision = parse_precision(premises.precision)
        request = replace(request, precision=precision, precision_source="as the plan says")
    return replace(
        with_cost_options(request, premises.options),
        devices=request.devices or len(premises.devices),
        batch=request.batch or premises.global_batch_size,
        memory_bytes=request.memory_bytes or min(premises.memory_bytes, default=None),
        execution=plan.strategy.execution if request.execution == "any" else request.execution,
    )


def _score(
    path: Path, plan: Plan, problem: Problem, request: PlanRequest
) -> tuple[Candidate, Mapping[int, TracedStep]]:
    """The program of a plan, simulated by the costs of a machine, and the traces that its memory plan is of.

    Its ranks have the devices that the plan names; where it names none, those that suit it best. They are fed as the
    plan says where an input pipeline is given; else data are always ready, and how ranks are fed is left out.
    """
    check_plan(
        plan,
        graph_digest=problem.graph.digest,
        world_size=problem.devices,
        global_batch_size=problem.batch,
    )
    program = plan_program(plan, source=str(path))
    check_against_graph(program, problem.graph, plan.strategy, batch=problem.batch)
    room = problem.room
    strategy = plan.strategy
    if room is None or room.pipeline is None:
        strategy = replace(strategy, feeding=IN_LINE)
    else:
        strategy = fed_as_asked(strategy, problem.pins)
    traces: Mapping[int, TracedStep] = {}
    if strategy.memory_bytes is not None:
        sizes = {problem.batch // (strategy.dp * strategy.microbatches)}
        traces = StepTracer(plan.job, problem, request).traces(sizes)
        problem = replace(problem, traces=traces)
    try:
        chosen = score(
            program,
            strategy if strategy.device_order else arrange(strategy, problem),
            problem,
            effect=effect_of_memory(strategy, problem),
        )
    except InputError as error:
        raise InputError(
            f"{path} has {strategy.name}, which has no costs on {request.cluster}: {error.message}; "
            "leave --cluster out for this machine",
            path=str(path),
        ) from error
    lack = lack_of_memory(chosen.peak_bytes, problem)
    if lack:
        raise does_not_fit(path, strategy.name, request.cluster, lack)
    return chosen, traces


def does_not_fit(path: Path | None, strategy: str, cluster: str, lack: str) -> InfeasibleError:
    """The refusal of a plan from a file that lacks memory.

    Args:
        path: of the plan
        strategy: its name
        cluster: where it was to run
        lack: what is needed, and what there is
    """
    return InfeasibleError(
        f"{path} has {strategy}, which does not fit {cluster}: {lack}; give devices more (--memory), or plan again",
        code="explain.plan-does-not-fit",
        path=str(path),
    )


def _memory_of(plan: Plan, request: PlanRequest) -> tuple[str, ...]:
    known = plan.premises.memory_bytes
    if request.memory_bytes is not None or not known:
        return ()
    return (f"each device counts with {format_bytes(min(known))}, as in the file, whatever it has (--memory)",)


def _rescored(plan: Plan, chosen: Candidate, problem: Problem, request: PlanRequest) -> tuple[str, ...]:
    if plan.premises.costs_digest == costs_digest(problem, request):
        return ()
    said = plan.prediction.step_time_s
    before = f"its file says {format_seconds(said)} a step; " if said > 0.0 else ""
    return (
        f"the plan was made by other costs than those of {request.cluster} in {request.precision}: {before}here it "
        f"takes {format_seconds(chosen.step_time_s)}. --cluster, --precision and --software say which costs are meant",
    )
