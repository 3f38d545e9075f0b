"""The network interface that gloo uses for connections to other machines.

gloo listens on the address that the host name of the machine has. Debian's hosts file gives it 127.0.1.1, and many
containers know no address for it; then ranks of other machines are told to connect to their own loopback interface, and
joining ends in a time-out. Where that is so, gloo is given the interface of the route to the other machines:

    rank 1 of node2   route to MASTER_ADDR: from 10.0.0.2   ──▶ interface of 10.0.0.2, which it tells the others
    rank 0 of node1   MASTER_ADDR is itself; route to the address of rank 1: from 10.0.0.1 ──▶ its interface

`GLOO_SOCKET_IFNAME` is left as it is where it is set, and so is a host name that has an address on a network.
"""

import ipaddress
import os
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

VARIABLE = "GLOO_SOCKET_IFNAME"
"""Names gloo's interface."""
_KEY = "trimaran/address"
# From linux/sockios.h.
_ADDRESS_OF = 0x8915


def choose_interface(store: "Store", master: str, *, rank: int, size: int) -> str | None:
    """The interface for connections to other machines, where gloo's own choice would be a loopback interface.

    Every rank calls it, as ranks on the machine of rank 0 learn their interface from the addresses of others.

    Args:
        store: of the ranks
        master: host on which rank 0 is
        rank: number of this process
        size: number of processes, on several machines

    Returns:
        None: gloo's choice is right, or all ranks are on one machine after all, or no interface was found.
    """
    own = address_towards(master)
    store.set(f"{_KEY}/{rank}", own)
    if not reaches_only_itself(socket.gethostname()):
        return None
    if _is_local(own):
        others = (store.get(f"{_KEY}/{other}").decode() for other in range(size) if other != rank)
        distant = next((address for address in others if not _is_local(address)), None)
        if distant is None:
            return None
        own = address_towards(distant)
    return interface_of(own)


def address_towards(host: str) -> str:
    """The address of this machine that packets to a host are sent from; nothing is sent.

    Args:
        host: name or address

    Returns:
        Empty where there is no way to it.

    Example:
        >>> address_towards("127.0.0.1")
        '127.0.0.1'
    """
    with suppress(OSError):
        for family, kind, protocol, _, place in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind, protocol) as asking:
                asking.connect(place)
                return str(asking.getsockname()[0])
    return ""


def reaches_only_itself(name: str) -> bool:
    """Whether a host name has no address, or its first one that this machine can listen on is a loopback address.

    Example:
        >>> reaches_only_itself("localhost")
        True
    """
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    except OSError:
        return True
    for family, kind, protocol, _, place in found:
        with suppress(OSError), socket.socket(family, kind, protocol) as listening:
            listening.bind(place)
            return _is_local(str(place[0]))
    return True


def interface_of(address: str) -> str | None:
    """The name of the interface that has an address; None: none has.

    Example:
        >>> interface_of("127.0.0.1")
        'lo'
    """
    with suppress(ValueError):
        wanted = ipaddress.ip_address(address.partition("%")[0])
        return _of_version_4(wanted) if wanted.version == 4 else _of_version_6(wanted)
    return None


def _of_version_4(wanted: ipaddress.IPv4Address) -> str | None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            # An interface without an address is an error.
            with suppress(OSError):
                answer = fcntl.ioctl(asking, _ADDRESS_OF, struct.pack("256s", os.fsencode(name)))
                if answer[20:24] == wanted.packed:
                    return name
    return None


def _of_version_6(wanted: ipaddress.IPv6Address) -> str | None:
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, *_, name = line.split()
            if bytes.fromhex(digits) == wanted.packed:
                return name
    return None


def _is_local(address: str) -> bool:
    """Whether it is a loopback address, or none."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return True
