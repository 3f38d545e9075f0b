"""A problem with fewer nodes: chains, and then light operations with what alone feeds or reads them, become one.

Merging a node with the one that it reads never makes a cycle where the latter has no other reader, or the former reads
nothing else: no way leaves the one and comes back to the other. So

    chains      every node with the only one that it reads, where nothing else reads that
    neighbours  every node with its only reader, or the only one that it reads, of the heaviest tensor first, as long as
                a group stays light; siblings that read the same and are read by the same nodes become one likewise

A schedule of the coarse problem is one of the fine problem: the members of a group run one after another.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trimaran.placement.problem import Flat


@dataclass(frozen=True, slots=True, kw_only=True)
class Coarse:
    """A problem of groups of nodes.

    Attributes:
        flat: the problem of the groups
        groups: nodes of the finer problem in each, in order
    """

    flat: Flat
    groups: list[list[int]]

    def devices(self, on: Sequence[int]) -> list[int]:
        """Devices of the finer problem's nodes, from those of the groups."""
        found = [0] * sum(len(group) for group in self.groups)
        for number, group in enumerate(self.groups):
            for node in group:
                found[node] = on[number]
        return found

    def sequence(self, tasks: Sequence[int]) -> list[int]:
        """Tasks of the finer problem in order, from those of the groups."""
        n, fine = self.flat.n, sum(len(group) for group in self.groups)
        found: list[int] = []
        for task in tasks:
            if task < n:
                found.extend(self.groups[task])
            else:
                found.extend(fine + node for node in reversed(self.groups[task - n]))
        return found


def chains(flat: Flat, most_s: float) -> Coarse:
    """The problem in which chains are nodes.

    Args:
        flat: the fine problem
        most_s: work that a group may have [s]
    """
    return _merged(flat, most_s, only_chains=True)


def neighbours(flat: Flat, most_s: float) -> Coarse:
    """The problem in which light nodes are one with their only reader, their only producer, or their siblings.

    Args:
        flat: the fine problem
        most_s: work that a group may have [s]
    """
    return _merged(flat, most_s, only_chains=False)


class _MergedGroups:
    """Groups in the making, named by one of their members."""

    def __init__(self, flat: Flat) -> None:
        self.flat = flat
        self.members = {node: [node] for node in range(flat.n)}
        self.work = [forward + backward for forward, backward in zip(flat.forward, flat.backward, strict=True)]
        self.reads = [set(producers) for producers in flat.reads]
        self.read_by = [set(readers) for readers in flat.read_by]

    def may(self, one: int, other: int, most_s: float) -> bool:
        """Whether two groups are light enough, and wanted on the same device."""
        pins = self.flat.pins
        return self.work[one] + self.work[other] <= most_s and pins.get(one) == pins.get(other)

    def join(self, one: int, other: int) -> None:
        """Add the second group to the first."""
        self.members[one] += self.members.pop(other)
        self.work[one] += self.work[other]
        for mine, theirs in ((self.reads, self.read_by), (self.read_by, self.reads)):
            for near in mine[other]:
                theirs[near].discard(other)
                if near != one:
                    theirs[near].add(one)
            mine[one] |= mine[other]
            mine[one] -= {one, other}


def _merged(flat: Flat, most_s: float, *, only_chains: bool) -> Coarse:
    made = _MergedGroups(flat)
    changed = True
    while changed:
        changed = False
        edges = sorted(
            ((producer, reader) for producer in made.members for reader in made.read_by[producer]),
            key=lambda edge: (-flat.out_bytes[made.members[edge[0]][-1]], edge),
        )
        for producer, reader in edges:
            if producer not in made.members or reader not in made.read_by[producer]:
                continue
            feeds, reads = len(made.read_by[producer]) == 1, len(made.reads[reader]) == 1
            fit = feeds and reads if only_chains else feeds or reads
            if fit and made.may(producer, reader, most_s):
                made.join(producer, reader)
                changed = True
        if not only_chains:
            changed = _siblings(made, most_s) or changed
    return _contracted(flat, made)


def _siblings(made: _MergedGroups, most_s: float) -> bool:
    """Join nodes that read the same and are read by the same; whether there were any."""
    alike: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    changed = False
    for node in sorted(made.members):
        if not made.reads[node] and not made.read_by[node]:
            continue
        key = (tuple(sorted(made.reads[node])), tuple(sorted(made.read_by[node])))
        if key in alike and made.may(alike[key], node, most_s):
            made.join(alike[key], node)
            changed = True
        else:
            alike[key] = node
    return changed


def _contracted(flat: Flat, made: _MergedGroups) -> Coarse:
    """The problem of the groups, in an order in which they can run."""
    waits = {node: len(made.reads[node]) for node in made.members}
    first = {node: min(members) for node, members in made.members.items()}
    ready = [(first[node], node) for node, count in waits.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for reader in made.read_by[node]:
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, (first[reader], reader))
    groups = [sorted(made.members[node]) for node in order]
    number = {node: index for index, node in enumerate(order)}
    owner = {member: index for index, group in enumerate(groups) for member in group}
    # What leaves a group: the outputs of its members that others read.
    leaving = [
        [node for node in group if any(owner[reader] != index for reader in flat.read_by[node])]
        for index, group in enumerate(groups)
    ]
    coarse = replace(
        flat,
        n=len(groups),
        forward=[sum(flat.forward[node] for node in group) for group in groups],
        backward=[sum(flat.backward[node] for node in group) for group in groups],
        out_bytes=[sum(flat.out_bytes[node] for node in group) for group in leaving],
        grad_bytes=[sum(flat.grad_bytes[node] for node in group) for group in leaving],
        held=[sum(flat.held[node] for node in group) for group in groups],
        state=[sum(flat.state[node] for node in group) for group in groups],
        reads=[sorted(number[other] for other in made.reads[node]) for node in order],
        read_by=[sorted(number[other] for other in made.read_by[node]) for node in order],
        pins={index: flat.pins[group[0]] for index, group in enumerate(groups) if group[0] in flat.pins},
    )
    return Coarse(flat=coarse, groups=groups)
