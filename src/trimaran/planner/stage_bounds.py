"""What one rank does in a step, by its parts, as lower bounds are made of it (`bounds`).

A rank has one segment, and instructions of some of its microbatches; the first stands for those that are left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trimaran.costs import ProgramCosts
from trimaran.program import Instruction, Kind

_FORWARDS = (Kind.FORWARD, Kind.EVALUATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What one rank does, by its parts; durations as if nothing ran beside them.

    Attributes:
        begin_s: until its first input is loaded and its buffers are there [s]
        forward_s: forward of one microbatch [s]
        backward_s: backward of one microbatch [s]
        last_backward_s: the backward that completes the gradients [s]
        work_s: all forwards and backwards, and the loads between them [s]
        backwards_s: all backwards [s]
        received: for each segment that sends to it in the forward, what a message takes [s]
        returned: for each segment that sends gradients to it, what a message takes [s]
        buckets: for each bucket, the part of the last backward that is left at its mark [0..1], and what its all-reduce
            takes of the time of all [s]: the whole, or only what flows where several are under way at once
        loss_s: what the reduction of the losses takes of it [s]
        loss_first: the buckets are reduced after it, or beside it over the same links
        tail_s: clipping and update [s]
    """

    begin_s: float
    forward_s: float
    backward_s: float
    last_backward_s: float
    work_s: float
    backwards_s: float
    received: Mapping[int, float]
    returned: Mapping[int, float]
    buckets: Sequence[tuple[float, float]]
    loss_s: float
    loss_first: bool
    tail_s: float


def stage_of(
    instructions: Sequence[Instruction], costs: ProgramCosts, microbatches: int, compute: float, flow: float
) -> Stage:
    """What one rank does, by its parts.

    Args:
        instructions: of the rank
        costs: of them
        microbatches: how many there are
        compute: factor on compute [1]
        flow: factor on what flows [1]
    """

    def busy(item: Instruction) -> float:
        return costs.compute[item.id].seconds * compute

    def moved(item: Instruction) -> float:
        transfer = costs.transfers[item.id]
        return transfer.latency_s + transfer.flow_s * flow

    def summed(item: Instruction) -> float:
        # Where several are under way at once, the latency of one may pass while another flows. What flows over the same
        # links takes as long together as one after the other.
        return moved(item) if costs.at_once == 1 else costs.transfers[item.id].flow_s * flow

    forwards = [busy(item) for item in instructions if item.kind in _FORWARDS]
    backwards = [busy(item) for item in instructions if item.kind == Kind.BACKWARD]
    loads = [busy(item) for item in instructions if item.kind == Kind.LOAD]
    left_out = microbatches - len(forwards)
    all_backwards = sum(backwards) + (left_out * backwards[0] if backwards else 0.0)
    work = sum(forwards) + left_out * forwards[0] + all_backwards
    if costs.host_blocks and loads:
        # The first may be loaded while the stage waits for its input.
        work += (microbatches - 1) * min(loads)
    reductions = [item for item in instructions if item.kind == Kind.ALL_REDUCE]
    loss = [item for item in reductions if item.label in ("loss", "metric")]
    buckets = [item for item in reductions if any("!" in name for name in item.after)]
    return Stage(
        begin_s=max(
            min(loads, default=0.0),
            sum(moved(item) for item in instructions if item.kind == Kind.BROADCAST),
        ),
        forward_s=min(forwards),
        backward_s=min(backwards, default=0.0),
        last_backward_s=backwards[-1] if backwards else 0.0,
        work_s=work,
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
    """What the messages of one microbatch take, by the segment that they come from [s]."""
    return {
        item.peer_segment: moved(item)
        for item in instructions
        if item.kind == kind and item.microbatch == 0 and item.peer_segment is not None
    }


def _fraction(item: Instruction, costs: ProgramCosts) -> float:
    """The part of the backward after which a bucket is complete."""
    token, _, mark = next(name for name in item.after if "!" in name).partition("!")
    return costs.marks[f"r{item.rank}/{token}", mark]
