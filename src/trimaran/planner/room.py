"""What there is to feed ranks with, beside their devices."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the host has, and for how long it is used.

    Attributes:
        memory_bytes: of the host, that this process may use [bytes]
        shared_bytes: of it, what processes can hand to each other: the size of /dev/shm [bytes]
        epochs: passes over the training data
    """

    memory_bytes: int
    shared_bytes: int
    epochs: int
