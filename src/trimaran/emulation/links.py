"""Rate-limited links between the ranks of one machine, which stand for a slow network.

Each rank gets a network namespace. Two ranks are joined by a pair of virtual interfaces. More are joined by a switch in
another namespace. Nothing is made in the machine's own namespace.

    2 ranks    rank 0 wire ───── wire rank 1

    more       rank 0 wire ───── port0 ┐
               rank 1 wire ───── port1 ├ bridge
               rank 2 wire ───── port2 ┘

With an uplink the ranks are on several nodes: links within each node have one rate, and the links between the switches
of the nodes and the spine another one. What the ranks of a node send to other nodes shares its uplink.

    rank 0 wire ───── port0 ┐                                     ┌ port0 ───── wire rank 2
    rank 1 wire ───── port1 ├ switch ── up ── spine ── up ── switch ┤
                            ┘  of node 0                of node 1   └ port1 ───── wire rank 3

A token bucket limits what every interface but the bridge sends. So a rank sends and receives at the rate at the same
time, and several that send to one share its rate, as at the port of a switch.

The sizes of packets and bucket are a compromise. A link that was idle lets a full bucket through at once, so the bucket
must be small. A packet must fit into it, so packets must be small. Each packet costs time of the processors that the
ranks compute on. Packets that take 0.2 ms each are 5,000 a second at any rate. The bucket has room for one, and for
what the link carries while the kernel's timer is late. With an uplink all packets are as large as the faster link wants
them. The rate is that of the payload of packets: their headers are added.

A network namespace lives as long as something holds it: a process in it, or an open descriptor of it. Those of this
module have no name and are held by descriptors alone. So the kernel removes them, with the interfaces in them, when the
last of their holders ends, also by SIGKILL. A thread may be in another namespace than the rest of its process, and a
process that it starts begins there. So work inside a namespace is done by a thread that ends with the work.
"""

import contextlib
import ctypes
import math
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from trimaran.base.errors import EnvironmentProblem, InputError
from trimaran.base.system import c_function, needs_linux
from trimaran.launch.supervise import launch
from trimaran.machine.types import Link

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

WIRE = "wire"
"""The interface of a rank."""
_UP = "up"
"""The interface of a node's switch to the spine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceCommands:
    """What is to be run in one namespace.

    Attributes:
        ip: lines for `ip -batch`
        tc: lines for `tc -batch`
    """

    ip: tuple[str, ...]
    tc: tuple[str, ...] = ()


def packet_bytes(link: Link) -> int:
    """The largest packet: what the link carries in 0.2 ms, within what is possible [bytes].

    Args:
        link: that packets are sent on

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


def rank_end(rank: int, link: Link, *, packet: int | None = None) -> NamespaceCommands:
    """What is to be run in the namespace of a rank, after its interface has been made.

    Args:
        rank: gives the address
        link: rate and latency of its interface
        packet: the largest one [bytes]; None: `packet_bytes`
    """
    return NamespaceCommands(
        ip=("link set dev lo up", f"addr add 10.0.0.{rank + 1}/24 dev {WIRE}", raised(WIRE, link, packet)),
        tc=throttle(WIRE, link, latency_s=link.latency_s, packet=packet),
    )


def switch(paths: Sequence[str], link: Link, *, packet: int | None = None, other: str = WIRE) -> NamespaceCommands:
    """What is to be run in the namespace of a switch.

    Args:
        paths: of the namespaces that it joins
        link: rate of each port
        packet: as of `rank_end`
        other: name of the interface at the other end of each port
    """
    ip = ["link add name bridge type bridge", "link set dev bridge up"]
    tc: list[str] = []
    for number, path in enumerate(paths):
        port = f"port{number}"
        ip += [pair(port, path, other=other), raised(port, link, packet), f"link set dev {port} master bridge"]
        tc += throttle(port, link, packet=packet)
    return NamespaceCommands(ip=tuple(ip), tc=tuple(tc))


def up_end(link: Link, *, packet: int) -> NamespaceCommands:
    """What is to be run in the namespace of a node's switch, after the spine has made its uplink.

    Args:
        link: its rate
        packet: the largest one [bytes]
    """
    return NamespaceCommands(
        ip=(raised(_UP, link, packet), f"link set dev {_UP} master bridge"),
        tc=throttle(_UP, link, packet=packet),
    )


def throttle(interface: str, link: Link, *, latency_s: float = 0.0, packet: int | None = None) -> tuple[str, ...]:
    """The lines of `tc` that limit what an interface sends.

    Args:
        interface: its name
        link: the rate that is to be left for data
        latency_s: of each packet [s]
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


Result = TypeVar("Result")

# From linux/sched.h.
_NEW_NETWORK = 0x40000000
_OWN_NETWORK = "/proc/thread-self/ns/net"


def open_namespace(holders: contextlib.ExitStack) -> int:
    """Make a network namespace with nothing in it but a loopback interface that is down.

    Args:
        holders: closes the descriptor when it is left

    Returns:
        A descriptor of the namespace, which no process that is started inherits.

    Raises:
        EnvironmentProblem: this process may not make one
    """

    def make() -> int:
        _call("unshare", _NEW_NETWORK)
        descriptor = os.open(_OWN_NETWORK, os.O_RDONLY | os.O_CLOEXEC)
        # Here, so that an interrupt of the waiting thread cannot come in between.
        holders.callback(os.close, descriptor)
        return descriptor

    return _in_thread(make)


def inside(namespace: int, work: Callable[[], Result]) -> Result:
    """Do something in a network namespace; a process that it starts stays there.

    Args:
        namespace: descriptor, from `open_namespace`
        work: what to do; runs in a new thread

    Returns:
        What it returned.

    Raises:
        EnvironmentProblem: this process may not enter the namespace
    """

    def enter() -> Result:
        _call("setns", namespace, _NEW_NETWORK)
        return work()

    return _in_thread(enter)


def _in_thread(work: Callable[[], Result]) -> Result:
    with ThreadPoolExecutor(max_workers=1) as threads:
        return threads.submit(work).result()


def _call(name: str, *arguments: int) -> None:
    """A call of the C library, as Python has these only from 3.12 on."""
    needs_linux("a rate-limited link between local ranks")
    function = c_function(name)
    if function is None or function(*arguments) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise EnvironmentProblem(
            f"rate-limited links between local ranks need network namespaces, and this process may not make or enter "
            f"one ({name}: {reason}): run as root; in a container, with the capabilities SYS_ADMIN and NET_ADMIN",
            call=name,
            reason=reason,
        )


_COMMAND_S = 30.0
_SBIN = "/usr/sbin:/sbin"
_MOST_RANKS = 250

ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": WIRE,
    "NCCL_SOCKET_IFNAME": WIRE,
    # GPUs of one machine would talk past the network.
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
}
"""Variables of a rank in its network namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceSeat:
    """A network namespace in which a rank is started.

    Attributes:
        namespace: descriptor of it
        environment: variables that a process in it needs
    """

    namespace: int
    environment: ClassVar[Mapping[str, str]] = ENVIRONMENT

    def start(self, work: Callable[[], Result]) -> Result:
        """Do what starts a process in this seat."""
        return inside(self.namespace, work)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplink:
    """What joins the nodes of a simulated cluster.

    Attributes:
        nodes: that local ranks are dealt to, in order, the same number to each
        link: of each node to the others: its rate, each way; it has no latency
    """

    nodes: int
    link: Link


@contextlib.contextmanager
def rate_limited_network(
    link: Link | None, uplink: Uplink | None = None, *, ranks: int
) -> Iterator[tuple[NamespaceSeat, ...] | None]:
    """A network for the ranks of one machine, as long as the block runs and as the ranks live.

    Args:
        link: rate and latency of the link of each rank; None: there is no such network
        uplink: between nodes; None: all ranks are on one node, and a rank that is alone has no such network
        ranks: how many

    Yields:
        The seat of each rank; None: there is no such network.

    Raises:
        InputError: ranks that cannot be dealt evenly to the nodes, a rate that is not positive, a negative latency, or
            more ranks than there are addresses for
        EnvironmentProblem: `ip` or `tc` is missing, this process may not use them, or the kernel lacks something
    """
    if link is None or (ranks == 1 and uplink is None):
        yield None
        return
    if uplink is not None and (uplink.nodes < 2 or ranks % uplink.nodes):
        raise InputError(
            f"{ranks} ranks cannot be dealt evenly to {uplink.nodes} nodes: give two nodes or more, and a number of "
            "ranks that they divide",
            code="uplink.uneven-ranks",
            ranks=ranks,
            nodes=uplink.nodes,
        )
    links = [link] if uplink is None else [link, uplink.link]
    for limited in links:
        check_link(limited, ranks)
    tools = {name: find_tool(name) for name in ("ip", "tc")}
    # A bridge does not split packets.
    packet = max(map(packet_bytes, links))
    each = ranks if uplink is None else ranks // uplink.nodes
    with contextlib.ExitStack() as holders:
        ends = [open_namespace(holders) for _ in range(ranks)]
        if ranks == 2 and uplink is None:
            run_in(ends[0], NamespaceCommands(ip=(pair(WIRE, _path(ends[1])),)), tools)
        else:
            switches = [open_namespace(holders) for _ in range(ranks // each)]
            for node, one in enumerate(switches):
                paths = [_path(end) for end in ends[node * each : (node + 1) * each]]
                run_in(one, switch(paths, link, packet=packet), tools)
            if uplink is not None:
                spine = switch([_path(one) for one in switches], uplink.link, packet=packet, other=_UP)
                run_in(open_namespace(holders), spine, tools)
                for one in switches:
                    run_in(one, up_end(uplink.link, packet=packet), tools)
        for rank, end in enumerate(ends):
            run_in(end, rank_end(rank, link, packet=packet), tools)
        yield tuple(NamespaceSeat(namespace=end) for end in ends)


def launch_on(
    link: Link | None,
    function: Callable[..., Any],
    arguments: Sequence[Any] = (),
    *,
    ranks: int,
    uplink: Uplink | None = None,
    **options: Any,
) -> list[Any]:
    """`launch.supervise.launch` with links of this rate and latency between the ranks, each way; None: no limit.

    Raises:
        EnvironmentProblem: links cannot be rate-limited here
    """
    with rate_limited_network(link, uplink, ranks=ranks) as seats:
        return launch(function, arguments, ranks=ranks, seats=seats, **options)


def check_link(link: Link, ranks: int) -> None:
    """Refuse a link whose rate or latency cannot be set.

    Raises:
        InputError: a rate that is not positive, a negative latency, or more ranks than there are addresses for
    """
    if not 0 < link.bytes_per_s < math.inf or not 0 <= link.latency_s < math.inf:
        raise InputError(
            f"a link needs a positive, finite rate and no negative latency, got {link.bytes_per_s} bytes/s and "
            f"{link.latency_s} s",
            code="link-limit.bad-rate",
            bytes_per_s=link.bytes_per_s,
            latency_s=link.latency_s,
        )
    if ranks > _MOST_RANKS:
        raise InputError(
            f"at most {_MOST_RANKS} local ranks can have rate-limited links, got {ranks}",
            code="link-limit.too-many-ranks",
            ranks=ranks,
        )


def find_tool(name: str) -> str:
    """Where a tool is.

    Raises:
        EnvironmentProblem: nowhere
    """
    found = shutil.which(name) or shutil.which(name, path=_SBIN)
    if found is None:
        raise EnvironmentProblem(
            f"rate-limited links between local ranks need `{name}`, which is not installed: install iproute2, or leave "
            "the link out",
            code="link-limit.missing-tool",
            tool=name,
        )
    return found


def run_in(namespace: int, commands: NamespaceCommands, tools: Mapping[str, str]) -> None:
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
        raise EnvironmentProblem(
            f"`{name}`, which limits the rate of links, cannot be run: {error}", tool=name
        ) from error
    if done.returncode == 0:
        return
    failed = re.search(r"Command failed .*:(\d+)", done.stderr)
    told = lines[int(failed[1]) - 1] if failed else "; ".join(lines)
    said = done.stderr.strip().partition("\n")[0] or f"exit code {done.returncode}"
    what = "the kernel modules veth, sch_tbf and, for more than two ranks, bridge"
    if "netem" in told:
        what = "the kernel module sch_netem, as a latency was asked for"
    raise EnvironmentProblem(
        f"links between local ranks cannot be rate-limited on this machine. `{name}` was told {told!r}, and said: "
        f"{said} It needs the capability NET_ADMIN and {what}",
        code="link-limit.tool-failed",
        tool=name,
        said=said,
    )


def _path(descriptor: int) -> str:
    return f"/proc/{os.getpid()}/fd/{descriptor}"
