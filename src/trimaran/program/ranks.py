"""The instructions of one rank, from its row of the pipeline."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trimaran.program.cut import Cut
from trimaran.program.homes import bucket_homes
from trimaran.program.layout import Layout
from trimaran.program.orders import BACKWARDS, Compute
from trimaran.program.rows import Row
from trimaran.program.traffic import Message
from trimaran.program.types import Instruction, Kind, Mark, Sync
from trimaran.timeline import COMMUNICATION, HOST

MEAN_BYTES = 16
"""A sum and its weight, both fp64 [bytes]."""

NORM_BYTES = 8
"""A sum of squares, fp64 [bytes]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A rank, with all that decides its instructions.

    Attributes:
        layout: which rank holds what
        replica: its replica
        row: number of its row
        plan: what its row does
        cut: the graph, cut
        sync: how replicas stay alike
    """

    layout: Layout
    replica: int
    row: int
    plan: Row
    cut: Cut
    sync: Sync = "all-reduce"

    @property
    def rank(self) -> int:
        """Its number."""
        return self.layout.rank(self.replica, self.row)

    @property
    def reduction(self) -> Kind:
        """How gradients are added up."""
        return Kind.REDUCE if self.sync == "p2p" else Kind.ALL_REDUCE

    def homes(self, segment: int) -> Mapping[str, int]:
        """Where each bucket of a segment is updated, by its label; everywhere where it is not here."""
        if self.sync != "p2p" or self.layout.dp == 1:
            return {}
        return bucket_homes(self.plan.buckets[segment], self.layout.replicas(self.row))


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
        yield _compute(place, step, tuple(after))
        yield from (_send(place, message) for message in row.sent[position])
        if row.completing.get(step.segment) == step:
            yield from _reductions(place, step)
        if position == row.mean:
            scored = step.kind not in BACKWARDS and step.segment == len(place.layout.rows) - 1
            yield from _mean(place, training=training, after=(step.token,) if scored else ())
    if training:
        yield from _finish(place, clip=clip)
        yield from _updated(place)


def _compute(place: Place, step: Compute, after: tuple[str, ...]) -> Instruction:
    marks: tuple[Mark, ...] = ()
    if place.layout.dp > 1 and place.plan.completing.get(step.segment) == step:
        marks = tuple(Mark(name=bucket.label, op=bucket.op) for bucket in place.plan.buckets[step.segment])
    return Instruction(
        kind=step.kind, rank=place.rank, segment=step.segment, microbatch=step.microbatch, after=after, marks=marks
    )


def _send(place: Place, message: Message) -> Instruction:
    return Instruction(
        kind=Kind.SEND_FORWARD if message.forward else Kind.SEND_BACKWARD,
        rank=place.rank,
        segment=message.producer.segment,
        microbatch=message.producer.microbatch,
        stream=COMMUNICATION,
        peer=place.layout.rank(place.replica, message.target),
        peer_segment=message.consumer.segment,
        nbytes=message.nbytes,
        after=(message.producer.token,),
    )


def _receive(place: Place, message: Message) -> Instruction:
    return Instruction(
        kind=Kind.RECEIVE_FORWARD if message.forward else Kind.RECEIVE_BACKWARD,
        rank=place.rank,
        segment=message.consumer.segment,
        microbatch=message.consumer.microbatch,
        stream=COMMUNICATION,
        peer=place.layout.rank(place.replica, message.source),
        peer_segment=message.producer.segment,
        nbytes=message.nbytes,
    )


def _collective(
    place: Place,
    label: str,
    *,
    group: tuple[int, ...],
    nbytes: int,
    after: tuple[str, ...] = (),
    segment: int | None = None,
    kind: Kind = Kind.ALL_REDUCE,
    root: int | None = None,
) -> Instruction:
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


def _broadcasts(place: Place) -> Iterator[Instruction]:
    """Running statistics drift apart between replicas; a training step starts from those of replica 0, as in DDP."""
    if place.layout.dp == 1 or not place.plan.completing:
        return
    for segment in place.plan.segments:
        nbytes = place.cut.buffer_bytes[segment]
        if nbytes:
            group = place.layout.replicas(place.row)
            yield _collective(place, "buffers", segment=segment, group=group, nbytes=nbytes, kind=Kind.BROADCAST)


def _mean(place: Place, *, training: bool, after: tuple[str, ...]) -> Iterator[Instruction]:
    group = place.layout.everyone
    if len(group) > 1:
        yield _collective(place, "loss" if training else "metric", group=group, nbytes=MEAN_BYTES, after=after)


def _reductions(place: Place, step: Compute) -> Iterator[Instruction]:
    if place.layout.dp == 1:
        return
    homes = place.homes(step.segment)
    for bucket in place.plan.buckets[step.segment]:
        yield _collective(
            place,
            bucket.label,
            kind=place.reduction,
            segment=step.segment,
            group=place.layout.replicas(place.row),
            root=homes.get(bucket.label),
            nbytes=bucket.nbytes,
            after=(f"{step.token}!{bucket.label}",),
        )


def _updated(place: Place) -> Iterator[Instruction]:
    """Weights from their homes, once these have updated them."""
    group = place.layout.replicas(place.row)
    for segment in place.plan.segments:
        homes = place.homes(segment)
        for bucket in place.plan.buckets[segment] if homes else ():
            yield _collective(
                place,
                bucket.label,
                kind=Kind.BROADCAST,
                segment=segment,
                group=group,
                root=homes[bucket.label],
                nbytes=bucket.nbytes,
                after=(str(Kind.UPDATE),),
            )


def _finish(place: Place, *, clip: bool) -> Iterator[Instruction]:
    """Everything after the last backward: shared weights, the global norm, the update."""
    row, layout = place.plan, place.layout
    ready = [row.completing[segment].token for segment in row.segments]
    if layout.dp > 1:
        ready += [
            f"{segment}{place.reduction}#{bucket.label}" for segment in row.segments for bucket in row.buckets[segment]
        ]
    for shared in _shared_weights(place):
        yield shared
        ready.append(shared.token)
    if clip:
        # The gradients of the whole model are spread over the stages of a replica, or over homes.
        group = layout.within(place.replica, range(layout.width))
        if place.sync == "p2p":
            group = layout.replicas(place.row)
        if len(group) > 1:
            norm = _collective(place, "norm", group=group, nbytes=NORM_BYTES, after=tuple(ready))
            yield norm
            ready = [norm.token]
        clipping = Instruction(kind=Kind.CLIP, rank=place.rank, after=tuple(ready))
        yield clipping
        ready = [clipping.token]
    if len(layout.everyone) > 1:
        # Waiting for the loss costs nothing by now, and lets a run stop at a loss that is not a number.
        ready.append(f"{Kind.ALL_REDUCE}#loss")
    yield Instruction(kind=Kind.UPDATE, rank=place.rank, after=tuple(ready))


def _shared_weights(place: Place) -> Iterator[Instruction]:
    row, layout = place.plan, place.layout
    for number, (parameter, segments) in enumerate(place.cut.tied.items()):
        holders = {layout.rows[segment] for segment in segments}
        if place.row not in holders or len(holders) == 1:
            continue
        found = row.bucket_of(parameter)
        if found is not None and layout.dp > 1:
            after: tuple[str, ...] = (f"{found[0]}{Kind.ALL_REDUCE}#{found[1].label}",)
        else:
            after = tuple(row.completing[segment].token for segment in segments if layout.rows[segment] == place.row)
        yield _collective(
            place,
            f"tie{number}",
            group=layout.within(place.replica, holders),
            nbytes=place.cut.parameter_bytes[parameter],
            after=after,
        )
