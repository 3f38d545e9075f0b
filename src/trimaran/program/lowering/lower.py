"""Lower a strategy to a program: what each rank does in one step.

Ranks are laid out replica by replica: rank = (replica * pp + row) * tp + shard. One rank's list, from top to bottom:

    0BC#buffers                  replica 0's buffers to the other replicas of the segment
    IN0  0F0  0SEND_F0>1  ...    the order of compute, with loads, receives and sends around its steps
    0AR#b0  0AR#b1               gradient buckets over the replicas, each issued by a mark of the last backward
    AR#loss                      sum and weight of the losses, overlapping the backward
    AR#tie0                      gradients of a weight that several stages share
    AR#norm  CLIP  U             global norm, clipping, update

With `sync="p2p"`, `0RD#b0` reduces to the bucket's owner in place of `0AR#b0`, the rank updates what it owns, and at
the end `0BC#b0` broadcasts the weights from their owner. With `sync="hierarchical"`, each bucket has `0RS#b0` and
`0AR#b0`, and behind the last of those all have `0AG#b0`: see `layout`.

With `schedule="pipedream"` steps overlap: `0RECV_B0<1 behind=...` and `0B0 behind=...` are those of an earlier global
batch, and receives are posted a step before they are needed. See `overlap`.

An evaluation has `EV` in place of `F`, and ends with `AR#metric`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from trimaran.base.errors import InputError
from trimaran.base.timeline import COMMUNICATION, HOST
from trimaran.graph.types import Graph
from trimaran.program.gradients import bucket_owners
from trimaran.program.layout import Layout, across_nodes, shard_bytes, strategy_layout, within_node
from trimaran.program.lowering.messages import Message
from trimaran.program.lowering.partition import Partition, partition_graph, segment_ops
from trimaran.program.lowering.rows import RowSteps, in_order, plan_rows
from trimaran.program.lowering.schedules import (
    BACKWARDS,
    FORWARDS,
    Clock,
    Compute,
    Order,
    behind_of,
    compute_order,
    evaluation_order,
    placement_order,
    start_times,
    step_lengths,
)
from trimaran.program.lowering.tensor_parallel import sharded_bytes
from trimaran.program.rules.fits_graph import check_batch, check_strategy
from trimaran.program.strategy import Strategy, Sync
from trimaran.program.types import (
    RECEIVES,
    Axis,
    Instruction,
    Kind,
    Mark,
    Program,
    inner_instructions,
    inner_marks,
    token_of,
)

# ---------------------------------------------------------------------------------------------------------------------
# A rank with all that decides its instructions


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """A rank, with all that decides its instructions.

    Attributes:
        layout: which rank holds what
        replica: its replica
        row: number of its row
        shard: its number among the ranks that share the tensors of its row
        plan: what its row does
        partition: the graph in segments
        strategy: how replicas stay alike, and what they share
    """

    layout: Layout
    replica: int
    row: int
    shard: int = 0
    plan: RowSteps
    partition: Partition
    strategy: Strategy

    @property
    def rank(self) -> int:
        """Its number."""
        return self.layout.rank(self.replica, self.row, self.shard)

    @property
    def replicas(self) -> tuple[int, ...]:
        """The ranks that hold the same as this one, itself included."""
        return self.layout.replicas(self.row, self.shard)

    @property
    def within(self) -> tuple[int, ...]:
        """Those of the replicas that are on its node."""
        return within_node(self.replicas, self.strategy.nodes, self.rank)

    @property
    def across(self) -> tuple[int, ...]:
        """Those of the replicas that have its place on other nodes, itself included."""
        return across_nodes(self.replicas, self.strategy.nodes, self.rank)

    @property
    def alike(self) -> tuple[int, ...]:
        """The ranks of all rows and replicas that have its shard: those of one row count the same samples."""
        return self.layout.everyone[self.shard :: self.layout.tp]

    @property
    def norm(self) -> tuple[int, ...]:
        """The ranks over which the gradients of the whole model are spread: rows and shards of a replica, or owners."""
        if self.strategy.sync == "p2p":
            return self.replicas
        if self.strategy.zero >= 2 or (self.strategy.shards and self.strategy.tp == 1):
            return self.layout.everyone
        return self.layout.replica(self.replica)

    @property
    def axes(self) -> dict[Axis, tuple[int, ...]]:
        """The ranks of each axis of collectives inside steps."""
        return {"shards": self.layout.shards(self.replica, self.row), "replicas": self.replicas}

    @property
    def reduction(self) -> Kind:
        """Kind of the collective whose end completes the sum of gradients."""
        return _LAST[self.strategy.sync]

    def owners(self, segment: int) -> Mapping[str, int]:
        """The rank that updates each bucket of a segment, by its label; empty: every rank updates all."""
        if self.strategy.sync != "p2p" or self.layout.dp == 1:
            return {}
        return bucket_owners(self.plan.buckets[segment], self.replicas)


_LAST: Mapping[Sync, Kind] = {
    "all-reduce": Kind.ALL_REDUCE,
    "p2p": Kind.REDUCE,
    "hierarchical": Kind.ALL_GATHER,
}


def collective(
    place: RankPlace,
    label: str,
    *,
    group: tuple[int, ...],
    nbytes: int,
    after: tuple[str, ...] = (),
    segment: int | None = None,
    kind: Kind = Kind.ALL_REDUCE,
    root: int | None = None,
) -> Instruction:
    """A collective of a rank, which is no part of a step of compute.

    Args:
        place: the rank
        label: of the collective
        group: its ranks
        nbytes: of the tensor on each rank [bytes]
        after: what it waits for
        segment: that it concerns; None: no one segment
        kind: what is done
        root: where a broadcast starts or a reduce ends; None: at the first of the group
    """
    return Instruction(
        kind=kind,
        rank=place.rank,
        segment=segment,
        stream=COMMUNICATION,
        group=group,
        root=root,
        label=label,
        nbytes=nbytes,
        after=after,
    )


# ---------------------------------------------------------------------------------------------------------------------
# After the last backward of a rank: sums of shared weights, the global norm, the update, broadcasts of weights


NORM_BYTES = 8
"""A sum of squares, fp64 [bytes]."""


def finish(place: RankPlace, *, clip: bool) -> Iterator[Instruction]:
    """Everything after the last backward up to the update: shared weights, the global norm, the update.

    Args:
        place: the rank
        clip: gradients are clipped by their global norm

    Yields:
        Its instructions, in order.
    """
    row, layout = place.plan, place.layout
    ready = [row.completing[segment].token for segment in row.segments]
    if layout.dp > 1:
        ready += [
            f"{segment}{place.reduction}#{bucket.label}" for segment in row.segments for bucket in row.buckets[segment]
        ]
    ready += _left_running(place)
    sums = [
        collective(place, label, group=place.axes["shards"], nbytes=nbytes, after=tuple(ready))
        for label, nbytes in row.sums
    ]
    yield from sums
    ready += [instruction.token for instruction in sums]
    for shared in _shared_weights(place):
        yield shared
        ready.append(shared.token)
    if clip:
        group = place.norm
        if len(group) > 1:
            norm = collective(place, "norm", group=group, nbytes=NORM_BYTES, after=tuple(ready))
            yield norm
            ready = [norm.token]
        clipping = Instruction(kind=Kind.CLIP, rank=place.rank, after=tuple(ready))
        yield clipping
        ready = [clipping.token]
    if len(place.alike) > 1:
        # Waiting for the loss costs nothing by now, and lets a run stop at a loss that is not a number.
        ready.append(f"{Kind.ALL_REDUCE}#loss")
    yield Instruction(kind=Kind.UPDATE, rank=place.rank, after=tuple(ready))


def hand_out(place: RankPlace) -> Iterator[Instruction]:
    """Broadcasts of weights by those that updated them: the owners of buckets, or the replicas that share the update.

    Args:
        place: the rank

    Yields:
        Its instructions, in order.
    """
    for segment in place.plan.segments:
        owners = place.owners(segment)
        buckets = place.plan.buckets[segment] if owners else ()
        handed = [(bucket.label, owners[bucket.label], bucket.nbytes) for bucket in buckets]
        handed += [(item.label, place.replicas[item.root], item.nbytes) for item in place.plan.handed[segment]]
        for label, root, nbytes in handed:
            yield collective(
                place,
                label,
                kind=Kind.BROADCAST,
                segment=segment,
                group=place.replicas,
                root=root,
                nbytes=nbytes,
                after=(str(Kind.UPDATE),),
            )


def _left_running(place: RankPlace) -> list[str]:
    """Collectives that the last steps of the segments start and do not wait for; earlier ones end before these."""
    return [
        token_of(inner, step.segment, step.microbatch)
        for _, step in sorted(place.plan.completing.items())
        for inner in place.plan.inners.get(step, ())
        if inner.wait is None
    ]


def _shared_weights(place: RankPlace) -> Iterator[Instruction]:
    row, layout = place.plan, place.layout
    for number, (parameter, segments) in enumerate(place.partition.tied.items()):
        holders = {layout.rows[segment] for segment in segments}
        if place.row not in holders or len(holders) == 1:
            continue
        found = row.bucket_of(parameter)
        if found is not None and layout.dp > 1:
            after: tuple[str, ...] = (f"{found[0]}{Kind.ALL_REDUCE}#{found[1].label}",)
        else:
            after = tuple(row.completing[segment].token for segment in segments if layout.rows[segment] == place.row)
        yield collective(
            place,
            f"tie{number}",
            group=layout.within(place.replica, holders, place.shard),
            nbytes=place.partition.parameter_bytes[parameter],
            after=after,
        )


MEAN_BYTES = 16
"""A sum and its weight, both fp64 [bytes]. The run sends 8 more with them: whether a rank has a request of a signal."""


def rank_instructions(place: RankPlace, *, clip: bool) -> Iterator[Instruction]:
    """The list of one rank.

    Args:
        place: the rank
        clip: gradients are clipped by their global norm

    Yields:
        Its instructions, in order.
    """
    row = place.plan
    broadcasts = {instruction.segment: instruction for instruction in _broadcasts(place)}
    yield from broadcasts.values()
    training = bool(row.completing)
    if row.mean < 0:
        yield from _mean(place, training=training, after=())
    loaded: set[int] = set()
    for position, step in enumerate(row.steps):
        yield from (_end_of(place, message, sends=False) for message in row.received[position])
        reads = step.kind in FORWARDS and bool(place.partition.data[step.segment])
        if reads and step.microbatch not in loaded:
            loaded.add(step.microbatch)
            nbytes = sum(place.partition.data_bytes[name] for name in row.data)
            yield Instruction(kind=Kind.LOAD, rank=place.rank, microbatch=step.microbatch, stream=HOST, nbytes=nbytes)
        after = [_end_of(place, message, sends=False).token for message in row.needed[position]]
        if reads:
            after.append(f"{Kind.LOAD}{step.microbatch}")
        if step.segment in broadcasts:
            after.append(broadcasts.pop(step.segment).token)
        computed = _compute(place, step, tuple(after))
        yield computed
        yield from inner_instructions(place.plan.inners.get(step, ()), computed, place.axes)
        yield from (_end_of(place, message, sends=True) for message in row.sent[position])
        if row.completing.get(step.segment) == step:
            yield from _reductions(place, step)
        if position == row.mean:
            scored = step.kind not in BACKWARDS and step.segment == place.partition.loss
            yield from _mean(place, training=training, after=(step.token,) if scored else ())
    if training:
        yield from finish(place, clip=clip)
        yield from hand_out(place)


def _compute(place: RankPlace, step: Compute, after: tuple[str, ...]) -> Instruction:
    marks = inner_marks(place.plan.inners.get(step, ()), step.segment, step.microbatch)
    if place.layout.dp > 1 and place.plan.completing.get(step.segment) == step:
        marks += tuple(Mark(name=bucket.label, op=bucket.op) for bucket in place.plan.buckets[step.segment])
    if len(marks) > 1:
        marks = in_order(marks, place.partition.parts[step.segment], lambda mark: mark, backward=step.kind in BACKWARDS)
    return Instruction(
        kind=step.kind, rank=place.rank, segment=step.segment, microbatch=step.microbatch, after=after, marks=marks
    )


def _end_of(place: RankPlace, message: Message, *, sends: bool) -> Instruction:
    """The send or the receive of a message."""
    if message.forward:
        kind = Kind.SEND_FORWARD if sends else Kind.RECEIVE_FORWARD
    else:
        kind = Kind.SEND_BACKWARD if sends else Kind.RECEIVE_BACKWARD
    return Instruction(
        kind=kind,
        rank=place.rank,
        segment=message.sender if sends else message.receiver,
        microbatch=message.microbatch,
        stream=COMMUNICATION,
        peer=place.layout.rank(place.replica, message.target if sends else message.source, place.shard),
        peer_segment=message.receiver if sends else message.sender,
        nbytes=message.nbytes,
        after=tuple(step.token for step in message.producers) if sends else (),
    )


def _broadcasts(place: RankPlace) -> Iterator[Instruction]:
    """Running statistics drift apart between replicas; a training step starts from those of replica 0, as in DDP."""
    if place.layout.dp == 1 or not place.plan.completing:
        return
    for segment in place.plan.segments:
        nbytes = place.partition.buffer_bytes[segment]
        if nbytes:
            group = place.replicas
            yield collective(place, "buffers", segment=segment, group=group, nbytes=nbytes, kind=Kind.BROADCAST)


def _mean(place: RankPlace, *, training: bool, after: tuple[str, ...]) -> Iterator[Instruction]:
    group = place.alike
    if len(group) > 1:
        yield collective(place, "loss" if training else "metric", group=group, nbytes=MEAN_BYTES, after=after)


def _reductions(place: RankPlace, step: Compute) -> Iterator[Instruction]:
    if place.layout.dp == 1:
        return
    if place.strategy.sync == "hierarchical":
        yield from _hierarchical(place, step)
        return
    owners = place.owners(step.segment)
    for bucket in place.plan.buckets[step.segment]:
        yield collective(
            place,
            bucket.label,
            kind=place.reduction,
            segment=step.segment,
            group=place.replicas,
            root=owners.get(bucket.label),
            nbytes=bucket.wire_bytes,
            after=(f"{step.token}!{bucket.label}",),
        )


def _hierarchical(place: RankPlace, step: Compute) -> Iterator[Instruction]:
    """Sums within the node and across nodes, bucket by bucket; behind them the gathers within the node."""
    gathers = []
    for bucket in place.plan.buckets[step.segment]:
        scatter, total, gather = (
            collective(place, bucket.label, kind=kind, segment=step.segment, group=group, nbytes=nbytes, after=(name,))
            for kind, group, nbytes, name in (
                (Kind.REDUCE_SCATTER, place.within, bucket.nbytes, f"{step.token}!{bucket.label}"),
                (
                    Kind.ALL_REDUCE,
                    place.across,
                    shard_bytes(bucket.nbytes, len(place.within)),
                    f"{step.segment}{Kind.REDUCE_SCATTER}#{bucket.label}",
                ),
                (
                    Kind.ALL_GATHER,
                    place.within,
                    bucket.nbytes,
                    f"{step.segment}{Kind.ALL_REDUCE}#{bucket.label}",
                ),
            )
        )
        yield scatter
        yield total
        gathers.append(gather)
    yield from gathers


# ---------------------------------------------------------------------------------------------------------------------
# The program


def lower(graph: Graph, strategy: Strategy, *, batch: int, clip: bool = False) -> Program:
    """The program of a training step.

    Args:
        graph: the job
        strategy: how it is spread over ranks
        batch: global batch size [samples]
        clip: gradients are clipped by their global norm

    Returns:
        A legal program on `strategy.devices` ranks.

    Raises:
        InputError: the strategy does not fit the graph or the batch
    """
    check_strategy(graph, strategy, batch=batch)
    return lower_as(graph, strategy, None, batch=batch, clip=clip)


def lower_replica(graph: Graph, strategy: Strategy, *, batch: int, clip: bool = False) -> Program:
    """The lists of the first replica in the program of a training step, with the groups that they are in.

    With a hierarchical all-reduce these are the lists of the first node: its replicas do not all do the same.

    Where all replicas do the same, this says as much as the whole program, and `simulator.engine.simulate` takes it:
    members of a group that are not there are taken to arrive when those do that are.

    Args:
        graph: the job
        strategy: how it is spread over ranks
        batch: global batch size [samples]
        clip: gradients are clipped by their global norm

    Returns:
        `strategy.pp * strategy.tp` lists, or those of a node; no legal program by itself.

    Raises:
        InputError: the strategy does not fit the graph or the batch
    """
    check_strategy(graph, strategy, batch=batch)
    replicas = strategy.dp // strategy.nodes if strategy.sync == "hierarchical" else 1
    return lower_as(graph, strategy, None, batch=batch, clip=clip, replicas=replicas)


def lower_evaluation(graph: Graph, strategy: Strategy, *, batch: int) -> Program:
    """The program of the evaluation of one batch, by the same segments as in training.

    Args:
        graph: the job
        strategy: how it is spread over ranks
        batch: samples over all ranks

    Returns:
        A legal program on `strategy.devices` ranks.

    Raises:
        InputError: the strategy does not fit the graph or the batch
    """
    check_strategy(graph, strategy, batch=batch)
    return lower_as(graph, strategy, evaluation_order(strategy), batch=batch)


def lower_as(
    graph: Graph,
    strategy: Strategy,
    order: Order | None,
    *,
    batch: int,
    clip: bool = False,
    replicas: int | None = None,
) -> Program:
    """The program of a training step, or of an evaluation, in a given order of compute.

    Args:
        graph: the job
        strategy: how it is spread over ranks; fits the graph (`check_strategy`)
        order: what each row of a replica computes; None: that of the strategy
        batch: global batch size [samples]
        clip: gradients are clipped by their global norm
        replicas: the lists of the first replicas only; None: all

    Raises:
        InputError: the order can never run
    """
    microbatch = check_batch(batch, dp=strategy.dp, microbatches=strategy.microbatches)
    shards = sharded_bytes(graph, strategy)
    partition = partition_graph(graph, segment_ops(graph, strategy), microbatch=microbatch, shards=shards)
    lengths = None
    if strategy.parts:
        lengths = step_lengths(partition.parts, microbatches=strategy.microbatches, samples=microbatch)
    if order is None and lengths is not None:
        order = placement_order(strategy, partition, lengths)
    elif order is None:
        order = compute_order(
            strategy.schedule, stages=strategy.pp, microbatches=strategy.microbatches, chunks=strategy.chunks
        )
    layout = strategy_layout(strategy)
    starts = start_times(order, forward=partition.forward, backward=partition.backward, lengths=lengths)
    rows = plan_rows(graph, strategy, partition, order, Clock(starts=starts, lengths=lengths))
    places = (
        RankPlace(
            layout=layout,
            replica=replica,
            row=number,
            shard=shard,
            plan=row,
            partition=partition,
            strategy=strategy,
        )
        for replica in range(layout.dp if replicas is None else replicas)
        for number, row in enumerate(rows)
        for shard in range(layout.tp)
    )
    lists = tuple(tuple(rank_instructions(place, clip=clip)) for place in places)
    if strategy.is_stale and any(row.completing for row in rows):
        _check_overlap(partition, strategy, clip=clip)
        lists = tuple(_overlapping(instructions, strategy.pp, rank) for rank, instructions in enumerate(lists))
    return Program(
        ranks=lists,
        segments=len(partition.parts),
        microbatches=strategy.microbatches,
        tp=strategy.tp,
    )


def _check_overlap(partition: Partition, strategy: Strategy, *, clip: bool) -> None:
    """Refuse what stages that are at different updates cannot do together."""
    what = ""
    if clip:
        what = "clips gradients by their global norm, which stages that are at different updates do not have"
    elif partition.tied:
        what = f'shares the weight "{next(iter(partition.tied))}" between stages that are at different updates'
    if what:
        raise InputError(
            f"{strategy.name} cannot train this job: it {what}. Take a synchronous schedule, such as --schedule 1f1b",
            code="strategy.stale-job",
            strategy=strategy.name,
        )


_OF_BACKWARD = frozenset({Kind.RECEIVE_BACKWARD, Kind.BACKWARD, Kind.SEND_BACKWARD, Kind.UPDATE})


def _overlapping(instructions: Sequence[Instruction], stages: int, stage: int) -> tuple[Instruction, ...]:
    """The list of a stage whose steps overlap: receives first, each a step before it is needed; loads as they come."""
    forward, backward = behind_of(stages, stage)
    placed = []
    for one in instructions:
        behind = backward if one.kind in _OF_BACKWARD else forward
        behind = 0 if one.kind is Kind.LOAD else behind - (one.kind in RECEIVES)
        placed.append(replace(one, behind=behind))
    # What belongs to other global batches stays in order: a stage sends and computes them one after the other.
    return tuple(sorted(placed, key=lambda one: one.kind not in RECEIVES))
