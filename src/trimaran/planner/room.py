"""What there is to feed ranks with, beside their devices."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the host has, and for how long it is used.

    Attributes:
        memory_bytes: of the host, that this process may use [bytes]
        epochs: passes over the training data
    """

    memory_bytes: int
    epochs: int
