"""Whether a program can run to its end on a transport without buffers: rule 13.

Without buffers a send ends when its receive does. It delivers first in, first out: a channel or a group
does one thing at a time, in order. So the two ends of a message, and the members of a collective, are one node of a
graph, and the program runs to its end exactly when this graph has no cycle. An edge is one of

    order     compute and host work of a rank run in the order of its list, and so does each other stream
    issue     what is not compute or host work is issued when the last of those before it in the list has ended, unless
              a mark issues it; so a rank whose host blocks, as a CPU does, is included
    after     what an instruction names
    channel   the message before it on its channel, the collective before it in its group
    mark      what an instruction waits for at a mark: it is a node up to each such mark, and one more after it

Rules 8 and 9 say which instructions of different ranks meet. The n-th send on a channel `(source rank, destination
rank)` meets the n-th receive on it. The n-th collective of a group on one member meets the n-th on the others.

A channel is an ordered pair of ranks because NCCL runs what is posted on one communicator in order: in 1F1B a rank
sends an activation while its neighbour sends a gradient back, and in one queue each would wait for the other. Coalesced
pairs of send and receive, as Megatron posts them, tie messages together that need not wait. What deadlocks only where
the host blocks is refused everywhere, so that one program serves CPUs and GPUs.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from trimaran.base.timeline import COMPUTE, HOST
from trimaran.program.rules.positions import Spot, fault
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


Edge = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Nodes:
    """The instructions of a program as nodes: one each, and one more for each mark at which it waits.

    An instruction starts at the node of its number.

    Attributes:
        last: node at which it ends
        owner: the instruction of each node
        passed: for each instruction that waits at marks, the node that is reached when it passes each mark
        waits: for each further node, the node before it and the instruction that it waits for
    """

    last: list[int]
    owner: list[int]
    passed: Mapping[tuple[int, str], int]
    waits: Mapping[int, tuple[int, int]]


def check_progress(
    program: Program, meetings: Sequence[Sequence[Meeting]], positions: Sequence[Mapping[str, int]]
) -> None:
    """Refuse a program that waits for itself; rule 13.

    Args:
        program: the program
        meetings: for each channel and group, what meets, in order
        positions: for each rank, the position of each token

    Raises:
        InputError: there is a cycle; it is written out and drawn
    """
    offsets = _offsets(program)
    nodes = _nodes(program, positions, offsets)
    joint = list(range(len(nodes.owner)))
    for queue in meetings:
        for meeting in queue:
            first = offsets[meeting[0].rank] + meeting[0].position
            for spot in meeting:
                joint[offsets[spot.rank] + spot.position] = first
    incoming: dict[int, dict[int, Edge]] = {}
    for edge in _edges(program, meetings, positions, offsets, nodes):
        source, target, _ = edge
        incoming.setdefault(joint[target], {}).setdefault(joint[source], edge)
    try:
        TopologicalSorter(incoming).prepare()
    except CycleError as error:
        steps = itertools.pairwise(reversed(error.args[1]))
        cycle = [incoming[target][source] for target, source in steps]
        raise _drawn(program, cycle, offsets, nodes) from None


def _offsets(program: Program) -> list[int]:
    offsets = [0]
    for instructions in program.ranks:
        offsets.append(offsets[-1] + len(instructions))
    return offsets


def _nodes(program: Program, positions: Sequence[Mapping[str, int]], offsets: Sequence[int]) -> Nodes:
    owner = list(range(offsets[-1]))
    last = list(owner)
    passed: dict[tuple[int, str], int] = {}
    waits: dict[int, tuple[int, int]] = {}
    for number, instruction in enumerate(program):
        if not any(mark.waits_for for mark in instruction.marks):
            continue
        for mark in instruction.marks:
            passed[number, mark.name] = last[number]
            if mark.waits_for:
                awaited = offsets[instruction.rank] + positions[instruction.rank][mark.waits_for]
                waits[len(owner)] = last[number], awaited
                last[number] = len(owner)
                owner.append(number)
    return Nodes(last, owner, passed, waits)


def _edges(
    program: Program,
    meetings: Sequence[Sequence[Meeting]],
    positions: Sequence[Mapping[str, int]],
    offsets: Sequence[int],
    nodes: Nodes,
) -> Iterable[Edge]:
    last = nodes.last
    for rank, instructions in enumerate(program.ranks):
        blocking: int | None = None
        streams: dict[str, int] = {}
        for position, instruction in enumerate(instructions):
            node = offsets[rank] + position
            for name in instruction.after:
                token, _, mark = name.partition("!")
                named = offsets[rank] + positions[rank][token]
                yield nodes.passed.get((named, mark), last[named]), node, "which it names"
            if instruction.stream in (COMPUTE, HOST):
                if blocking is not None:
                    yield last[blocking], node, "which is before it on the same stream"
                blocking = node
                continue
            if blocking is not None and not any("!" in name for name in instruction.after):
                yield last[blocking], node, "which is before it in the list"
            if not instruction.communicates:
                if instruction.stream in streams:
                    yield streams[instruction.stream], node, "which is before it on the same stream"
                streams[instruction.stream] = node
    for node, (begun, awaited) in nodes.waits.items():
        yield begun, node, "which comes first"
        yield last[awaited], node, "at a mark of it"
    for queue in meetings:
        for earlier, later in itertools.pairwise(queue):
            for before, spot in zip(earlier, later, strict=True):
                yield (
                    offsets[before.rank] + before.position,
                    offsets[spot.rank] + spot.position,
                    "which is before it between the same ranks",
                )


def _drawn(program: Program, cycle: list[Edge], offsets: list[int], nodes: Nodes) -> Exception:
    identifiers = [instruction.id for instruction in program]
    lines = []
    spots: dict[Spot, None] = {}
    for number, (source, target, reason) in enumerate(cycle):
        awaited, source, target = (nodes.owner[node] for node in (cycle[number - 1][0], source, target))
        for node in sorted((source, target)):
            rank = next(rank for rank in range(len(offsets)) if node < offsets[rank + 1])
            spots[Spot(rank, node - offsets[rank])] = None
        if awaited != target:
            lines.append(f"  {identifiers[awaited]} meets {identifiers[target]}")
        if source != target:
            lines.append(f"  {identifiers[target]} waits for {identifiers[source]}, {reason}")
    return fault(
        program,
        13,
        "it waits for itself on a transport without buffers:\n" + "\n".join(lines),
        sorted(spots, key=lambda spot: (spot.rank, spot.position)),
        "List what must happen first before what waits for it, on both ranks of a channel.",
    )
