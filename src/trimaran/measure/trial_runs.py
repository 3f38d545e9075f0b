"""Costs of strategies that a library runs: a few steps of the strategy are run on all ranks.

Sharded operations (DTensor), sharded state (FSDP2) and backwards split into dgrad and wgrad have an overhead that
neither single operations nor the plain model show. So a few steps of the very program are run on all ranks, and the
time of its forwards and backwards is noted; communication inside them counts, as it does in the program. From that
follows what the whole model takes in this form (`fit_form`): the cost by which the simulated forwards and backwards are
as long as the measured ones. The longer update of such tensors is counted with the backward before it.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from trimaran.base.errors import EnvironmentProblem
from trimaran.base.job import Job
from trimaran.base.timeline import COMPUTE, Timeline
from trimaran.emulation.links import launch_on
from trimaran.graph.types import Graph
from trimaran.launch.world import World
from trimaran.machine.types import Allocation, Link
from trimaran.measure.cache import store
from trimaran.pricing.compute import own_form
from trimaran.pricing.program import price
from trimaran.pricing.tables import FORMS, CostTable, WholeCost, WholeKey
from trimaran.pricing.types import Cost
from trimaran.program.strategy import Strategy
from trimaran.program.types import Kind, Program
from trimaran.simulator.engine import simulate

WARM_UP_STEPS = 8
MEASURED_S = 2.5
"""Time of the steps that are noted [s]."""

LEAST_STEPS, MOST_STEPS = 6, 60
_PASSES = 8
_FORWARDS = frozenset({Kind.FORWARD})
_BACKWARDS = frozenset({Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.CLIP, Kind.UPDATE})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRun:
    """Compute of a step, summed over all ranks.

    Attributes:
        forward_s: forwards [s]
        backward_s: backwards, clipping and update [s]
        spread: half the width of what these steps took, as a share of the median
    """

    forward_s: float
    backward_s: float
    spread: float


def is_known(strategy: Strategy, graph: Graph, table: CostTable, *, microbatch: int) -> bool:
    """Whether the form of a strategy was measured at a size of its microbatch, or needs no measuring.

    Args:
        strategy: any
        graph: the job's
        table: what was measured
        microbatch: samples of one
    """
    form = own_form(strategy)
    key = WholeKey(graph.digest, form, strategy.execution)
    return form in FORMS or strategy.execution != "eager" or microbatch in table.wholes.get(key, {})


def run_trial(
    make_job: Callable[[], Job],
    strategy: Strategy,
    program: Program,
    evaluation: Program,
    *,
    link: Link | None = None,
) -> TrialRun:
    """Run a few steps of a strategy on this machine.

    Args:
        make_job: makes the job; can be sent to another process
        strategy: what is run
        program: of a training step
        evaluation: of the evaluation of a batch
        link: rate limit of the links between the ranks; None: there is none

    Raises:
        ExecutionError: a rank failed
    """
    timeline = launch_on(link, _run, (make_job, strategy, program, evaluation), ranks=strategy.devices)[0]
    return summarize_steps(program, timeline)


def summarize_steps(program: Program, timeline: Timeline) -> TrialRun:
    """The compute of the steps of a run.

    Args:
        program: of a step
        timeline: of several steps
    """
    forward, backward = _totals(program, timeline)
    steps = sorted(set(forward) & set(backward))[WARM_UP_STEPS:]
    # Whatever else runs on the machine for a moment makes steps longer, never shorter: the faster half counts.
    steps.sort(key=lambda step: forward[step] + backward[step])
    calm = steps[: max(1, len(steps) // 2)]
    totals = [forward[step] + backward[step] for step in calm]
    return TrialRun(
        forward_s=median(forward[step] for step in calm),
        backward_s=median(backward[step] for step in calm),
        spread=max(0.02, (totals[-1] - totals[0]) / (2.0 * median(totals))),
    )


def fit_form(
    found: TrialRun,
    strategy: Strategy,
    program: Program,
    graph: Graph,
    table: CostTable,
    cluster: Allocation,
    *,
    batch: int,
) -> CostTable:
    """A table with the cost of the whole model in a strategy's form, by which its simulated compute is as measured.

    Args:
        found: what was measured
        strategy: that was run
        program: of its step
        graph: the job's
        table: what else was measured
        cluster: the devices
        batch: samples of one update, over all ranks

    Returns:
        The table with that entry, which is kept in the cache too.
    """
    microbatch = batch // (strategy.dp * strategy.microbatches)
    key = WholeKey(graph.digest, own_form(strategy), strategy.execution)
    whole = next(
        one
        for form in (own_form(strategy).partition(" ")[0], *FORMS)
        if (one := table.whole(WholeKey(graph.digest, form, strategy.execution), microbatch)) is not None
    )
    forward_s, backward_s = whole.forward.seconds, whole.backward.seconds
    for _ in range(_PASSES):
        entry = _entry(forward_s, backward_s, found.spread, whole)
        tried = replace(table, wholes={**table.wholes, key: {**table.wholes.get(key, {}), microbatch: entry}})
        costs = price(program, graph, strategy, tried, cluster, batch=batch)
        simulated = simulate(program, costs)
        as_simulated = [sum(of.values()) for of in _totals(program, simulated)]
        forward_s *= found.forward_s / as_simulated[0]
        backward_s *= found.backward_s / as_simulated[1]
    entry = _entry(forward_s, backward_s, found.spread, whole)
    points = {key: {**table.wholes.get(key, {}), microbatch: entry}}
    _keep(CostTable(fingerprint=replace(table.fingerprint, link=""), wholes=points))
    return replace(table, wholes={**table.wholes, **points})


def _entry(forward_s: float, backward_s: float, spread: float, whole: WholeCost) -> WholeCost:
    how = "measured: in place"
    return WholeCost(
        forward=Cost(forward_s, forward_s * (1.0 - spread), forward_s * (1.0 + spread), how),
        backward=Cost(backward_s, backward_s * (1.0 - spread), backward_s * (1.0 + spread), how),
        evaluation=whole.evaluation,
    )


def _totals(program: Program, timeline: Timeline) -> tuple[Counter[int], Counter[int]]:
    """Compute of forwards and of backwards, summed over all ranks, by step [s]."""
    kinds = {instruction.id: instruction.kind for instruction in program}
    found: tuple[Any, Any] = Counter(), Counter()
    for span in timeline:
        for seconds, of in zip(found, (_FORWARDS, _BACKWARDS), strict=True):
            if span.stream == COMPUTE and kinds.get(span.instruction) in of:
                seconds[span.step] += span.seconds
    return found


def _keep(found: CostTable) -> None:
    try:
        store(found)
    except EnvironmentProblem:
        # It is measured again in the next run.
        return


def _run(
    world: World, make_job: Callable[[], Job], strategy: Strategy, program: Program, evaluation: Program
) -> Timeline:
    from trimaran.graph.capture.capture import capture
    from trimaran.measure.rounds import full_shares
    from trimaran.runtime.executor import Executor
    from trimaran.runtime.step.on_nan import on_nan_of_trials

    job = make_job()
    answer = on_nan_of_trials(strategy)
    executor = Executor(job, strategy, program, evaluation, world, capture=capture(job), on_nan=answer)
    shares = full_shares(executor.feed())
    for _ in range(WARM_UP_STEPS):
        executor.step(next(shares))
    for _ in range(_steps(world, executor, shares)):
        executor.step(next(shares))
    timeline = executor.timeline()
    executor.close()
    return timeline


def _steps(world: World, executor: Any, shares: Iterator[Any]) -> int:
    """How many steps there is time for; the same on every rank."""
    from trimaran.measure.rounds import largest

    started = time.perf_counter()
    executor.step(next(shares))
    slowest_s = largest(world, time.perf_counter() - started)
    return max(LEAST_STEPS, min(MOST_STEPS, int(MEASURED_S / max(slowest_s, 1e-6))))
