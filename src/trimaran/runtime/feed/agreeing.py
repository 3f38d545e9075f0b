"""What ranks tell each other of their data, so that all of them go on, or all of them end, in the same place."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from trimaran.runtime.channels import in_contact


class Agreement:
    """A word of every rank for every rank.

    Each method is called on every rank, in the same order.

    Args:
        rank: number of this rank
        size: ranks in all
        group: of all ranks, on the host; None: this process is alone
    """

    def __init__(self, rank: int = 0, size: int = 1, group: Any = None) -> None:
        self.rank = rank
        self._size = size
        self._group = group

    def words(self, said: Any, what: str) -> list[Any]:
        """What each rank says, by rank.

        Args:
            said: by this one; it is pickled
            what: it is about, for messages

        Raises:
            ExecutionError: another rank is gone
        """
        if self._group is None:
            return [said]
        heard: list[Any] = [None] * self._size
        with in_contact(self.rank, what):
            dist.all_gather_object(heard, said, group=self._group)
        return heard

    def figures(self, said: Sequence[int], what: str) -> list[list[int]]:
        """Some integers of each rank, by rank; as many from each.

        Args:
            said: by this one, each of 64 bits
            what: they are about, for messages

        Raises:
            ExecutionError: another rank is gone
        """
        if self._group is None:
            return [list(said)]
        mine = torch.tensor(said, dtype=torch.int64)
        heard = [torch.empty_like(mine) for _ in range(self._size)]
        with in_contact(self.rank, what):
            dist.all_gather(heard, mine, group=self._group)
        return [one.tolist() for one in heard]


ALONE = Agreement()
"""Of a process that is alone."""
