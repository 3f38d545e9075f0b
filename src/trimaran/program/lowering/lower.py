"""Lower a strategy to a program: what each rank does in one step.

Ranks are laid out replica by replica: rank = (replica * pp + row) * tp + shard. One rank's list, from top to bottom:

    0BC#buffers                  replica 0's buffers to the other replicas of the segment
    IN0  0F0  0SEND_F0>1  ...    the order of compute, with loads, receives and sends around its steps (`ranks.py`)
    0AR#b0  0AR#b1               gradient buckets over the replicas, each issued by a mark of the last backward
    AR#loss                      sum and weight of the losses, overlapping the backward
    AR#tie0                      gradients of a weight that several stages share
    AR#norm  CLIP  U             global norm, clipping, update

With `sync="p2p"`, `0RD#b0` reduces to the bucket's owner in place of `0AR#b0`, the rank updates what it owns, and at
the end `0BC#b0` broadcasts the weights from their owner. With `sync="hierarchical"`, each bucket has `0RS#b0` and
`0AR#b0`, and behind the last of those all have `0AG#b0`: see `layout`.

An evaluation has `EV` in place of `F`, and ends with `AR#metric`.
"""

from collections.abc import Sequence

from trimaran.base.errors import InputError
from trimaran.graph.types import Graph
from trimaran.program.gradients import DEFAULT_BUCKET_BYTES
from trimaran.program.layout import strategy_layout
from trimaran.program.lowering.partition import partition_graph, segment_ops
from trimaran.program.lowering.ranks import Place, rank_instructions
from trimaran.program.lowering.rows import plan_rows
from trimaran.program.lowering.schedules import (
    Clock,
    Order,
    check_order,
    compute_order,
    evaluation_order,
    placement_order,
    start_times,
    step_lengths,
)
from trimaran.program.lowering.tensor_parallel import sharded_bytes
from trimaran.program.rules.fit import check_batch, check_boundaries, check_strategy
from trimaran.program.strategy import Part, Strategy, Sync
from trimaran.program.types import Program


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

    Where all replicas do the same, this says as much as the whole program, and `simulator.simulate` takes it: members
    of a group that are not there are taken to arrive when those do that are.

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
    return _lower(graph, strategy, None, batch=batch, clip=clip, replicas=replicas)


def lower_as(graph: Graph, strategy: Strategy, order: Order | None, *, batch: int, clip: bool = False) -> Program:
    """The program of a training step in a given order of compute.

    Args:
        graph: the job
        strategy: how it is spread over ranks; fits the graph (`check_strategy`)
        order: what each row of a replica computes; None: that of the strategy
        batch: global batch size [samples]
        clip: gradients are clipped by their global norm

    Raises:
        InputError: the order can never run
    """
    return _lower(graph, strategy, order, batch=batch, clip=clip)


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
    return _lower(graph, strategy, evaluation_order(strategy), batch=batch)


def lower_order(
    graph: Graph,
    order: Order,
    *,
    boundaries: Sequence[str] = (),
    batch: int,
    dp: int = 1,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    clip: bool = False,
    sync: Sync = "all-reduce",
) -> Program:
    """The program of any order of compute, such as an interleaved or zero-bubble one made by torch.

    Args:
        graph: the job
        order: what each rank of a replica computes, a row a rank; a rank may have several segments
        boundaries: last operation of every segment but the last
        batch: global batch size [samples]
        dp: data-parallel replicas
        bucket_bytes: size at which a bucket of gradients is sent [bytes]
        clip: gradients are clipped by their global norm
        sync: how replicas stay alike

    Returns:
        A legal program on `dp * len(order)` ranks.

    Raises:
        InputError: the order is incomplete or can never run; it has other segments than the boundaries make; the batch
            does not divide; owners for a pipeline
    """
    if sync == "hierarchical":
        raise InputError(
            '"hierarchical" needs to know the nodes: lower a Strategy, which says them',
            code="order.sync-needs-nodes",
            sync=sync,
        )
    if sync == "p2p" and len(order) > 1:
        raise InputError('"p2p" is for whole networks, not for pipelines', sync=sync, rows=len(order))
    microbatches = check_order(order)
    check_boundaries(graph, boundaries)
    segments = 1 + max(step.segment for row in order for step in row)
    if segments != len(boundaries) + 1:
        raise InputError(
            f"the order of compute has {segments} segments and needs {segments - 1} boundaries, got {len(boundaries)}",
            code="order.wrong-boundary-count",
            segments=segments,
            boundaries=tuple(boundaries),
        )
    row_of = {step.segment: row for row, steps in enumerate(order) for step in steps}
    parts = tuple(
        Part(ops=tuple(op.id for op in ops), row=row_of[number]) for number, ops in enumerate(graph.parts(boundaries))
    )
    strategy = Strategy(
        dp=dp, pp=len(order), parts=parts, microbatches=microbatches, bucket_bytes=bucket_bytes, sync=sync
    )
    return _lower(graph, strategy, order, batch=batch, clip=clip, timed=False)


def _lower(
    graph: Graph,
    strategy: Strategy,
    order: Order | None,
    *,
    batch: int,
    clip: bool = False,
    replicas: int | None = None,
    timed: bool = True,
) -> Program:
    """The program of a strategy.

    Args:
        graph: the job
        strategy: how it is spread over ranks
        order: what each row of a replica computes; None: that of the strategy
        batch: global batch size [samples]
        clip: gradients are clipped by their global norm
        replicas: the lists of the first replicas only; None: all
        timed: in a placement, estimates of how long steps take decide the order of messages
    """
    microbatch = check_batch(batch, dp=strategy.dp, microbatches=strategy.microbatches)
    shards = sharded_bytes(graph, strategy)
    partition = partition_graph(graph, segment_ops(graph, strategy), microbatch=microbatch, shards=shards)
    lengths = None
    if strategy.parts and timed:
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
        Place(
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
    return Program(
        ranks=tuple(tuple(rank_instructions(place, clip=clip)) for place in places),
        segments=len(partition.parts),
        microbatches=strategy.microbatches,
        tp=strategy.tp,
    )
