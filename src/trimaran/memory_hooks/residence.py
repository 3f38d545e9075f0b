"""Lets units go from the device and brings them back.

    save      OFF   start to copy to the host
    release   DEL   wait for that copy, then let go
    fetch     PRE   take device memory, start to copy back
    remake    RE    run the recipe
    arrive          wait for the copy back
    require         whatever it takes, now: what is asked for before or without its step comes back all the same
    settle          let go again once the planned uses are used up
    forget          autograd holds no handle any more: give everything back

A unit that is let go must be able to return. One that a recipe makes holds a claim on what the recipe reads, so that
this is not given back before.
"""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from trimaran.base.errors import ExecutionError
from trimaran.memory_hooks.arena import ArenaUse, HostArena
from trimaran.memory_hooks.copies import CopyEngine
from trimaran.memory_hooks.recompute_check import Fingerprints, describe, differs
from trimaran.memory_hooks.schedule import Externals
from trimaran.memory_hooks.units import Unit
from trimaran.program.memory import Recipe

# ---------------------------------------------------------------------------------------------------------------------
# What the memory runtime did in a step


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStatistics:
    """One step.

    Attributes:
        forward_passes: forwards that were begun
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
        renumbered: storages whose nodes kept other numbers than in the first forward pass: their recipes were compared
        predicted_peak_bytes: of the plan [bytes]; None: it was not said
        accounted_peak_bytes: as it was [bytes]; None: nobody looked
        arena: how full the host memory is
    """

    forward_passes: int
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

    forward_passes: int = 0
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
        self.forward_passes = self.to_host_bytes = self.to_device_bytes = self.recomputations = 0
        self.mismatches = self.strangers = self.on_demand = self.kept = 0
        self.stalls_s, self.ineffective, self.failed_recipes, self.renumbered = {}, set(), set(), set()

    def result(self, arena: ArenaUse, predicted: int | None, accounted: int | None) -> MemoryStatistics:
        """What was counted."""
        return MemoryStatistics(
            forward_passes=self.forward_passes,
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


Repeat = Callable[[Recipe, Mapping[int, torch.UntypedStorage]], Mapping[int, torch.UntypedStorage]]
"""Runs a recipe on its sources, and gives what it makes."""


class Residence:
    """Moves units.

    Args:
        engine: copies
        arena: memory on the host
        repeat: runs recipes
        tally: counts
        externals: parameters and buffers that recipes read; None: there are no recipes
    """

    def __init__(
        self, engine: CopyEngine, arena: HostArena, repeat: Repeat, tally: Tally, externals: Externals | None = None
    ) -> None:
        self.engine = engine
        self.arena = arena
        self.tally = tally
        self._repeat = repeat
        self._externals = externals
        self._fingerprints = Fingerprints(engine.device)
        self._compared: dict[int, str] = {}

    def save(self, unit: Unit) -> None:
        """Start to copy a unit to the host, once."""
        if unit.storage is None or unit.saving is not None:
            return
        self.engine.sweep()  # slots that copies have done with are free then
        unit.slot = self.arena.allocate(unit.stop - unit.start)
        if unit.recipe is None:  # what a recipe makes is compared with the slot, byte for byte
            unit.slot.views = unit.views
        unit.saving = self.engine.save(unit.storage, unit.slot, unit.start)
        self.tally.to_host_bytes += unit.slot.nbytes

    def unsave(self, unit: Unit) -> None:
        """Drop the copy of a unit that has not been let go; the next one is of all its bytes."""
        slot, saving = unit.slot, unit.saving
        unit.slot = unit.saving = None
        unit.start, unit.stop, unit.views = 0, unit.nbytes, ()
        if slot is not None and saving is not None:
            saving.then(slot.free)

    def release(self, unit: Unit, sources: tuple[Unit, ...] | None = ()) -> bool:
        """Let go of the device's memory after the first life.

        Args:
            unit: which
            sources: what its recipe reads; None: not all of it was packed so far

        Returns:
            Whether it is let go; what could not return is not.
        """
        if unit.second or unit.storage is None:
            return True
        if unit.recipe is not None:
            unit.sources = sources
            if sources is None:
                return False
            if unit.checking:
                self.save(unit)
        if not unit.returns:
            return False
        if unit.recipe is not None:
            self._remember(unit, unit.storage)
        if unit.recipe is not None and sources:
            self._claim(unit)
            unit.reads = sources
            for source in sources:
                source.readers += 1
        if unit.saving is not None:
            self.tally.stall(unit.saving.wait())
        unit.second = True
        unit.storage = None
        return True

    def fetch(self, unit: Unit) -> None:
        """Start to bring a unit back from the host."""
        if unit.storage is not None or unit.slot is None or self._adopt(unit):
            return
        storage = self.engine.allocate(unit.nbytes)
        unit.loading = self.engine.load(unit.slot, storage, unit.start)
        self.tally.to_device_bytes += unit.slot.nbytes
        self._have(unit, storage)

    def remake(self, unit: Unit) -> None:
        """Make a unit again by its recipe."""
        recipe, sources = unit.recipe, unit.sources
        if unit.storage is not None or recipe is None or sources is None or self._adopt(unit):
            return
        if unit.versions.changed and unit.slot is None:
            raise self._other_bytes(unit)
        if unit.busy:
            raise ExecutionError(f"The recipe of storage {unit.number} needs itself.", storage=unit.number)
        unit.busy = True
        for source in sources:
            source.claims += 1
        try:
            storages = {**unit.held, **{source.number: self.require(source) for source in sources}}
            made = self._repeat(recipe, storages)[recipe.storage]
            del storages
        finally:
            unit.busy = False
            for source in sources:
                self._drop_claim(source)
        self.tally.recomputations += 1
        if unit.checking and unit.slot is not None and differs(made, unit.slot, unit.start, unit.views):
            self.tally.failed_recipes.add(unit.number)
            unit.recipe = None
            del made
            self.fetch(unit)
            return
        if unit.fingerprint is not None:
            self._compared[unit.number] = unit.name
            if self._fingerprints.differs(unit.number, made, unit.views, unit.fingerprint):
                raise self._other_bytes(unit)
        self._have(unit, made)

    def confirm(self) -> None:
        """Look at what is only known of a GPU when one asks: whether recipes made the bytes that were there.

        Raises:
            ExecutionError: one did not
        """
        found = self._fingerprints.collected()
        if found:
            self.tally.failed_recipes.update(found)
            raise ExecutionError(describe([self._compared[number] for number in found]), storages=found)

    def arrive(self, unit: Unit) -> None:
        """Wait until a unit that is on its way back is there."""
        if unit.loading is not None:
            self.tally.stall(unit.loading.wait())
            unit.loading = None

    def require(self, unit: Unit) -> torch.UntypedStorage:
        """The storage of a unit, with its bytes for the operations issued from now on."""
        if unit.storage is None and not self._adopt(unit):
            self.tally.on_demand += 1
            self.bring(unit)
        self.arrive(unit)
        storage = unit.storage
        if storage is None:
            raise ExecutionError(f"Storage {unit.number} is gone and cannot be made again.", storage=unit.number)
        for given in unit.given:
            given.check()
        return storage

    def bring(self, unit: Unit) -> None:
        """Remake or fetch, as the unit is one for the one or the other."""
        if unit.recipe is not None:
            self.remake(unit)
            for source in unit.sources or ():
                self.settle(source)
        else:
            self.fetch(unit)

    def read(self, unit: Unit) -> None:
        """The planned recomputation of a unit is done: let go of what was there for it."""
        self._stop_reading(unit)
        self._unclaim(unit)
        for source in unit.sources or ():
            self.settle(source)

    def settle(self, unit: Unit) -> None:
        """Let go if nothing that is planned needs the unit on the device any more."""
        if not unit.second or unit.storage is None or unit.left > 0 or unit.readers > 0 or unit.busy:
            return
        if not unit.returns:
            return
        if unit.recipe is not None:
            self._claim(unit)
        self.arrive(unit)
        unit.storage = None

    def forget(self, unit: Unit) -> None:
        """Give everything back, after the copies that are under way."""
        if unit.alive:
            return
        for copy in (unit.saving, unit.loading):
            if copy is not None and not copy.done():
                copy.order()
        slot, unit.slot = unit.slot, None
        last = unit.loading or unit.saving
        if slot is not None and last is not None:
            last.then(slot.free)
        unit.storage = None
        unit.held, unit.fingerprint = {}, None
        self._stop_reading(unit)
        self._unclaim(unit)

    def _remember(self, unit: Unit, storage: torch.UntypedStorage) -> None:
        """What a unit needs to be made again, and by what it is known then."""
        if unit.recipe is not None and self._externals is not None:
            unit.held = self._externals.hold(unit.recipe)
        if unit.slot is None:
            unit.fingerprint = self._fingerprints.take(storage, unit.views)

    def _other_bytes(self, unit: Unit) -> ExecutionError:
        self.tally.failed_recipes.add(unit.number)
        return ExecutionError(describe([unit.name]), code="recompute.other-bytes", storage=unit.number)

    def _have(self, unit: Unit, storage: torch.UntypedStorage) -> None:
        unit.storage = storage
        unit.weak = weakref.ref(storage)
        unit.given = []
        unit.returned = True

    def _adopt(self, unit: Unit) -> bool:
        """Hold what someone else still holds, if nothing has changed it."""
        storage = unit.weak()
        if storage is None or storage.nbytes() != unit.nbytes or unit.witness.changed:
            return False
        if not unit.returned and not unit.outside:
            self.tally.ineffective.add(unit.name)
        unit.storage = storage
        return True

    def _claim(self, unit: Unit) -> None:
        if not unit.claimed:
            unit.claimed = True
            for source in unit.sources or ():
                source.claims += 1

    def _unclaim(self, unit: Unit) -> None:
        if unit.claimed:
            unit.claimed = False
            for source in unit.sources or ():
                self._drop_claim(source)

    def _stop_reading(self, unit: Unit) -> None:
        reads, unit.reads = unit.reads, ()
        for source in reads:
            source.readers -= 1

    def _drop_claim(self, source: Unit) -> None:
        source.claims -= 1
        if not source.alive:
            self.forget(source)
