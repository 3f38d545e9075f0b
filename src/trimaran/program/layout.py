"""Layout of ranks: rank = (replica * rows + row) * shards + shard, so that ranks that exchange most are closest.

Replicas on several nodes may sum gradients by a hierarchical all-reduce: sync="hierarchical". Each bucket is summed and
scattered within a node (`RS`), each shard is summed across the nodes (`AR`), and the sums are gathered within the node
(`AG`). With two nodes of two replicas:

    node 0   0 ══╗ RS   0: first half   ────┐           0 ══╗ AG
             1 ══╝      1: second half  ──┐ │ AR        1 ══╝
    node 1   2 ══╗      2: first half   ──┼─┘           2 ══╗
             3 ══╝      3: second half  ──┘             3 ══╝

So one bucket a node crosses between nodes, not one a device. The middle level starts by itself when the first has
ended; the last one, when the backward has ended and the sum is there. A rank lists the gathers behind all its scatters:
they are of one group, which keeps its order, and no scatter should wait for a sum across the nodes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from trimaran.program.rules.positions import Index, Spot
from trimaran.program.strategy import Strategy
from trimaran.program.types import Instruction, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Replicas, rows and shards on ranks.

    Attributes:
        dp: data-parallel replicas
        width: rows of a replica
        rows: for each segment, the row that has it
        tp: ranks that share the tensors of a row

    Example:
        >>> layout = Layout(dp=2, width=2, rows=(0, 1))
        >>> layout.rank(1, 0), layout.replicas(1), layout.within(1, [0, 1])
        (2, (1, 3), (2, 3))
        >>> shared = Layout(dp=2, width=2, rows=(0, 1), tp=2)
        >>> shared.rank(1, 0, 1), shared.replicas(1, 1), shared.shards(1, 0), shared.within(1, [0, 1], 1)
        (5, (3, 7), (4, 5), (5, 7))
        >>> shared.place_of(5)
        (1, 0, 1)
    """

    dp: int
    width: int
    rows: tuple[int, ...]
    tp: int = 1

    def rank(self, replica: int, row: int, shard: int = 0) -> int:
        """Rank of a shard of a row of a replica."""
        return (replica * self.width + row) * self.tp + shard

    def place_of(self, rank: int) -> tuple[int, int, int]:
        """Replica, row and shard of a rank."""
        rest, shard = divmod(rank, self.tp)
        replica, row = divmod(rest, self.width)
        return replica, row, shard

    def replicas(self, row: int, shard: int = 0) -> tuple[int, ...]:
        """The ranks of a shard of a row, over all replicas."""
        return _every(self.width * self.tp, self.rank(0, row, shard), self.dp)

    def shards(self, replica: int, row: int) -> tuple[int, ...]:
        """The ranks that share the tensors of a row of a replica."""
        return tuple(self.rank(replica, row, shard) for shard in range(self.tp))

    def within(self, replica: int, rows: Iterable[int], shard: int = 0) -> tuple[int, ...]:
        """The ranks of a shard of some rows of one replica, ascending."""
        return tuple(self.rank(replica, row, shard) for row in sorted(set(rows)))

    def replica(self, number: int) -> tuple[int, ...]:
        """All ranks of a replica."""
        size = self.width * self.tp
        return tuple(range(number * size, (number + 1) * size))

    @property
    def everyone(self) -> tuple[int, ...]:
        """All ranks."""
        return tuple(range(self.dp * self.width * self.tp))


@lru_cache(maxsize=1024)
def _every(stride: int, first: int, count: int) -> tuple[int, ...]:
    """Ranks at equal distances; all members of a group share one tuple."""
    return tuple(range(first, first + count * stride, stride))


def strategy_layout(strategy: Strategy) -> Layout:
    """The layout of ranks of a strategy."""
    return Layout(dp=strategy.dp, width=strategy.pp, rows=strategy.rows, tp=strategy.tp)


_LEVELS = (Kind.REDUCE_SCATTER, Kind.ALL_REDUCE, Kind.ALL_GATHER)


def within_node(replicas: Sequence[int], nodes: int, rank: int) -> tuple[int, ...]:
    """The replicas on the node of a rank.

    Args:
        replicas: ranks that hold the same, node by node
        nodes: over which they are spread evenly
        rank: one of them

    Example:
        >>> within_node((0, 1, 2, 3), 2, 3), across_nodes((0, 1, 2, 3), 2, 3)
        ((2, 3), (1, 3))
    """
    each = len(replicas) // nodes
    first = replicas.index(rank) // each * each
    return tuple(replicas[first : first + each])


def across_nodes(replicas: Sequence[int], nodes: int, rank: int) -> tuple[int, ...]:
    """The replicas that have the place of a rank on their nodes, one of each; arguments as of `within_node`."""
    each = len(replicas) // nodes
    return tuple(replicas[replicas.index(rank) % each :: each])


def even_nodes(hosts: Sequence[int]) -> int:
    """Over how many nodes ranks are spread, where each has as many of them, two or more, one after the other; else 1.

    Args:
        hosts: of each rank

    Example:
        >>> even_nodes((0, 0, 1, 1)), even_nodes((0, 1, 0, 1)), even_nodes((0, 0, 0, 1)), even_nodes((0, 0))
        (2, 1, 1, 1)
    """
    found = tuple(dict.fromkeys(hosts))
    each = len(hosts) // max(1, len(found))
    in_order = tuple(host for host in found for _ in range(each))
    return len(found) if each > 1 and in_order == tuple(hosts) else 1


def shard_bytes(nbytes: int, ranks: int) -> int:
    """Size of a shard of a bucket, rounded up [bytes].

    Example:
        >>> shard_bytes(10, 4)
        3
    """
    return -(-nbytes // ranks)


def is_chained(instruction: Instruction) -> bool:
    """Whether a sum across nodes starts by itself when the sum within the node has ended, as no other collective does.

    Args:
        instruction: of any kind
    """
    return instruction.kind is Kind.ALL_REDUCE and _of(instruction, Kind.REDUCE_SCATTER) in instruction.after


def is_last_level(instruction: Instruction) -> bool:
    """Whether it gathers what was summed across nodes.

    Args:
        instruction: of any kind
    """
    return instruction.kind is Kind.ALL_GATHER and _of(instruction, Kind.ALL_REDUCE) in instruction.after


def is_hierarchical(index: Index, spot: Spot, replicas: Sequence[int]) -> bool:
    """Whether a collective over a part of the replicas is a level of a sum over all of them.

    Args:
        index: the program
        spot: the collective
        replicas: the ranks that hold the same
    """
    instruction = index.at(spot)
    own = _groups(index, spot.rank, instruction) if instruction.kind in _LEVELS else None
    if own is None:
        return False
    within, across = own
    found = [_groups(index, rank, instruction) for rank in across]
    nodes = [groups[0] for groups in found if groups is not None and groups[1] == across]
    place = within.index(spot.rank) if spot.rank in within else -1
    in_place = all(place < len(node) and node[place] in across for node in nodes)
    alike = {len(node) for node in nodes} == {len(within)} and len(nodes) == len(across)
    return alike and in_place and sorted(rank for node in nodes for rank in node) == list(replicas)


def _of(instruction: Instruction, kind: Kind) -> str:
    """The token of another level of the same bucket."""
    segment = "" if instruction.segment is None else str(instruction.segment)
    return f"{segment}{kind}#{instruction.label}"


def _groups(index: Index, rank: int, instruction: Instruction) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The groups of a rank within its node and across nodes, where it sums what `instruction` does in three levels."""
    spots = [index.find(rank, _of(instruction, kind)) for kind in _LEVELS]
    if any(spot is None for spot in spots):
        return None
    scatter, total, gather = (index.at(spot) for spot in spots if spot is not None)
    if scatter.group != gather.group or not is_chained(total) or not is_last_level(gather):
        return None
    return scatter.group, total.group
