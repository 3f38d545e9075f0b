"""Which links the members of a transfer cross: asked by every price of a message or a collective on a machine.

Ranks have the devices of a machine node by node, or in any other order that a caller gives. Devices of a node have its
network cards dealt out evenly, so a group with one member on a node sends by the cards of that device, not by all.

    members       nodes that they sit on; the devices of the node that has most of them; cards, the least of any node
    sharing       transfers alike at the same time on the busiest of these cards, each direction counted by itself
    uplinks       where members are on several leaves: what all transfers together send over the busiest of the leaves'
                  links to the spine, by what these links carry

Transfers alike start together, and all are waited for, so the slowest counts and every layout that occurs is priced.
A group of 6 with stride 1 on nodes of 8 lies inside a node or across two, depending on where it starts.

A leaf for `n` nodes of `c` cards with oversubscription `r` has links to the spine worth `u = n c / r` cards; of leaves
rail by rail, no two cards of a node share a leaf, and `u = n / r`. What crosses the spine, in cards' worth:

    rings, trees, chains    the group's cards, once for each hop from a leaf to another one of members in their order
    all with all            of each member of a leaf the parts for members elsewhere, in the time of the group's cards
    messages                one card, where sender and receiver have different leaves

Rail by rail, what goes from one card to another one is sent over the links between the devices of the sender's node
first, and from the card of the receiver's number ("PXN"): so only what goes to nodes of other leaves crosses the spine.

Inside a node, groups have links of their devices for themselves; over PCIe they share switches, roots and sockets.

Left out: transfers of other kinds at the same time; flows that switches put on one link by chance; time in switches.

Groups are counted rank by rank in arrays, so that no order of ranks needs a formula: all 210 pairs of degrees on 16,384
devices take 0.1 s. A scorer with plain loops agrees (`tests/property/test_crossing_reference.py`).

Source:
    NVIDIA, "Doubling all2all Performance with NVIDIA Collective Communication Library 2.12", 2022, for rails and PXN;
    Leiserson, "Fat-trees", 1985, for what a link above a subtree carries.

A group of devices as input of the collective model: its links, and how the time is measured.

A machine of the catalog and a measured machine have the same description.

The links between the devices of a group, from the link graph of their machine.

A library of collectives runs around rings (`machine/rings.py` finds them): over links of the devices' own where a ring
of them exists, else over PCIe, or through host memory where devices have no access to each other, which in a virtual
machine is slower still. An exchange of all with all uses every link; pairs without one are served through a device in
between.

Left out: other traffic on these links than that of equal groups.
"""

import functools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from trimaran.base.errors import InputError
from trimaran.base.units import format_count
from trimaran.machine.catalog import network_kinds
from trimaran.machine.rings import RingSet, ring_bandwidth, ring_rate, slowdowns
from trimaran.machine.topology import pair, relays, switch_links
from trimaran.machine.types import Link, Machine, Node, NodeKey

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]

# ---------------------------------------------------------------------------------------------------------------------
# Links that the members of a transfer cross


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """Links that the members of a transfer cross.

    Attributes:
        local: devices of the node that has most members, by their numbers on it
        nodes: that the members sit on
        cards: of each node that the members send by, the least of any node; 0 on one node
        sharing: transfers alike that are under way at the same time on the same cards, this one included
        uplinks: what crosses the busiest links to the spine that the members use, by what these carry in the time in
            which cards without sharing would be done: 3 where it takes three times as long; 0: nothing crosses it
        members: in all, where nodes have different numbers of them; 0: as many on each
        inside: how many times longer what goes over PCIe inside a node takes, for what the others there share of it
    """

    local: tuple[int, ...]
    nodes: int = 1
    cards: int = 0
    sharing: int = 1
    uplinks: float = 0.0
    members: int = 0
    inside: float = 1.0

    @property
    def devices(self) -> int:
        """Members."""
        return self.members or len(self.local) * self.nodes


def fabric_of(machine: Machine) -> tuple[int, Link]:
    """Network cards of a node: how many, and of what type.

    Raises:
        InputError: nothing joins its nodes
    """
    if machine.fabric is None:
        raise InputError(
            f"{machine.node.name}: nothing joins its nodes; name a fabric, such as "
            f'"{machine.node.name}:{max(2, machine.nodes)}@ethernet-25g"',
            code="exchange.no-network-cards",
            nodes=machine.nodes,
        )
    return machine.fabric


def all_with_all_rate(machine: Machine, nodes: int) -> float:
    """Rate at which each of some nodes sends to all others at once, in one direction [bytes/s].

    Args:
        machine: of these nodes
        nodes: in use, the first ones

    Raises:
        InputError: nothing joins them

    Example:
        Two thirds of what each of 4 nodes sends leave its leaf of 2 nodes, at a quarter of the cards' rate.

        >>> from trimaran.machine.find import find_machine
        >>> plain = find_machine("dgx-h100:4@8 ib-ndr")
        >>> leaves = find_machine("dgx-h100:4@8 ib-ndr,nodes_per_leaf=2,oversubscription=4")
        >>> round(all_with_all_rate(plain, 4) / all_with_all_rate(leaves, 4), 3)
        2.667
    """
    count, link = fabric_of(machine)
    rate = count * link.bytes_per_s
    if machine.leaves is None or nodes < 2:
        return rate
    here = min(machine.leaves.nodes, nodes)
    leaving = here * (nodes - here) / (nodes - 1) * machine.leaves.oversubscription / machine.leaves.nodes
    return rate / max(1.0, leaving)


def cards_of(node: Node, count: int, chosen: Iterable[int]) -> tuple[int, ...]:
    """Cards of a node that some devices send by: cards are dealt out evenly, and a device may have several.

    Args:
        node: that has the devices
        count: cards of the node
        chosen: devices, by their numbers on the node
    """
    if count >= node.devices:
        each = count // node.devices
        return tuple(card for number in sorted(chosen) for card in range(number * each, (number + 1) * each))
    return tuple(sorted({number * count // node.devices for number in chosen}))


def first_devices(machine: Machine, devices: int, nodes: int = 1, *, op: str = "all_reduce") -> LinkUse:
    """Of the first devices, node by node, where no fewer nodes have as many; else of the first ones of each node.

    Args:
        machine: of the devices
        devices: in all; equally many on each node, where fewer nodes would do
        nodes: in use
        op: as of `crossing_of`

    Raises:
        InputError: not equally many on each node, or more than there are, or several nodes with nothing between them
    """
    node = machine.node
    if nodes > 1 and -(-devices // node.devices) == nodes and devices % node.devices:
        return crossing_of(machine, range(devices), op=op)
    if nodes < 1 or devices < 1 or devices % nodes:
        raise InputError(
            f"{node.name}: {format_count(devices, 'device')} on {nodes} nodes are not equally many on each; take a "
            f"multiple of {max(1, nodes)}",
            code="collective.uneven-nodes",
            devices=devices,
            nodes=nodes,
        )
    each = devices // nodes
    if each > node.devices:
        raise InputError(
            f"{node.name}: a node has {format_count(node.devices, 'device')}, {each} of each were asked "
            f"for; use {-(-devices // node.devices)} nodes",
            code="collective.too-many-devices-on-node",
            devices=devices,
            nodes=nodes,
        )
    if nodes > 1 and machine.leaves is not None:
        first = np.arange(nodes)[:, None] * node.devices
        return crossing_of(machine, (first + np.arange(each)).ravel().tolist(), op=op)
    local = tuple(range(each))
    cards = len(cards_of(node, fabric_of(machine)[0], local)) if nodes > 1 else 0
    return LinkUse(local=local, nodes=nodes, cards=cards)


def members_on_nodes(machine: Machine, members: Sequence[int]) -> dict[int, list[int]]:
    """Members of a transfer by node, as numbers of devices on it.

    Args:
        machine: that has them
        members: numbers of devices on the machine, counted node by node
    """
    on: dict[int, list[int]] = defaultdict(list)
    for number in members:
        on[number // machine.node.devices].append(number % machine.node.devices)
    return on


def crossing_of(machine: Machine, members: Sequence[int], *, op: str = "all_reduce") -> LinkUse:
    """Links that a transfer crosses when no other transfer runs.

    Args:
        machine: that has the members
        members: numbers of devices on the machine; of a message the sender first
        op: name of the collective, or "send_recv"; it decides what crosses the spine

    Raises:
        InputError: several nodes with nothing between them
    """
    (found,) = transfer_crossings(machine, np.array([members], dtype=np.int64), op=op)
    return found


def group_crossings(
    machine: Machine,
    *,
    ranks: int,
    members: int,
    stride: int,
    devices: Sequence[int] = (),
    op: str = "all_reduce",
) -> frozenset[LinkUse]:
    """Links that groups cross at the same time, each layout once.

    Args:
        machine: whose devices the ranks have
        ranks: in all
        members: of each group
        stride: between neighbours of a group; groups fill blocks of `members * stride` ranks
        devices: the device of each rank; empty: ranks have the devices node by node
        op: name of the collective; it decides what crosses the spine

    Raises:
        InputError: several nodes with nothing between them

    Example:
        Groups of 6 on nodes of 8: a whole one, and those that two nodes have parts of.

        >>> from trimaran.machine.find import find_machine
        >>> machine = find_machine("dgx-h100:3")
        >>> sorted({(len(each.local), each.nodes) for each in group_crossings(machine, ranks=24, members=6, stride=1)})
        [(4, 2), (6, 1)]

        Replicas of 8 tensor-parallel ranks: one member on each of three nodes, a network card for each.

        >>> [(each.nodes, each.cards, each.sharing) for each in group_crossings(machine, ranks=24, members=3, stride=8)]
        [(3, 1, 1)]

        The same on leaves of one node, 16:1: each leaf's eight cards send at once, over links worth half a card.

        >>> machine = find_machine("dgx-h100:3@8 ib-ndr,nodes_per_leaf=1,oversubscription=16")
        >>> [each.uplinks for each in group_crossings(machine, ranks=24, members=3, stride=8)]
        [16.0]
    """
    block = members * stride
    blocks = max(1, ranks // block)
    if len(devices):
        groups = np.sort(np.asarray(devices, dtype=np.int64)[_groups(blocks, members, stride)], axis=1)
        return transfer_crossings(machine, groups, op=op)
    # After some blocks the next one begins with a node (and a leaf) again, and all repeats; the last ones may be fewer.
    unit = machine.node.devices * (1 if machine.leaves is None else machine.leaves.nodes)
    period = unit // math.gcd(block, unit)
    counts = {period, blocks % period} if blocks > period else {blocks}
    return frozenset[LinkUse]().union(
        *(transfer_crossings(machine, _groups(count, members, stride), op=op) for count in counts)
    )


def _groups(blocks: int, members: int, stride: int) -> Whole:
    """Groups of the first blocks: a row of ranks for each."""
    first = np.arange(blocks)[:, None, None] * (members * stride) + np.arange(stride)[None, :, None]
    return (first + np.arange(members) * stride).reshape(-1, members)


def message_crossings(
    machine: Machine, *, ranks: int, stride: int, members: int = 0, devices: Sequence[int] = ()
) -> frozenset[LinkUse]:
    """Links of messages that all ranks send at the same time to the rank `stride` further on, each layout once.

    Args:
        machine: whose devices the ranks have
        ranks: in all
        stride: from a sender to its receiver
        members: of a chain, whose last rank does not send; 0: one chain through all ranks
        devices: the device of each rank; empty: ranks have the devices node by node

    Raises:
        InputError: several nodes with nothing between them

    Example:
        Stages of 4 ranks on nodes of 8: every other stage sends to the next node.

        >>> from trimaran.machine.find import find_machine
        >>> machine = find_machine("dgx-h100:2@ethernet-25g")
        >>> sorted({(each.nodes, each.sharing) for each in message_crossings(machine, ranks=16, stride=4)})
        [(1, 1), (2, 4)]
    """
    senders = np.arange(max(0, ranks - stride))
    if members:
        senders = senders[senders // stride % members < members - 1]
    pairs = np.stack((senders, senders + stride), axis=1)
    if len(devices):
        pairs = np.asarray(devices, dtype=np.int64)[pairs]
    return transfer_crossings(machine, pairs, op="send_recv")


def transfer_crossings(machine: Machine, members: Whole, *, op: str) -> frozenset[LinkUse]:
    """Links that transfers alike cross at the same time, each layout once.

    Args:
        machine: that has the members
        members: a row for each transfer, the numbers of its devices, which no other row has: of a collective in
            ascending order, of a message sender and receiver (one device may send one and receive another)
        op: name of the collective, or "send_recv"

    Raises:
        InputError: several nodes with nothing between them
    """
    if not members.size:
        return frozenset()
    each = machine.node.devices
    host = members // each
    local = members - host * each
    within = bool((host == host[:, :1]).all())
    if within and (members.shape[1] == 1 or _is_switched(NodeKey(machine.node))):
        return frozenset({LinkUse(local=tuple(range(members.shape[1])))})
    ports, width = (1, 1) if within else _ports(machine)
    if op == "send_recv":
        return _messages(machine, host, local, local * ports // each, ports, width)
    return _Collectives(machine, host, local, ports, width).crossings(op)


def _ports(machine: Machine) -> tuple[int, int]:
    """Into how many equal parts a node's cards are dealt out, and the cards of each."""
    count, _ = fabric_of(machine)
    ports = min(count, machine.node.devices)
    return ports, count // machine.node.devices if count >= machine.node.devices else 1


def _uplink_cards(machine: Machine, width: int) -> float:
    """The links to the spine by the rate of a card: of a leaf; rail by rail, of the leaves of a port together."""
    leaves, (count, _) = machine.leaves, fabric_of(machine)
    if leaves is None:
        return np.inf
    return leaves.nodes * (width if leaves.by_rail else count) / leaves.oversubscription


@functools.lru_cache(maxsize=256)
def _is_switched(node: NodeKey) -> bool:
    """Whether switches join all devices of a node alike, so that it does not matter which of them are taken."""
    found = {switch_links(node.node, number) for number in range(node.node.devices)}
    return len(found) == 1 and 0 not in found


def _alike(node: Node, local: tuple[int, ...]) -> tuple[int, ...]:
    """Devices of a node that have the same links as these; by itself on its node, a device is like any other."""
    if len(local) == 1 or _is_switched(NodeKey(node)):
        return tuple(range(len(local)))
    return local


@functools.lru_cache(maxsize=1024)
def _slowdowns(node: NodeKey, groups: tuple[tuple[int, ...], ...], messages: bool) -> tuple[float, ...]:
    return slowdowns(node.node, groups, messages=messages)


def _longer_inside(
    node: Node, hosts: Sequence[int], groups: Sequence[tuple[int, ...]], *, messages: bool
) -> list[float]:
    """For groups of devices, each on a node, how much longer they take inside it for what they share there."""
    if _is_switched(NodeKey(node)):
        return [1.0] * len(groups)
    there: dict[int, list[int]] = defaultdict(list)
    for index, (host, group) in enumerate(zip(hosts, groups, strict=True)):
        if len(group) > 1:
            there[host].append(index)
    found = [1.0] * len(groups)
    for indices in there.values():
        longer = _slowdowns(NodeKey(node), tuple(groups[index] for index in indices), messages)
        for index, factor in zip(indices, longer, strict=True):
            found[index] = factor
    return found


def _messages(machine: Machine, host: Whole, local: Whole, port: Whole, ports: int, width: int) -> frozenset[LinkUse]:
    """Of messages, some of which go to another node: a row of sender and receiver for each."""
    leaves = machine.leaves
    leaving = host[:, 0] != host[:, 1]
    staying = ~leaving
    if _is_switched(NodeKey(machine.node)):
        # All of them are alike.
        staying &= np.cumsum(staying) == 1
    pairs = [(a, b) for a, b in local[staying].tolist()]
    longer = _longer_inside(machine.node, host[staying, 0].tolist(), pairs, messages=True)
    found = {
        LinkUse(local=_alike(machine.node, pair), inside=factor) for pair, factor in zip(pairs, longer, strict=True)
    }
    host, port = host[leaving], port[leaving]
    if leaves is not None and leaves.by_rail:
        # The sender's node sends by the card of the receiver's rail.
        port = np.stack((port[:, 1], port[:, 1]), axis=1)
    sharing = _shared(host[:, 0] * ports + port[:, 0], host[:, 1] * ports + port[:, 1])
    uplinks = np.zeros(len(host))
    if leaves is not None:
        pods = host // leaves.nodes
        places = pods * ports + port if leaves.by_rail else pods
        far = pods[:, 0] != pods[:, 1]
        uplinks[far] = _shared(places[far, 0], places[far, 1]) / _uplink_cards(machine, width)
    for each, up in set(zip(sharing.tolist(), uplinks.tolist(), strict=True)):
        found.add(LinkUse(local=(0,), nodes=2, cards=width, sharing=each, uplinks=up))
    return frozenset(found)


def _shared(out: Whole, into: Whole) -> Whole:
    """Of flows with a place that they leave by and one that they come in by: how many share the busier of their two."""
    if not len(out):
        return out
    larger: Whole = np.maximum(np.bincount(out)[out], np.bincount(into)[into])
    return larger


class _Collectives:
    """Groups that communicate at the same time, some of them across nodes.

    A run is the members of a group on one node; an entry is one of the ports that a run sends by.
    """

    def __init__(self, machine: Machine, host: Whole, local: Whole, ports: int, width: int) -> None:
        groups, members = host.shape
        self.machine, self.ports, self.width, self.members = machine, ports, width, members
        self.local = local.ravel()
        starts = np.ones_like(host, dtype=bool)
        starts[:, 1:] = host[:, 1:] != host[:, :-1]
        self.first = np.flatnonzero(starts)
        self.host = host.ravel()[self.first]
        self.group = self.first // members
        self.length = np.diff(self.first, append=host.size)
        self.group_start = np.searchsorted(self.group, np.arange(groups))
        self.nodes = np.diff(self.group_start, append=len(self.first))
        port = (local * ports // machine.node.devices).ravel()
        run = np.cumsum(starts.ravel()) - 1
        new = starts.ravel().copy()
        new[1:] |= port[1:] != port[:-1]
        self.run, self.port = run[new], port[new]
        self.entries = np.bincount(self.run, minlength=len(self.first))
        # The run from which a run receives: the one before, around the ring of its group.
        before = np.arange(len(self.first)) - 1
        last = self.group_start + self.nodes - 1
        before[self.group_start] = last
        self.before = before

    def crossings(self, op: str) -> frozenset[LinkUse]:
        """Each layout once."""
        crosses = self.nodes > 1
        least = np.minimum.reduceat(self.entries, self.group_start)
        widest = np.maximum.reduceat(self.length, self.group_start)
        sharing, uplinks = self._sharing(), self._uplinks(op, least, widest)
        uneven = np.minimum.reduceat(self.length, self.group_start) != widest
        runs = np.arange(len(self.first))
        fullest = np.minimum.reduceat(np.where(self.length == widest[self.group], runs, len(runs)), self.group_start)
        kind = self._kinds()[fullest]
        inside = self._inside()
        figures = (uplinks.view(np.int64), inside.view(np.int64))
        rows = np.stack((kind, self.nodes, least, sharing, *figures, uneven), axis=1)
        found = set()
        for index in _first_of_each(rows):
            start, length = self.first[fullest[index]], widest[index]
            place = _alike(self.machine.node, tuple(self.local[start : start + length].tolist()))
            if not crosses[index]:
                found.add(LinkUse(local=place, inside=float(inside[index])))
                continue
            found.add(
                LinkUse(
                    local=place,
                    nodes=int(self.nodes[index]),
                    cards=int(least[index]) * self.width,
                    sharing=int(sharing[index]),
                    uplinks=float(uplinks[index]),
                    members=self.members if uneven[index] else 0,
                    inside=float(inside[index]),
                )
            )
        return frozenset(found)

    def _kinds(self) -> Whole:
        """A number for each run that tells runs of different devices apart, where that matters."""
        if _is_switched(NodeKey(self.machine.node)):
            return self.length
        weights = np.random.default_rng(0).integers(1 << 62, size=self.machine.node.devices, dtype=np.int64)
        kinds: Whole = np.add.reduceat(weights[self.local], self.first)
        return np.where(self.length == 1, 0, kinds)

    def _inside(self) -> Real:
        """Of each group, how much longer it takes inside its nodes, the most on any."""
        if _is_switched(NodeKey(self.machine.node)):
            return np.ones(len(self.nodes))
        ends = np.append(self.first[1:], len(self.local)).tolist()
        runs = [tuple(self.local[start:end].tolist()) for start, end in zip(self.first.tolist(), ends, strict=True)]
        longer = np.array(_longer_inside(self.machine.node, self.host.tolist(), runs, messages=False))
        most: Real = np.maximum.reduceat(longer, self.group_start)
        return most

    def _sharing(self) -> Whole:
        """Groups on the busiest of each group's ports; 1 for those on one node."""
        crossing = self.nodes[self.group[self.run]] > 1
        place = self.host[self.run[crossing]] * self.ports + self.port[crossing]
        shared = np.ones(len(self.run), dtype=np.int64)
        shared[crossing] = _shared(place, place)
        worst: Whole = np.maximum.reduceat(shared, np.searchsorted(self.run, self.group_start))
        return worst

    def _uplinks(self, op: str, least: Whole, widest: Whole) -> Real:
        """Of each group, what crosses the busiest links to the spine that it uses, by what they carry."""
        leaves, groups = self.machine.leaves, len(self.nodes)
        if leaves is None:
            return np.zeros(groups)
        pods = self.host // leaves.nodes
        if op == "all_to_all":
            return self._all_with_all(pods, least, widest) / _uplink_cards(self.machine, self.width)
        flows = least[self.group] * self.width
        if leaves.by_rail:
            # A leaf for each port: a hop arrives on the ports of its receiver, in equal parts.
            run, place = self.run, self.port
            count = self.ports
        else:
            run, place = np.arange(len(self.first)), np.zeros(len(self.first), dtype=np.int64)
            count = 1
        far = pods[self.before[run]] != pods[run]
        run, place = run[far], place[far]
        each = flows[run] / (self.entries[run] if leaves.by_rail else 1)
        out, into = pods[self.before[run]] * count + place, pods[run] * count + place
        busiest = np.maximum(np.bincount(out, each)[out], np.bincount(into, each)[into]) if len(run) else each
        worst = np.zeros(groups)
        np.maximum.at(worst, self.group[run], busiest)
        return worst / _uplink_cards(self.machine, self.width)

    def _all_with_all(self, pods: Whole, least: Whole, widest: Whole) -> Real:
        """Of each group, what the busiest leaf that it uses sends or receives, in the time of the group's own cards.

        A member sends one part to each other one. A node with `g` of `n` members sends `g (n - g)` by `k` cards, so a
        card's time is `g (n - g) / k` parts.
        """
        leaves = self.machine.leaves
        by_rail = leaves is not None and leaves.by_rail
        # A place: the members of a group on one leaf, or on one set of leaves rail by rail.
        new = np.ones(len(self.first), dtype=bool)
        new[1:] = (self.group[1:] != self.group[:-1]) | (pods[1:] != pods[:-1])
        place = np.cumsum(new) - 1
        group, pod = self.group[new], pods[new]
        start = np.searchsorted(group, np.arange(len(self.nodes)))
        rails = self.ports if by_rail else 1
        of_run = np.repeat(np.arange(len(self.first)), self.length)
        rail = self.local * self.ports // self.machine.node.devices if by_rail else np.zeros_like(self.local)
        here = np.bincount(place[of_run] * rails + rail, minlength=len(group) * rails).reshape(-1, rails)
        total = np.add.reduceat(here, start)
        count = here.sum(axis=1, keepdims=True)
        out, into = count * (total[group] - here), here * (self.members - count)
        leaf = (pod[:, None] * rails + np.arange(rails)).ravel()
        sent, received = np.bincount(leaf, out.ravel()), np.bincount(leaf, into.ravel())
        used = np.maximum(np.where(out.ravel() > 0, sent[leaf], 0), np.where(into.ravel() > 0, received[leaf], 0))
        worst = np.maximum.reduceat(used.reshape(-1, rails).max(axis=1), start)
        own = widest * (self.members - widest)
        result: Real = np.where(own > 0, worst * least * self.width / np.maximum(own, 1), 0.0)
        return result


def _first_of_each(rows: Whole) -> Whole:
    """Numbers of rows that no earlier one is equal to."""
    order = np.lexsort(rows.T)
    sorted_rows = rows[order]
    new = np.ones(len(rows), dtype=bool)
    new[1:] = (sorted_rows[1:] != sorted_rows[:-1]).any(axis=1)
    found: Whole = order[new]
    return found


# ---------------------------------------------------------------------------------------------------------------------
# The links of a group, as input of the collective model


LinkKind = Literal["nvswitch", "nvlink", "xgmi", "pcie", "host", "virtual"]
"""Links between devices of a node: links through switches, links pair by pair (of two makes), PCIe, or only
memory of the host, on bare metal or in a virtual machine."""

OVER_PCIE = frozenset({"pcie", "host", "virtual"})
"""Kinds of devices without links between devices (no NVLink)."""

Timing = Literal["stream", "threads", "single", "processes", "torch", "wall"]
"""How a time was taken, which decides the fixed cost in it.

"stream": by the device, calls queued ahead, as in a training step. "threads": nccl-tests with a thread a device.
"single": nccl-tests with one thread that launches on all devices in turn (its default, `-g 8`). "processes": nccl-tests
with a process a device. "torch": torch.distributed, calls one after the other. "wall": torch.distributed by the host's
clock, with the device idle before every call.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """Devices that exchange with one another.

    Attributes:
        devices: in the group
        nodes: that they sit on
        kind: of the slowest link of the best rings inside a node
        generation: of those links, counted within their family: NVLink 1 to 5, PCIe 3 to 6
        ring_bytes_per_s: of the best set of rings inside a node, one direction [bytes/s]
        exchange_bytes_per_s: of a device when each sends another part to each other one [bytes/s]
        card_kind: network between the nodes, by which measured groups are compared; "" with one node
        cards_bytes_per_s: of these cards of a node together, one direction [bytes/s]; 0 with one node
        cards: of a node that the members send by
        access: of these cards to the memory of devices, as of `Link`
        hop_s: over these cards [s]; 0: as of their kind
        reach: of their rate, as of `Link`
        sharing: by how much less of these cards' rate is left to the group: as many groups alike use them at the same
            time, this one included, or that share of the links above their leaf
        fullest: devices of the node that has most, where nodes have different numbers; 0: as many on each
        inside: how many times longer the links inside a node take, for what other groups share of them
        node: name of the machine in the catalog, or of that which was measured
        device: name of the device's family, such as "a100"
    """

    devices: int
    nodes: int = 1
    kind: LinkKind
    generation: float
    ring_bytes_per_s: float
    exchange_bytes_per_s: float
    card_kind: str = ""
    cards_bytes_per_s: float = 0.0
    cards: int = 0
    access: str = "direct"
    hop_s: float = 0.0
    reach: tuple[float, float] = (0.0, 0.0)
    sharing: float = 1
    fullest: int = 0
    inside: float = 1.0
    node: str = ""
    device: str = ""

    @property
    def per_node(self) -> int:
        """Devices of each node, or of the one that has most."""
        return self.fullest or max(1, self.devices // self.nodes)


def family(group: DeviceGroup) -> Literal["links", "pcie", "network"]:
    """The links of a group's collectives: device to device (NVLink), PCIe, or the network between nodes."""
    if group.nodes > 1:
        return "network"
    return "pcie" if group.kind in OVER_PCIE else "links"


CLOUDS = ("AWS ", "Azure ", "Google Cloud ", "Lambda Cloud")
"""How titles of rented machines begin."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Some devices of a node, as a key: two are the same if their links are."""

    node: Node = field(compare=False)
    name: str
    edges: tuple[object, ...] = field(hash=False)
    peer_access: bool
    local: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inside:
    """Links between devices of one node; rates in bytes/s."""

    kind: LinkKind
    generation: float
    ring: float
    exchange: float


def group_of(machine: Machine, devices: int, nodes: int = 1) -> DeviceGroup:
    """The group of the first devices of each node.

    Args:
        machine: of the devices
        devices: in all, equally many on each node
        nodes: in use

    Returns:
        Their description for the model of a collective.

    Raises:
        InputError: not equally many on each node, or more than there are, or several nodes with nothing between them
    """
    return group_across(machine, first_devices(machine, devices, nodes))


def group_across(machine: Machine, crossing: LinkUse) -> DeviceGroup:
    """The group of devices that cross these links.

    Args:
        machine: of the devices
        crossing: where on it

    Returns:
        Their description for the model of a collective.

    Raises:
        InputError: several nodes with nothing between them
    """
    node = machine.node.like or machine.node
    inside = _inside(_Place(node, node.name, node.edges, node.peer_access, crossing.local))
    group = DeviceGroup(
        devices=crossing.devices,
        nodes=crossing.nodes,
        kind=inside.kind,
        generation=inside.generation,
        ring_bytes_per_s=inside.ring,
        exchange_bytes_per_s=inside.exchange,
        cards=crossing.cards,
        sharing=max(crossing.sharing, crossing.uplinks),
        fullest=len(crossing.local) if crossing.members else 0,
        inside=crossing.inside,
        node=node.name,
        device=node.device.name,
    )
    if crossing.nodes == 1:
        return group
    card = _network(machine)
    return replace(
        group,
        card_kind=card.kind,
        cards_bytes_per_s=crossing.cards * card.bytes_per_s,
        access=card.access,
        hop_s=card.hop_s,
        reach=card.reach,
    )


@functools.lru_cache(maxsize=512)
def _inside(place: _Place) -> _Inside:
    if len(place.local) == 1:
        return _Inside(kind="nvlink", generation=0.0, ring=0.0, exchange=0.0)
    rings = ring_bandwidth(place.node, place.local)
    first = rings.rings[0]
    link = pair(place.node, first[0], first[1]).route.edges[0].link
    exchange = rings.bytes_per_s
    if rings.kind == "links":
        exchange = _mesh_exchange(place.node, place.local, link)
    if rings.kind in ("pcie", "staged"):
        first_device = f"gpu{place.local[0]}"
        link = next(
            (edge.link for edge in place.node.edges if edge.link.kind == "pcie" and first_device in (edge.a, edge.b)),
            link,
        )
    return _Inside(
        kind=_kind(rings, link, place.node), generation=generation(link), ring=rings.bytes_per_s, exchange=exchange
    )


def _kind(rings: RingSet, link: Link, node: Node) -> LinkKind:
    if rings.kind == "switch":
        return "nvswitch"
    if rings.kind == "links":
        return "xgmi" if link.kind == "xgmi" else "nvlink"
    if rings.kind == "pcie":
        return "pcie"
    return "virtual" if node.title.startswith(CLOUDS) else "host"


def generation(link: Link) -> float:
    """Number in the name of a link, such as 3 of "nvlink3"."""
    found = re.search(r"\d+", link.name)
    return float(found.group()) if found else 0.0


def _mesh_exchange(node: Node, local: Sequence[int], link: Link) -> float:
    """Rate of a device in an exchange of all with all over their own links [bytes/s].

    Pairs without a link go over the devices that have links to both, shared out by the width of those ways. The busiest
    link decides.
    """
    load: dict[tuple[str, str], float] = {}
    rate: dict[tuple[str, str], float] = {}
    inside = {f"gpu{number}" for number in local}
    for a in local:
        for b in local:
            if a == b:
                continue
            found = pair(node, a, b)
            ways = (
                [found.route] if found.kind == "links" else [w for w in relays(node, a, b) if set(w.vertices) <= inside]
            )
            if not ways:
                return min(found.bytes_per_s, ring_rate(link))
            width = sum(way.bytes_per_s for way in ways)
            for way in ways:
                for start, end, edge in zip(way.vertices, way.vertices[1:], way.edges, strict=False):
                    load[start, end] = load.get((start, end), 0.0) + way.bytes_per_s / width
                    rate[start, end] = ring_rate(edge.link) * edge.count
    return (len(local) - 1) / max(load[step] / rate[step] for step in load)


def _network(machine: Machine) -> Link:
    """The card between nodes, with what its kind says where it does not say it itself.

    Of a user's card only the rate may be said; its name or its kind tells which cards of the catalog it is like.
    """
    _, link = fabric_of(machine)
    kind = next((word for word in _BY_NAME if word in link.name), link.kind)
    like = next(iter(network_kinds().get(kind, ())), link)
    access = link.access or like.access
    return replace(
        link,
        kind="ethernet" if access == "host" else _COMPARED.get(like.kind, like.kind),
        access=access,
        hop_s=link.hop_s or like.hop_s,
        reach=link.reach if link.reach[1] or link.access else like.reach,
    )


_BY_NAME = ("efa", "roce")
"""Kinds of cards that run over another one: what a name says goes before the kind."""

_COMPARED = {"roce": "infiniband"}
"""Kinds of the same verbs, with the same part of the library of collectives."""
