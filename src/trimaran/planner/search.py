"""Score strategies by simulation and choose one.

    minimise    simulated time of a step of strategy s
    subject to  s.dp · s.pp ≤ devices;  s.dp · s.microbatches divides the batch;  stages cut at legal places;
                live bytes of every rank ≤ memory of its device, at every moment of the simulated step

The space is small enough to be enumerated. Stages are cut by `planner/partition.py`, each strategy is lowered to its
program, priced and simulated. A strategy that is believed faster only within the uncertainty of the costs loses to a
simpler one.

Left out so far: placements that are not chains, sharded tensors, memory policies, another local batch.
"""

import dataclasses
from collections.abc import Sequence

from trimaran.cluster import Cluster
from trimaran.costs import Cost, CostTable, ProgramCosts, operation_seconds, price
from trimaran.errors import InfeasibleError
from trimaran.graph import Graph
from trimaran.planner.limits import limiter
from trimaran.planner.partition import partition
from trimaran.planner.space import Rejection, enumerate_strategies, simplicity
from trimaran.program import Program, Strategy, lower
from trimaran.simulator import simulate
from trimaran.timeline import Timeline
from trimaran.units import format_bytes

# What the simulator leaves out is worth about this much of a step, also where every cost is known.
MODEL_ERROR = 0.03


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A strategy with its simulated step.

    Attributes:
        strategy: with boundaries
        program: one step
        timeline: the simulation of it
        step_time_s: simulated [s]
        interval_s: 90 % interval [s]
        peak_bytes: largest live bytes of each rank [bytes]
        limiter: what keeps it from being faster
    """

    strategy: Strategy
    program: Program
    timeline: Timeline
    step_time_s: float
    interval_s: tuple[float, float]
    peak_bytes: tuple[int, ...]
    limiter: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What a search found.

    Attributes:
        candidates: fastest first
        chosen: the one to run
        baseline: plain data parallelism on all devices, or what comes nearest
        rejected: what was not priced or does not fit
    """

    candidates: tuple[Candidate, ...]
    chosen: Candidate
    baseline: Candidate
    rejected: tuple[Rejection, ...]


def search(graph: Graph, table: CostTable, cluster: Cluster, *, batch: int, devices: int, clip: bool = False) -> Search:
    """Find the strategy with the shortest step that fits.

    Args:
        graph: the job
        table: costs of its operations and of the links
        cluster: at least `devices` devices
        batch: samples of one update, over all ranks
        devices: most ranks that may take part
        clip: the job clips its gradients

    Returns:
        All candidates, the chosen one among them.

    Raises:
        InfeasibleError: nothing fits, with what the nearest one needs
    """
    strategies, rejected = enumerate_strategies(devices=devices, batch=batch, can_cut=bool(graph.cuts))
    candidates: list[Candidate] = []
    for strategy in strategies:
        try:
            candidate = evaluate(
                cut(strategy, graph, table, batch=batch), graph, table, cluster, batch=batch, clip=clip
            )
        except InfeasibleError as error:
            rejected.append(Rejection(strategy=strategy, reason=error.message))
            continue
        reason = _does_not_fit(candidate, cluster)
        if reason:
            rejected.append(Rejection(strategy=strategy, reason=reason))
        else:
            candidates.append(candidate)
    if not candidates:
        reasons = "; ".join(f"{rejection.strategy.name}: {rejection.reason}" for rejection in rejected)
        raise InfeasibleError(f"no strategy fits {graph.name} on {devices} devices: {reasons}", devices=devices)
    candidates.sort(key=lambda candidate: (candidate.step_time_s, simplicity(candidate.strategy)))
    return Search(
        candidates=tuple(candidates),
        chosen=choose(candidates),
        baseline=_baseline(candidates),
        rejected=tuple(rejected),
    )


def cut(strategy: Strategy, graph: Graph, table: CostTable, *, batch: int) -> Strategy:
    """The strategy with its stages cut for the costs of its microbatch.

    Raises:
        InfeasibleError: the graph has too few legal cuts
    """
    microbatch = batch // (strategy.dp * strategy.microbatches)
    seconds = operation_seconds(graph, table, batch=microbatch, execution=strategy.execution)
    return dataclasses.replace(strategy, boundaries=partition(graph, seconds, stages=strategy.pp))


def evaluate(
    strategy: Strategy, graph: Graph, table: CostTable, cluster: Cluster, *, batch: int, clip: bool = False
) -> Candidate:
    """Lower, price and simulate one strategy.

    Args:
        strategy: with boundaries
        graph: the job
        table: costs of its operations and of the links
        cluster: the devices
        batch: samples of one update, over all ranks
        clip: the job clips its gradients
    """
    program = lower(graph, strategy, batch=batch, clip=clip)
    return score(program, strategy, graph, table, cluster, batch=batch)


def score(
    program: Program, strategy: Strategy, graph: Graph, table: CostTable, cluster: Cluster, *, batch: int
) -> Candidate:
    """Price and simulate a program.

    The interval is that of the step with every cost at the low end of its interval, and at the high end: costs measured
    on one machine err together.

    Args:
        program: of the strategy
        strategy: with boundaries
        graph: the job
        table: costs of its operations and of the links
        cluster: the devices
        batch: samples of one update, over all ranks
    """
    costs = price(program, graph, strategy, table, cluster, batch=batch)
    timeline = simulate(program, costs)
    low, high = (simulate(program, _at(costs, end)).makespan_s for end in ("low", "high"))
    return Candidate(
        strategy=strategy,
        program=program,
        timeline=timeline,
        step_time_s=timeline.makespan_s,
        interval_s=(min(low, timeline.makespan_s), max(high, timeline.makespan_s)),
        peak_bytes=tuple(timeline.peak_bytes(rank) for rank in range(strategy.devices)),
        limiter=limiter(program, timeline),
    )


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """The fastest, unless it is believed faster than a simpler one only within the uncertainty.

    Costs measured on one machine err together, so two candidates are compared where all costs are low, where they are
    at their median, and where all are high. A simpler candidate wins if in one of the three it is not slower by more
    than `MODEL_ERROR`.

    Args:
        candidates: at least one
    """
    fastest = min(candidates, key=lambda candidate: candidate.step_time_s)
    close = [candidate for candidate in candidates if _may_be_as_fast(candidate, fastest)]
    return min(close, key=lambda candidate: (simplicity(candidate.strategy), candidate.step_time_s))


def _may_be_as_fast(candidate: Candidate, fastest: Candidate) -> bool:
    return any(
        ours <= theirs * (1 + MODEL_ERROR) for ours, theirs in zip(_cases(candidate), _cases(fastest), strict=True)
    )


def _cases(candidate: Candidate) -> tuple[float, float, float]:
    low, high = candidate.interval_s
    return low, candidate.step_time_s, high


def _baseline(candidates: Sequence[Candidate]) -> Candidate:
    plain = [candidate for candidate in candidates if candidate.strategy.pp == 1]
    return max(plain or candidates, key=lambda candidate: candidate.strategy.dp)


def _does_not_fit(candidate: Candidate, cluster: Cluster) -> str:
    for rank, nbytes in enumerate(candidate.peak_bytes):
        memory = cluster.devices[rank].memory_bytes
        if nbytes > memory:
            return f"rank {rank} needs {format_bytes(nbytes)}, its device has {format_bytes(memory)}"
    return ""


def _at(costs: ProgramCosts, end: str) -> ProgramCosts:
    def bound(cost: Cost) -> Cost:
        return dataclasses.replace(cost, seconds=getattr(cost, end))

    transfers = {}
    for name, transfer in costs.transfers.items():
        seconds = transfer.latency_s + transfer.flow_s
        factor = getattr(transfer, end) / seconds if seconds else 1.0
        transfers[name] = dataclasses.replace(
            transfer, latency_s=transfer.latency_s * factor, flow_s=transfer.flow_s * factor
        )
    compute = {name: bound(cost) for name, cost in costs.compute.items()}
    return dataclasses.replace(costs, compute=compute, transfers=transfers)
