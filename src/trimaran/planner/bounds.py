"""Lower bounds of a step's time and memory, without simulating it.

A strategy with M microbatches is lowered and priced with at most two of them, at the size that they have; the first
stands for those that are left out. These few costs give a lower bound for any order of events. For stage k, with F
and B of a microbatch, m the time of a message, U the time after the last reduction:

    ready(k)   = the first input is there: max over senders p of ready(p) + F(p) + m                          (ramp up)
    done(k)    = the last backward has ended: the largest of
                   ready(k) + M (F + B) + the later loads                                        (its own compute)
                   ready(p) + F(p) + M m + F(k) + B(k)                                           (sent from p to k)
                   ready(q) + F(q) + B(q) + M m + B(k)                                      (sent back from q to k)
                   done(q) + m + B(k)                                                                    (ramp down)
    reduced(k) = the last bucket has arrived: max over buckets i of the mark of i in the last backward
                 + the all-reduces from i on, one after the other (several at once: only the time of their bytes)
    step      >= max over k of max(done(k), reduced(k), the loss's reduction) + U(k)
    step      >= for each link: the time of its bytes, one transfer after the other, + the shortest U

The time after the step is added to each: copies of gradients, and the wait for the slowest rank.

Nothing here is longer than in a simulation: interference and sharing only lengthen, and what else could be waited for
is left out. Where a factor of interference is below 1, everything is taken to run at that factor.

Messages between stages alone: a link moves the bytes of all messages that cross it, one after the other or at once, in
every schedule. Nothing is lowered or priced for that. Before stages are split, those that cross every split at least.

Work of one rank in a step, by its parts, as input of lower bounds.

A rank has one segment, and instructions of some of its microbatches; the first stands for those that are left out.

Lower bounds from totals alone: nothing is split, placed, lowered or priced, so hundreds of strategies take no time.

With w the forward and backward of the network for a microbatch of n samples on one device, M microbatches, K rows of T
shards each:

    step >= load(n) + M · w(n) / (K · T)                                   the busiest rank has its share at least
    step >= load(n) + w(n) / (1 - (1 - 1/M)^K)                             a chain of stages in GPipe's or 1F1B's order
    step >= load(n) + the longest path through the operations of a microbatch
    peak >= state of the network / (K · T, and the replicas where they share it)

The second: stage k starts after a forward, and ends before a backward, of each stage before it, so the step takes
P(k) + M t(k) at least, where P(k) sums the t before k. The split that makes the largest of these smallest makes all of
them equal. With backwards in two halves only the forwards are sure to come first: P(k) is then their share of it.

The largest of R parts is a lower bound for the fullest rank. Forms of running a segment differ by a factor; the
smallest counts. Interference below 1 is taken to hold all the time. The update counts by its bytes.
"""

import functools
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trimaran.base.timeline import COMPUTE
from trimaran.graph.types import Graph, TensorSpec, of_graph
from trimaran.planner.candidates import Cases, PricedJob, at_end, cases_of, lower_short
from trimaran.planner.communication_bounds import TrafficBounds
from trimaran.planner.epoch import EpochPart, extra_parts
from trimaran.planner.order_bounds import MicrobatchChain, busy_s, chain_of
from trimaran.pricing.compute import context_of, operation_costs, own_form
from trimaran.pricing.curves import at_batch
from trimaran.pricing.program import least_peaks, price, straggling_share
from trimaran.pricing.tables import FORMS
from trimaran.pricing.transfers import transfer_cost
from trimaran.pricing.types import Cost, ProgramCosts, Transfer, add, multiply
from trimaran.program.layout import Layout, strategy_layout
from trimaran.program.lowering.partition import routes_of, segment_ops
from trimaran.program.lowering.schedules import BACKWARDS, FORWARDS
from trimaran.program.strategy import Execution, Strategy
from trimaran.program.types import SENDS, Instruction, Kind, Program

_REPEATED = FORWARDS | BACKWARDS


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedStage:
    """Work of one rank, by its parts; durations as if nothing else ran.

    Attributes:
        begin_s: until its first input is loaded and its buffers are there [s]
        forward_s: forward of one microbatch [s]
        backward_s: backward of one microbatch [s]
        last_backward_s: the backward that completes the gradients [s]
        work_s: all forwards and backwards, and the loads between them [s]
        passes_s: all forwards and backwards [s]
        backwards_s: all backwards [s]
        received: for each segment that sends to it in the forward, the time of a message [s]
        returned: for each segment that sends gradients to it, the time of a message [s]
        buckets: for each bucket, the part of the last backward that is left at its mark [0..1], and the time of its
            all-reduce [s]: the whole, or only the time of its bytes where several run at once
        loss_s: the same of the reduction of the losses [s]
        loss_first: the buckets are reduced after it, or at the same time over the same links
        tail_s: clipping and update [s]
    """

    begin_s: float
    forward_s: float
    backward_s: float
    last_backward_s: float
    work_s: float
    passes_s: float
    backwards_s: float
    received: Mapping[int, float]
    returned: Mapping[int, float]
    buckets: Sequence[tuple[float, float]]
    loss_s: float
    loss_first: bool
    tail_s: float


def stage_of(
    instructions: Sequence[Instruction], costs: ProgramCosts, microbatches: int, compute: float, flow: float
) -> BoundedStage:
    """Work of one rank, by its parts.

    Args:
        instructions: of the rank
        costs: of them
        microbatches: how many there are
        compute: factor on compute [1]
        flow: factor on transfers [1]
    """

    def busy(item: Instruction) -> float:
        return costs.compute[item.id].seconds * compute

    def moved(item: Instruction) -> float:
        transfer = costs.transfers[item.id]
        return (transfer.latency_s + transfer.flow_s) * flow

    def summed(item: Instruction) -> float:
        # Where several are under way at once, the latency of one may pass while another flows. What flows over the same
        # links takes as long together as one after the other.
        return moved(item) if costs.at_once == 1 else costs.transfers[item.id].flow_s * flow

    forwards = [busy(item) for item in instructions if item.kind in FORWARDS]
    backwards = [busy(item) for item in instructions if item.kind == Kind.BACKWARD]
    loads = [busy(item) for item in instructions if item.kind == Kind.LOAD]
    left_out = microbatches - len(forwards)
    all_backwards = sum(backwards) + (left_out * backwards[0] if backwards else 0.0)
    work = passes = sum(forwards) + left_out * forwards[0] + all_backwards
    if costs.host_blocks and loads:
        # The first may be loaded while the stage waits for its input.
        work += (microbatches - 1) * min(loads)
    reductions = [item for item in instructions if item.kind == Kind.ALL_REDUCE]
    loss = [item for item in reductions if item.label in ("loss", "metric")]
    buckets = [item for item in reductions if any("!" in name for name in item.after)]
    return BoundedStage(
        begin_s=max(
            min(loads, default=0.0),
            sum(moved(item) for item in instructions if item.kind == Kind.BROADCAST),
        ),
        forward_s=min(forwards),
        backward_s=min(backwards, default=0.0),
        last_backward_s=backwards[-1] if backwards else 0.0,
        work_s=work,
        passes_s=passes,
        backwards_s=all_backwards,
        received=_by_sender(instructions, Kind.RECEIVE_FORWARD, moved),
        returned=_by_sender(instructions, Kind.RECEIVE_BACKWARD, moved),
        buckets=[(1.0 - _fraction(item, costs), summed(item)) for item in buckets],
        loss_s=sum(summed(item) for item in loss),
        loss_first=bool(loss and buckets)
        and loss[0].group == buckets[0].group
        and reductions.index(loss[0]) < reductions.index(buckets[0]),
        tail_s=sum(busy(item) for item in instructions if item.kind in (Kind.CLIP, Kind.UPDATE)),
    )


def _by_sender(
    instructions: Sequence[Instruction], kind: Kind, moved: Callable[[Instruction], float]
) -> dict[int, float]:
    """Time of the messages of one microbatch, by the segment that they come from [s]."""
    return {
        item.peer_segment: moved(item)
        for item in instructions
        if item.kind == kind and item.microbatch == 0 and item.peer_segment is not None
    }


def _fraction(item: Instruction, costs: ProgramCosts) -> float:
    """The part of the backward after which a bucket is complete."""
    token, _, mark = next(name for name in item.after if "!" in name).partition("!")
    return costs.marks[f"r{item.rank}/{token}", mark]


# Enough to tell the microbatch that completes the gradients from the others.
PRICED_MICROBATCHES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Lower bounds of a candidate.

    Attributes:
        step_time_s: of a step, with all costs at their median [s]
        cases: of a step, or an epoch, with all costs low, at their median, and high [s]
        peak_bytes: largest live bytes of each rank of a replica, or of the fullest [bytes]
        chain: what its stages take, for a bound by the order of its schedule; None: it has none
    """

    step_time_s: float
    cases: Cases
    peak_bytes: tuple[int, ...]
    chain: MicrobatchChain | None = None

    @property
    def objective_s(self) -> float:
        """Lower bound on the objective, with all costs at their median [s]."""
        return self.cases[1]


def bound(strategy: Strategy, job: PricedJob) -> Bound:
    """Lower bounds of a strategy: on the time of an epoch where the job has one, else on that of a step.

    Args:
        strategy: with boundaries
        job: with its costs and devices
    """
    step = EpochPart(count=1, strategy=strategy, batch=job.batch, training=True)
    costs, program = _price(step, job)
    cases = of_step = _cases(program, costs, strategy.microbatches)
    if job.epoch is not None:
        total = [job.epoch.full_steps(job.batch) * seconds for seconds in cases]
        for part in extra_parts(strategy, job.epoch, batch=job.batch):
            extra, few = _price(part, job)
            each = _cases(few, extra, part.strategy.microbatches)
            total = [before + part.count * seconds for before, seconds in zip(total, each, strict=True)]
        cases = (total[0], total[1], total[2])
    peaks = least_peaks(job.graph, strategy, job.table, batch=job.batch)
    return Bound(step_time_s=of_step[1], cases=cases, peak_bytes=peaks, chain=chain_of(program, costs, strategy))


def busiest_part(strategy: Strategy, job: PricedJob) -> tuple[Cases, MicrobatchChain | None]:
    """Lower bound on a step for any schedule and any sharding: that of the rank, the group or the link with most to do.

    A rank computes one operation at a time and waits for the collectives inside its steps; a group does its collectives
    one after the other; and what flows over a link at once takes as long together as one after the other.

    A network whose layers are shared is not evenly shared: work that every rank of a layer repeats counts in full
    here, and only its mean part in bounds from totals.

    Args:
        strategy: with boundaries
        job: with its costs and devices

    Returns:
        With all costs low, at their median, and high [s]; and what its stages take.
    """
    few = min(strategy.microbatches, PRICED_MICROBATCHES)
    microbatch = job.batch // (strategy.dp * strategy.microbatches)
    short = replace(strategy, microbatches=few)
    size = strategy.dp * few * microbatch
    program = lower_short(short, job, batch=size)
    costs = price(program, job.graph, short, job.table, job.cluster, batch=size)
    left_out = strategy.microbatches - few
    shrink = min(1.0, costs.interference.compute, costs.interference.communication, costs.interference.latency)
    busy = [_busy(instructions, costs, left_out) for instructions in program.ranks]
    parts = [*busy, *_moving(program, costs, left_out)]
    low_s, median_s, high_s = (max(one) * shrink for one in zip(*parts, strict=True))
    cases = cases_of(low_s, median_s, high_s)
    return cases, chain_of(program, costs, strategy)


def busiest_link(strategy: Strategy, job: PricedJob) -> Cases:
    """Lower bound on a step for any schedule: the link over which the messages between stages take longest.

    Args:
        strategy: with boundaries
        job: with its costs and devices

    Returns:
        With all costs low, at their median, and high [s].
    """
    layout, samples = strategy_layout(strategy), job.batch // (strategy.dp * strategy.microbatches)
    links: dict[str, list[float]] = {}
    for route in routes_of(job.graph, segment_ops(job.graph, strategy), layout.rows):
        source, target = layout.rows[route.producer], layout.rows[route.consumer]
        for forward in (True, False):
            ends = (source, target) if forward else (target, source)
            _send(links, layout, ends, route.nbytes(samples, forward=forward), strategy, job)
    return _busiest(links, job)


_QUANTILES = (0.05, 0.25, 0.5, 0.75)
"""Of the bytes that cross a split: to the next lower one they are rounded down, so that few messages are priced."""

_SLOW = 0.5
"""Pairs of neighbours whose messages take this share of the longest at least are looked at together."""

_HALVINGS = 10
"""Times that the range of a limit is halved: it is found, from below, to a five hundredth of the longest message."""


def least_between_stages(strategy: Strategy, job: PricedJob) -> Cases:
    """Lower bound on a step for any schedule and any splits of the stages, by what crosses these.

    What the operation before a split makes and the one behind it reads goes from one stage to the next, and gradients
    of it come back. Each pair of neighbours has a split, behind that of the pair before. The smallest limit is sought
    that lets each have one at which its messages take no longer, nor those of two pairs with slow links that follow
    each other, as these may share them.

    Args:
        strategy: with or without boundaries
        job: with its costs and devices

    Returns:
        With all costs low, at their median, and high [s].
    """
    samples = job.batch // (strategy.dp * strategy.microbatches)
    layout = Layout(dp=strategy.dp, width=strategy.pp, rows=tuple(range(strategy.pp)), tp=strategy.tp)
    crossing = [sum(round(spec.nbytes.at(samples)) for spec in specs) for specs in _read_next(job.graph)]
    pairs = list(itertools.pairwise(number % strategy.pp for number in range(strategy.pp * strategy.chunks)))
    if not pairs or len(crossing) < len(pairs):
        return 0.0, 0.0, 0.0
    sizes = sorted({0, *np.quantile(crossing, _QUANTILES, method="lower").tolist()})
    size_of = [bisect_right(sizes, nbytes) - 1 for nbytes in crossing]
    # For each size and place, what is behind the next split of at most that size.
    behind = [_behind_next([own <= size for own in size_of]) for size in range(len(sizes))]

    @functools.cache
    def messages(ends: tuple[int, int], size: int) -> dict[str, list[float]]:
        links: dict[str, list[float]] = {}
        for way in (ends, ends[::-1]):
            _send(links, layout, way, sizes[size], strategy, job)
        return links

    @functools.cache
    def taken(before: tuple[tuple[int, int], int] | None, ends: tuple[int, int], size: int) -> Cases:
        links = messages(ends, size)
        if before is not None and before[0] != ends:
            links = {link: list(seconds) for link, seconds in links.items()}
            for link, seconds in messages(*before).items():
                _add(links, link, seconds)
        return _busiest(links, job)

    longest = [taken(None, ends, len(sizes) - 1)[1] for ends in pairs]
    slow = [seconds >= _SLOW * max(longest) for seconds in longest]

    def allows(limit_s: float, end: int) -> bool:
        """Whether each pair has a split."""
        # For the last slow pair with each size, the first place where the next split may be.
        places: dict[tuple[tuple[int, int], int] | None, int] = {None: 0}
        for ends, is_slow in zip(pairs, slow, strict=True):
            found: dict[tuple[tuple[int, int], int] | None, int] = {}
            for before, place in places.items():
                for size in range(len(sizes)):
                    if taken(before if is_slow else None, ends, size)[end] <= limit_s:
                        key = (ends, size) if is_slow else before
                        found[key] = min(found.get(key, len(crossing) + 1), behind[size][place])
            places = found
        return min(places.values(), default=len(crossing) + 1) <= len(crossing)

    def least(end: int) -> float:
        low_s, high_s = 0.0, 2.0 * max(taken(None, ends, len(sizes) - 1)[end] for ends in pairs)
        for _ in range(_HALVINGS):
            middle_s = (low_s + high_s) / 2.0
            low_s, high_s = (low_s, middle_s) if allows(middle_s, end) else (middle_s, high_s)
        return low_s

    return cases_of(least(0), least(1), least(2))


@of_graph
def _read_next(graph: Graph) -> list[list[TensorSpec]]:
    """For each place where stages may be split, the tensors with a gradient that the operations around it exchange."""
    place = {op.id: number for number, op in enumerate(graph.ops)}
    pairs = ((graph.ops[place[name]].outputs, graph.ops[place[name] + 1].inputs) for name in graph.split_points)
    return [[spec for spec in made if spec.requires_grad and spec.name in read] for made, read in pairs]


def _behind_next(marked: Sequence[bool]) -> list[int]:
    """For each place and those too far, the one behind the next that is marked from there on; too far: none is."""
    found = [len(marked) + 1] * (len(marked) + 2)
    for place in reversed(range(len(marked))):
        found[place] = place + 1 if marked[place] else found[place + 1]
    return found


def _send(
    links: dict[str, list[float]],
    layout: Layout,
    ends: tuple[int, int],
    nbytes: int,
    strategy: Strategy,
    job: PricedJob,
) -> None:
    """Add the messages of all microbatches from a row to another, in each replica, to the times of the links [s]."""
    cluster = job.cluster.ordered(strategy.device_order)
    for replica, shard in itertools.product(range(layout.dp), range(layout.tp) if nbytes else ()):
        sender, receiver = (layout.rank(replica, row, shard) for row in ends)
        message = Instruction(kind=Kind.SEND_FORWARD, rank=sender, peer=receiver, nbytes=nbytes)
        _flow(links, transfer_cost(message, job.table, cluster), strategy.microbatches)


def _busiest(links: Mapping[str, Sequence[float]], job: PricedJob) -> Cases:
    factors = ((one.communication, one.latency) for one in job.table.interference.values())
    shrink = min((1.0, *itertools.chain.from_iterable(factors)))
    low_s, median_s, high_s = (shrink * max(one) for one in zip((0.0, 0.0, 0.0), *links.values(), strict=True))
    return cases_of(low_s, median_s, high_s)


def _busy(instructions: Sequence[Instruction], costs: ProgramCosts, left_out: int) -> Cases:
    """Compute of a rank and what it waits for inside, at each end of the intervals [s].

    The first microbatch stands for those left out.
    """
    low_s = median_s = high_s = 0.0
    for item in instructions:
        if item.stream != COMPUTE:
            continue
        times = 1 + left_out if item.microbatch == 0 and item.kind in _REPEATED else 1
        low, median, high = busy_s(item, costs)
        low_s += times * low
        median_s += times * median
        high_s += times * high
    return low_s, median_s, high_s


def _moving(program: Program, costs: ProgramCosts, left_out: int) -> Iterator[Cases]:
    """Time of the transfers of each group, and of the bytes on each link, at each end of the intervals [s]."""
    groups: dict[tuple[int, ...], list[float]] = {}
    links: dict[str, list[float]] = {}
    # Transfers that are alike have one price, so that each is added up once.
    counts: dict[int, int] = {}
    alike: dict[int, Transfer] = {}
    for item in program:
        if not (item.kind in SENDS or (item.group and item.rank == item.group[0])):
            continue
        transfer = costs.transfers[item.id]
        times = 1 + left_out if item.microbatch == 0 else 1
        if item.group and costs.at_once == 1:
            _add_to(groups.setdefault(item.group, [0.0, 0.0, 0.0]), transfer, float(times))
        alike[id(transfer)] = transfer
        counts[id(transfer)] = counts.get(id(transfer), 0) + times
    for name, transfer in alike.items():
        _flow(links, transfer, counts[name])
    for total in (*groups.values(), *links.values()):
        yield total[0], total[1], total[2]


def _flow(links: dict[str, list[float]], transfer: Transfer, times: int) -> None:
    """Add the bytes of a transfer to the times of the links that they cross [s]."""
    share = times * transfer.flow_share
    taken_s = [share * seconds for seconds in transfer.ends]
    for link in dict.fromkeys(transfer.links):
        _add(links, link, taken_s)


def _add(links: dict[str, list[float]], link: str, seconds: Sequence[float]) -> None:
    total = links.setdefault(link, [0.0, 0.0, 0.0])
    for end, own_s in enumerate(seconds):
        total[end] += own_s


def _add_to(total: list[float], transfer: Transfer, times: float) -> None:
    for number, seconds in enumerate(transfer.ends):
        total[number] += seconds * times


def shortest_step(program: Program, costs: ProgramCosts, *, microbatches: int) -> float:
    """Lower bound on a step [s].

    Args:
        program: a training step or an evaluation, one segment a rank, with some of the microbatches
        costs: of it
        microbatches: how many there are
    """
    compute = min(1.0, costs.interference.compute)
    flow = min(1.0, costs.interference.communication, costs.interference.latency)
    stages = [stage_of(instructions, costs, microbatches, compute, flow) for instructions in program.ranks]
    width = program.segments
    replicas = [stages[first : first + width] for first in range(0, len(stages), width)]
    chains = max((_shortest_replica(replica, microbatches) for replica in replicas), default=0.0)
    over_links = _busiest_link(program, costs, microbatches, flow) + min((stage.tail_s for stage in stages), default=0)
    between = costs.between_s or (0.0,) * len(stages)
    after_s = max(
        (between_s + costs.straggling * stage.passes_s for stage, between_s in zip(stages, between, strict=True)),
        default=0.0,
    )
    return max(chains, over_links) + after_s


def _price(part: EpochPart, job: PricedJob) -> tuple[ProgramCosts, Program]:
    strategy = part.strategy
    microbatch = part.batch // (strategy.dp * strategy.microbatches)
    few = replace(strategy, microbatches=min(strategy.microbatches, PRICED_MICROBATCHES))
    small = replace(part, strategy=few, batch=strategy.dp * few.microbatches * microbatch)
    if small.training:
        program = lower_short(few, job, batch=small.batch)
    else:
        program = small.lower(job.graph, clip=job.clip)
    return price(program, job.graph, few, job.table, job.cluster, batch=small.batch), program


def _cases(program: Program, costs: ProgramCosts, microbatches: int) -> Cases:
    low_s, median_s, high_s = (
        shortest_step(program, case, microbatches=microbatches)
        for case in (at_end(costs, "low"), costs, at_end(costs, "high"))
    )
    return cases_of(low_s, median_s, high_s)


def _shortest_replica(stages: Sequence[BoundedStage], microbatches: int) -> float:
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


def _reduced(stage: BoundedStage, done_s: float) -> float:
    """When the last bucket has arrived [s]."""
    ends, following = [0.0], 0.0
    for left, seconds in reversed(stage.buckets):
        following += seconds
        ends.append(done_s - left * stage.last_backward_s + following)
    return max(ends)


def _following(stage: BoundedStage) -> float:
    """Time of reductions after the losses, by the same ranks [s]."""
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


_ENDS = ("low", "seconds", "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class _MicrobatchWork:
    """A microbatch on one device, at one end of the intervals [s]: its forward, its backward, the longest path."""

    forward: float
    backward: float
    path: float

    @property
    def both(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True, slots=True, kw_only=True)
class _Totals:
    """All operations of a microbatch on one device: their sums, the factors of execution forms, the longest path.

    In however many pieces they run, these are the same.
    """

    forward: Cost
    backward: Cost
    forward_factors: tuple[Cost, ...]
    backward_factors: tuple[Cost, ...]
    path: float

    def in_pieces(self, pieces: int) -> tuple[_MicrobatchWork, ...]:
        """The work where it runs in a number of segments, at each end of the intervals."""
        # At the other ends the path is as uncertain as all of its operations, each by itself, make it.
        return tuple(
            _MicrobatchWork(
                forward=min(_end(self.forward, factor, pieces, end) for factor in self.forward_factors),
                backward=min(_end(self.backward, factor, pieces, end) for factor in self.backward_factors),
                path=self.path if end != "low" else 0.0,
            )
            for end in _ENDS
        )


@dataclass(slots=True, kw_only=True)
class QuickBounds:
    """Lower bounds of the strategies of a job; terms that depend only on the microbatch are computed once.

    Attributes:
        job: with its costs and devices
        balanced: take stages for equal, which makes the bounds of chains those of the formulas: for searches so
            large that a bound which no split whatever can undercut would leave too much
    """

    job: PricedJob
    balanced: bool = False
    _traffic: TrafficBounds = field(init=False)
    _works: dict[tuple[int, Execution, str], _Totals] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._traffic = TrafficBounds(job=self.job)

    def of(self, strategy: Strategy) -> Bound:
        """Lower bounds of a strategy.

        Args:
            strategy: with or without boundaries

        Raises:
            InputError: the table lacks an operation
        """
        microbatch = self.job.batch // (strategy.dp * strategy.microbatches)
        pieces = strategy.pp * strategy.chunks if not strategy.parts else len(self.job.graph.ops)
        works = self._at(microbatch, strategy.execution, own_form(strategy), pieces)
        traffic = self._traffic.of(strategy)
        step = self.job.table.steps.get(self.job.graph.digest)
        load_s = at_batch(step.load, microbatch).low if step and step.load else 0.0
        straggling = straggling_share(self.job.table, self.job.cluster, strategy.devices)
        low, median, high = (
            self._step(strategy, work, ends, load_s=load_s, straggling=straggling)
            for work, ends in zip(works, traffic.ends, strict=True)
        )
        cases = cases_of(low, median, high)
        if self.job.epoch is not None:
            count = self.job.epoch.full_steps(self.job.batch)
            cases = (low * count, median * count, high * count)
        return Bound(step_time_s=median, cases=cases, peak_bytes=(self._least_peak(strategy),))

    def share(self, other: "QuickBounds") -> None:
        """Know the works of microbatches that another one knows, of the same graph and costs."""
        self._works = other._works

    def _step(
        self,
        strategy: Strategy,
        work: _MicrobatchWork,
        traffic: tuple[float, float, float],
        *,
        load_s: float,
        straggling: float,
    ) -> float:
        """At one end of the intervals, of the work of a microbatch and of the traffic (`Traffic.ends`) [s]."""
        shares = strategy.tp if strategy.tp > 1 else strategy.dp if strategy.shards else 1
        count, rows = strategy.microbatches, strategy.pp
        forward_s, backward_s, exchange_s = traffic
        whole = work.both / shares + forward_s + backward_s
        spread = count * whole / rows
        path = work.path / shares
        chain = 0.0
        if strategy.is_stale:
            # Steps overlap: neither the chain of stages nor the path of a batch is waited for, only the busiest stage.
            path = 0.0
        elif rows > 1 and not strategy.parts:
            before = 1.0
            if strategy.schedule == "zero-bubble" and whole:
                before = (work.forward / shares + forward_s) / whole
            if self.balanced:
                units = (count + (rows - 1) * before / strategy.chunks) / rows
            else:
                units = _chain(count, rows, before) if strategy.chunks == 1 else 0.0
            chain = units * whole
        least = min((min(1.0, entry.compute) for entry in self.job.table.interference.values()), default=1.0)
        waits = straggling * spread
        if strategy.is_stale:
            return least * (spread + waits)
        # Where factors of interference lengthen communication it is at least as long; none of the catalog shortens it.
        step_s = max(least * max(spread, path, chain) + load_s, exchange_s)
        return step_s + least * waits

    def _at(self, microbatch: int, execution: Execution, form: str, pieces: int) -> tuple[_MicrobatchWork, ...]:
        key = (microbatch, execution, form)
        if key not in self._works:
            self._works[key] = self._totals(*key)
        return self._works[key].in_pieces(pieces)

    def _totals(self, microbatch: int, execution: Execution, form: str) -> _Totals:
        graph, table = self.job.graph, self.job.table
        costs = operation_costs(graph, table, batch=microbatch, execution=execution)
        contexts = [
            context_of(graph, table, costs, batch=microbatch, form=one, execution=execution)
            for one in dict.fromkeys((*FORMS, form))
        ]
        factor_f = min(context.forward.seconds for context in contexts)
        factor_b = min(context.backward.seconds for context in contexts)
        medians = {
            name: cost.forward.seconds * factor_f + cost.backward.seconds * factor_b for name, cost in costs.items()
        }
        return _Totals(
            forward=add([cost.forward for cost in costs.values()]),
            backward=add([cost.backward for cost in costs.values()]),
            forward_factors=tuple(context.forward for context in contexts),
            backward_factors=tuple(context.backward for context in contexts),
            path=max(earliest_ends(graph, medians).values(), default=0.0),
        )

    def _least_peak(self, strategy: Strategy) -> int:
        step = self.job.table.steps.get(self.job.graph.digest)
        kept = step.state_bytes_per_byte if step else 0.0
        replicas = strategy.dp
        classifier = bool(strategy.shards) and strategy.tp == 1
        parameters = self.job.graph.parameters
        trained = sum(parameter.nbytes for parameter in parameters if parameter.trainable)
        frozen = sum(parameter.nbytes for parameter in parameters if not parameter.trainable)
        weights = (trained + frozen) / (replicas if strategy.zero == 3 or classifier else 1)
        gradients = trained / (replicas if strategy.zero >= 2 or classifier else 1)
        owned = strategy.zero >= 1 or strategy.sync == "p2p" or classifier
        state = trained * kept / (replicas if owned else 1)
        return int((weights + gradients + state) / (strategy.pp * strategy.tp))


def _end(whole: Cost, factor: Cost, pieces: int, end: str) -> float:
    """One end of the interval of all operations together, priced in a number of segments [s].

    Errors of operations are independent: the sum of K segments is less certain than the sum of all operations, by at
    most the root of K. So its high end is at least that of the whole, and its low end at least the remainder.
    """
    if end == "low":
        width = (whole.seconds - whole.low) * math.sqrt(pieces)
        whole = replace(whole, low=max(0.0, whole.seconds - width))
    return float(getattr(multiply(whole, factor), end)) if end != "seconds" else whole.seconds * factor.seconds


def earliest_ends(graph: Graph, seconds: Mapping[str, float]) -> dict[str, float]:
    """When each operation ends at the earliest, by its id [s].

    Args:
        graph: the job's
        seconds: of each operation, by id [s]
    """
    made: dict[str, float] = {}
    ends = {}
    for op in graph.ops:
        ends[op.id] = max((made[name] for name in op.inputs if name in made), default=0.0) + seconds[op.id]
        made.update(dict.fromkeys((spec.name for spec in op.outputs), ends[op.id]))
    return ends


def shortest_path(strategy: Strategy, job: PricedJob) -> Cases:
    """The longest path through the operations of a microbatch, with each of them as short as it may be [s].

    Errors of operations are independent, so however they are grouped, what runs together is not shorter at the low end
    than its operations by themselves.

    Args:
        strategy: a placement
        job: with its costs

    Returns:
        The low end; the bounds from totals have the others.

    Raises:
        InputError: the table lacks an operation
    """
    microbatch = job.batch // (strategy.dp * strategy.microbatches)
    costs = operation_costs(job.graph, job.table, batch=microbatch, execution=strategy.execution)
    contexts = [
        context_of(job.graph, job.table, costs, batch=microbatch, form=form, execution=strategy.execution)
        for form in dict.fromkeys((*FORMS, own_form(strategy)))
    ]
    lows = {
        name: min(multiply(cost.forward, context.forward).low for context in contexts)
        + min(multiply(cost.backward, context.backward).low for context in contexts)
        for name, cost in costs.items()
    }
    compute = min((min(1.0, entry.compute) for entry in job.table.interference.values()), default=1.0)
    low_s = compute * max(earliest_ends(job.graph, lows).values(), default=0.0)
    return low_s, low_s, low_s


def _chain(microbatches: int, stages: int, before: float) -> float:
    """The least that a step of a chain takes, in units of one microbatch on one device.

    The smallest T with P(k) + M t(k) <= T for every stage k, where P(k) is `before` times the sum of the t before k.

    Args:
        microbatches: M
        stages: in the chain
        before: part of a stage's work on a microbatch that must come before the next stage's, or after it

    Example:
        >>> _chain(1, 4, 1.0), _chain(2, 2, 1.0)  # one microbatch goes through all; t(0) = T/2, t(1) = T/4
        (1.0, 1.3333333333333333)
    """
    left, total = 1.0, 0.0
    for _ in range(stages):
        own = left / microbatches
        total += own
        left -= before * own
    return 1.0 / total
