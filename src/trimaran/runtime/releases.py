"""When a message that was sent has certainly been received, so that its buffer can go.

A transport need not tell when a send has ended (gloo's does not), and to ask is to wait. But what comes back from a
peer says how far the peer was: everything that it had posted before.

    this rank    SEND a ───────────────┐           RECV b ─▶ a has been received: waiting for it takes no time
    peer                        RECV a ▼  ...  SEND b

So every receive releases the sends to the same peer whose own receives stand before that peer's send in its list.
Without this, a 1F1B pipeline would keep the gradients of all its microbatches until the end of the step.
"""

from collections.abc import Mapping

from trimaran.program.types import RECEIVES, SENDS, Instruction, Kind, Program

_OTHER_END = {
    Kind.SEND_FORWARD: Kind.RECEIVE_FORWARD,
    Kind.SEND_BACKWARD: Kind.RECEIVE_BACKWARD,
    Kind.RECEIVE_FORWARD: Kind.SEND_FORWARD,
    Kind.RECEIVE_BACKWARD: Kind.SEND_BACKWARD,
}

_End = tuple[Kind, int | None, int | None, int | None]


def released_sends(program: Program, rank: int) -> Mapping[str, tuple[str, ...]]:
    """The sends of a rank that each of its receives shows to have been received.

    Args:
        program: of a step
        rank: whose

    Returns:
        For the token of each receive, the tokens of sends; each send is there once, at the first receive that shows it.
    """
    own = {instruction.token: instruction for instruction in program.ranks[rank]}
    peers = {instruction.peer for instruction in own.values() if instruction.peer is not None}
    positions = {peer: _positions(program.ranks[peer]) for peer in peers}
    released: dict[str, tuple[str, ...]] = {}
    sent: dict[int, list[Instruction]] = {peer: [] for peer in peers}
    for instruction in own.values():
        # A receive is waited for where it is needed, which may be long after it was posted.
        for receive in (own[token] for token in instruction.after if token in own):
            if receive.kind not in RECEIVES or receive.peer is None or receive.token in released:
                continue
            theirs, waiting = positions[receive.peer], sent[receive.peer]
            reached = theirs[_other_end(receive)]
            shown = [send for send in waiting if theirs[_other_end(send)] < reached]
            sent[receive.peer] = [send for send in waiting if send not in shown]
            released[receive.token] = tuple(send.token for send in shown)
        if instruction.kind in SENDS and instruction.peer is not None:
            sent[instruction.peer].append(instruction)
    return {token: sends for token, sends in released.items() if sends}


def _positions(instructions: tuple[Instruction, ...]) -> dict[_End, int]:
    return {
        (instruction.kind, instruction.segment, instruction.peer_segment, instruction.microbatch): position
        for position, instruction in enumerate(instructions)
    }


def _other_end(instruction: Instruction) -> _End:
    return _OTHER_END[instruction.kind], instruction.peer_segment, instruction.segment, instruction.microbatch
