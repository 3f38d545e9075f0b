"""Where a network narrows to one operation, its placement falls apart into independent stages.

A node that comes before or after every other one, and that no edge passes by (the join at the end of an Inception
module), is a waist: when its forward ends, every forward before it has ended and no other has begun; its backward is
likewise a moment at which everything after it is done. All that two stages share is where the waist is. So

    makespan = sum over stages of stage(device of its entry, device of its exit)
             + forward of the first waist's stage ...      each waist's forward counted with the stage that it ends,
                                                           its backward with the stage that it begins

and the best placement is a shortest way over the waists' devices. A bound of every stage gives a bound of the whole in
the same way. This leaves out memory, which stages share: where it may bind, the answer is checked as a whole.
"""

import itertools
from dataclasses import dataclass

from trimaran.planner.placement.flat import Flat


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The nodes from one waist to the next, both included.

    Attributes:
        first: number of the entry, or of the first node of the network
        last: number of the exit, or of the last node
        entry: the first node is a waist, whose forward belongs to the stage before
        exit: the last node is a waist, whose backward belongs to the stage after
    """

    first: int
    last: int
    entry: bool
    exit: bool


def side_nodes(flat: Flat, share: float = 0.03) -> list[int]:
    """Nodes of little work without which the network has more waists, such as an auxiliary classifier.

    Leaving them out gives a problem whose bound is one of the whole; they are put back into its schedule.

    Args:
        flat: the problem
        share: most of the work that they may have together
    """
    work = [forward + backward for forward, backward in zip(flat.forward, flat.backward, strict=True)]
    most = share * sum(work)
    beside = _beside(flat)
    # So many nodes have at least this work: of most masks that says enough, without a look at their bits.
    least = [0.0, *itertools.accumulate(sorted(work))]
    few = [(node, mask) for node, mask in enumerate(beside) if mask and least[mask.bit_count()] <= most]
    weights = {node: sum(work[other] for other in _bits(mask)) for node, mask in few}
    dropped = kept = 0
    for node in sorted(weights, key=lambda node: (weights[node], node)):
        if weights[node] > most or dropped >> node & 1:
            continue
        wider = dropped | beside[node]
        if not wider & (kept | 1 << node) and sum(work[other] for other in _bits(wider)) <= most:
            dropped, kept = wider, kept | 1 << node
    return _bits(dropped)


def without(flat: Flat, dropped: list[int]) -> tuple[Flat, list[int]]:
    """The problem with some nodes left out, and the number in the whole of each node that stays."""
    gone = set(dropped)
    kept = [node for node in range(flat.n) if node not in gone]
    number = {node: index for index, node in enumerate(kept)}
    part = Flat(
        n=len(kept),
        devices=flat.devices,
        forward=[flat.forward[node] for node in kept],
        backward=[flat.backward[node] for node in kept],
        out_bytes=[flat.out_bytes[node] for node in kept],
        grad_bytes=[flat.grad_bytes[node] for node in kept],
        held=[flat.held[node] for node in kept],
        state=[flat.state[node] for node in kept],
        reads=[[number[other] for other in flat.reads[node] if other in number] for node in kept],
        read_by=[[number[other] for other in flat.read_by[node] if other in number] for node in kept],
        memory=flat.memory,
        wires=flat.wires,
        links=flat.links,
        ways=flat.ways,
        pins={number[node]: device for node, device in flat.pins.items() if node in number},
    )
    return part, kept


def waists(flat: Flat) -> list[int]:
    """Nodes that come before or after every other node and that no edge passes by, in order."""
    passed = [0] * (flat.n + 1)
    for node in range(flat.n):
        reach = max(flat.read_by[node], default=node)
        if reach > node + 1:
            passed[node + 1] += 1
            passed[reach] -= 1
    over = list(itertools.accumulate(passed))
    return [node for node, mask in enumerate(_beside(flat)) if not mask and not over[node]]


def _bits(mask: int) -> list[int]:
    """Positions of the ones of a mask."""
    digits = f"{mask:b}"[::-1]
    found = []
    position = digits.find("1")
    while position >= 0:
        found.append(position)
        position = digits.find("1", position + 1)
    return found


def _beside(flat: Flat) -> list[int]:
    """For each node, as a mask, those that come neither before nor after it."""
    after = [0] * flat.n
    for node in reversed(range(flat.n)):
        mask = 0
        for reader in flat.read_by[node]:
            mask |= after[reader] | 1 << reader
        after[node] = mask
    before = [0] * flat.n
    for node in range(flat.n):
        mask = 0
        for producer in flat.reads[node]:
            mask |= before[producer] | 1 << producer
        before[node] = mask
    whole = (1 << flat.n) - 1
    return [whole & ~(before[node] | after[node] | 1 << node) for node in range(flat.n)]


def stages(flat: Flat) -> list[Stage]:
    """The network cut at its waists."""
    narrow = waists(flat)
    if not narrow:
        return [Stage(first=0, last=flat.n - 1, entry=False, exit=False)]
    parts = []
    if narrow[0] > 0:
        parts.append(Stage(first=0, last=narrow[0], entry=False, exit=True))
    parts.extend(Stage(first=a, last=b, entry=True, exit=True) for a, b in itertools.pairwise(narrow))
    if narrow[-1] < flat.n - 1:
        parts.append(Stage(first=narrow[-1], last=flat.n - 1, entry=True, exit=False))
    return parts


def flat_of(flat: Flat, stage: Stage, pins: dict[int, int]) -> Flat:
    """The problem of one stage alone.

    Args:
        flat: the whole problem
        stage: which nodes
        pins: devices of its ends, by their numbers in the whole problem
    """
    inside = range(stage.first, stage.last + 1)

    def local(numbers: list[int]) -> list[int]:
        return [number - stage.first for number in numbers if number in inside]

    part = Flat(
        n=len(inside),
        devices=flat.devices,
        forward=[flat.forward[node] for node in inside],
        backward=[flat.backward[node] for node in inside],
        out_bytes=[flat.out_bytes[node] for node in inside],
        grad_bytes=[flat.grad_bytes[node] for node in inside],
        held=[flat.held[node] for node in inside],
        state=[flat.state[node] for node in inside],
        reads=[local(flat.reads[node]) for node in inside],
        read_by=[local(flat.read_by[node]) for node in inside],
        memory=flat.memory,
        wires=flat.wires,
        links=flat.links,
        ways=flat.ways,
        pins={node - stage.first: device for node, device in (flat.pins | pins).items() if node in inside},
    )
    if stage.entry:
        part.forward[0] = 0.0
    if stage.exit:
        part.backward[-1] = 0.0
    return part
