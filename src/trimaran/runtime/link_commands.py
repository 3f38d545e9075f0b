"""The lines of `ip` and `tc` that make interfaces and hold them to a rate, by token buckets.

How large the packets and the bucket are is a compromise. A link that was idle lets a full bucket through at once, so
the bucket must be small; a packet must fit into it, so packets must be small; and each packet costs time of the
processors that the ranks compute on. Packets that take 0.2 ms each are 5,000 a second at any rate. The bucket has room
for one, and for what the link carries while the kernel's timer is late. The rate is that of what the packets carry:
their headers are allowed for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trimaran.cluster.types import Link

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
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
