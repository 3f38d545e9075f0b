"""What autograd holds in the place of a tensor.

The state of a step is in the handles and in the flight that they belong to, one for each forward. So several graphs may
be alive at once, be walked twice, in another order, or be dropped: a handle gives back what it stands for as often as
it is asked, and lets go of it when autograd lets go of the handle.
"""

import weakref
from typing import TYPE_CHECKING, NamedTuple

import torch

from trimaran.graph.trace.geometry import look
from trimaran.graph.trace.types import View
from trimaran.runtime.memory.units import Unit
from trimaran.runtime.memory.witness import Witness, check_kept

if TYPE_CHECKING:
    from trimaran.runtime.memory.flights import Flight
    from trimaran.runtime.memory.residence import Residence


class Kept(NamedTuple):
    """A handle that keeps its tensor, as autograd does.

    Attributes:
        tensor: detached, so that no circle of references arises with the node that made it
        version: when it was packed
        flight: in which it was packed; None: outside of any, as when a checkpoint recomputes
        pack: number of the pack
        origin: the tensor itself, weakly
        output: which output of its node it is
    """

    tensor: torch.Tensor
    version: int
    flight: "Flight | None"
    pack: int
    origin: "weakref.ref[torch.Tensor]"
    output: int

    def give(self, node: str) -> torch.Tensor:
        """The tensor.

        Args:
            node: name of the node that had made it

        Raises:
            RuntimeError: it was changed in place
        """
        check_kept(self.tensor, self.version, self.origin, node, self.output)
        return self.tensor


class Handle:
    """A handle on a unit.

    Args:
        unit: the storage
        view: how the tensor looks at it
        witness: whether the tensor was changed
        flight: in which it was packed
        pack: number of the pack
        residence: to bring the storage back and to give it up
    """

    __slots__ = ("__weakref__", "_residence", "flight", "pack", "unit", "view", "witness")

    def __init__(
        self, unit: Unit, view: View, witness: Witness, flight: "Flight", pack: int, residence: "Residence"
    ) -> None:
        self.unit = unit
        self.view = view
        self.witness = witness
        self.flight = flight
        self.pack = pack
        self._residence = residence
        unit.handles += 1
        flight.handles += 1

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
        self.flight.handles -= 1
        if not unit.handles and not unit.claims:
            self._residence.forget(unit)
