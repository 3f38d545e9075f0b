"""How a rank gets its batches: what was decided of it."""

from dataclasses import dataclass

from trimaran.errors import InputError

MOST_WORKERS, MOST_AHEAD = 4096, 4096
"""Of each rank, in a plan that is run: sixteen workers for each core of a host of 256, and as many batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeding:
    """How the ranks that read data get their microbatches. What a step trains on does not depend on it.

    Attributes:
        workers: processes of each rank that load beside its training; 0: its own thread loads
        ahead: microbatches that each worker has ready or under way; with workers only
        pinned: batches are put where a GPU can fetch them; without a GPU nothing is
        copies_ahead: microbatches that are on their way to the device before they are asked for
        cached: samples stay in the memory of the host after their first read, for all ranks of it

    Raises:
        InputError: a figure out of range
    """

    workers: int = 0
    ahead: int = 2
    pinned: bool = True
    copies_ahead: int = 0
    cached: bool = False

    def __post_init__(self) -> None:
        for name, least in (("workers", 0), ("ahead", 1), ("copies_ahead", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InputError(f"Feeding.{name} must be an integer of at least {least}, got {value!r}", value=value)

    @property
    def name(self) -> str:
        """Short form for names of strategies; empty for the default.

        Example:
            >>> Feeding().name, Feeding(workers=4, cached=True).name, Feeding(copies_ahead=1).name
            ('', 'w4 cached', 'c1')
        """
        parts = (
            f"w{self.workers}" if self.workers else "",
            f"a{self.ahead}" if self.workers and self.ahead != 2 else "",
            f"c{self.copies_ahead}" if self.copies_ahead else "",
            "cached" if self.cached else "",
        )
        return " ".join(part for part in parts if part)


def check_planned(feeding: Feeding, *, source: str) -> None:
    """Refuse what no host bears, before a run starts as many processes.

    Args:
        feeding: of a plan that was read
        source: of the plan

    Raises:
        InputError: more workers, or batches ahead, than that
    """
    for name, most in (("workers", MOST_WORKERS), ("ahead", MOST_AHEAD), ("copies_ahead", MOST_AHEAD)):
        value = getattr(feeding, name)
        if value > most:
            raise InputError(
                f"{source}: strategy.feeding.{name} is {value}, and a rank has at most {most}: take fewer, "
                "or plan again",
                code="strategy.too-many-workers",
                source=source,
                value=value,
                most=most,
            )


IN_LINE = Feeding()
"""Each rank's own thread loads, when a batch is needed."""
