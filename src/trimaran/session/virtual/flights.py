"""A flight: one forward with its backward."""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from trimaran.planner.memory.search import MemoryOutcome
from trimaran.session.virtual.batches import Signature
from trimaran.session.virtual.hooks import Pack, Unpack


class Key(NamedTuple):
    """What a plan is for.

    Attributes:
        signature: look of the batch
        later: whether it is not the first flight of its step, and finds gradients there
        after: number of the optimizer that stepped last; two that take turns, as for a generator and its critic, make
            steps that differ although they may begin alike
    """

    signature: Signature
    later: bool
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightStats:
    """What happened in a flight under a plan.

    Attributes:
        to_host_bytes: copied to the host [bytes]
        to_device_bytes: copied back [bytes]
        stall_s: the host's waiting for copies [s]; None on a GPU, whose streams wait
        fell_back: whether it did not go as planned
        verified: whether recipes were compared, which takes memory of its own
        ineffective: names of storages that were let go, but that someone else still held
    """

    to_host_bytes: int = 0
    to_device_bytes: int = 0
    stall_s: float | None = 0.0
    fell_back: bool = False
    verified: bool = False
    ineffective: tuple[str, ...] = ()


class Flyer(Protocol):
    """Somebody who runs flights as planned.

    Attributes:
        phase: what the next flight is for: "keep", "verify" or "run"
        outcome: the plan; None: nothing moves
    """

    @property
    def phase(self) -> str: ...  # noqa: D102

    @property
    def outcome(self) -> MemoryOutcome | None: ...  # noqa: D102

    def begin(self) -> tuple[Pack, Unpack]:
        """A flight begins; how to pack and to unpack in it."""

    def end(self) -> FlightStats:
        """It has ended."""


@dataclass(slots=True, kw_only=True)
class Flight:
    """A flight that is under way.

    Attributes:
        key: what it is
        planned: who runs it; None: it is recorded
        seen: looks of all batches that went into outermost modules
    """

    key: Key
    planned: Flyer | None
    seen: set[Signature] = field(default_factory=set)
