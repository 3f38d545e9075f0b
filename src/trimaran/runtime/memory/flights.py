"""The state of one forward and its backward."""

import torch

from trimaran.runtime.memory.schedule import Schedule
from trimaran.runtime.memory.units import Unit


class Flight:
    """One forward and its backward, on its way through a schedule.

    Args:
        schedule: the plan's ticks; None: there is no plan for it
        microbatch: number of the forward within the step
        verify: whether recipes are compared with the real bytes

    Attributes:
        packs: packs so far
        position: next planned unpack
        turned: whether something was unpacked
        reactive: whether it goes without its plan
        restarted: whether it began because the one before had left its plan
        units: by number in the trace
        found: units that are in no plan, by the storage's identity and version
        deferred: units that are to be let go once all that their recipes read was packed
        pending: units whose copy to the host is under way and that are to be let go after it
    """

    __slots__ = (
        "__weakref__",
        "deferred",
        "found",
        "microbatch",
        "packs",
        "pending",
        "position",
        "reactive",
        "restarted",
        "schedule",
        "turned",
        "units",
        "verify",
    )

    def __init__(self, schedule: Schedule | None, *, microbatch: int = 0, verify: bool = False) -> None:
        self.schedule = schedule
        self.microbatch = microbatch
        self.verify = verify
        self.packs = 0
        self.position = 0
        self.turned = False
        self.restarted = False
        self.reactive = schedule is None
        self.units: dict[int, Unit] = {}
        self.found: dict[tuple[int, int], Unit] = {}
        self.pending: list[Unit] = []
        self.deferred: list[Unit] = []

    def sources_of(self, numbers: tuple[int, ...]) -> tuple[Unit, ...] | None:
        """The units of what a recipe reads; None: one was not packed, or is gone."""
        units = [self.units.get(number) for number in numbers]
        if any(unit is None or not unit.alive for unit in units):
            return None
        return tuple(unit for unit in units if unit is not None)

    def find(self, storage: torch.UntypedStorage, version: int) -> Unit | None:
        """The unit of a storage that is in no plan."""
        unit = self.found.get((storage._cdata, version))
        return unit if unit is not None and unit.alive and unit.weak() is storage else None
