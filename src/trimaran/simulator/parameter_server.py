"""Exchange by copies to an owner and back: MXNet's KVStore "device" (owners are devices), servers in nodes' hosts.

Every tensor has an owner. When its gradient is complete everywhere, it is copied there from all devices, summed, the
weight is updated, and copied back to all:

    device 1 ──copy──┐                        ┌──copy──▶ device 1
    device 2 ──copy──┼─▶ owner: sum, update ──┼──copy──▶ device 2
    device 3 ──copy──┘                        └──copy──▶ device 3

Over several nodes each has an owner of the tensor, which sums within the node. The sum goes to the servers over the
network (from a device through its host), which sum over the nodes and update, and the weights come back the same way:

    node 1 ──▶ owner ──push──┐                           ┌──pull──▶ owner ──▶ node 1
    node 2 ──▶ owner ──push──┼─▶ servers: sum, update ───┼──pull──▶ owner ──▶ node 2

Servers are on the nodes' hosts, each with as much of every tensor, or on further machines. Nodes are alike, so
one is followed. A copy occupies every link of its route. In each step of this way a link takes the tensors in the order
in which they are complete, never in order of arrival, and no link is done before all that it carries: every end is a
maximum of sums of times, so that no end is later on a faster machine. In order of arrival ends can be: a copy that
arrives earlier may hold up a longer one (Graham, SIAM J. Appl. Math. 17(2), 1969). Left out: slices of a copy, waits of
one step for another on a link that both use, and the time that sums take from the backward of their owner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from trimaran.machine.topology import host_route, pair
from trimaran.machine.types import Edge, Machine, Node
from trimaran.pricing.collectives.links import all_with_all_rate, fabric_of
from trimaran.pricing.collectives.parameter_servers import colocated_server_time, separate_server_time
from trimaran.pricing.exchange.frameworks import ExchangeRecipe
from trimaran.pricing.exchange.unknowns import READS_BETWEEN_SOCKETS, STAGED, STAGED_TOGETHER, End
from trimaran.program.gradients import owners_by_size
from trimaran.simulator.exchange import GradientCall, GradientExchange, ReadyGradient


@dataclass(frozen=True, slots=True)
class Path:
    """A route between two places.

    Attributes:
        links: names of its links in this direction, with what each carries in all [bytes/s]
        bytes_per_s: of one copy alone [bytes/s]
        latency_s: of a copy [s]
    """

    links: tuple[tuple[str, float], ...]
    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Star:
    """Where tensors are summed, and at what cost.

    Attributes:
        devices: places that have gradients, such as "gpu0"
        owners: of each gradient, in their order
        paths: between places, by both ends
        sum_bytes_per_s: at which an owner reads and writes what it sums [bytes/s]
        update_s: of the optimizer on the whole model at one owner [s]
        call_s: handling of a tensor at its owner [s]
        copy_s: handling of each of its copies [s]
        servers: that sum over several nodes; None: there is one node
    """

    devices: tuple[str, ...]
    owners: tuple[str, ...]
    paths: Mapping[tuple[str, str], Path]
    sum_bytes_per_s: float
    update_s: float
    call_s: float
    copy_s: float
    servers: "Servers | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Where several nodes sum.

    Attributes:
        exchange_s: push and pull of a byte, as the busiest machine has them [s/byte]
        latency_s: of both [s]
        sum_s: sum of a byte over the nodes, of the parts of all servers at once [s/byte]
    """

    exchange_s: float
    latency_s: float
    sum_s: float


def exchange_star(gradients: Sequence[ReadyGradient], star: Star, *, backward_s: float) -> GradientExchange:
    """Run the copies, sums and updates of a step.

    Args:
        gradients: to exchange, one owner each
        star: where and at what cost
        backward_s: undisturbed; copies are left to copy engines, so it stays so [s]

    Returns:
        For each gradient a call, from when it is complete until all have the new weight.

    Example:
        >>> paths = {ends: Path((("wire", 1.0),), 1.0, 0.0) for ends in (("gpu0", "gpu1"), ("gpu1", "gpu0"))}
        >>> star = Star(devices=("gpu0", "gpu1"), owners=("gpu0",), paths=paths, sum_bytes_per_s=1e9, update_s=0.0,
        ...             call_s=0.0, copy_s=0.0)
        >>> round(exchange_star([ReadyGradient(0, 3, 1.0)], star, backward_s=1.0).exposed_s, 6)  # 3 s in, 3 s out
        6.0
    """
    total = sum(ready.nbytes for ready in gradients) or 1
    traffic = _Traffic(star)
    calls: list[tuple[float, GradientCall]] = []
    for ready, owner in zip(gradients, star.owners, strict=True):
        nbytes, others = ready.nbytes, [device for device in star.devices if device != owner]
        work_s = (len(others) + 2) * nbytes / star.sum_bytes_per_s + star.call_s + 2 * len(others) * star.copy_s
        update_s, servers = star.update_s * nbytes / total, star.servers
        traffic.ready_s = ready.ready_s
        now_s = traffic.copies("to owner", [(device, owner) for device in others], nbytes, ready.ready_s)
        now_s = traffic.work(owner, work_s if servers else work_s + update_s, now_s)
        if servers:
            of_host = [(owner, HOST)] if owner != HOST else []
            now_s = traffic.copies("to host", of_host, nbytes, now_s)
            now_s = traffic.work(_NETWORK, servers.exchange_s * nbytes, now_s) + servers.latency_s
            now_s = traffic.work(_SERVERS, servers.sum_s * nbytes + update_s, now_s)
            now_s = traffic.copies("from host", [way[::-1] for way in of_host], nbytes, now_s)
        now_s = traffic.copies("from owner", [(owner, device) for device in others], nbytes, now_s)
        end_s = max([now_s, *traffic.done_s.values()])
        calls.append((end_s, GradientCall(ready.ready_s, 0.0, end_s - ready.ready_s, (ready.gradient,))))
    calls.sort(key=lambda call: call[0])
    busy_s = max(traffic.load_s.values(), default=0.0)
    return GradientExchange(tuple(call for _, call in calls), tuple(end_s for end_s, _ in calls), backward_s, busy_s)


class _Traffic:
    """When each link and owner is free for the next gradient.

    Attributes:
        ready_s: when the gradient on its way is complete [s]
        load_s: work of each link and owner [s]
        done_s: when that is done at the earliest, whatever its order [s]
    """

    def __init__(self, star: Star) -> None:
        self._star = star
        self._free_s: dict[tuple[str, str], float] = {}
        self.ready_s = 0.0
        self.load_s: dict[str, float] = {}
        self.done_s: dict[str, float] = {}

    def copies(self, step: str, ways: Sequence[tuple[str, str]], nbytes: int, now_s: float) -> float:
        """When copies that are asked for now have arrived [s]."""
        arrived_s = [now_s]
        for way in ways:
            path = self._star.paths[way]
            start_s = max([now_s, *(self._free_s.get((step, link), 0.0) for link, _ in path.links)])
            ends_s = [self._occupy(step, link, start_s, nbytes / bytes_per_s) for link, bytes_per_s in path.links]
            arrived_s.append(max([start_s + nbytes / path.bytes_per_s, *ends_s]) + path.latency_s)
        return max(arrived_s)

    def work(self, owner: str, seconds: float, now_s: float) -> float:
        """When an owner is done with work that it is given now [s]."""
        return self._occupy("", owner, max(now_s, self._free_s.get(("", owner), 0.0)), seconds)

    def _occupy(self, step: str, name: str, start_s: float, seconds: float) -> float:
        self._free_s[step, name] = start_s + seconds
        self.load_s[name] = self.load_s.get(name, 0.0) + seconds
        self.done_s[name] = max(self.done_s.get(name, 0.0), self.ready_s) + seconds
        return start_s + seconds


# ---------------------------------------------------------------------------------------------------------------------
# Stars on a node's links: the owner of each tensor, and the links of the copies


HOST = "host"
"""Memory of a node, over all its sockets."""

_NETWORK, _SERVERS = "network", "servers"


def star_of(
    nbytes: Sequence[int],
    machine: Machine,
    recipe: ExchangeRecipe,
    *,
    devices: int,
    nodes: int = 1,
    on_host: bool,
    update_s: float,
    links: float = 1.0,
    servers: int = 0,
    end: End = "typical",
) -> Star:
    """The star of the first devices of a node.

    Args:
        nbytes: of each tensor, in their order [bytes]
        machine: on which
        recipe: what a tensor's handling costs
        devices: of the group in a node
        nodes: that they are in
        on_host: owners are on the hosts, else on the devices
        update_s: of the optimizer on a device, for the whole model [s]
        links: how many times as fast links are
        servers: further machines that sum over several nodes; 0: their hosts do
        end: where the constants are taken that nobody has measured

    Raises:
        InputError: several nodes without a network
    """
    node = machine.node
    members = tuple(f"gpu{number}" for number in range(devices))
    if on_host:
        owners: tuple[str, ...] = (HOST,) * len(nbytes)
    else:
        owners = owners_by_size(nbytes, members)
    memory = node.device.bandwidth
    on_device, of_host = memory.bytes_per_s * memory.fraction, recipe.host_bytes_per_s
    places = dict.fromkeys(owners)
    ends = {(member, owner) for owner in places for member in members if member != owner}
    if nodes > 1:
        ends |= {(owner, HOST) for owner in places if owner != HOST}
    return Star(
        devices=members,
        owners=owners,
        paths={
            way: _path(node, *way, links, end, recipe.bytes_place) for a, b in sorted(ends) for way in ((a, b), (b, a))
        },
        sum_bytes_per_s=of_host if on_host else on_device,
        # What an update reads and writes, at the rate of where it runs.
        update_s=update_s * on_device / of_host / _count(nodes, servers) if on_host or nodes > 1 else update_s,
        call_s=recipe.call_s,
        copy_s=recipe.copy_s,
        servers=None if nodes == 1 else _servers(machine, nodes, servers, links=links, sum_bytes_per_s=of_host),
    )


def _count(nodes: int, servers: int) -> int:
    """Servers of several nodes; of one node its host."""
    return 1 if nodes == 1 else servers or nodes


def _servers(machine: Machine, nodes: int, servers: int, *, links: float, sum_bytes_per_s: float) -> Servers:
    _, link = fabric_of(machine)
    rate = all_with_all_rate(machine, nodes + servers) * links
    if servers:
        exchange_s = separate_server_time(1.0, workers=nodes, servers=servers, bytes_per_s=rate)
    else:
        exchange_s = colocated_server_time(1.0, workers=nodes, bytes_per_s=rate)
    return Servers(
        exchange_s=exchange_s,
        latency_s=2 * link.latency_s,
        sum_s=(nodes + 2) / _count(nodes, servers) / sum_bytes_per_s,
    )


def _path(node: Node, source: str, target: str, links: float, end: End, place: float | None) -> Path:
    """The route of a copy between two devices, or between a device and its nearest socket."""
    together = 1.0
    ends = [int(name.removeprefix("gpu")) for name in (source, target) if name.startswith("gpu")]
    if len(ends) == 2:
        found = pair(node, *ends)
        way, rate, staged = found.route, found.bytes_per_s, not found.peer
        if staged:
            rate, together = rate * STAGED.at(end, place) / STAGED.value, STAGED_TOGETHER.at(end, place)
    else:
        way = host_route(node, ends[0])
        rate, staged = way.bytes_per_s, True
    vertices = way.vertices if way.vertices[0] == source else tuple(reversed(way.vertices))
    widths = dict.fromkeys(pairwise(vertices), 0.0)
    for edge in way.edges:
        hop = (edge.a, edge.b) if (edge.a, edge.b) in widths else (edge.b, edge.a)
        widths[hop] += _width(edge, end, place, staged=staged, together=together)
    return Path(
        links=tuple((f"{a}>{b}", width * links) for (a, b), width in widths.items()),
        bytes_per_s=rate * links,
        latency_s=way.latency_s,
    )


def _width(edge: Edge, end: End, place: float | None, *, staged: bool, together: float) -> float:
    """Rate of an edge for all copies together [bytes/s]."""
    if staged and edge.link.kind == "socket":
        return edge.link.raw_bytes_per_s * edge.count * READS_BETWEEN_SOCKETS.at(end, place)
    return edge.bytes_per_s * together
