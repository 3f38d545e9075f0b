"""The events of a step while it runs."""

from dataclasses import dataclass, field
from typing import Literal

import torch

from trimaran.graph.trace.calls import Call
from trimaran.graph.trace.storages import StorageBook
from trimaran.graph.trace.types import View
from trimaran.graph.types import Phase

_RANKS = {"cpu": 0, "meta": 1}
"""Which device a step is on that has tensors on several; not named: above these."""


@dataclass(slots=True)
class OpDraft:
    """An operation; see `TraceOp`."""

    name: str
    phase: Phase
    module: str
    reads: tuple[tuple[int, int], ...]
    writes: tuple[tuple[int, int], ...]
    flops: float
    nbytes: int
    dtype: str
    call: Call | None
    duration_s: float | None = None
    interval: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
    scratch_bytes: int = 0
    operands: tuple[tuple[int, torch.Size], ...] = ()
    results: tuple[torch.Size | None, ...] = ()


@dataclass(slots=True)
class TickDraft:
    """A tick; see `Tick`."""

    kind: Literal["pack", "unpack"]
    index: int
    pack: int
    storage: int
    version: int
    view: View
    node: str
    end: int | None = None


@dataclass
class Tape:
    """What has happened so far in the step.

    Attributes:
        events: operations and ticks in order
        packs: number of packs
        unpacks: number of unpacks
        running: whether an operation runs now, whose event comes when it has ended
        busy: whether operations now are our own, and are no events
        stopped: whether nothing is noted any more
        updating: whether an optimizer steps now
        place: device of the step, as far as known; None: no tensor was seen
        real: whether the step is known to be none on meta tensors, although autograd may use some in forward mode
        waiting: whether no forward has begun yet; then no more than `patience` events are noted
        patience: see `waiting`
        gradients: storage of the gradient by that of its parameter
    """

    events: list[OpDraft | TickDraft] = field(default_factory=list)
    packs: int = 0
    unpacks: int = 0
    running: bool = False
    busy: bool = False
    stopped: bool = False
    updating: bool = False
    place: torch.device | None = None
    real: bool = False
    waiting: bool = False
    patience: int = 10_000
    gradients: dict[int, int] = field(default_factory=dict)
    book: StorageBook = field(init=False)

    def __post_init__(self) -> None:
        self.book = StorageBook(self.now)

    @property
    def device(self) -> str:
        """Kind of the device: "cpu", "meta" or "cuda"; "" before any tensor was seen."""
        return "" if self.place is None else self.place.type

    @property
    def tired(self) -> bool:
        """Whether so much has come without a forward, as in an evaluation, that the tape is of no use any more."""
        return self.waiting and len(self.events) >= self.patience

    def see(self, device: torch.device) -> None:
        """A tensor is on a device. Batches are made on the host: any other device that is seen is the step's."""
        if self.real and device.type == "meta":
            return
        if self.place is None or _RANKS.get(device.type, 2) > _RANKS.get(self.place.type, 2):
            self.place = device

    def now(self) -> int:
        """First moment at which what goes now is no more there: the operation that runs still has it."""
        return len(self.events) + self.running

    def phase(self) -> Phase:
        """Part of the step that runs.

        What runs without gradients between the backward and the optimizer, as the clipping of gradients does, is part
        of the update.
        """
        if torch._C._current_graph_task_id() != -1:
            return Phase.BACKWARD
        if self.updating or (self.unpacks and not torch.is_grad_enabled()):
            return Phase.UPDATE
        return Phase.FORWARD
