"""Cost of messages and collectives on a machine of the catalog, and the links that they occupy.

    message      within a node: the links of the pair's route; between nodes: one card out, one card in, and between
                 leaves with fewer links to the spine than cards one of those links at each end
    collective   the links between its members, or the tree between them, a share of each node's cards, and links to the
                 spine where its ring goes from a leaf to another one

Times are those of `collectives` for the devices of the group, over the links that they cross.
Links have names by direction, such as "n0 gpu0>gpu3". A link is named only where two such transfers at once exceed its
rate, since transfers that share a named link halve each other's rate. Left out: phases of a collective; it is one flow
on all of its links.

Names of the links that transfers occupy on a machine: links of devices, edges of the tree, cards of nodes.

A name says the node, the ends and the direction: "n0 gpu0>gpu3", "n0 gpu2 out" (to switches), "n1 card0 in",
"leaf0 up3". Cards are dealt out in turn to the links of their leaf.

The device of each rank of a strategy: `machine.rank_order`, given the bytes between ranks.

Bytes are rough, without a partition: only their order by kind of communication counts. Stages send the largest tensor
of the network, forward and back, for each microbatch; shards sum every activation; replicas exchange gradients.

How fast a device copies to and from its host when others copy at the same time.

    gpu ─ link ─┐                        A plan of one device assumes a link without sharing. All data parallel ranks
    gpu ─ link ─┤                        run the same plan at the same time, so each has only its part of the links
    gpu ─ link ─┼─ switch ─ uplink ─ socket ─ memory         that it shares with the others:
    gpu ─ link ─┘

    rate = min(link, uplink / devices on it, memory of the socket / (2 × devices of the socket))

Each direction of a link has its own rate, so copies out and back do not take from each other there. They do in the
host's memory, which carries both, hence the 2: a device at full rate in both directions asks it for twice its rate.

Left out: the host's own traffic (data loading, the optimizer's state there), devices of the other socket, whose copies
cross the link between the sockets, and ranks that are out of step. So it is a guaranteed rate, not a mean.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trimaran.base.errors import InputError
from trimaran.graph.types import Graph
from trimaran.machine.catalog import MOST_DEVICES
from trimaran.machine.rank_order import lay_out, node_talk, spread_over
from trimaran.machine.topology import DIRECT, pair, switch_links
from trimaran.machine.types import Allocation, Device, Edge, Machine, Node
from trimaran.pricing.collectives.algorithms import crossing_cost
from trimaran.pricing.collectives.formulas import OPERATION_OF
from trimaran.pricing.collectives.links import LinkUse, cards_of, crossing_of, fabric_of, members_on_nodes
from trimaran.pricing.kernels.software import Software
from trimaran.pricing.types import Cost, Transfer
from trimaran.program.strategy import Strategy
from trimaran.program.types import Kind


def _card_names(machine: Machine, host: int, chosen: Sequence[int], direction: str) -> tuple[str, ...]:
    return tuple(f"n{host} card{card} {direction}" for card in cards_of(machine.node, fabric_of(machine)[0], chosen))


def message_links(machine: Machine, source: int, target: int) -> tuple[str, ...]:
    """Links of a message from one device to another."""
    each = machine.node.devices
    (host, a), (other, b) = divmod(source, each), divmod(target, each)
    if host != other:
        # Rail by rail a message leaves by the card that it arrives on.
        by_rail = machine.leaves is not None and machine.leaves.by_rail
        cards = (*_card_names(machine, host, [b if by_rail else a], "out"), *_card_names(machine, other, [b], "in"))
        return (*cards, *_spine_links(machine, (host, [a]), (other, [b]), most=1))
    node = machine.node
    if not _linked(node, a, b) and min(switch_links(node, a), switch_links(node, b)):
        return (f"n{host} gpu{a} out", f"n{host} gpu{b} in")
    return _route_links(node, host, a, b)


def _spine_links(
    machine: Machine, source: tuple[int, list[int]], target: tuple[int, list[int]], *, most: int | None = None
) -> tuple[str, ...]:
    """Names of the links above the leaves of two nodes that a hop takes from one to the other.

    Args:
        machine: of the nodes
        source: number of a node, and devices on it
        target: likewise
        most: cards that the hop takes; None: all of these devices
    """
    leaves, (count, _) = machine.leaves, fabric_of(machine)
    if leaves is None or leaves.oversubscription <= 1.0:
        return ()
    pods = source[0] // leaves.nodes, target[0] // leaves.nodes
    if pods[0] == pods[1]:
        return ()
    here, there = (cards_of(machine.node, count, local)[:most] for _, local in (source, target))
    # Rail by rail the hop leaves by the cards that it arrives on.
    ends = ((source[0], there if leaves.by_rail else here, "up"), (target[0], there, "down"))
    names: dict[str, None] = {}
    for (host, cards, direction), pod in zip(ends, pods, strict=True):
        for card in cards:
            place = host % leaves.nodes
            leaf = f"leaf{pod}.{card}" if leaves.by_rail else f"leaf{pod}"
            width = leaves.nodes * (1 if leaves.by_rail else count) / leaves.oversubscription
            number = place if leaves.by_rail else place * count + card
            names[f"{leaf} {direction}{number % max(1, int(width))}"] = None
    return tuple(names)


def _ring_over_leaves(machine: Machine, on: Mapping[int, list[int]]) -> tuple[str, ...]:
    """Names of the links to the spine that a ring through members on some nodes takes."""
    nodes = sorted(on.items())
    names: dict[str, None] = {}
    for source, target in zip(nodes, (*nodes[1:], nodes[0]), strict=True):
        names.update(dict.fromkeys(_spine_links(machine, source, target)))
    return tuple(names)


def _route_links(node: Node, host: int, a: int, b: int) -> tuple[str, ...]:
    """Names of the links of a copy within a node that have no room for two of them."""
    found = pair(node, a, b)
    vertices = found.route.vertices
    steps = zip(vertices, vertices[1:], found.route.edges, strict=False)
    return tuple(f"n{host} {one}>{two}" for one, two, edge in steps if _is_full(edge, found.bytes_per_s))


def _is_full(edge: Edge, bytes_per_s: float) -> bool:
    """Whether two copies at once slow each other down."""
    return 2 * bytes_per_s > edge.link.raw_bytes_per_s * edge.count


def _linked(node: Node, a: int, b: int) -> bool:
    ends = {f"gpu{a}", f"gpu{b}"}
    return any(edge.link.kind in DIRECT and {edge.a, edge.b} == ends for edge in node.edges)


def group_links(machine: Machine, host: int, local: Sequence[int], crosses: bool) -> tuple[str, ...]:
    """Links of a collective's members on one node, in both directions."""
    node = machine.node
    names: dict[str, None] = {}
    if crosses:
        for direction in ("out", "in"):
            names.update(dict.fromkeys(_card_names(machine, host, local, direction)))
    if len(local) < 2:
        return tuple(names)
    if min(switch_links(node, number) for number in local):
        names.update(dict.fromkeys(f"n{host} gpu{number} {end}" for number in local for end in ("out", "in")))
        return tuple(names)
    direct = [(a, b) for a in local for b in local if a != b and _linked(node, a, b)]
    ring = [step for a, b in zip(local, [*local[1:], local[0]], strict=True) for step in ((a, b), (b, a))]
    for a, b in direct or ring:
        names.update(dict.fromkeys(_route_links(node, host, a, b)))
    return tuple(names)


MESSAGE = "send_recv"

_EMPTY_BYTES = 8
"""A message of this size takes its latency only, which no sharing lengthens."""


def machine_transfer(
    kind: str, nbytes: int, members: Sequence[int], machine: Machine, *, year: float = Software().year
) -> Transfer:
    """Cost of a transfer when no other transfer runs.

    Args:
        kind: `MESSAGE`, or a kind of collective
        nbytes: the whole buffer [bytes]
        members: numbers of the devices on the machine; of a message the sender first
        machine: that has them
        year: of the software, which decides the library of collectives

    Returns:
        The same for all members.

    Raises:
        InputError: no such collective, a device that is not there, or nothing between two nodes
    """
    if len(members) < 2:
        return Transfer(latency_s=0.0, flow_s=0.0, links=(), low=0.0, high=0.0, source="analytic: one device")
    if kind != MESSAGE and kind not in OPERATION_OF:
        raise InputError(f'no cost model for a transfer of kind "{kind}"', kind=kind)
    operation = kind if kind == MESSAGE else OPERATION_OF[Kind(kind)]
    order = tuple(members) if kind == MESSAGE else tuple(sorted(members))
    key = _Key(machine)
    crossing, links = _route(key, order, operation == MESSAGE)
    cost, least = (_crossing_cost(key, crossing, operation, size, year) for size in (nbytes, _EMPTY_BYTES))
    latency_s = min(least.seconds, cost.seconds)
    return Transfer(
        latency_s=latency_s,
        flow_s=cost.seconds - latency_s,
        links=links,
        low=cost.low,
        high=cost.high,
        source=cost.source,
    )


class _Key:
    """A machine by its identity, as a key: comparing link graphs takes longer than finding it again."""

    __slots__ = ("machine",)

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def __hash__(self) -> int:
        return hash((self.machine.node.name, self.machine.nodes))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and (self.machine is other.machine or self.machine == other.machine)


@functools.lru_cache(maxsize=4096)
def _crossing_cost(key: _Key, crossing: LinkUse, operation: str, nbytes: int, year: float) -> Cost:
    # Groups alike on a machine have one crossing.
    return crossing_cost(operation, nbytes, machine=key.machine, crossing=crossing, year=year)


@functools.lru_cache(maxsize=4096)
def _route(key: _Key, members: tuple[int, ...], message: bool) -> tuple[LinkUse, tuple[str, ...]]:
    """What the members of a transfer cross, and the names of the links that it occupies."""
    machine = key.machine
    wrong = [number for number in members if not 0 <= number < machine.devices]
    if wrong:
        raise InputError(
            f"{machine.node.title} has devices 0 to {machine.devices - 1}, not {wrong[0]}",
            code="transfer.no-such-device",
            device=wrong[0],
        )
    if message:
        links = message_links(machine, members[0], members[1])
    else:
        on = members_on_nodes(machine, members)
        links = tuple(name for host, local in on.items() for name in group_links(machine, host, local, len(on) > 1))
        links += _ring_over_leaves(machine, on) if len(on) > 1 else ()
    return crossing_of(machine, members, op=MESSAGE if message else "all_reduce"), links


def device_order(cluster: Allocation, strategy: Strategy, graph: Graph, *, batch: int) -> tuple[int, ...]:
    """The device of each rank: ranks that exchange most bytes are closest.

    Args:
        cluster: of a machine; where transfers are measured, or each two devices have a link, or without rows and
            shards, the order is the natural one
        strategy: with or without boundaries
        graph: the job's
        batch: samples of one update, over all ranks

    Returns:
        For `Strategy.device_order`; empty where the natural order is as good.
    """
    machine, width = cluster.machine, strategy.pp * strategy.tp
    if machine.node.measured or machine.joint is not None or width < 2:
        return ()
    node = machine.node
    on_node = min(strategy.devices, node.devices)
    if on_node % width and width % on_node:
        return ()
    share = max(1, batch // strategy.dp)
    outputs = [sum(spec.nbytes.at(share) for spec in op.outputs) for op in graph.ops]
    gradients = sum(parameter.nbytes for parameter in graph.parameters if parameter.trainable)
    rows = min(strategy.pp, max(1, on_node // strategy.tp))
    talk = node_talk(
        pp=rows,
        tp=min(strategy.tp, on_node),
        dp=max(1, on_node // width),
        row_bytes=2.0 * max(outputs, default=0.0) if strategy.pp > 1 else 0.0,
        shard_bytes=2.0 * sum(outputs) if strategy.tp > 1 else 0.0,
        replica_bytes=2.0 * gradients / width if strategy.dp > 1 else 0.0,
        chained=not strategy.parts,
    )
    order = spread_over(machine, lay_out(node, on_node, talk), strategy.devices)
    return () if order == tuple(range(strategy.devices)) else order


def sharing_device(device: Device, sharing: int) -> Device:
    """A device of the catalog with the rates to its host that are left to it while all that share its link copy.

    Args:
        device: with its link for itself
        sharing: devices on one link, this one included

    Raises:
        InputError: less than one device, or more than a node has

    Source:
        Equal shares, as a switch that serves its ports in turn gives them.

    Example:
        >>> from trimaran.machine.catalog import find_device
        >>> sharing_device(find_device("titan-x"), 4).copies.to_host_bytes_per_s / 1e9
        3.2
    """
    if not 1 <= sharing <= MOST_DEVICES:
        raise InputError(
            f"1 to {MOST_DEVICES:,} devices are on a link to the host, not {sharing}",
            code="host-path.no-device",
            sharing=sharing,
        )
    if sharing == 1:
        return device
    copies, shares = device.copies, f"{sharing} devices on one link to the host"
    return replace(
        device,
        title=f"{device.title}, {shares}",
        copies=replace(
            copies,
            to_host_bytes_per_s=copies.to_host_bytes_per_s / sharing,
            to_device_bytes_per_s=copies.to_device_bytes_per_s / sharing,
            source=f"{copies.source}; {shares}",
        ),
    )
