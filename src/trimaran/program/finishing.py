"""What a rank does after its last backward: sums of shared weights, the global norm, the update, weights handed out."""

from collections.abc import Iterator

from trimaran.program.inner import token_of
from trimaran.program.place import Place, collective
from trimaran.program.types import Instruction, Kind

NORM_BYTES = 8
"""A sum of squares, fp64 [bytes]."""


def finish(place: Place, *, clip: bool) -> Iterator[Instruction]:
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


def hand_out(place: Place) -> Iterator[Instruction]:
    """Weights from those who have updated them: the homes of buckets, or the replicas that share the update.

    Args:
        place: the rank

    Yields:
        Its instructions, in order.
    """
    for segment in place.plan.segments:
        homes = place.homes(segment)
        buckets = place.plan.buckets[segment] if homes else ()
        handed = [(bucket.label, homes[bucket.label], bucket.nbytes) for bucket in buckets]
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


def _left_running(place: Place) -> list[str]:
    """What the last steps of the segments started and did not wait for; what earlier ones did ends before it."""
    return [
        token_of(inner, step.segment, step.microbatch)
        for _, step in sorted(place.plan.completing.items())
        for inner in place.plan.inners.get(step, ())
        if inner.wait is None
    ]


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
        yield collective(
            place,
            f"tie{number}",
            group=layout.within(place.replica, holders, place.shard),
            nbytes=place.cut.parameter_bytes[parameter],
            after=after,
        )
