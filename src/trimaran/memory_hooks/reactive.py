"""Offload without a plan: each large storage goes to the host once nobody else holds it, and returns when needed.

It is slow and right. A step goes on like this when it does not pack what its plan was made for.

Nothing is known here of what comes: a storage may still be written after autograd has packed a part of it. The cell of
an LSTM packs its first gate before it computes the second one, in place and in the same storage, and the version of the
first gate does not tell, as each gate has its version. So bytes are copied when they are final: when only the
unit holds the storage, nobody is left who could write it. What others hold until the backward takes no memory of its
own, and stays as it is.
"""

import sys
from functools import cache

import torch
from torch.utils._python_dispatch import _disable_current_modes

from trimaran.graph.trace.in_place_changes import Witness
from trimaran.graph.trace.storages import view_of
from trimaran.memory_hooks.residence import Handle, Residence
from trimaran.memory_hooks.schedule import UnitPlan
from trimaran.memory_hooks.units import ForwardPass, Unit

IN_FLIGHT = 2
"""Copies to the host under way before the next one waits, so that memory does not run ahead of the link."""

LOOKS = 32
"""Units that are looked at when one is packed, whether others hold them still: a look costs less than a microsecond."""

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

    def pack(self, forward: ForwardPass, tensor: torch.Tensor, index: int) -> Handle:
        """Offload the storage of a tensor, once, as soon as nobody else holds it."""
        storage = tensor.untyped_storage()
        node = tensor.grad_fn.name() if tensor.grad_fn is not None else ""
        witness = Witness(tensor, node)
        unit = forward.find(storage)
        if unit is None:
            # What no operation of the graph made, as a batch, is the loop's own: it may hold it as long as it likes.
            name, nbytes = f"{node or 'input'} {list(tensor.shape)}", storage.nbytes()
            unit = Unit(storage, witness, UnitPlan(nbytes=nbytes, stop=nbytes, name=name, outside=not node))
            if len(forward.found) >= _MOST_FOUND:
                forward.found = {key: unit for key, unit in forward.found.items() if unit.alive}
            forward.found[unit.key] = unit
            forward.waiting.append(unit)
        handle = Handle(unit, view_of(tensor), witness, forward, index, self._residence)
        unit.left += 1
        self.sweep(forward, keep=IN_FLIGHT, looks=LOOKS)
        return handle

    def give_up(self, forward: ForwardPass) -> None:
        """Leave the plan: what has not left the device is as any other storage from now on.

        A copy that the plan has begun is no more of use: the plan knew which bytes are looked at, and when they were
        written last.
        """
        forward.reactive = True
        for unit in forward.units.values():
            if not unit.alive or unit.second:
                continue
            if unit.recipe is None:
                self._residence.unsave(unit)
                forward.waiting.append(unit)
            unit.left = unit.handles
            forward.found[unit.key] = unit

    def sweep(
        self, forward: ForwardPass, *, keep: int = 0, looks: int | None = None, needed: Unit | None = None
    ) -> None:
        """Copy what nobody else holds any more, and let go of what has been copied.

        Args:
            forward: whose units
            keep: copies that may be under way afterwards
            looks: most units that are looked at; the others come next time
            needed: that is about to be used, and stays
        """
        self._begin_copies(forward, looks, needed)
        under_way: list[Unit] = []
        for unit in forward.pending:
            if unit.alive and unit.saving is not None and not unit.second and unit is not needed:
                if unit.saving.done():
                    self._residence.release(unit)
                else:
                    under_way.append(unit)
        for unit in under_way[: max(len(under_way) - keep, 0)]:
            self._residence.release(unit)
        forward.pending = under_way[max(len(under_way) - keep, 0) :]

    def _begin_copies(self, forward: ForwardPass, looks: int | None, needed: Unit | None) -> None:
        waiting = forward.waiting
        for _ in range(len(waiting) if looks is None else min(looks, len(waiting))):
            unit = waiting.popleft()
            if not unit.alive:
                continue
            if unit is needed or not _is_alone(unit):
                waiting.append(unit)
                continue
            self._residence.save(unit)
            forward.pending.append(unit)


def _is_alone(unit: Unit) -> bool:
    """Whether nobody but the unit holds its storage, neither tensors nor variables of Python."""
    storage = unit.storage
    if storage is None or storage.nbytes() != unit.plan.nbytes:
        return False  # resized: what its bytes are is for somebody else to say
    return _holders(storage) == _holders_of_one()


def _holders(storage: torch.UntypedStorage) -> tuple[int, int]:
    return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)


@cache
def _holders_of_one() -> tuple[int, int]:
    """The counts of this torch and this Python for a storage that only a unit holds."""
    with _disable_current_modes():  # it is none of what a mode follows
        tensor = torch.empty(1, device="cpu")
        unit = Unit(
            tensor.untyped_storage(), Witness(tensor), UnitPlan(nbytes=tensor.nbytes, stop=tensor.nbytes, name="")
        )
        del tensor
    storage = unit.storage
    return (0, 0) if storage is None else _holders(storage)
