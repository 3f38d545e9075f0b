"""The links of a cluster that a transfer goes over, where they are not those of a machine of the catalog."""

from dataclasses import dataclass

from trimaran.cluster.types import Cluster, Link
from trimaran.errors import InputError
from trimaran.units import format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The links between the members of a transfer: their names, and the slowest; None: the measured loopback.

    Over the uplinks of hosts it takes at least what was measured within one.
    """

    names: tuple[str, ...]
    slowest: Link | None
    is_uplink: bool = False


def find_way(ranks: tuple[int, ...], cluster: Cluster, *, is_message: bool) -> Way:
    """The links that a transfer goes over.

    Args:
        ranks: its members; of a message the source and the target
        cluster: who sits where
        is_message: from one rank to another; else a collective of all

    Raises:
        InputError: a rank that the cluster has no device for, or two that no link joins
    """
    if max(ranks) >= cluster.size:
        raise InputError(
            f'the program has a rank {max(ranks)}, cluster "{cluster.name}" has {format_count(cluster.size, "device")}',
            code="cluster.too-few-devices",
            rank=max(ranks),
            devices=cluster.size,
        )
    pairs = [tuple(sorted(pair)) for pair in zip(ranks, (*ranks[1:], ranks[0]), strict=True)]
    pairs = list(dict.fromkeys(pairs[:1] if is_message else pairs))
    names: dict[str, None] = {}
    known: list[Link] = []
    uplinks: list[Link] = []
    for a, b in pairs:
        link = cluster.links.get((a, b))
        if link is not None:
            names[f"{a}-{b}"] = None
            known.append(link)
        elif cluster.hosts[a] == cluster.hosts[b]:
            names.update(dict.fromkeys(_local(cluster, cluster.hosts[a], ranks, is_message=is_message)))
        elif cluster.uplink is not None:
            names.update(dict.fromkeys(_up_and_down(cluster, ranks if is_message else (a, b), is_message=is_message)))
            uplinks.append(cluster.uplink)
        else:
            raise InputError(
                f'cluster "{cluster.name}" has no link between ranks {a} and {b}, which are on different hosts',
                code="cluster.no-link",
                ranks=(a, b),
            )
    # The measured curve holds for a group that is all on one host; where a link leaves the host, it is what limits.
    slowest = min([*known, *uplinks], key=lambda link: link.bytes_per_s, default=None)
    return Way(names=tuple(names), slowest=slowest, is_uplink=bool(uplinks) and not known)


def _up_and_down(cluster: Cluster, ends: tuple[int, ...], *, is_message: bool) -> tuple[str, ...]:
    """The uplinks between the hosts of two ranks: of a message one each, of a collective both in both directions."""
    first, second = (f"host {cluster.hosts[rank]}" for rank in ends)
    up = (f"out of {first}", f"into {second}")
    return up if is_message else (*up, f"out of {second}", f"into {first}")


def _local(cluster: Cluster, host: int, ranks: tuple[int, ...], *, is_message: bool) -> tuple[str, ...]:
    """The links within one host: its loopback, or the lines out of the ranks that send and into those that receive."""
    if cluster.link is None:
        return ("loopback" if len(set(cluster.hosts)) == 1 else f"loopback{host}",)
    if is_message:
        return (f"out of {ranks[0]}", f"into {ranks[1]}")
    return tuple(f"{way} {rank}" for way in ("out of", "into") for rank in ranks)
