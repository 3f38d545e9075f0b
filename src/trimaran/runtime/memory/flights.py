"""The state of one forward and its backward."""

from collections import deque

import torch

from trimaran.runtime.memory.schedule import Schedule
from trimaran.runtime.memory.units import Unit

_SOME_WAY = 4


class Flight:
    """One forward and its backward, on its way through a schedule.

    Args:
        schedule: the plan's ticks; None: there is no plan for it
        microbatch: number of the forward within the step
        verify: whether recipes are compared with the real bytes

    Attributes:
        packs: packs so far
        position: next planned unpack
        handles: on units, that autograd holds
        turned: whether something was unpacked
        reactive: whether it goes without its plan
        restarts: flights before it that were left half-way, one after the other
        units: by number in the trace
        found: units that are in no plan, by the storage's identity
        deferred: units that are to be let go once all that their recipes read was packed
        waiting: units that are in no plan and that go to the host once nobody else holds them
        pending: those of them whose copy is under way, and that are to be let go after it
    """

    __slots__ = (
        "__weakref__",
        "deferred",
        "found",
        "handles",
        "microbatch",
        "packs",
        "pending",
        "position",
        "reactive",
        "restarts",
        "schedule",
        "turned",
        "units",
        "verify",
        "waiting",
    )

    def __init__(self, schedule: Schedule | None, *, microbatch: int = 0, verify: bool = False) -> None:
        self.schedule = schedule
        self.microbatch = microbatch
        self.verify = verify
        self.packs = 0
        self.position = 0
        self.handles = 0
        self.turned = False
        self.restarts = 0
        self.reactive = schedule is None
        self.units: dict[int, Unit] = {}
        self.found: dict[int, Unit] = {}
        self.waiting: deque[Unit] = deque()
        self.pending: list[Unit] = []
        self.deferred: list[Unit] = []

    def sources_of(self, numbers: tuple[int, ...]) -> tuple[Unit, ...] | None:
        """The units of what a recipe reads; None: one was not packed, or is gone."""
        units = [self.units.get(number) for number in numbers]
        if any(unit is None or not unit.alive for unit in units):
            return None
        return tuple(unit for unit in units if unit is not None)

    @property
    def may_restart(self) -> bool:
        """Whether what does not match may be the first of a new forward, after one that was left half-way.

        A flight that began so must have come some way; else it is this forward that is not the planned one.
        """
        return self.packs > 0 and (not self.restarts or self.packs >= _SOME_WAY)

    def given_up(self, tensor: torch.Tensor) -> bool:
        """Whether autograd has dropped the graph so far, and a tensor looks like the first of a new one."""
        if self.handles or self.turned or not (self.units or self.found) or self.schedule is None:
            return False
        return self.schedule.packs[0].matches(tensor)

    def find(self, storage: torch.UntypedStorage) -> Unit | None:
        """The unit of a storage that is in no plan, and that has not been let go.

        One for all versions of it: where autograd allows a change, what it gives is as memory is then.
        """
        unit = self.found.get(storage._cdata)
        return unit if unit is not None and unit.alive and unit.storage is storage and not unit.second else None
