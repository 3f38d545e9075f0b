"""What the field's jobs say of themselves, so that a plain loop can be written beside each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from trimaran.base.job import Job


def to_training(model: nn.Module) -> None:
    """What a plain loop begins with; a `train()` of the model's own counts."""
    model.train()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A job as practitioners write it, and what its plain loop has of its own.

    Attributes:
        name: in tables
        family: kind of work
        job: makes the job, in fp64 unless its precision is what it is about
        note: what is particular about it
        by_microbatch: it draws, normalizes over the batch, or its forward changes state: its plain loop sees the
            microbatches that a plan has, under the seeds of its ranks; False: one forward of the whole global batch
        own_optimizer: it is about its optimizer, which is not replaced
        weight: of a batch, what the mean of its loss is over; None: the samples
        summed: the loss is a sum over the samples: those of microbatches are added up
        spread: the model is called with the values of a batch by their keys
        own_step: forward, backward and update of the plain loop, where these are not the usual ones
        recomputed: makes the same model without activation checkpointing, whose second forward would draw from one
            generator what rows drew from theirs; None: it has none
        modes: puts the model of the plain loop in the modes in which a practitioner trains it
        tolerance: relative, of what is compared
        wanted: what `Job` has no words for yet
        way_out: how its user gets on where it is refused: the name of the job that does so, or what to read
    """

    name: str
    family: str
    job: Callable[[], Job]
    note: str
    by_microbatch: bool = False
    own_optimizer: bool = False
    weight: Callable[[Any], float] | None = None
    summed: bool = False
    spread: bool = False
    own_step: Callable[[nn.Module, Any, Any], Tensor] | None = None
    recomputed: Callable[[], nn.Module] | None = None
    modes: Callable[[nn.Module], object] = to_training
    tolerance: float = 1e-10
    wanted: str = ""
    way_out: str = ""


class Family:
    """Entries of one module, in the order in which they are written.

    Args:
        name: of the family
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: list[Entry] = []

    def entry(self, note: str, **options: Any) -> Callable[[Callable[[], Job]], Callable[[], Job]]:
        """Enter a factory under its own name.

        Args:
            note: what is particular about the job
            options: attributes of `Entry`
        """

        def enter(make: Callable[[], Job]) -> Callable[[], Job]:
            self.entries.append(Entry(name=make.__name__, family=self.name, job=make, note=note, **options))
            return make

        return enter
