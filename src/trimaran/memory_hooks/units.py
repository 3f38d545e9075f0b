"""A storage that autograd has packed, the handles that autograd holds instead, and the forward pass they belong to.

A unit stands for one live storage, never for an address. It has two lives on the device: the first one from its
operation to `DEL`; the second one from `PRE` or `RE` to its last use. Between them its bytes are in a slot on the host,
or nowhere, because a recipe recomputes them. A unit counts

    handles   of it that autograd holds; when none is left, everything is freed
    claims    recomputed units that may need it for their recipes, so that it must not be freed
    readers   planned recomputations that have yet to read it, so that it stays on the device
    left      planned unpacks to come

The state of a step is in the handles and in their forward pass. So several graphs may be alive at once, be walked
twice, in another order, or be dropped: a handle gives its tensor as often as it is asked, and releases the unit when
autograd releases the handle.
"""

import weakref
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import torch

from trimaran.graph.trace.in_place_changes import Witness, check_kept
from trimaran.memory_hooks.arena import Slot
from trimaran.memory_hooks.copies import Copy
from trimaran.memory_hooks.schedule import NO_VERSIONS, Schedule, UnitPlan


class Unit:
    """One storage that was packed.

    Args:
        storage: on the device
        witness: of the tensor that is packed first
        plan: what is known of it

    Attributes:
        plan: what is known of it beforehand
        start: first byte that is copied [bytes]
        stop: the one after the last byte that is copied [bytes]
        left: planned unpacks to come
        recipe: how to recompute it; None: its bytes are copied
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
        busy: whether its recipe runs now
        given: what was given to nodes from the present storage, to notice changes
        checking: whether its recipe is compared with its bytes
        views: how the tensors look at it that were packed
        versions: of the parameters that its recipe reads, when it was packed
        held: parameters and buffers that its recipe reads, held until it is forgotten
        fingerprint: sum over its bytes when it was released; None: they are on the host, or it was not let go
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
        "plan",
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

    def __init__(self, storage: torch.UntypedStorage, witness: Witness, plan: UnitPlan) -> None:
        self.plan = plan
        self.start, self.stop, self.left = plan.start, plan.stop, plan.unpacks
        self.recipe, self.views = plan.recipe, plan.views
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
        self.versions = NO_VERSIONS
        self.held: Mapping[int, torch.UntypedStorage] = {}
        self.fingerprint: torch.Tensor | int | None = None

    @property
    def alive(self) -> bool:
        """Whether someone may ask for it."""
        return self.handles > 0 or self.claims > 0

    @property
    def returns(self) -> bool:
        """Whether its bytes can be had again after the device's memory was released.

        A unit that is alive is on the device or returns: by its slot, or because what its recipe reads is claimed and
        so alive as well. Hence one look at the sources is enough, however long the chain behind them.
        """
        if self.slot is not None:
            return True
        return self.recipe is not None and self.sources is not None and all(source.alive for source in self.sources)


class KeptTensor(NamedTuple):
    """A handle that keeps its tensor, as autograd does.

    Attributes:
        tensor: detached, so that no circle of references arises with the node that made it
        version: when it was packed
        forward: in which it was packed; None: outside of any, as when a checkpoint recomputes
        pack: number of the pack
    """

    tensor: torch.Tensor
    version: int
    forward: "ForwardPass | None"
    pack: int

    def give(self, node: str) -> torch.Tensor:
        """The tensor.

        Args:
            node: name of the node that had made it

        Raises:
            RuntimeError: it was changed in place
        """
        check_kept(self.tensor, self.version, node)
        return self.tensor


# ---------------------------------------------------------------------------------------------------------------------
# The state of one forward and its backward


_SOME_WAY = 4


class ForwardPass:
    """One forward pass and its backward pass, and how far they are in a schedule.

    Args:
        schedule: the plan's ticks; None: there is no plan for it
        verify: whether recipes are compared with the real bytes

    Attributes:
        packs: packs so far
        position: next planned unpack
        handles: on units, that autograd holds
        backward_begun: whether something was unpacked
        reactive: whether it goes without its plan
        restarts: forward passes before it that were left half-way, one after the other
        units: by number in the trace
        found: units that are in no plan, by the storage's identity
        deferred: units that are to be released once all that their recipes read was packed
        waiting: units that are in no plan and that go to the host once nobody else holds them
        pending: those of them whose copy is under way, and that are to be released after it
    """

    __slots__ = (
        "__weakref__",
        "backward_begun",
        "deferred",
        "found",
        "handles",
        "packs",
        "pending",
        "position",
        "reactive",
        "restarts",
        "schedule",
        "units",
        "verify",
        "waiting",
    )

    def __init__(self, schedule: Schedule | None, *, verify: bool = False) -> None:
        self.schedule = schedule
        self.verify = verify
        self.packs = 0
        self.position = 0
        self.handles = 0
        self.backward_begun = False
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

        A forward pass that began so must have come some way; else it is this forward that is not the planned one.
        """
        return self.packs > 0 and (not self.restarts or self.packs >= _SOME_WAY)

    def given_up(self, tensor: torch.Tensor) -> bool:
        """Whether autograd has dropped the graph so far, and a tensor looks like the first of a new one."""
        if self.handles or self.backward_begun or not (self.units or self.found) or self.schedule is None:
            return False
        return self.schedule.packs[0].matches(tensor)

    def find(self, storage: torch.UntypedStorage) -> Unit | None:
        """The unit of a storage that is in no plan, and that has not been released.

        One for all versions of it: where autograd allows a change, what it gives is as memory is then.
        """
        unit = self.found.get(storage._cdata)
        return unit if unit is not None and unit.alive and unit.storage is storage and not unit.second else None
