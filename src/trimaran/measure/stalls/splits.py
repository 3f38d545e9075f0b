"""A step of a job by what it was spent on: classes that do not overlap and sum to it."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Time of a step of one rank, or of the mean of many [s].

    Attributes:
        fetch: standing still while data are read
        prepare: work of data set and collate function, a worker's start and handing over, waiting for a core meanwhile
        copy: from the host to the device
        compute: forward, backward, clipping, update
        communication: exchanges that nothing hides: the shortest wait for each over its ranks
        synchronization: what a rank waits longer than that: for slower ranks, or for its turn in a pipeline
        unattributed: the step less all that was measured, such as the interpreter between instructions; clocks that
            disagree can make it negative
    """

    fetch: float
    prepare: float
    copy: float
    compute: float
    communication: float
    synchronization: float
    unattributed: float

    @property
    def step_s(self) -> float:
        """The whole step [s]."""
        return float(sum(astuple(self)))

    @property
    def loading_s(self) -> float:
        """All that a step spends on its data [s]."""
        return self.fetch + self.prepare + self.copy


CLASSES = tuple(field.name for field in fields(Split))
"""The classes, in the order in which they are shown."""


def mean_split(splits: Sequence[Split]) -> Split:
    """The mean, class by class; the classes still sum to the mean step.

    Args:
        splits: at least one

    Example:
        >>> parts = dict.fromkeys(CLASSES, 0.0)
        >>> mean_split([Split(**parts | {"fetch": 1.0}), Split(**parts | {"compute": 2.0})]).step_s
        1.5
    """
    return Split(**{name: sum(getattr(one, name) for one in splits) / len(splits) for name in CLASSES})


def calm(blocks: Sequence[Split]) -> list[int]:
    """Which blocks are of ordinary length: half of them, none of the quarter of the longest or of the shortest.

    What another program does for a moment makes a block longer; the classes of the blocks that are left still sum.

    Args:
        blocks: mean steps of blocks, at least one

    Returns:
        Their positions, ascending.

    Example:
        >>> parts = dict.fromkeys(CLASSES, 0.0)
        >>> calm([Split(**parts | {"compute": seconds}) for seconds in (1.0, 9.0, 1.1, 1.2)])
        [2, 3]
    """
    aside = len(blocks) // 4
    ordered = sorted(range(len(blocks)), key=lambda number: blocks[number].step_s)
    return sorted(ordered[aside : len(ordered) - aside])
