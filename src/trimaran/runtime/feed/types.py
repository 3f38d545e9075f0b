"""What it took to get a microbatch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """What it took to get one microbatch, as it was observed.

    With workers, reading and preparing happen beside the training; what the training's own thread spends is `waited_s`
    and `taken_s`. Without, its own thread reads and prepares, and `waited_s` is 0.

    Attributes:
        samples: of the microbatch
        read_s: standing still while the data set was asked: neither computing nor waiting for a core [s]
        prepared_s: work of data set and collate function, and waiting for a core meanwhile [s]
        waited_s: the training's thread stood still until a worker had the batch ready [s]
        taken_s: time of the training's thread to start the workers, where this is their first, and its work to take it
            over from one [s]
        copied_s: the training's thread brought it to the device, or waited until it was there [s]
        in_line: the training's own thread loaded it
    """

    samples: int
    read_s: float = 0.0
    prepared_s: float = 0.0
    waited_s: float = 0.0
    taken_s: float = 0.0
    copied_s: float = 0.0
    in_line: bool = True
