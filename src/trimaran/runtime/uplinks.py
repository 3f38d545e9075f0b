"""Ranks of one machine as if they were on several nodes: fast links within each, a slow one from each to the others.

    rank 0 wire ───── port0 ┐                                     ┌ port0 ───── wire rank 2
    rank 1 wire ───── port1 ├ switch ── up ── spine ── up ── switch ┤
                            ┘  of node 0                of node 1   └ port1 ───── wire rank 3

Links of ranks are held to one rate, each way, and those between the switches of nodes and the spine to another. So what
the ranks of a node send to other nodes shares its uplink. Packets are as large as the faster link wants them, so that
links within nodes cost no more of the processors than `wires` says; a slow uplink takes longer for each.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from trimaran.cluster.types import Link
from trimaran.errors import InputError
from trimaran.runtime.link_commands import Commands, packet_bytes, raised, rank_end, switch, throttle
from trimaran.runtime.namespaces import open_namespace
from trimaran.runtime.wires import ENVIRONMENT, Seat, check_link, find_tool, run_in

_UP = "up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink:
    """What joins the nodes of a pretended cluster.

    Attributes:
        nodes: that local ranks are dealt to, as many to each, in order
        link: what each node's link to the others is held to, each way; no latency of its own
    """

    nodes: int
    link: Link


@contextlib.contextmanager
def wired_nodes(link: Link, uplink: Uplink, *, ranks: int) -> Iterator[tuple[Seat, ...]]:
    """A network of several nodes for the ranks of one machine, as long as the block runs and as the ranks live.

    Args:
        link: what the link of each rank is held to
        uplink: between nodes
        ranks: how many

    Yields:
        The seat of each rank.

    Raises:
        InputError: ranks that do not divide, or what `wires.wired` refuses
        EnvironmentProblem: as `wires.wired`
    """
    if uplink.nodes < 2 or ranks % uplink.nodes:
        raise InputError(
            f"{ranks} ranks cannot be dealt to {uplink.nodes} nodes: give two nodes or more, and ranks that divide",
            code="uplink.uneven-ranks",
            ranks=ranks,
            nodes=uplink.nodes,
        )
    check_link(link, ranks)
    check_link(uplink.link, ranks)
    tools = {name: find_tool(name) for name in ("ip", "tc")}
    packet = max(packet_bytes(link), packet_bytes(uplink.link))
    each = ranks // uplink.nodes
    with contextlib.ExitStack() as holders:
        ends = [open_namespace(holders) for _ in range(ranks)]
        switches = [open_namespace(holders) for _ in range(uplink.nodes)]
        for node, one in enumerate(switches):
            paths = [_path(end) for end in ends[node * each : (node + 1) * each]]
            run_in(one, switch(paths, link, packet=packet), tools)
        joined = switch([_path(one) for one in switches], uplink.link, packet=packet, other=_UP)
        run_in(open_namespace(holders), joined, tools)
        for one in switches:
            run_in(one, up_end(uplink.link, packet=packet), tools)
        for rank, end in enumerate(ends):
            run_in(end, rank_end(rank, link, packet=packet), tools)
        yield tuple(Seat(namespace=end, environment=ENVIRONMENT) for end in ends)


def up_end(link: Link, *, packet: int) -> Commands:
    """What is to be run in the namespace of a node's switch, after the spine has made its uplink.

    Args:
        link: what it is held to
        packet: the largest one [bytes]
    """
    return Commands(
        ip=(raised(_UP, link, packet), f"link set dev {_UP} master bridge"),
        tc=throttle(_UP, link, packet=packet),
    )


def _path(descriptor: int) -> str:
    return f"/proc/{os.getpid()}/fd/{descriptor}"
