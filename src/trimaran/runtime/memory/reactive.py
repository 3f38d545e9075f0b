"""What is done without a plan: each large storage goes to the host as soon as it is packed, and returns when needed.

It is slow and right. A step goes on like this when it does not pack what its plan was made for.
"""

import torch

from trimaran.graph.trace.geometry import view_of
from trimaran.runtime.memory.flights import Flight
from trimaran.runtime.memory.handles import Handle
from trimaran.runtime.memory.residence import Residence
from trimaran.runtime.memory.units import Unit
from trimaran.runtime.memory.witness import Witness

IN_FLIGHT = 2
"""Copies to the host under way before the next one waits, so that memory does not run ahead of the link."""

_MOST_FOUND = 4096


class Reactive:
    """The policy.

    Args:
        residence: moves units
        smallest_bytes: storages below it stay [bytes]
    """

    def __init__(self, residence: Residence, smallest_bytes: int) -> None:
        self._residence = residence
        self._smallest = smallest_bytes

    def wants(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage is large enough, and on the device that copies are from."""
        return storage.nbytes() >= self._smallest and storage.device == self._residence.engine.device

    def pack(self, flight: Flight, tensor: torch.Tensor, index: int) -> Handle:
        """Offload the storage of a tensor, once."""
        storage = tensor.untyped_storage()
        node = tensor.grad_fn.name() if tensor.grad_fn is not None else ""
        witness = Witness(tensor, node)
        unit = flight.find(storage, witness.version)
        if unit is None:
            # What no operation of the graph made, as a batch, is the loop's own: it may hold it as long as it likes.
            unit = Unit(storage, witness, name=f"{node or 'input'} {list(tensor.shape)}", outside=not node)
            if len(flight.found) >= _MOST_FOUND:
                flight.found = {key: unit for key, unit in flight.found.items() if unit.alive}
            flight.found[unit.key] = unit
            self._residence.save(unit)
            flight.pending.append(unit)
        handle = Handle(unit, view_of(tensor), witness, flight, index, self._residence)
        unit.left += 1
        self.sweep(flight, keep=IN_FLIGHT)
        return handle

    def give_up(self, flight: Flight) -> None:
        """Leave the plan: what it was about to offload goes now, what is not packed yet is as any other storage."""
        flight.reactive = True
        for unit in flight.units.values():
            if not unit.alive or unit.second:
                continue
            if unit.recipe is None:
                self._residence.save(unit)
                flight.pending.append(unit)
            unit.left = unit.handles
            flight.found[unit.key] = unit

    def sweep(self, flight: Flight, *, keep: int = 0) -> None:
        """Let go of what has been copied; wait until no more than so many copies are under way."""
        waiting: list[Unit] = []
        for unit in flight.pending:
            if unit.alive and unit.saving is not None and not unit.second:
                if unit.saving.done():
                    self._residence.release(unit)
                else:
                    waiting.append(unit)
        for unit in waiting[: max(len(waiting) - keep, 0)]:
            self._residence.release(unit)
        flight.pending = waiting[max(len(waiting) - keep, 0) :]
