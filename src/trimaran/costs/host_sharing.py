"""How fast a device copies to and from its host when others copy at the same time.

    gpu ─ link ─┐                        A plan of one device assumes the link for itself. Of data parallel ranks all
    gpu ─ link ─┤                        run the same plan at the same time, so that each has its part of whatever it
    gpu ─ link ─┼─ switch ─ uplink ─ socket ─ memory         shares with the others:
    gpu ─ link ─┘

    rate = min(link, uplink / devices on it, memory of the socket / (2 × devices of the socket))

Each direction of a link has its own rate, so copies out and back do not take from each other there. They do in the
host's memory, which carries both, hence the 2: a device at full rate each way asks it for twice its rate.

Left out: the host's own traffic (data loading, the optimizer's state there), devices of the other socket, whose copies
cross the link between the sockets, and that ranks may be out of step. So it is what a plan can rely on, not a mean.
"""

from dataclasses import dataclass, replace

from trimaran.cluster.catalog import CatalogDevice
from trimaran.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPath:
    """What lies between some devices and the memory of their host.

    Attributes:
        sharing: devices on one uplink, this one included
        uplink_bytes_per_s: sustained by the uplink in each direction [bytes/s]; None: as much as the link of a device
        socket_sharing: devices whose copies meet in the memory of one socket; None: those of the uplink
        memory_bytes_per_s: bandwidth of that memory, both directions together [bytes/s]; None: never the narrowest

    Raises:
        InputError: less than one device, fewer on the socket than on the uplink, or a rate that is not positive
    """

    sharing: int = 1
    uplink_bytes_per_s: float | None = None
    socket_sharing: int | None = None
    memory_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.sharing < 1:
            raise InputError(
                f"at least one device is on a link to the host, not {self.sharing}",
                code="host-path.no-device",
                sharing=self.sharing,
            )
        if self.socket_sharing is not None and self.socket_sharing < self.sharing:
            raise InputError(
                f"{self.sharing} devices share an uplink, so no fewer share the socket; got {self.socket_sharing}",
                code="host-path.socket-below-uplink",
                sharing=self.sharing,
                socket_sharing=self.socket_sharing,
            )
        for name in ("uplink_bytes_per_s", "memory_bytes_per_s"):
            rate = getattr(self, name)
            if rate is not None and not rate > 0:
                raise InputError(
                    f"HostPath.{name} is {rate}: give a rate above 0 bytes/s", code="host-path.bad-rate", **{name: rate}
                )


def shared_bytes_per_s(link_bytes_per_s: float, path: HostPath) -> float:
    """Rate of a device's copies in one direction while all that share its path copy both ways.

    Args:
        link_bytes_per_s: of the device alone, in this direction [bytes/s]
        path: what it shares

    Returns:
        The rate of each device [bytes/s].

    Source:
        Equal shares of the narrowest part, as a switch that serves its ports in turn gives them.

    Example:
        Eight A100, two on each switch, four on each socket of eight channels of DDR4-3200 (204.8e9 bytes/s): the
        uplink decides, 13.1e9 of the link's 26.2e9 bytes/s; of one device alone, the memory would allow 25.6e9.

        >>> path = HostPath(sharing=2, socket_sharing=4, memory_bytes_per_s=204.8e9)
        >>> shared_bytes_per_s(26.2e9, path) / 1e9
        13.1
        >>> shared_bytes_per_s(26.2e9, HostPath(socket_sharing=4, memory_bytes_per_s=204.8e9)) / 1e9
        25.6
    """
    uplink_bytes_per_s = link_bytes_per_s if path.uplink_bytes_per_s is None else path.uplink_bytes_per_s
    rates = [link_bytes_per_s, uplink_bytes_per_s / path.sharing]
    if path.memory_bytes_per_s is not None:
        rates.append(path.memory_bytes_per_s / (2 * (path.socket_sharing or path.sharing)))
    return min(rates)


def sharing_device(device: CatalogDevice, path: HostPath) -> CatalogDevice:
    """A device of the catalog with the rates to its host that are left to it.

    Args:
        device: with its link for itself
        path: what it shares

    Example:
        >>> from trimaran.cluster.catalog import find_device
        >>> sharing_device(find_device("titan-x"), HostPath(sharing=4)).copies.to_host_bytes_per_s / 1e9
        3.2
    """
    copies = device.copies
    to_host, to_device = (
        shared_bytes_per_s(rate, path) for rate in (copies.to_host_bytes_per_s, copies.to_device_bytes_per_s)
    )
    if (to_host, to_device) == (copies.to_host_bytes_per_s, copies.to_device_bytes_per_s):
        return device
    shares = f"{path.sharing} devices on one link to the host" if path.sharing > 1 else "shared memory of the host"
    return replace(
        device,
        title=f"{device.title}, {shares}",
        copies=replace(
            copies,
            to_host_bytes_per_s=to_host,
            to_device_bytes_per_s=to_device,
            source=f"{copies.source}; {shares}",
        ),
    )
