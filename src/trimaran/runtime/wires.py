"""Links between the ranks of one machine that are as slow as one asks, so that a cheap network can be had without one.

Each rank gets a network namespace. Two are joined by a pair of virtual interfaces; more have a switch in a namespace of
its own. Nothing is made in the machine's own namespace, and nothing has a name outside of those that end with the run.

    2 ranks    rank 0 wire ───── wire rank 1

    more       rank 0 wire ───── port0 ┐
               rank 1 wire ───── port1 ├ bridge
               rank 2 wire ───── port2 ┘

Ranks on several nodes, whose switches are joined by links of another rate, are in `uplinks`.

Every interface but the bridge is held to the rate in the direction in which it sends, by a token bucket. So a rank
sends and receives at the rate at the same time, and several that send to one share its rate, as at the port of a
switch.

How large the packets and the bucket are is a compromise. A link that was idle lets a full bucket through at once, so
the bucket must be small; a packet must fit into it, so packets must be small; and each packet costs time of the
processors that the ranks compute on. Packets that take 0.2 ms each are 5,000 a second at any rate. The bucket has room
for one, and for what the link carries while the kernel's timer is late. The rate is that of what the packets carry:
their headers are allowed for.
"""

import contextlib
import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from trimaran.cluster.types import Link
from trimaran.errors import EnvironmentProblem, InputError
from trimaran.runtime.namespaces import inside, open_namespace

Result = TypeVar("Result")

_PACKET_S = 200e-6
_LATE_S = 100e-6
# Below: Ethernet's. Above: what an IP packet can be.
_SMALLEST_PACKET, _LARGEST_PACKET = 1500, 65_000
_ETHERNET = 14
# IP, TCP, and TCP's time stamps.
_HEADERS = 20 + 20 + 12
# More than all that TCP has on its way: nothing is dropped where several send to one.
_QUEUE_BYTES = 64 << 20
_QUEUE_PACKETS = 100_000
_COMMAND_S = 30.0
_SBIN = "/usr/sbin:/sbin"
_MOST_RANKS = 250

WIRE = "wire"
"""The interface of a rank."""

ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": WIRE,
    "NCCL_SOCKET_IFNAME": WIRE,
    # GPUs of one machine would talk past the network.
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
}
"""What a rank in a network of its own needs to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where in the network a rank is.

    Attributes:
        namespace: descriptor of its network namespace; None: that of this process
        environment: variables that its process needs
    """

    namespace: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, work: Callable[[], Result]) -> Result:
        """Start a process in this seat.

        Args:
            work: starts it
        """
        return work() if self.namespace is None else inside(self.namespace, work)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """What is to be run in one namespace.

    Attributes:
        ip: lines for `ip -batch`
        tc: lines for `tc -batch`
    """

    ip: tuple[str, ...]
    tc: tuple[str, ...] = ()


@contextlib.contextmanager
def wired(link: Link | None, *, ranks: int) -> Iterator[tuple[Seat, ...]]:
    """A network for the ranks of one machine, as long as the block runs and as the ranks live.

    Args:
        link: what each link is held to; None: the ranks use the loopback interface, as does one rank alone
        ranks: how many

    Yields:
        The seat of each rank.

    Raises:
        InputError: a rate that is not positive, a negative latency, or more ranks than there are addresses for
        EnvironmentProblem: `ip` or `tc` is missing, this process may not use them, or the kernel lacks something
    """
    if link is None or ranks == 1:
        yield (Seat(),) * ranks
        return
    check_link(link, ranks)
    tools = {name: find_tool(name) for name in ("ip", "tc")}
    with contextlib.ExitStack() as holders:
        ends = [open_namespace(holders) for _ in range(ranks)]
        paths = [f"/proc/{os.getpid()}/fd/{end}" for end in ends]
        if ranks == 2:
            run_in(ends[0], Commands(ip=(pair(WIRE, paths[1]),)), tools)
        else:
            run_in(open_namespace(holders), switch(paths, link), tools)
        for rank, end in enumerate(ends):
            run_in(end, rank_end(rank, link), tools)
        yield tuple(Seat(namespace=end, environment=ENVIRONMENT) for end in ends)


def packet_bytes(link: Link) -> int:
    """The largest packet: what the link carries in 0.2 ms, within what is possible [bytes].

    Args:
        link: what is imitated

    Example:
        >>> [packet_bytes(Link(bytes_per_s=rate, latency_s=0.0, source="example")) for rate in (1e6, 125e6, 25e9)]
        [1500, 25000, 65000]
    """
    return min(_LARGEST_PACKET, max(_SMALLEST_PACKET, round(link.bytes_per_s * _PACKET_S)))


def pair(name: str, path: str, *, other: str = WIRE) -> str:
    """The line of `ip` that makes two joined interfaces, one here and one elsewhere.

    Args:
        name: of the one here
        path: of the other one's namespace
        other: name of that one
    """
    return f"link add name {name} type veth peer name {other} netns {path}"


def rank_end(rank: int, link: Link, *, packet: int | None = None) -> Commands:
    """What is to be run in the namespace of a rank, after its interface has been made.

    Args:
        rank: decides on the address
        link: what its interface is held to
        packet: the largest one [bytes]; None: as the link is best imitated
    """
    return Commands(
        ip=("link set dev lo up", f"addr add 10.0.0.{rank + 1}/24 dev {WIRE}", raised(WIRE, link, packet)),
        tc=throttle(WIRE, link, latency_s=link.latency_s, packet=packet),
    )


def switch(paths: Sequence[str], link: Link, *, packet: int | None = None, other: str = WIRE) -> Commands:
    """What is to be run in the namespace of a switch.

    Args:
        paths: of the namespaces that it joins
        link: what each port is held to
        packet: as of `rank_end`
        other: name of the interface at the other end of each port
    """
    ip = ["link add name bridge type bridge", "link set dev bridge up"]
    tc: list[str] = []
    for number, path in enumerate(paths):
        port = f"port{number}"
        ip += [pair(port, path, other=other), raised(port, link, packet), f"link set dev {port} master bridge"]
        tc += throttle(port, link, packet=packet)
    return Commands(ip=tuple(ip), tc=tuple(tc))


def throttle(interface: str, link: Link, *, latency_s: float = 0.0, packet: int | None = None) -> tuple[str, ...]:
    """The lines of `tc` that hold what an interface sends.

    Args:
        interface: its name
        link: the rate that is to be left for data
        latency_s: by which each packet is held back [s]
        packet: as of `rank_end`
    """
    packet = packet_bytes(link) if packet is None else packet
    rate = link.bytes_per_s * (packet + _ETHERNET) / (packet - _HEADERS)
    burst = packet + _ETHERNET + round(rate * _LATE_S)
    bucket = f"tbf rate {round(8 * rate)}bit burst {burst} limit {_QUEUE_BYTES}"
    if not latency_s:
        return (f"qdisc add dev {interface} root {bucket}",)
    return (
        f"qdisc add dev {interface} root handle 1: netem delay {round(1e6 * latency_s)}us limit {_QUEUE_PACKETS}",
        f"qdisc add dev {interface} parent 1: handle 2: {bucket}",
    )


def raised(interface: str, link: Link, packet: int | None = None) -> str:
    """The line of `ip` that brings an interface up; arguments as of `throttle`."""
    # One segment at a time: the kernel would join segments to packets that do not fit into the bucket.
    return f"link set dev {interface} mtu {packet_bytes(link) if packet is None else packet} gso_max_segs 1 up"


def check_link(link: Link, ranks: int) -> None:
    """Refuse a link that cannot be imitated.

    Raises:
        InputError: a rate that is not positive, a negative latency, or more ranks than there are addresses for
    """
    if not 0 < link.bytes_per_s < math.inf or not 0 <= link.latency_s < math.inf:
        raise InputError(
            f"a link needs a positive, finite rate and no negative latency, got {link.bytes_per_s} bytes/s and "
            f"{link.latency_s} s",
            bytes_per_s=link.bytes_per_s,
            latency_s=link.latency_s,
        )
    if ranks > _MOST_RANKS:
        raise InputError(f"links can be held for up to {_MOST_RANKS} local ranks, got {ranks}", ranks=ranks)


def find_tool(name: str) -> str:
    """Where a tool is.

    Raises:
        EnvironmentProblem: nowhere
    """
    found = shutil.which(name) or shutil.which(name, path=_SBIN)
    if found is None:
        raise EnvironmentProblem(
            f"links between local ranks are held to a rate by `{name}`, which is not here: install iproute2, or leave "
            "the link out",
            tool=name,
        )
    return found


def run_in(namespace: int, commands: Commands, tools: Mapping[str, str]) -> None:
    """Run commands in a namespace.

    Args:
        namespace: descriptor of it
        commands: lines
        tools: where `ip` and `tc` are

    Raises:
        EnvironmentProblem: one of them fails
    """

    def work() -> None:
        for name, lines in (("ip", commands.ip), ("tc", commands.tc)):
            if lines:
                _batch(name, tools[name], lines)

    inside(namespace, work)


def _batch(name: str, path: str, lines: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            [path, "-batch", "-"],
            input="".join(f"{line}\n" for line in lines),
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentProblem(f"`{name}`, which holds links to a rate, cannot be run: {error}", tool=name) from error
    if done.returncode == 0:
        return
    failed = re.search(r"Command failed .*:(\d+)", done.stderr)
    told = lines[int(failed[1]) - 1] if failed else "; ".join(lines)
    said = done.stderr.strip().partition("\n")[0] or f"exit code {done.returncode}"
    what = "the kernel modules veth, sch_tbf and, for more than two ranks, bridge"
    if "netem" in told:
        what = "the kernel module sch_netem, as a latency was asked for"
    raise EnvironmentProblem(
        f"links between local ranks cannot be held to a rate here. `{name}` was told {told!r}, and said: "
        f"{said} It needs the capability NET_ADMIN and {what}",
        tool=name,
        said=said,
    )
