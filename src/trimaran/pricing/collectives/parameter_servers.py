"""Exchanges in which one place sums each gradient: parameter servers, BytePS, one device for each tensor.

`M` bytes of gradients, `n` workers, `k` servers on separate machines, `B` bytes/s of each machine in one direction;
both directions flow at once. The formulas leave out latency and the cost of calls; `star_time` has the cost
of a call, because tensors are many.
"""

from collections.abc import Sequence

from trimaran.base.errors import InputError
from trimaran.program.gradients import owners_by_size


def colocated_server_time(nbytes: float, *, workers: int, bytes_per_s: float) -> float:
    """Time of an exchange where every worker's machine is also a server of `1/n`: `2(n-1)M/(nB)`, as a ring's.

    Out of a machine go its gradients to the other servers and, as a server, its sums to the other workers.

    Source:
        Jiang et al., A unified architecture for accelerating distributed DNN training, OSDI 2020, section 2.

    Example:
        >>> colocated_server_time(1e9, workers=4, bytes_per_s=1e9)
        1.5
    """
    return 2 * (workers - 1) * nbytes / (workers * bytes_per_s)


def separate_server_time(nbytes: float, *, workers: int, servers: int, bytes_per_s: float) -> float:
    """Time of an exchange where `k` further machines are servers of `1/k`: `max(M/B, nM/(kB))`.

    Args:
        nbytes: of gradients [bytes]
        workers: n
        servers: k, at least 1
        bytes_per_s: of each machine, one direction [bytes/s]

    Returns:
        Time [s].

    Source:
        Jiang et al., OSDI 2020, section 2.

    Example:
        >>> [separate_server_time(1e9, workers=4, servers=k, bytes_per_s=1e9) for k in (1, 2, 4, 8)]
        [4.0, 2.0, 1.0, 1.0]
    """
    return max(1.0, workers / servers) * nbytes / bytes_per_s


def byteps_time(nbytes: float, *, workers: int, servers: int, bytes_per_s: float) -> float:
    """Time of an exchange that uses workers' machines and `k` spare ones: `2n(n-1)M / ((n^2 + kn - 2k) B)`.

    With no spare machine it is a ring's time, with one for each worker it is `M/B`, the least possible.

    Args:
        nbytes: of gradients [bytes]
        workers: n
        servers: k, from 0 to n
        bytes_per_s: of each machine, one direction [bytes/s]

    Returns:
        Time [s].

    Raises:
        InputError: fewer servers than none, or more than workers: those would not help

    Source:
        Jiang et al., OSDI 2020, section 4.1.

    Example:
        >>> [round(byteps_time(1e9, workers=4, servers=k, bytes_per_s=1e9), 6) for k in (0, 2, 4)]
        [1.5, 1.2, 1.0]
    """
    if not 0 <= servers <= workers:
        raise InputError(
            f"from 0 to {workers} spare machines help {workers} workers, got {servers}",
            code="parameter-server.bad-spare-count",
            servers=servers,
        )
    if workers == 1:
        return 0.0
    return 2 * workers * (workers - 1) * nbytes / ((workers**2 + servers * workers - 2 * servers) * bytes_per_s)


def star_time(tensors: Sequence[float], *, devices: int, bytes_per_s: float, call_s: float = 0.0) -> float:
    """Time of an exchange by copies between devices: each tensor has an owner that sums it and hands it out.

    Owners are chosen as in MXNet's KVStore "device": tensors by size to the device that has the least so far. Into
    an owner come `n-1` copies of its tensors, then `n-1` go out; the busiest owner sets the time. With equal
    loads it is `2(n-1)/n S/B`, a ring's bytes; with one huge tensor it is `n` times that, so few huge tensors are slow.
    Calls of one owner follow one another: `2(n-1)` copies a tensor.

    Args:
        tensors: their sizes [bytes]
        devices: n
        bytes_per_s: into one device from all the others, or out of it, one direction [bytes/s]
        call_s: fixed cost of a copy [s]

    Returns:
        Time [s].

    Source:
        apache/mxnet@master: src/kvstore/comm.h (CommDevice).

    Example:
        >>> star_time([4e9, 1e9, 1e9, 1e9], devices=4, bytes_per_s=1e9)  # 4 GB in three times, out three times
        24.0
        >>> star_time([1e9] * 4, devices=4, bytes_per_s=1e9)
        6.0
    """
    loads = owner_loads(tensors, devices)
    return max(2 * (devices - 1) * (size / bytes_per_s + count * call_s) for size, count in loads)


def owner_loads(tensors: Sequence[float], devices: int) -> list[tuple[float, int]]:
    """Bytes and tensors of each owner: tensors by size, the largest first, each to the owner with the fewest bytes.

    Example:
        >>> owner_loads([1.0, 5.0, 3.0, 1.0], 2)
        [(5.0, 1), (5.0, 3)]
    """
    owners = owners_by_size(tensors, range(devices))
    sizes = [[size for size, owner in zip(tensors, owners, strict=True) if owner == place] for place in range(devices)]
    return [(float(sum(one)), len(one)) for one in sizes]
