"""Formulas of the algorithms that collective libraries use, where all links are alike.

`n` ranks, `S` bytes, latency `a` and rate `B` of a link in one direction (Hockney). `nbytes` is the whole buffer: of an
all-gather the gathered one, of a reduce-scatter the one before it is scattered, of an all-to-all everything that a rank
sends, its own part included. Left out: the arithmetic of a reduction, the cost of a call, and how far a real library
falls short; `prior` has those.

    ring           n-1 or 2(n-1) hops; every rank sends (n-1)/n or 2(n-1)/n of the buffer
    chain          c chunks through n-1 hops
    tree           2 log2(n) hops; an inner rank takes in 2S going up and S coming down
    double tree    2 log2(n) hops; each rank is inner in one tree and a leaf in the other
    hierarchical   reduce-scatter inside, all-reduce between, all-gather inside

Times of messages and collectives from latency and bandwidth (Hockney's alpha and beta).

They price links that are known but not measured here, and extend a measured curve to a group size that was not
measured. Left out: the arithmetic of a reduction, and contention, which the simulator adds.

`nbytes` is always the size of the whole buffer on one rank: of an all-gather the gathered one, of a reduce-scatter the
one before it is scattered.
"""

import math

from trimaran.base.errors import InputError
from trimaran.machine.types import Link
from trimaran.program.types import COLLECTIVES, ROOTED, Kind

TWICE_AROUND = frozenset({"all_reduce"})
ONE_WAY = frozenset({"broadcast", "reduce", "send_recv"})
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv")
"""Names of collectives and of the message between two."""


def bus_factor(op: str, ranks: int) -> float:
    """Bytes that a rank sends at least, as a multiple of the buffer.

    Bus bandwidth is this factor times bytes over time: the rate of a link, for any number of ranks.

    Args:
        op: one of `OPERATIONS`
        ranks: in the group

    Raises:
        InputError: another operation, or a group of no rank

    Source:
        NVIDIA nccl-tests, doc/PERFORMANCE.md.

    Example:
        >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
        (1.5, 0.75, 1.0)
    """
    check_group(op, ranks)
    if ranks == 1:
        return 0.0
    if op in ONE_WAY:
        return 1.0
    return (2 if op in TWICE_AROUND else 1) * (ranks - 1) / ranks


def ring_time(op: str, nbytes: float, *, ranks: int, link: Link) -> float:
    """Time of a collective around a ring, or of an all-to-all between full neighbours.

    Args:
        op: "all_reduce", "all_gather", "reduce_scatter" or "all_to_all"; "broadcast", "reduce" and "send_recv" as one
            pass with chunks so fine that only the hops add
        nbytes: the whole buffer [bytes]
        ranks: in the group
        link: slowest link of the ring

    Returns:
        Time [s].

    Source:
        Patarasuk & Yuan, J. Parallel Distrib. Comput. 69(2), 2009.

    Example:
        >>> link = Link(bytes_per_s=1e9, latency_s=0.001, source="example")
        >>> round(ring_time("all_reduce", 1_000_000_000, ranks=4, link=link), 6)  # 6 hops, 1.5 GB
        1.506
    """
    hops = (2 if op in TWICE_AROUND else 1) * (ranks - 1)
    return hops * link.latency_s + bus_factor(op, ranks) * nbytes / link.bytes_per_s


def chain_time(nbytes: float, *, ranks: int, chunks: int, link: Link) -> float:
    """Time of a broadcast, or a reduce, down a chain in chunks: `(n-1+c-1)(a + S/(cB))`.

    The first chunk takes `n-1` hops, the others follow one hop each behind it.

    Args:
        nbytes: of the buffer [bytes]
        ranks: in the chain
        chunks: that the buffer is split into
        link: between neighbours

    Returns:
        Time [s].

    Example:
        >>> link = Link(bytes_per_s=1e9, latency_s=0.0, source="example")
        >>> chain_time(1_000_000_000, ranks=3, chunks=10, link=link)  # 11 hops of 0.1 s
        1.1
    """
    if ranks < 2:
        return 0.0
    return (ranks - 2 + chunks) * (link.latency_s + nbytes / chunks / link.bytes_per_s)


def double_tree_time(nbytes: float, *, ranks: int, link: Link) -> float:
    """Time of an all-reduce on two complementary trees, half the buffer each: `2 log2(n) a + 2 S/B`.

    A rank takes in 1.5 S as an inner rank of one and 0.5 S as a leaf of the other.

    Source:
        Sanders, Speck & Träff, Parallel Computing 35(12), 2009; NCCL since 2.4.

    Example:
        >>> double_tree_time(1_000_000_000, ranks=8, link=Link(bytes_per_s=1e9, latency_s=0.01, source="example"))
        2.06
    """
    return _levels(ranks) * 2 * link.latency_s + (2 if ranks > 1 else 0) * nbytes / link.bytes_per_s


def hierarchical_times(nbytes: float, *, per_node: int, nodes: int, inside: Link, between: Link) -> tuple[float, ...]:
    """Times of the three parts of a two-level all-reduce: reduce-scatter, all-reduce between nodes, all-gather.

    Each rank exchanges its own `1/per_node` of the buffer with its counterparts, over its network card. One after the
    other they take their sum; perfectly pipelined, the longest of them. Measured times lie between.

    Args:
        nbytes: of the buffer [bytes]
        per_node: ranks of a node
        nodes: in the group
        inside: link between ranks of a node
        between: link of one rank to other nodes

    Returns:
        Reduce-scatter, all-reduce between nodes, all-gather [s].

    Example:
        >>> inside = Link(bytes_per_s=100e9, latency_s=0.0, source="example")
        >>> between = Link(bytes_per_s=10e9, latency_s=0.0, source="example")
        >>> hierarchical_times(8_000_000_000, per_node=8, nodes=2, inside=inside, between=between)
        (0.07, 0.1, 0.07)
    """
    around = ring_time("reduce_scatter", nbytes, ranks=per_node, link=inside)
    across = ring_time("all_reduce", nbytes / per_node, ranks=nodes, link=between)
    return around, across, around


def nvls_time(nbytes: float, *, ranks: int, ring: Link, gain: float, call_s: float = 25e-6) -> float:
    """Time of an all-reduce in NVSwitches: a fixed cost, then a ring's bytes `gain` times as fast.

    Args:
        nbytes: of the buffer [bytes]
        ranks: in the group
        ring: of a ring on the same links
        gain: over the ring; 1.2 to 1.35 measured on Hopper and Blackwell, where two times would be ideal
        call_s: fixed cost [s]

    Returns:
        Time [s].

    Source:
        NCCL 2.30.7 src/graph/tuning.cc for the fixed cost.

    Example:
        >>> link = Link(bytes_per_s=100e9, latency_s=0.0, source="example")
        >>> round(nvls_time(4_000_000_000, ranks=8, ring=link, gain=1.25), 6)  # 7 GB at 125 GB/s
        0.056025
    """
    return call_s + bus_factor("all_reduce", ranks) * nbytes / (ring.bytes_per_s * gain)


def check_group(op: str, ranks: int) -> None:
    """Refuses an unknown operation, and an empty group.

    Raises:
        InputError: either
    """
    if op not in OPERATIONS:
        raise InputError(
            f'a collective is one of {", ".join(OPERATIONS)}, got "{op}"', code="collective.unknown-operation", op=op
        )
    if ranks < 1:
        raise InputError(f"a group has at least one rank, got {ranks}", code="collective.no-rank", ranks=ranks)


def _levels(ranks: int) -> int:
    return math.ceil(math.log2(ranks)) if ranks > 1 else 0


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
