"""Which instructions of different ranks meet: rules 8 and 9.

The n-th send on a channel `(source rank, destination rank)` meets the n-th receive on it. The n-th collective of a
group on one member meets the n-th on the others.
"""

from trimaran.program.grid import Spot, fault
from trimaran.program.types import COLLECTIVES, RECEIVES, SENDS, Instruction, Kind, Program

Meeting = tuple[Spot, ...]

_OTHER_END = {
    Kind.SEND_FORWARD: Kind.RECEIVE_FORWARD,
    Kind.SEND_BACKWARD: Kind.RECEIVE_BACKWARD,
}


def match_messages(program: Program) -> list[list[Meeting]]:
    """Sends with their receives; rule 8.

    Args:
        program: the program

    Returns:
        For each channel, the pairs `(send, receive)` in order.

    Raises:
        InputError: a send and a receive that meet and do not belong together, or one that meets nothing
    """
    sends: dict[tuple[int, int], list[Spot]] = {}
    receives: dict[tuple[int, int], list[Spot]] = {}
    for rank, instructions in enumerate(program.ranks):
        for position, instruction in enumerate(instructions):
            if instruction.peer is None:
                continue
            if instruction.kind in SENDS:
                sends.setdefault((rank, instruction.peer), []).append(Spot(rank, position))
            elif instruction.kind in RECEIVES:
                receives.setdefault((instruction.peer, rank), []).append(Spot(rank, position))
    channels = []
    for channel in sorted(sends.keys() | receives.keys()):
        sent, received = sends.get(channel, []), receives.get(channel, [])
        for send, receive in zip(sent, received, strict=False):
            _check_message(program, send, receive)
        for alone in [*sent[len(received) :], *received[len(sent) :]]:
            raise fault(
                program,
                8,
                f"{_at(program, alone).id} meets nothing: the channel from rank {channel[0]} to rank {channel[1]} has "
                f"{len(sent)} sends and {len(received)} receives",
                [alone],
                "Give every send one receive on its peer.",
            )
        channels.append(list(zip(sent, received, strict=True)))
    return [list(map(tuple, channel)) for channel in channels]


def match_collectives(program: Program) -> list[list[Meeting]]:
    """Collectives with those of the other members; rule 9.

    Args:
        program: the program

    Returns:
        For each group, the collectives in order, each with its instruction on every member.

    Raises:
        InputError: members that meet in different collectives, or a member that is missing
    """
    joined: dict[tuple[int, ...], dict[int, list[Spot]]] = {}
    for rank, instructions in enumerate(program.ranks):
        for position, instruction in enumerate(instructions):
            if instruction.kind in COLLECTIVES:
                joined.setdefault(instruction.group, {}).setdefault(rank, []).append(Spot(rank, position))
    groups = []
    for group, members in sorted(joined.items()):
        lists = [members.get(rank, []) for rank in group]
        longest = max(lists, key=len)
        for number, first in enumerate(longest):
            for rank, spots in zip(group, lists, strict=True):
                if number >= len(spots):
                    raise fault(
                        program,
                        9,
                        f"{_at(program, first).id} over ranks {_listed(group)} is not met on rank {rank}",
                        [first, Spot(rank, len(program.ranks[rank]))],
                        "Every member of a group takes part in all of its collectives.",
                    )
                _check_collective(program, first, spots[number])
        groups.append([tuple(spots[number] for spots in lists) for number in range(len(longest))])
    return groups


def _check_message(program: Program, send: Spot, receive: Spot) -> None:
    sent, received = _at(program, send), _at(program, receive)
    expected = (_OTHER_END[sent.kind], sent.segment, sent.peer_segment, sent.microbatch, sent.nbytes)
    found = (received.kind, received.peer_segment, received.segment, received.microbatch, received.nbytes)
    if expected != found:
        raise fault(
            program,
            8,
            f"{sent.id} of {sent.nbytes} bytes meets {received.id} of {received.nbytes} bytes",
            [receive, send],
            "Both ends of a channel list its messages in the same order, with the same segments, microbatch and bytes.",
        )


def _check_collective(program: Program, first: Spot, second: Spot) -> None:
    one, other = _at(program, first), _at(program, second)
    if (one.token, one.nbytes, one.root) != (other.token, other.nbytes, other.root):
        roots = "" if one.root == other.root else f", with the roots {one.root} and {other.root}"
        raise fault(
            program,
            9,
            f"{one.id} of {one.nbytes} bytes meets {other.id} of {other.nbytes} bytes{roots}",
            [second, first],
            "All members of a group list its collectives in the same order, with the same bytes and the same root.",
        )


def _at(program: Program, spot: Spot) -> Instruction:
    return program.ranks[spot.rank][spot.position]


def _listed(group: tuple[int, ...]) -> str:
    return ", ".join(map(str, group))
