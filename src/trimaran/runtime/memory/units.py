"""What is known at run time of one storage that autograd has packed.

A unit stands for one live storage, never for an address. It has two lives on the device: the first one
from its operation to `DEL`; the second one from `PRE` or `RE` to its last use. In between its bytes are in a slot on
the host, or nowhere, because a recipe makes them again.

    handles   autograd holds so many handles of it; when none is left, everything is given back
    claims    so many recomputed units may need it to make themselves again, so that it must not be given back
    readers   so many planned recomputations have yet to read it, so that it stays on the device
    left      planned unpacks to come
"""

import weakref
from collections.abc import Mapping

import torch

from trimaran.graph.trace.types import View
from trimaran.program.memory import Recipe
from trimaran.runtime.memory.arena import Slot
from trimaran.runtime.memory.engine import Copy
from trimaran.runtime.memory.externals import NO_VERSIONS
from trimaran.runtime.memory.witness import Witness


class Unit:
    """One storage that was packed.

    Args:
        storage: on the device
        number: of the storage in the trace; -1: it is not in a trace
        start: first byte that is copied [bytes]
        stop: the one after the last byte that is copied [bytes]
        left: planned unpacks
        outside: whether someone else is expected to hold it when it comes back
        name: for a person
        recipe: how to make it again; None: its bytes are copied

    Attributes:
        nbytes: size of the storage [bytes]
        storage: device memory that is held here; None: let go
        weak: the storage that has the bytes, held here or not
        slot: on the host
        saving: copy to the host that is under way or has ended
        loading: copy to the device that nothing has waited for yet
        sources: what its recipe reads and someone has packed; None: not all of it is there
        reads: those of them that it has yet to read as planned
        claimed: whether it holds claims on its sources
        second: whether the first life is over
        returned: whether the storage is one that was brought back
        busy: whether it is being made again now
        given: what was given to nodes from the present storage, to notice changes
        checking: whether its recipe is compared with its bytes
        planned_reads: numbers of what its recipe reads and autograd packs
        views: how the tensors look at it that were packed
        versions: of the parameters that its recipe reads, when it was packed
        held: parameters and buffers that its recipe reads, held until it is forgotten
        fingerprint: sum over its bytes when it was let go; None: they are on the host, or it was not let go
        witness: of the tensor that was packed first
        key: tells it from other units while its first storage lives
    """

    __slots__ = (
        "__weakref__",
        "busy",
        "checking",
        "claimed",
        "claims",
        "fingerprint",
        "given",
        "handles",
        "held",
        "key",
        "left",
        "loading",
        "name",
        "nbytes",
        "number",
        "outside",
        "planned_reads",
        "readers",
        "reads",
        "recipe",
        "returned",
        "saving",
        "second",
        "slot",
        "sources",
        "start",
        "stop",
        "storage",
        "versions",
        "views",
        "weak",
        "witness",
    )

    def __init__(
        self,
        storage: torch.UntypedStorage,
        witness: Witness,
        *,
        number: int = -1,
        start: int = 0,
        stop: int | None = None,
        left: int = 0,
        outside: bool = False,
        name: str = "",
        recipe: Recipe | None = None,
    ) -> None:
        self.number = number
        self.nbytes = storage.nbytes()
        self.start = start
        self.stop = self.nbytes if stop is None else stop
        self.left = left
        self.outside = outside
        self.name = name or f"storage {number}"
        self.recipe = recipe
        self.storage: torch.UntypedStorage | None = storage
        self.weak: weakref.ref[torch.UntypedStorage] = weakref.ref(storage)
        self.witness = witness
        self.key = storage._cdata
        self.slot: Slot | None = None
        self.saving: Copy | None = None
        self.loading: Copy | None = None
        self.handles = self.claims = self.readers = 0
        self.sources: tuple[Unit, ...] | None = None
        self.reads: tuple[Unit, ...] = ()
        self.second = self.returned = self.claimed = self.busy = self.checking = False
        self.given: list[Witness] = []
        self.views: tuple[View, ...] = ()
        self.planned_reads: tuple[int, ...] = ()
        self.versions = NO_VERSIONS
        self.held: Mapping[int, torch.UntypedStorage] = {}
        self.fingerprint: torch.Tensor | int | None = None

    @property
    def alive(self) -> bool:
        """Whether someone may ask for it."""
        return self.handles > 0 or self.claims > 0

    @property
    def returns(self) -> bool:
        """Whether its bytes can be had again after the device's memory was let go.

        A unit that is alive is on the device or returns: by its slot, or because what its recipe reads is claimed and
        so alive as well. Hence one look at the sources is enough, however long the chain behind them.
        """
        if self.slot is not None:
            return True
        return self.recipe is not None and self.sources is not None and all(source.alive for source in self.sources)
