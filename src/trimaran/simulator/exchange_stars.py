"""Stars on a node's links: which device or host is home to which tensor, and over what the copies go."""

from collections.abc import Sequence
from itertools import pairwise

from trimaran.cluster.machines import Edge, Node
from trimaran.cluster.topology import host_route, pair
from trimaran.costs.exchange_recipes import Recipe
from trimaran.program.homes import homes_by_size
from trimaran.simulator.exchange_star import Path, Star

HOST = "host"
"""Memory of a node, over all its sockets."""

HOST_SUM_BYTES_PER_S = 25e9
"""At which cores of a host read and write what they sum: four threads of MXNet's CommCPU on two channels or more."""

READS_BETWEEN_SOCKETS = 0.8
"""Share of the raw rate of links between sockets that ordinary reads of memory sustain, as copies staged in the host's
memory make them; assumed. What such links sustain of writes from device to device is far less, and not meant here."""

COPY_S = 10e-6
"""Handling of a copy by its home. Source: fixed cost of a copy, Tartan (DGX-1P peer copies, 9.2 to 9.9 us)."""


def star_of(
    nbytes: Sequence[int],
    node: Node,
    recipe: Recipe,
    *,
    devices: int,
    on_host: bool,
    update_s: float,
    links: float = 1.0,
) -> Star:
    """The star of a node's first devices.

    Args:
        nbytes: of each tensor, in their order [bytes]
        node: on which
        recipe: what a tensor's handling costs
        devices: in the group
        on_host: homes are on the host, else on the devices
        update_s: of the optimizer on a device, for the whole model [s]
        links: how many times as fast links are
    """
    members = tuple(f"gpu{number}" for number in range(devices))
    if on_host:
        homes: tuple[str, ...] = (HOST,) * len(nbytes)
    else:
        homes = homes_by_size(nbytes, members)
    memory = node.device.bandwidth
    places = dict.fromkeys(homes)
    return Star(
        devices=members,
        homes=homes,
        paths={
            ends: _path(node, *ends, links)
            for home in places
            for member in members
            if member != home
            for ends in ((member, home), (home, member))
        },
        sum_bytes_per_s=HOST_SUM_BYTES_PER_S if on_host else memory.bytes_per_s * memory.fraction,
        update_s=update_s,
        call_s=recipe.call_s,
        copy_s=COPY_S,
    )


def _path(node: Node, source: str, target: str, links: float) -> Path:
    """The way of a copy between two devices, or between a device and its nearest socket."""
    ends = [int(place.removeprefix("gpu")) for place in (source, target) if place.startswith("gpu")]
    if len(ends) == 2:
        found = pair(node, *ends)
        way, rate, staged = found.route, found.bytes_per_s, not found.peer
    else:
        way = host_route(node, ends[0])
        rate, staged = way.bytes_per_s, True
    vertices = way.vertices if way.vertices[0] == source else tuple(reversed(way.vertices))
    widths = dict.fromkeys(pairwise(vertices), 0.0)
    for edge in way.edges:
        hop = (edge.a, edge.b) if (edge.a, edge.b) in widths else (edge.b, edge.a)
        widths[hop] += _width(edge, staged=staged)
    return Path(
        links=tuple((f"{a}>{b}", width * links) for (a, b), width in widths.items()),
        bytes_per_s=rate * links,
        latency_s=way.latency_s,
    )


def _width(edge: Edge, *, staged: bool) -> float:
    """What all copies together get of an edge [bytes/s]."""
    if staged and edge.link.kind == "socket":
        return edge.link.raw_bytes_per_s * edge.count * READS_BETWEEN_SOCKETS
    return edge.bytes_per_s
