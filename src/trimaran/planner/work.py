"""Work of a search, counted in seconds of the reference: an idle core of this kind of machine.

A limit of time is kept in work, so that the same question has the same answer on a busy machine, on a slow one, and the
next time. Every kind of work has its time on the reference, which is measured once (`benchmarks/answers`) and kept as a
constant where that work is done; the clock is never asked. On a machine half as fast a search of ten seconds takes
twenty.
"""

import math
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class SearchWork:
    """Work of one search, or of several that share a limit.

    Attributes:
        limit_s: on the reference; infinite: none [s]
        done_s: so far [s]

    Example:
        >>> work = SearchWork(limit_s=1.0)
        >>> work.spend(0.75)
        >>> work.is_over, work.left_s
        (False, 0.25)
        >>> work.spend(0.75)
        >>> work.is_over, work.left_s
        (True, 0.0)
    """

    limit_s: float = math.inf
    done_s: float = 0.0

    def spend(self, seconds: float) -> None:
        """Count work that was done.

        Args:
            seconds: that it takes on the reference [s]
        """
        self.done_s += seconds

    @property
    def is_over(self) -> bool:
        """Whether as much was done as may be."""
        return self.done_s >= self.limit_s

    @property
    def left_s(self) -> float:
        """What may still be done [s]."""
        return max(0.0, self.limit_s - self.done_s)


def work_within(limit_s: float | None) -> SearchWork:
    """Work with a limit that a user gave.

    Args:
        limit_s: on the reference; None: there is none [s]
    """
    return SearchWork(limit_s=math.inf if limit_s is None else limit_s)
