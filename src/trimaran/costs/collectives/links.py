"""Closed forms of messages and collectives, in latency and bandwidth (Hockney's alpha and beta).

They price links that are known but not measured here, and carry a measured curve to a group size at which nobody
measured. What they leave out: the arithmetic of a reduction, and contention, which is the simulator's business.

`nbytes` is always the size of the whole buffer on one rank: of an all-gather the gathered one, of a reduce-scatter the
one before it is scattered.
"""

import math

from trimaran.cluster.types import Link
from trimaran.errors import InputError
from trimaran.program.types import COLLECTIVES, ROOTED, Kind


def message_time(nbytes: int, link: Link) -> float:
    """Time of one message between two ranks.

    Args:
        nbytes: size of the message [bytes]
        link: the link between the two

    Returns:
        Time from the moment both ends are ready [s].

    Source:
        Hockney, Parallel Computing 20(3), 1994.

    Example:
        >>> message_time(1_000_000, Link(bytes_per_s=1e9, latency_s=0.5e-3, source="example"))
        0.0015
    """
    return link.latency_s + nbytes / link.bytes_per_s


def all_reduce_time(nbytes: int, *, num_ranks: int, link: Link) -> float:
    """Time of a ring all-reduce.

    Every rank sends its buffer in `num_ranks` chunks, first around the ring once to sum them, then once more to hand
    the sums out: `2 * (num_ranks - 1)` messages of a chunk each.

    Args:
        nbytes: size of the buffer on each rank [bytes]
        num_ranks: ranks in the group
        link: slowest link of the ring

    Returns:
        Time from the last rank's arrival to the end [s].

    Source:
        Patarasuk & Yuan, J. Parallel Distrib. Comput. 69(2), 2009.

    Example:
        >>> all_reduce_time(100_000_000, num_ranks=4, link=Link(bytes_per_s=25e9, latency_s=0.0, source="example"))
        0.006
    """
    return collective_time(Kind.ALL_REDUCE, nbytes, num_ranks=num_ranks, link=link)


def collective_time(kind: str, nbytes: int, *, num_ranks: int, link: Link) -> float:
    """Time of a collective by its kind.

    Args:
        kind: "AR", "AG", "RS" (rings), "BC" or "RD" (binomial trees)
        nbytes: size of the whole buffer [bytes]
        num_ranks: ranks in the group
        link: slowest link between them

    Returns:
        Time from the last rank's arrival to the end [s].

    Raises:
        InputError: another kind, or a group of no rank

    Source:
        Rings: Patarasuk & Yuan 2009. Tree: Thakur, Rabenseifner & Gropp, Int. J. High Perform. Comput. Appl. 19(1),
            2005.

    Example:
        >>> link = Link(bytes_per_s=1e6, latency_s=1.0, source="example")
        >>> collective_time("AG", 4_000_000, num_ranks=4, link=link)  # 3 messages of 1 MB
        6.0
        >>> collective_time("BC", 4_000_000, num_ranks=4, link=link)  # 2 levels of 4 MB
        10.0
    """
    return messages(kind, num_ranks) * link.latency_s + volume(kind, num_ranks) * nbytes / link.bytes_per_s


def messages(kind: str, num_ranks: int) -> int:
    """Messages that follow one another in a collective.

    Args:
        kind: "AR", "AG", "RS", "BC" or "RD"
        num_ranks: ranks in the group

    Raises:
        InputError: another kind, or a group of no rank

    Example:
        >>> messages("AR", 4), messages("BC", 5), messages("AR", 1)
        (6, 3, 0)
    """
    _check(kind, num_ranks)
    if kind in ROOTED:
        return math.ceil(math.log2(num_ranks))
    return (2 if kind == Kind.ALL_REDUCE else 1) * (num_ranks - 1)


def volume(kind: str, num_ranks: int) -> float:
    """Bytes that follow one another on a link of a collective, as a multiple of its buffer.

    Args:
        kind: "AR", "AG", "RS", "BC" or "RD"
        num_ranks: ranks in the group

    Raises:
        InputError: another kind, or a group of no rank

    Example:
        >>> volume("AR", 2), volume("RS", 4), volume("BC", 4)
        (1.0, 0.75, 2.0)
    """
    return messages(kind, num_ranks) / (1 if kind in ROOTED else num_ranks)


def _check(kind: str, num_ranks: int) -> None:
    if kind not in COLLECTIVES:
        raise InputError(
            f'a collective is "AR", "AG", "RS", "BC" or "RD", got "{kind}"', code="collective.unknown-kind", kind=kind
        )
    if num_ranks < 1:
        raise InputError(
            f"a group has at least one rank, got {num_ranks}", code="collective.empty-group", num_ranks=num_ranks
        )
