"""Lower bounds of a step's time and memory, without simulating it.

A strategy with M microbatches is lowered and priced with at most two of them, at the size that they have; the first
stands for those that are left out. From these few costs follows what no order of events can beat. For stage k, with F
and B of a microbatch, m what a message takes, U what follows the last reduction:

    ready(k)   = the first input is there: max over senders p of ready(p) + F(p) + m                          (ramp up)
    done(k)    = the last backward has ended: the largest of
                   ready(k) + M (F + B) + the later loads                                        (its own compute)
                   ready(p) + F(p) + M m + F(k) + B(k)                                           (what p sends to it)
                   ready(q) + F(q) + B(q) + M m + B(k)                                      (what q sends back to it)
                   done(q) + m + B(k)                                                                    (ramp down)
    reduced(k) = the last bucket has arrived: max over buckets i of the mark of i in the last backward
                 + the all-reduces from i on, one after the other (where several are under way at once, what flows)
    step      >= max over k of max(done(k), reduced(k), the loss's reduction) + U(k)
    step      >= for each link: what flows over it, one after the other, + the shortest U

Nothing here is longer than in a simulation: interference and sharing only lengthen, and what else could be waited for
is left out. Where a factor of interference is below 1, everything is taken to run at that factor.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trimaran.cluster import Cluster
from trimaran.costs import CostTable, ProgramCosts, price
from trimaran.graph import Graph
from trimaran.planner.candidates import Cases, at_end, lower_short
from trimaran.planner.epoch import EpochData, Part, extra_parts
from trimaran.planner.least_memory import smallest_peaks
from trimaran.planner.stage_bounds import Stage, stage_of
from trimaran.program import SENDS, Program, Strategy

# Enough to tell the microbatch that completes the gradients from the others.
PRICED_MICROBATCHES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a candidate takes at least.

    Attributes:
        step_time_s: of a step, with all costs at their median [s]
        cases: of a step, or an epoch, with all costs low, at their median, and high [s]
        peak_bytes: largest live bytes of each rank [bytes]
    """

    step_time_s: float
    cases: Cases
    peak_bytes: tuple[int, ...]

    @property
    def objective_s(self) -> float:
        """At least what is made small, with all costs at their median [s]."""
        return self.cases[1]


def bound(
    strategy: Strategy,
    graph: Graph,
    table: CostTable,
    cluster: Cluster,
    *,
    batch: int,
    clip: bool = False,
    epoch: EpochData | None = None,
) -> Bound:
    """What a strategy takes at least.

    Args:
        strategy: with boundaries
        graph: the job's
        table: costs of its operations and of the links
        cluster: the devices
        batch: samples of one update, over all ranks
        clip: the job clips its gradients
        epoch: bound the time of one of these, not of a step
    """
    step = Part(count=1, strategy=strategy, batch=batch, training=True)
    costs, program = _price(step, graph, table, cluster, clip=clip)
    cases = of_step = _cases(program, costs, strategy.microbatches)
    if epoch is not None:
        total = [epoch.full_steps(batch) * seconds for seconds in cases]
        for part in extra_parts(strategy, epoch, batch=batch):
            extra, few = _price(part, graph, table, cluster, clip=clip)
            each = _cases(few, extra, part.strategy.microbatches)
            total = [before + part.count * seconds for before, seconds in zip(total, each, strict=True)]
        cases = (total[0], total[1], total[2])
    return Bound(step_time_s=of_step[1], cases=cases, peak_bytes=smallest_peaks(program, costs, strategy))


def shortest_step(program: Program, costs: ProgramCosts, *, microbatches: int) -> float:
    """What a step takes at least [s].

    Args:
        program: a training step or an evaluation, one segment a rank, with some of the microbatches
        costs: of it
        microbatches: how many there are
    """
    compute = min(1.0, costs.interference.compute)
    flow = min(1.0, costs.interference.communication)
    stages = [stage_of(instructions, costs, microbatches, compute, flow) for instructions in program.ranks]
    width = program.segments
    replicas = [stages[first : first + width] for first in range(0, len(stages), width)]
    chains = max((_shortest_replica(replica, microbatches) for replica in replicas), default=0.0)
    over_links = _busiest_link(program, costs, microbatches, flow) + min((stage.tail_s for stage in stages), default=0)
    return max(chains, over_links)


def _price(part: Part, graph: Graph, table: CostTable, cluster: Cluster, *, clip: bool) -> tuple[ProgramCosts, Program]:
    strategy = part.strategy
    microbatch = part.batch // (strategy.dp * strategy.microbatches)
    few = replace(strategy, microbatches=min(strategy.microbatches, PRICED_MICROBATCHES))
    small = replace(part, strategy=few, batch=strategy.dp * few.microbatches * microbatch)
    if small.training:
        program = lower_short(graph, few, table, cluster, batch=small.batch, clip=clip)
    else:
        program = small.lower(graph, clip=clip)
    return price(program, graph, few, table, cluster, batch=small.batch), program


def _cases(program: Program, costs: ProgramCosts, microbatches: int) -> Cases:
    low_s, median_s, high_s = (
        shortest_step(program, case, microbatches=microbatches)
        for case in (at_end(costs, "low"), costs, at_end(costs, "high"))
    )
    return min(low_s, median_s), median_s, max(median_s, high_s)


def _shortest_replica(stages: Sequence[Stage], microbatches: int) -> float:
    ready: list[float] = []
    for stage in stages:
        inputs = (ready[p] + stages[p].forward_s + message_s for p, message_s in stage.received.items())
        ready.append(max([stage.begin_s, *inputs]))
    done = [0.0] * len(stages)
    for number in reversed(range(len(stages))):
        stage = stages[number]
        ends = [ready[number] + stage.work_s]
        for p, message_s in stage.received.items():
            ends.append(ready[p] + stages[p].forward_s + microbatches * message_s + stage.forward_s + stage.backward_s)
        for q, message_s in stage.returned.items():
            first = ready[q] + stages[q].forward_s + stages[q].backward_s
            ends.append(max(done[q] + message_s, first + microbatches * message_s) + stage.backward_s)
        done[number] = max(ends)
    last = stages[-1]
    # With one stage all backwards but the last precede the last forward.
    scored = ready[-1] + last.work_s - (last.last_backward_s if len(stages) == 1 else last.backwards_s)
    return max(
        max(end, _reduced(stage, end), scored + stage.loss_s + _following(stage)) + stage.tail_s
        for stage, end in zip(stages, done, strict=True)
    )


def _reduced(stage: Stage, done_s: float) -> float:
    """When the last bucket has arrived [s]."""
    ends, following = [0.0], 0.0
    for left, seconds in reversed(stage.buckets):
        following += seconds
        ends.append(done_s - left * stage.last_backward_s + following)
    return max(ends)


def _following(stage: Stage) -> float:
    """What is reduced after the losses, by the same ranks [s]."""
    return sum(seconds for _, seconds in stage.buckets) if stage.loss_first else 0.0


def _busiest_link(program: Program, costs: ProgramCosts, microbatches: int, flow: float) -> float:
    priced = program.microbatches
    total: dict[str, float] = {}
    for item in program:
        if item.kind in SENDS or (item.group and item.rank == item.group[0]):
            transfer = costs.transfers[item.id]
            times = microbatches - priced + 1 if item.microbatch == 0 else 1
            for link in dict.fromkeys(transfer.links):
                total[link] = total.get(link, 0.0) + times * transfer.flow_s * flow
    return max(total.values(), default=0.0)
