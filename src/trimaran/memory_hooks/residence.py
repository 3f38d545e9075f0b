"""Lets units go from the device and brings them back.

    save      OFF   start to copy to the host
    release   DEL   wait for that copy, then let go
    fetch     PRE   take device memory, start to copy back
    remake    RE    run the recipe
    arrive          wait for the copy back
    require         whatever it takes, now: what is asked for before or without its step comes back all the same
    settle          let go again once the planned uses are used up
    forget          autograd holds no handle any more: give everything back

A unit that is released must be able to return. One that a recipe makes holds a claim on what the recipe reads, so that
this is not given back before.
"""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from trimaran.base.errors import ExecutionError
from trimaran.graph.trace.in_place_changes import Witness
from trimaran.graph.trace.storages import look
from trimaran.graph.trace.types import View
from trimaran.memory_hooks.arena import ArenaUse, HostArena
from trimaran.memory_hooks.copies import CopyEngine
from trimaran.memory_hooks.recompute_check import Fingerprints, describe, differs
from trimaran.memory_hooks.schedule import Externals
from trimaran.memory_hooks.units import ForwardPass, Unit
from trimaran.program.memory import RecomputeRecipe

# ---------------------------------------------------------------------------------------------------------------------
# Counts of a step


@dataclass(slots=True, kw_only=True)
class MemoryStatistics:
    """Counts of one step.

    Attributes:
        forward_passes: that were begun
        to_host_bytes: copied to the host [bytes]
        to_device_bytes: copied to the device [bytes]
        recomputations: recipes that were run
        stalls_s: time for which the host waited for copies, by moment of the trace, -1 off the plan [s]
        mismatches: forward passes that did not pack what the plan was made for, and went on without it
        strangers: of these, those whose tensors look as planned, but are others or were made otherwise
        on_demand: storages that were brought back when they were needed, not before
        ineffective: storages that were released and stayed on the device, as someone else holds them, by name
        kept: storages that could not be released, because something that a recipe needs is missing
        failed_recipes: storages whose recipe did not give the same bits
        renumbered: storages whose nodes kept other numbers than in the first forward pass: their recipes were compared
        predicted_peak_bytes: of the plan [bytes]; None: not known
        accounted_peak_bytes: as it was [bytes]; None: not measured
        arena: how full the host memory is
    """

    forward_passes: int = 0
    to_host_bytes: int = 0
    to_device_bytes: int = 0
    recomputations: int = 0
    stalls_s: dict[int, float] = field(default_factory=dict)
    mismatches: int = 0
    strangers: int = 0
    on_demand: int = 0
    ineffective: tuple[str, ...] = ()
    kept: int = 0
    failed_recipes: tuple[int, ...] = ()
    renumbered: tuple[int, ...] = ()
    predicted_peak_bytes: int | None = None
    accounted_peak_bytes: int | None = None
    arena: ArenaUse | None = None

    def stall(self, moment: int, seconds: float) -> None:
        """Note that the host waited.

        Args:
            moment: of the tick that runs; -1: none of the plan's
            seconds: how long [s]
        """
        if seconds > 0.0:
            self.stalls_s[moment] = self.stalls_s.get(moment, 0.0) + seconds

    def failed(self, *numbers: int) -> None:
        """Note storages whose recipe did not give the same bits."""
        self.failed_recipes = tuple(sorted({*self.failed_recipes, *numbers}))


Repeat = Callable[[RecomputeRecipe, Mapping[int, torch.UntypedStorage]], Mapping[int, torch.UntypedStorage]]
"""Runs a recipe on its sources, and gives what it makes."""


class Residence:
    """Moves units.

    Args:
        engine: copies
        arena: memory on the host
        repeat: runs recipes
        externals: parameters and buffers that recipes read; None: there are no recipes

    Attributes:
        done: counts of the step so far
        moment: of the tick that runs now; -1: none of the plan's
    """

    def __init__(
        self, engine: CopyEngine, arena: HostArena, repeat: Repeat, externals: Externals | None = None
    ) -> None:
        self.engine = engine
        self.arena = arena
        self.done = MemoryStatistics()
        self.moment = -1
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
            unit.slot.codec = unit.plan.codec
        unit.saving = self.engine.save(unit.storage, unit.slot, unit.start)
        self.done.to_host_bytes += unit.slot.nbytes

    def unsave(self, unit: Unit) -> None:
        """Drop the copy of a unit that has not been released; the next one is of all its bytes."""
        slot, saving = unit.slot, unit.saving
        unit.slot = unit.saving = None
        unit.start, unit.stop, unit.views = 0, unit.plan.nbytes, ()
        if slot is not None and saving is not None:
            saving.then(slot.free)

    def release(self, unit: Unit, sources: tuple[Unit, ...] | None = ()) -> bool:
        """Let go of the device's memory after the first life.

        Args:
            unit: which
            sources: what its recipe reads; None: not all of it was packed so far

        Returns:
            Whether it is released; what could not return is not.
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
            self.done.stall(self.moment, unit.saving.wait())
        unit.second = True
        unit.storage = None
        return True

    def fetch(self, unit: Unit) -> None:
        """Start to bring a unit back from the host."""
        if unit.storage is not None or unit.slot is None or self._adopt(unit):
            return
        storage = self.engine.allocate(unit.plan.nbytes)
        unit.loading = self.engine.load(unit.slot, storage, unit.start)
        self.done.to_device_bytes += unit.slot.nbytes
        self._have(unit, storage)

    def remake(self, unit: Unit) -> None:
        """Recompute a unit by its recipe."""
        recipe, sources = unit.recipe, unit.sources
        if unit.storage is not None or recipe is None or sources is None or self._adopt(unit):
            return
        if unit.versions.changed and unit.slot is None:
            raise self._other_bytes(unit)
        if unit.busy:
            raise ExecutionError(f"The recipe of storage {unit.plan.number} needs itself.", storage=unit.plan.number)
        unit.busy = True
        for source in sources:
            source.claims += 1
        try:
            storages = {**unit.held, **{source.plan.number: self.require(source) for source in sources}}
            made = self._repeat(recipe, storages)[recipe.storage]
            del storages
        finally:
            unit.busy = False
            for source in sources:
                self._drop_claim(source)
        self.done.recomputations += 1
        if unit.checking and unit.slot is not None and differs(made, unit.slot, unit.start, unit.views):
            self.done.failed(unit.plan.number)
            unit.recipe = None
            del made
            self.fetch(unit)
            return
        if unit.fingerprint is not None:
            self._compared[unit.plan.number] = unit.plan.name
            if self._fingerprints.differs(unit.plan.number, made, unit.views, unit.fingerprint):
                raise self._other_bytes(unit)
        self._have(unit, made)

    def confirm(self) -> None:
        """Look at what is only known of a GPU when one asks: whether recipes made the bytes that were there.

        Raises:
            ExecutionError: one did not
        """
        found = self._fingerprints.collected()
        if found:
            self.done.failed(*found)
            raise ExecutionError(describe([self._compared[number] for number in found]), storages=found)

    def arrive(self, unit: Unit) -> None:
        """Wait until a unit that is on its way back is there."""
        if unit.loading is not None:
            self.done.stall(self.moment, unit.loading.wait())
            unit.loading = None

    def require(self, unit: Unit) -> torch.UntypedStorage:
        """The storage of a unit, with its bytes for the operations issued from now on."""
        if unit.storage is None and not self._adopt(unit):
            self.done.on_demand += 1
            self.bring(unit)
        self.arrive(unit)
        storage = unit.storage
        if storage is None:
            raise ExecutionError(
                f"Storage {unit.plan.number} is gone and cannot be recomputed.", storage=unit.plan.number
            )
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
        """Hold what its recipe reads besides units, and the sum by which the recomputed bytes are checked."""
        if unit.recipe is not None and self._externals is not None:
            unit.held = self._externals.hold(unit.recipe)
        if unit.slot is None:
            unit.fingerprint = self._fingerprints.take(storage, unit.views)

    def _other_bytes(self, unit: Unit) -> ExecutionError:
        self.done.failed(unit.plan.number)
        return ExecutionError(describe([unit.plan.name]), code="recompute.other-bytes", storage=unit.plan.number)

    def _have(self, unit: Unit, storage: torch.UntypedStorage) -> None:
        unit.storage = storage
        unit.weak = weakref.ref(storage)
        unit.given = []
        unit.returned = True

    def _adopt(self, unit: Unit) -> bool:
        """Hold what someone else still holds, if nothing has changed it."""
        storage = unit.weak()
        if storage is None or storage.nbytes() != unit.plan.nbytes or unit.witness.changed:
            return False
        if not unit.returned and not unit.plan.outside:
            self.done.ineffective = tuple(sorted({*self.done.ineffective, unit.plan.name}))
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


class Handle:
    """A handle on a unit.

    Args:
        unit: the storage
        view: how the tensor looks at it
        witness: whether the tensor was changed
        forward: in which it was packed
        pack: number of the pack
        residence: to bring the storage back and to give it up
    """

    __slots__ = ("__weakref__", "_residence", "forward", "pack", "unit", "view", "witness")

    def __init__(
        self, unit: Unit, view: View, witness: Witness, forward: ForwardPass, pack: int, residence: Residence
    ) -> None:
        self.unit = unit
        self.view = view
        self.witness = witness
        self.forward = forward
        self.pack = pack
        self._residence = residence
        unit.handles += 1
        forward.handles += 1

    def give(self) -> torch.Tensor:
        """The tensor, brought back if need be.

        Raises:
            RuntimeError: it was changed in place
        """
        self.witness.check()
        unit = self.unit
        tensor = look(self._residence.require(unit), self.view)
        unit.left -= 1
        unit.given.append(Witness(tensor))
        if unit.second:
            self._residence.settle(unit)
        return tensor

    def __del__(self) -> None:
        unit = self.unit
        unit.handles -= 1
        self.forward.handles -= 1
        if not unit.handles and not unit.claims:
            self._residence.forget(unit)
