"""Lower a strategy to a program: what each rank does in one step.

Ranks are laid out replica by replica: rank = replica * pp + stage. One rank's list, from top to bottom:

    0BC#buffers                  replica 0's buffers to the other replicas of the segment
    IN0  0F0  0SEND_F0>1  ...    the order of compute, with loads, receives and sends around its steps (`ranks.py`)
    0AR#b0  0AR#b1               gradient buckets over the replicas, each issued by a mark of the last backward
    AR#loss                      sum and weight of the losses, overlapping the backward
    AR#tie0                      gradients of a weight that several stages share
    AR#norm  CLIP  U             global norm, clipping, update

With `sync="p2p"`, `0RD#b0` to the bucket's home in place of `0AR#b0`, an update of what the rank is home to, and at the
end `0BC#b0` of the weights from their home.

An evaluation has `EV` in place of `F`, and ends with `AR#metric`.
"""

from collections.abc import Sequence

from trimaran.errors import InputError
from trimaran.graph.types import Graph
from trimaran.program.buckets import DEFAULT_BUCKET_BYTES
from trimaran.program.clock import start_times
from trimaran.program.cut import cut_graph
from trimaran.program.fit import check_batch, check_boundaries, check_strategy
from trimaran.program.layout import Layout
from trimaran.program.orders import Order, check_order
from trimaran.program.ranks import Place, rank_instructions
from trimaran.program.rows import plan_rows
from trimaran.program.schedules import compute_order, evaluation
from trimaran.program.types import Program, Strategy, Sync


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
    return lower_order(
        graph,
        compute_order(strategy.schedule, stages=strategy.pp, microbatches=strategy.microbatches),
        boundaries=strategy.boundaries,
        dp=strategy.dp,
        batch=batch,
        bucket_bytes=strategy.bucket_bytes,
        clip=clip,
        sync=strategy.sync,
    )


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
    order = evaluation(strategy.pp, strategy.microbatches)
    return lower_order(graph, order, boundaries=strategy.boundaries, dp=strategy.dp, batch=batch)


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
            does not divide; homes for a pipeline
    """
    if sync == "p2p" and len(order) > 1:
        raise InputError('"p2p" is for whole networks, not for pipelines', sync=sync, rows=len(order))
    microbatches = check_order(order)
    check_boundaries(graph, boundaries)
    segments = 1 + max(step.segment for row in order for step in row)
    if segments != len(boundaries) + 1:
        raise InputError(
            f"the order of compute has {segments} segments and needs {segments - 1} boundaries, got {len(boundaries)}",
            segments=segments,
            boundaries=tuple(boundaries),
        )
    cut = cut_graph(graph, boundaries, microbatch=check_batch(batch, dp=dp, microbatches=microbatches))
    starts = start_times(order, forward=cut.forward, backward=cut.backward)
    row_of = {step.segment: row for row, steps in enumerate(order) for step in steps}
    layout = Layout(dp=dp, width=len(order), rows=tuple(row_of[segment] for segment in range(segments)))
    rows = plan_rows(graph, cut, order, starts, layout.rows, bucket_bytes)
    places = (
        Place(layout=layout, replica=replica, row=number, plan=row, cut=cut, sync=sync)
        for replica in range(dp)
        for number, row in enumerate(rows)
    )
    return Program(
        ranks=tuple(tuple(rank_instructions(place, clip=clip)) for place in places),
        segments=segments,
        microbatches=microbatches,
    )
