"""The instructions of one rank, from its row of the pipeline."""

from collections.abc import Iterator

from trimaran.program.finishing import finish, hand_out
from trimaran.program.inner import inner_instructions, inner_marks
from trimaran.program.nodes import shard_bytes
from trimaran.program.orders import BACKWARDS, Compute
from trimaran.program.place import Place, collective
from trimaran.program.traffic import Message
from trimaran.program.types import Instruction, Kind, Mark
from trimaran.program.within import in_order
from trimaran.timeline import COMMUNICATION, HOST

MEAN_BYTES = 16
"""A sum and its weight, both fp64 [bytes]."""


def rank_instructions(place: Place, *, clip: bool) -> Iterator[Instruction]:
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
    for position, step in enumerate(row.steps):
        yield from (_receive(place, message) for message in row.received[position])
        if row.loaded[position]:
            nbytes = sum(place.cut.data_bytes[name] for name in row.data)
            yield Instruction(kind=Kind.LOAD, rank=place.rank, microbatch=step.microbatch, stream=HOST, nbytes=nbytes)
        after = [_receive(place, message).token for message in row.needed[position]]
        if row.fed[position]:
            after.append(f"{Kind.LOAD}{step.microbatch}")
        if step.segment in broadcasts:
            after.append(broadcasts.pop(step.segment).token)
        computed = _compute(place, step, tuple(after))
        yield computed
        yield from inner_instructions(place.plan.inners.get(step, ()), computed, place.axes)
        yield from (_send(place, message) for message in row.sent[position])
        if row.completing.get(step.segment) == step:
            yield from _reductions(place, step)
        if position == row.mean:
            scored = step.kind not in BACKWARDS and step.segment == place.cut.loss
            yield from _mean(place, training=training, after=(step.token,) if scored else ())
    if training:
        yield from finish(place, clip=clip)
        yield from hand_out(place)


def _compute(place: Place, step: Compute, after: tuple[str, ...]) -> Instruction:
    marks = inner_marks(place.plan.inners.get(step, ()), step.segment, step.microbatch)
    if place.layout.dp > 1 and place.plan.completing.get(step.segment) == step:
        marks += tuple(Mark(name=bucket.label, op=bucket.op) for bucket in place.plan.buckets[step.segment])
    if len(marks) > 1:
        marks = in_order(marks, place.cut.parts[step.segment], backward=step.kind in BACKWARDS)
    return Instruction(
        kind=step.kind, rank=place.rank, segment=step.segment, microbatch=step.microbatch, after=after, marks=marks
    )


def _send(place: Place, message: Message) -> Instruction:
    return Instruction(
        kind=Kind.SEND_FORWARD if message.forward else Kind.SEND_BACKWARD,
        rank=place.rank,
        segment=message.sender,
        microbatch=message.microbatch,
        stream=COMMUNICATION,
        peer=place.layout.rank(place.replica, message.target, place.shard),
        peer_segment=message.receiver,
        nbytes=message.nbytes,
        after=tuple(step.token for step in message.producers),
    )


def _receive(place: Place, message: Message) -> Instruction:
    return Instruction(
        kind=Kind.RECEIVE_FORWARD if message.forward else Kind.RECEIVE_BACKWARD,
        rank=place.rank,
        segment=message.receiver,
        microbatch=message.microbatch,
        stream=COMMUNICATION,
        peer=place.layout.rank(place.replica, message.source, place.shard),
        peer_segment=message.sender,
        nbytes=message.nbytes,
    )


def _broadcasts(place: Place) -> Iterator[Instruction]:
    """Running statistics drift apart between replicas; a training step starts from those of replica 0, as in DDP."""
    if place.layout.dp == 1 or not place.plan.completing:
        return
    for segment in place.plan.segments:
        nbytes = place.cut.buffer_bytes[segment]
        if nbytes:
            group = place.replicas
            yield collective(place, "buffers", segment=segment, group=group, nbytes=nbytes, kind=Kind.BROADCAST)


def _mean(place: Place, *, training: bool, after: tuple[str, ...]) -> Iterator[Instruction]:
    group = place.alike
    if len(group) > 1:
        yield collective(place, "loss" if training else "metric", group=group, nbytes=MEAN_BYTES, after=after)


def _reductions(place: Place, step: Compute) -> Iterator[Instruction]:
    if place.layout.dp == 1:
        return
    if place.strategy.sync == "hierarchical":
        yield from _in_levels(place, step)
        return
    homes = place.homes(step.segment)
    for bucket in place.plan.buckets[step.segment]:
        yield collective(
            place,
            bucket.label,
            kind=place.reduction,
            segment=step.segment,
            group=place.replicas,
            root=homes.get(bucket.label),
            nbytes=bucket.wire_bytes,
            after=(f"{step.token}!{bucket.label}",),
        )


def _in_levels(place: Place, step: Compute) -> Iterator[Instruction]:
    """Sums within the node and across nodes, bucket by bucket; behind them what hands the sums out within the node."""
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
