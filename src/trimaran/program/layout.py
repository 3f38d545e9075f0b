"""Which rank holds what: replica by replica, rank = replica * width + row."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Replicas of a pipeline on ranks.

    Attributes:
        dp: data-parallel replicas
        width: ranks of a replica
        rows: for each segment, the row (rank within its replica) that has it

    Example:
        >>> layout = Layout(dp=2, width=2, rows=(0, 1))
        >>> layout.rank(1, 0), layout.replicas(1), layout.within(1, [0, 1])
        (2, (1, 3), (2, 3))
    """

    dp: int
    width: int
    rows: tuple[int, ...]

    def rank(self, replica: int, row: int) -> int:
        """Rank of a row of a replica."""
        return replica * self.width + row

    def replicas(self, row: int) -> tuple[int, ...]:
        """The ranks of a row, over all replicas."""
        return tuple(self.rank(replica, row) for replica in range(self.dp))

    def within(self, replica: int, rows: Iterable[int]) -> tuple[int, ...]:
        """The ranks of some rows of one replica, ascending."""
        return tuple(self.rank(replica, row) for row in sorted(set(rows)))

    @property
    def everyone(self) -> tuple[int, ...]:
        """All ranks."""
        return tuple(range(self.dp * self.width))
