"""Fewer nodes: runs of a chain become one, branches stay.

Two neighbours of a chain (the one is read by the other only, which reads nothing else) can be joined without making a
cycle. `units` joins a heavy operation with the lighter ones that follow it: a convolution, its norm and activation. A
schedule of the coarse problem is one of the fine problem: members run one after another, and what crosses is the output
of the last.
"""

from collections.abc import Sequence

from trimaran.planner.placement.flat import Flat
from trimaran.planner.placement.lay import Layout, lay


def units(flat: Flat) -> list[list[int]]:
    """Groups of a heavy operation with the lighter ones that follow it in its chain."""
    return _groups(flat, light=0.5)


def _groups(flat: Flat, light: float) -> list[list[int]]:
    """Groups of chains, in which each member takes at most the share `light` of the heaviest before it."""
    work = [forward + backward for forward, backward in zip(flat.forward, flat.backward, strict=True)]
    group_of: dict[int, list[int]] = {}
    heaviest: dict[int, float] = {}
    groups = []
    for node in range(flat.n):
        reads = flat.reads[node]
        if len(reads) == 1 and len(flat.read_by[reads[0]]) == 1 and flat.pins.get(node) == flat.pins.get(reads[0]):
            group = group_of[reads[0]]
            if work[node] <= light * heaviest[group[0]]:
                group.append(node)
                group_of[node] = group
                heaviest[group[0]] = max(heaviest[group[0]], work[node])
                continue
        group_of[node] = [node]
        heaviest[node] = work[node]
        groups.append(group_of[node])
    return groups


def contract(flat: Flat, groups: Sequence[Sequence[int]]) -> Flat:
    """The problem in which each group is a node.

    Args:
        flat: the fine problem
        groups: of nodes; each a run of a chain
    """
    # A group stands where its last member does: what it reads comes before its first, what reads it after its last.
    owner = {node: number for number, group in enumerate(groups) for node in group}
    reads = [[owner[producer] for producer in flat.reads[group[0]]] for group in groups]
    read_by: list[list[int]] = [[] for _ in groups]
    for number, producers in enumerate(reads):
        for producer in producers:
            read_by[producer].append(number)
    return Flat(
        n=len(groups),
        devices=flat.devices,
        forward=[sum(flat.forward[node] for node in group) for group in groups],
        backward=[sum(flat.backward[node] for node in group) for group in groups],
        out_bytes=[flat.out_bytes[group[-1]] for group in groups],
        grad_bytes=[flat.grad_bytes[group[-1]] for group in groups],
        held=[sum(flat.held[node] for node in group) for group in groups],
        state=[sum(flat.state[node] for node in group) for group in groups],
        reads=reads,
        read_by=read_by,
        memory=flat.memory,
        wires=flat.wires,
        links=flat.links,
        ways=flat.ways,
        pins={number: flat.pins[group[0]] for number, group in enumerate(groups) if group[0] in flat.pins},
    )


def expand(flat: Flat, groups: Sequence[Sequence[int]], coarse: Flat, layout: Layout) -> Layout:
    """The schedule of the fine problem that a schedule of the coarse one means."""
    on = [0] * flat.n
    for number, group in enumerate(groups):
        for node in group:
            on[node] = layout.on[number]
    order: list[int] = []
    for item in layout.order:
        if item < coarse.n:
            order.extend(groups[item])
        elif item < 2 * coarse.n:
            order.extend(flat.n + node for node in reversed(groups[item - coarse.n]))
        else:
            kind, rest = divmod(item - 2 * coarse.n, coarse.n * flat.devices)
            number, device = divmod(rest, flat.devices)
            order.append(2 * flat.n + kind * flat.n * flat.devices + groups[number][-1] * flat.devices + device)
    return lay(flat, on, order)
