"""Which rank holds what: rank = (replica * rows + row) * shards + shard, so that what talks most sits closest."""

from collections.abc import Iterable
from dataclasses import dataclass

from trimaran.program.types import Strategy


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
        return tuple(self.rank(replica, row, shard) for replica in range(self.dp))

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


def strategy_layout(strategy: Strategy) -> Layout:
    """Which rank of a strategy holds what."""
    return Layout(dp=strategy.dp, width=strategy.pp, rows=strategy.rows, tp=strategy.tp)
