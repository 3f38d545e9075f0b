"""What the memory runtime did in a step."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trimaran.runtime.memory.arena import ArenaUse


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStatistics:
    """One step.

    Attributes:
        flights: forwards that were begun
        to_host_bytes: copied to the host [bytes]
        to_device_bytes: copied to the device [bytes]
        recomputations: recipes that were run
        stalls_s: time that the host stood still for copies, by moment of the trace, -1 off the plan [s]
        mismatches: forwards that did not pack what the plan was made for, and went on without it
        strangers: of these, those whose tensors look as planned, but are others or were made otherwise
        on_demand: storages that were brought back when they were needed, not before
        ineffective: storages that were let go and stayed on the device, as someone else holds them, by name
        kept: storages that could not be let go, for want of what a recipe needs
        failed_recipes: storages whose recipe did not give the same bits
        renumbered: storages whose nodes kept other numbers than in the first flight, so that the recipe was compared
        predicted_peak_bytes: of the plan [bytes]; None: it was not said
        accounted_peak_bytes: as it was [bytes]; None: nobody looked
        arena: how full the host memory is
    """

    flights: int
    to_host_bytes: int
    to_device_bytes: int
    recomputations: int
    stalls_s: Mapping[int, float]
    mismatches: int
    strangers: int
    on_demand: int
    ineffective: tuple[str, ...]
    kept: int
    failed_recipes: tuple[int, ...]
    renumbered: tuple[int, ...]
    predicted_peak_bytes: int | None
    accounted_peak_bytes: int | None
    arena: ArenaUse


@dataclass(slots=True)
class Tally:
    """Counts while a step runs; see `MemoryStatistics`.

    Attributes:
        moment: of the tick that runs now; -1: none of the plan's
    """

    flights: int = 0
    to_host_bytes: int = 0
    to_device_bytes: int = 0
    recomputations: int = 0
    mismatches: int = 0
    strangers: int = 0
    on_demand: int = 0
    kept: int = 0
    moment: int = -1
    stalls_s: dict[int, float] = field(default_factory=dict)
    ineffective: set[str] = field(default_factory=set)
    failed_recipes: set[int] = field(default_factory=set)
    renumbered: set[int] = field(default_factory=set)

    def stall(self, seconds: float) -> None:
        """Note that the host stood still."""
        if seconds > 0.0:
            self.stalls_s[self.moment] = self.stalls_s.get(self.moment, 0.0) + seconds

    def clear(self) -> None:
        """Begin anew."""
        self.flights = self.to_host_bytes = self.to_device_bytes = self.recomputations = 0
        self.mismatches = self.strangers = self.on_demand = self.kept = 0
        self.stalls_s, self.ineffective, self.failed_recipes, self.renumbered = {}, set(), set(), set()

    def result(self, arena: ArenaUse, predicted: int | None, accounted: int | None) -> MemoryStatistics:
        """What was counted."""
        return MemoryStatistics(
            flights=self.flights,
            to_host_bytes=self.to_host_bytes,
            to_device_bytes=self.to_device_bytes,
            recomputations=self.recomputations,
            stalls_s=dict(self.stalls_s),
            mismatches=self.mismatches,
            strangers=self.strangers,
            on_demand=self.on_demand,
            ineffective=tuple(sorted(self.ineffective)),
            kept=self.kept,
            failed_recipes=tuple(sorted(self.failed_recipes)),
            renumbered=tuple(sorted(self.renumbered)),
            predicted_peak_bytes=predicted,
            accounted_peak_bytes=accounted,
            arena=arena,
        )
