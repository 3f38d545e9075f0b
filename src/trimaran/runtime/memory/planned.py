"""Does what a plan says at a tick, and finds the units that its steps name.

A recipe repeats the operations that were recorded. Were others to run in a later step, on tensors of the same look, the
recipe would make something else. So the names of the autograd nodes behind a recomputed tensor are compared with those
of the first flight, whose recipes are compared bit for bit if it is a verified one. Where the plain numbers that the
nodes keep are others than in the first flight, the recipe is compared in this flight too. Numbers that no node keeps,
such as one that is added, show nowhere: who changes such a number verifies again.
"""

from collections.abc import Callable

import torch

from trimaran.program.types import Kind
from trimaran.runtime.memory.ancestry import ancestry, numbers
from trimaran.runtime.memory.externals import NO_VERSIONS, Externals, leaves_behind
from trimaran.runtime.memory.flights import Flight
from trimaran.runtime.memory.residence import Residence
from trimaran.runtime.memory.schedule import Schedule, Steps, UnitPlan
from trimaran.runtime.memory.units import Unit
from trimaran.runtime.memory.witness import Witness


class Planned:
    """The steps of a plan.

    Args:
        residence: moves units
        observe: called at each tick with its moment, after its steps
        externals: parameters and buffers that recipes read; None: there are no recipes
    """

    def __init__(
        self, residence: Residence, observe: Callable[[int], None] | None, externals: Externals | None = None
    ) -> None:
        self._residence = residence
        self._externals = externals
        self._observe = observe
        self._ancestries: dict[int, tuple[str, ...]] = {}
        self._numbers: dict[int, tuple[tuple[object, ...], ...]] = {}

    def bind(self, tensor: torch.Tensor, flight: Flight, plan: UnitPlan, node: str) -> Unit | None:
        """The unit of a planned storage, made at its first pack; None: it is another storage than planned."""
        storage = tensor.untyped_storage()
        unit = flight.units.get(plan.number)
        if unit is not None and unit.alive:
            # Only what was not written between its packs is planned; nor may it be now, as what was let go is older.
            return unit if unit.weak() is storage and not unit.witness.changed else None
        made_by = tensor.grad_fn.name() if tensor.grad_fn is not None else ""
        here = storage.device == self._residence.engine.device
        if not here or storage.nbytes() != plan.nbytes or made_by != node:
            return None
        other_numbers, versions = False, NO_VERSIONS
        if plan.recipe is not None:
            nodes = ancestry(tensor, len(plan.recipe.ops))
            names = tuple(node.name() for node in nodes)
            if self._ancestries.setdefault(plan.number, names) != names:
                return None
            leaves = leaves_behind(nodes)
            if self._externals is not None:
                if not self._externals.same_leaves(plan.number, leaves):
                    return None
                versions = self._externals.versions(plan.number, leaves)
            kept = tuple(map(numbers, nodes))
            other_numbers = self._numbers.setdefault(plan.number, kept) != kept
        unit = Unit(
            storage,
            Witness(tensor, node),
            number=plan.number,
            start=plan.start,
            stop=plan.stop,
            left=plan.unpacks,
            outside=plan.outside,
            name=plan.name,
            recipe=plan.recipe,
        )
        unit.planned_reads = plan.reads
        unit.views = plan.views
        unit.versions = versions
        unit.checking = plan.recipe is not None and (flight.verify or other_numbers)
        if other_numbers:
            self._residence.tally.renumbered.add(plan.number)
        flight.units[plan.number] = unit
        return unit

    def release_late(self, flight: Flight) -> None:
        """Let go of what had to stay until all that its recipe reads was packed."""
        flight.deferred = [
            unit
            for unit in flight.deferred
            if unit.alive and not self._residence.release(unit, flight.sources_of(unit.planned_reads))
        ]

    def run(self, flight: Flight, steps: Steps, moment: int) -> None:
        """Do the steps of a tick, in order.

        Args:
            flight: whose
            steps: which
            moment: of the tick
        """
        residence = self._residence
        residence.tally.moment = moment
        made = []
        for kind, number in steps:
            unit = flight.units.get(number)
            if unit is None or not unit.alive:
                continue
            if kind is None:
                residence.arrive(unit)
            elif kind is Kind.OFFLOAD:
                residence.save(unit)
            elif kind is Kind.RELEASE:
                if not residence.release(unit, flight.sources_of(unit.planned_reads)):
                    flight.deferred.append(unit)
                    residence.tally.kept += 1
            elif kind is Kind.PREFETCH:
                residence.fetch(unit)
            else:
                residence.remake(unit)
                made.append(unit)
        if self._observe is not None:
            self._observe(moment)
        for unit in made:
            residence.read(unit)

    def jump(self, flight: Flight, schedule: Schedule, index: int) -> None:
        """Unpacks come in another order: go on behind this one, and let go of what the skipped ticks let go of."""
        place = next((place for place in schedule.places[index] if place >= flight.position), None)
        if place is None:
            return
        for position in range(flight.position, place):
            steps = tuple(step for step in schedule.steps[position] if step[0] in (Kind.OFFLOAD, Kind.RELEASE))
            self.run(flight, steps, schedule.moments[position])
        flight.position = place + 1
        self.run(flight, schedule.steps[place], schedule.moments[place])
