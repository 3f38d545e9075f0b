"""A flight: one forward with its backward."""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from trimaran.planner.memory.search import MemoryOutcome
from trimaran.session.virtual.batches import WITHOUT_MODULE, Signature
from trimaran.session.virtual.hooks import Pack, Unpack


class Key(NamedTuple):
    """What a plan is for.

    Attributes:
        signature: look of the batch
        later: whether it is not the first flight of its step, and finds gradients there
        after: number of the optimizer that stepped last; two that take turns, as for a generator and its critic, make
            steps that differ although they may begin alike
        turn: 1 for the second of two uses that begin alike even so
    """

    signature: Signature
    later: bool
    after: int
    turn: int = 0


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
        planned: whether it had a plan
        banned: what is made again no more, in words, because its recipe gave other bits than were there
        unnoticed: whether one of these may have done so in flights before
        infeasible: why there is no plan any more
    """

    to_host_bytes: int = 0
    to_device_bytes: int = 0
    stall_s: float | None = 0.0
    fell_back: bool = False
    verified: bool = False
    ineffective: tuple[str, ...] = ()
    planned: bool = False
    banned: tuple[str, ...] = ()
    unnoticed: bool = False
    infeasible: str = ""


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

    def confirm(self) -> None:
        """See that what was made again had the right bytes."""

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

    @property
    def has_module(self) -> bool:
        """Whether it began with a module: then so does the next one, and what comes between belongs to this one."""
        return bool(self.key.signature[0] != WITHOUT_MODULE)
