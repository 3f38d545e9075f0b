"""From a job to the best strategy: which costs are measured, and when it is worth compiling for them.

    eager costs ──▶ search ──▶ does the whole training last long enough? ──no──▶ compiled strategies are rejected
                                        │
                                       yes ──▶ compiled costs ──▶ search again among both

Compiling a network takes tens of seconds on a CPU, for each size of a microbatch and in each run anew.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from trimaran.base.errors import ExecutionError, InfeasibleError, InputError
from trimaran.base.job import Job
from trimaran.base.units import format_seconds
from trimaran.graph.types import Graph
from trimaran.planner.candidates import Candidate
from trimaran.planner.epoch import EpochData
from trimaran.planner.pins import NO_PINS, Pins
from trimaran.planner.problem import Problem, execution_key
from trimaran.planner.result import Search
from trimaran.planner.search import (
    NO_STRATEGY,
    lacking_memory,
    may_be_virtualized,
    promising_memory_plans,
    search,
)
from trimaran.planner.space import MICROBATCHES_OF_A_REPLICA, Rejection, enumerate_strategies
from trimaran.planner.trials import Trials
from trimaran.planning.preparation import Prepared, problem_here
from trimaran.planning.requests import PlanRequest
from trimaran.pricing.offload_costs import TracedStep
from trimaran.pricing.tables import CostTable, merge
from trimaran.program.strategy import Execution

# A training that is shorter than this by the best eager plan is over before compiling has paid [s].
WORTH_COMPILING_S = 600.0

Trace = Callable[[Collection[int]], Mapping[int, TracedStep]]
"""Traces steps of a job at some sizes of a microbatch [samples]."""

TryStrategy = Callable[[Candidate, CostTable], CostTable | None]
"""Runs a few steps of a candidate and returns the table with their times; None where the table has them."""

MOST_TRIAL_RUNS = 6
"""Strategies that are run before a plan is made: each loses its lead, or is as fast as it seemed."""

Measure = Callable[[Collection[int], Sequence[Execution]], CostTable]
"""Measures a job at some sizes of a microbatch [samples], in some executions."""


def find_best(
    prepared: Prepared, request: PlanRequest, measure: Measure, trace: Trace, try_strategy: TryStrategy | None = None
) -> tuple[Search[Candidate], CostTable]:
    """Find the best strategy for a job on this machine.

    Args:
        prepared: the job, its graph and data, the devices
        request: objective, and how segments may run
        measure: gives the costs
        trace: gives the steps of strategies that were rejected only for memory
        try_strategy: runs the choice where its form was not measured; None: that is left out

    Returns:
        The result and its costs.

    Raises:
        InfeasibleError: nothing fits
    """
    job, graph, cluster, data = prepared.job, prepared.graph, prepared.cluster, prepared.data
    batch = job.global_batch_size
    failed: dict[str, str] = {}

    def find(table: CostTable, *executions: Execution) -> Search[Candidate]:
        problem = problem_here(prepared, request, table, executions=executions)
        return search_within_memory(replace(problem, failed=dict(failed)), trace)[1]

    def settle(table: CostTable, *executions: Execution) -> tuple[Search[Candidate], CostTable]:
        """Search, and again while the choice runs in a form or size that was not measured yet, or fails."""
        found = find(table, *executions)
        for _ in range(MOST_TRIAL_RUNS):
            size = batch // (found.chosen.strategy.dp * found.chosen.strategy.microbatches)
            if size not in sizes:
                sizes.add(size)
                table = merge([table, measure(sizes, executions)])
                found = find(table, *executions)
                continue
            try:
                better = None if try_strategy is None else try_strategy(found.chosen, table)
            except (ExecutionError, InputError) as error:
                strategy = found.chosen.strategy
                failed[execution_key(strategy)] = f"a trial run of {strategy.name} failed: {error.message}"
                found = find(table, *executions)
                continue
            if better is None:
                break
            table = better
            found = find(table, *executions)
        return found, table

    sizes = set(priced_sizes(graph, devices=cluster.size, batch=batch, pins=request.pins))
    if not sizes:
        _, rejected = enumerate_strategies(graph, devices=cluster.size, batch=batch)
        raise InfeasibleError(f"nothing can train {graph.name}: {rejected[0].reason}")
    if request.execution == "compiled":
        table = measure(sizes, ("eager", "compiled"))
        return find(table, "compiled"), table
    found, table = settle(measure(sizes, ("eager",)), "eager")
    if request.execution == "eager" or "compiled" in request.pins.forbid:
        return found, table
    whole_s = training_seconds(job, data, found)
    takes = (
        "how long the whole training takes is not known, as its stream has no length"
        if whole_s is None
        else f"the whole training takes {format_seconds(whole_s)} by {found.chosen.strategy.name}"
    )
    reason = (
        f"{takes}; compiling takes tens of seconds and is tried from {format_seconds(WORTH_COMPILING_S)} on, or with "
        "--execution compiled"
    )
    if whole_s is not None and whole_s > WORTH_COMPILING_S:
        try:
            both = measure(sizes, ("eager", "compiled"))
        except ExecutionError as error:
            # There is a good plan without it: no compiler here, or a model that the compiler refuses.
            reason = f"it could not be compiled here: {error.message}"
        else:
            return settle(both, "eager", "compiled")
    compiled, _ = enumerate_strategies(
        graph, devices=cluster.size, batch=batch, executions=("compiled",), pins=request.pins
    )
    rejections = [Rejection(strategy=strategy, cause="compiling", reason=reason) for strategy in compiled]
    return replace(found, rejected=(*found.rejected, *rejections)), table


MOST_SHARES = len(MICROBATCHES_OF_A_REPLICA)
"""Numbers of replicas and microbatches for which memory plans are tried where something fits without: each takes
seconds, with its trace."""


def search_within_memory(
    problem: Problem, trace: Trace, trials: Trials | None = None, *, choice_only: bool = False
) -> tuple[Problem, Search[Candidate]]:
    """Search; where strategies are rejected for memory and might be faster, trace steps and search again.

    Args:
        problem: to search
        trace: gives the steps of strategies that were rejected only for memory, or named with a budget
        trials: simulations so far, of problems that differ in pins and traces alone; None: none
        choice_only: as of `search`

    Returns:
        The problem with the new traces, and the result.

    Raises:
        InfeasibleError: nothing fits
    """
    if "memory" in problem.pins.forbid or "eager" not in problem.executions:
        return problem, search(problem, trials, choice_only=choice_only)
    if problem.pins.budget_bytes is not None:
        named = budgeted_sizes(problem)
        problem = replace(problem, traces=trace(named)) if named else problem
        return problem, search(problem, trials, choice_only=choice_only)
    trials = trials or Trials(problem)
    try:
        found = search(problem, trials, choice_only=choice_only)
    except InfeasibleError as error:
        if error.code == NO_STRATEGY:
            raise
        sizes = set(priced_sizes(problem.graph, devices=problem.devices, batch=problem.batch, pins=problem.pins))
        traces = trace(sizes) if sizes else {}
        if not traces:
            raise
    else:
        every = "memory" in problem.pins.allow
        worth = () if every else promising_memory_plans(problem, found)
        shares = list(dict.fromkeys((one.dp, one.microbatches) for one, _ in worth))[:MOST_SHARES]
        near = [one for one, _ in worth if (one.dp, one.microbatches) in shares]
        lacking = lacking_memory(problem, found) if every else near
        if not lacking:
            return problem, found
        try:
            traces = trace({problem.batch // (strategy.dp * strategy.microbatches) for strategy in lacking})
        except ExecutionError as error:
            # There is a good plan without them.
            told = (
                replace(one, reason=f"{one.reason}; its step could not be traced: {error.message}")
                if may_be_virtualized(one)
                else one
                for one in found.rejected
            )
            return problem, replace(found, rejected=tuple(told))
        if not traces:
            return problem, found
        problem = problem if every else replace(problem, squeezed=lacking)
    traced = replace(problem, traces=traces)
    return traced, search(traced, trials, choice_only=choice_only)


def chooser(trace: Trace, trials: Trials) -> Callable[[Problem], Candidate]:
    """The choice for problems that differ in their pins alone, as a plan for each would make it.

    Args:
        trace: as of `search_within_memory`
        trials: simulations of all of them
    """

    def choose(problem: Problem) -> Candidate:
        freed = replace(problem, traces={}, squeezed=None)
        return search_within_memory(freed, trace, trials, choice_only=True)[1].chosen

    return choose


def budgeted_sizes(problem: Problem) -> set[int]:
    """The microbatch of a strategy that was named with a memory budget [samples]; empty where it does not divide."""
    named = (problem.pins.dp or 1) * (problem.pins.microbatches or 1)
    return set() if problem.batch % named else {problem.batch // named}


def priced_sizes(graph: Graph, *, devices: int, batch: int, pins: Pins = NO_PINS) -> tuple[int, ...]:
    """Sizes of the microbatches of all strategies [samples].

    Args:
        graph: the job's
        devices: most ranks that may take part
        batch: samples of one update, over all ranks
        pins: decisions of the user; the search without each is priced too
    """
    strategies, _ = enumerate_strategies(graph, devices=devices, batch=batch)
    if pins != NO_PINS:
        strategies += enumerate_strategies(graph, devices=devices, batch=batch, pins=pins)[0]
    return tuple(sorted({batch // (strategy.dp * strategy.microbatches) for strategy in strategies}))


def training_seconds(job: Job, data: EpochData, found: Search[Candidate]) -> float | None:
    """Time of all steps of a training by the chosen strategy [s]; None: their number is not known.

    Args:
        job: says how many epochs there are
        data: says how many steps an epoch has
        found: the strategy
    """
    if data.samples is None:
        return None
    chosen = found.chosen
    steps = data.steps(batch=job.global_batch_size)
    return job.epochs * steps * chosen.step_time_s
