"""Formulas of the algorithms that collective libraries use, where all links are alike.

`n` ranks, `S` bytes, latency `a` and rate `B` of a link in one direction (Hockney). `nbytes` is the whole buffer: of an
all-gather the gathered one, of a reduce-scatter the one before it is scattered, of an all-to-all everything that a rank
sends, its own part included. Left out: the arithmetic of a reduction, the cost of a call, and how far a real library
falls short; `prediction` has those.

    ring           n-1 or 2(n-1) hops; every rank sends (n-1)/n or 2(n-1)/n of the buffer
    chain          c chunks through n-1 hops
    tree           2 log2(n) hops; an inner rank takes in 2S going up and S coming down
    double tree    2 log2(n) hops; each rank is inner in one tree and a leaf in the other
    binomial tree  log2(n) hops with the whole buffer, of a broadcast or a reduce
    hierarchical   reduce-scatter inside, all-reduce between, all-gather inside
"""

import math

from trimaran.base.errors import InputError
from trimaran.machine.types import Link
from trimaran.program.types import Kind

TWICE_AROUND = frozenset({"all_reduce"})
ONE_WAY = frozenset({"broadcast", "reduce", "send_recv"})
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv")
"""Names of collectives and of the message between two."""

OPERATION_OF = {
    Kind.ALL_REDUCE: "all_reduce",
    Kind.ALL_GATHER: "all_gather",
    Kind.REDUCE_SCATTER: "reduce_scatter",
    Kind.BROADCAST: "broadcast",
    Kind.REDUCE: "reduce",
}
"""Name of the collective of an instruction."""


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
    return path(op, ranks)[1]


def path(op: str, ranks: int, *, binomial: bool = False) -> tuple[int, float]:
    """What follows one another in a collective: messages, and bytes on a link as a multiple of the buffer.

    Args:
        op: one of `OPERATIONS`
        ranks: in the group
        binomial: a broadcast or a reduce goes along a binomial tree, with the whole buffer at each level; otherwise
            down a chain, in chunks so fine that only the hops add

    Raises:
        InputError: another operation, or a group of no rank

    Source:
        Tree: Thakur, Rabenseifner & Gropp, Int. J. High Perform. Comput. Appl. 19(1), 2005.

    Example:
        >>> path("all_reduce", 4), path("broadcast", 5), path("broadcast", 5, binomial=True)
        ((6, 1.5), (4, 1.0), (3, 3.0))
    """
    check_group(op, ranks)
    if op not in ONE_WAY:
        hops = (2 if op in TWICE_AROUND else 1) * (ranks - 1)
        return hops, hops / ranks
    if binomial and op != "send_recv":
        return _levels(ranks), float(_levels(ranks))
    return ranks - 1, 1.0 if ranks > 1 else 0.0


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
        Hockney, Parallel Computing 20(3), 1994, for a message.
        Patarasuk & Yuan, J. Parallel Distrib. Comput. 69(2), 2009.

    Example:
        >>> link = Link(bytes_per_s=1e9, latency_s=0.001, source="example")
        >>> round(ring_time("all_reduce", 1_000_000_000, ranks=4, link=link), 6)  # 6 hops, 1.5 GB
        1.506
    """
    hops, multiple = path(op, ranks)
    return hops * link.latency_s + multiple * nbytes / link.bytes_per_s


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
