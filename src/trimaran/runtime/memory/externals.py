"""What recipes read that is no activation: parameters, buffers, and whatever else was there before the step.

These have no unit. A plan was made for certain storages; a step may use others of the same look: another head, a second
model of the same class, weights that were replaced. So it is seen to that they are the ones that were recorded

    at the first pack   each is still there
    at each pack        a parameter that autograd packs is the recorded one
    at the first pack of what is made again
                        the parameters behind it, by autograd's nodes, are those of the first flight; their versions
    at its release      they are held until it was made, so that they can be replaced meanwhile
    when made again     none was changed in place since

What no node knows, such as a frozen bias that was changed, shows in the bytes that are made.
"""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from trimaran.graph.trace.calls import Recording
from trimaran.graph.trace.geometry import has_storage
from trimaran.graph.trace.types import Role, TraceStorage
from trimaran.program.memory import MemoryPlan, Recipe

Reference = weakref.ref[torch.UntypedStorage]

_LEAF = "AccumulateGrad"


class Externals:
    """The storages outside of autograd that the recipes of a plan read.

    Args:
        recording: of the step
        plan: with its recipes
    """

    def __init__(self, recording: Recording, plan: MemoryPlan) -> None:
        storages, known = recording.trace.storages, recording.externals
        self._of = {
            number: {source: known.get(source) for source in recipe.sources if not is_unit(storages[source])}
            for number, recipe in plan.recipes.items()
        }
        self._first_leaves: dict[int, tuple[Reference, ...]] = {}
        self._read: dict[int, tuple[int, ...]] = {}

    @property
    def lost(self) -> bool:
        """Whether something that a recipe reads is no more there."""
        return any(one is None or one() is None for sources in self._of.values() for one in sources.values())

    def hold(self, recipe: Recipe) -> Mapping[int, torch.UntypedStorage]:
        """What a recipe reads here, by number; what is gone is left out."""
        found = {number: one() for number, one in self._of.get(recipe.storage, {}).items() if one is not None}
        return {number: storage for number, storage in found.items() if storage is not None}

    def same_leaves(self, number: int, leaves: Sequence[torch.Tensor]) -> bool:
        """Whether the parameters behind a storage are those of the first flight.

        Args:
            number: of the storage
            leaves: parameters behind it
        """
        now = [leaf.untyped_storage() for leaf in leaves]
        first = self._first_leaves.get(number)
        if first is None:
            self._first_leaves[number] = tuple(map(weakref.ref, now))
            read = [one() for one in self._of.get(number, {}).values() if one is not None]
            self._read[number] = tuple(
                place for place, storage in enumerate(now) if any(storage is one for one in read)
            )
            return True
        return len(first) == len(now) and all(known() is storage for known, storage in zip(first, now, strict=True))

    def versions(self, number: int, leaves: Sequence[torch.Tensor]) -> "Versions":
        """Versions of those parameters behind a storage that its recipe reads, once they are known to be the same."""
        return Versions([leaves[place] for place in self._read[number]])


class Versions:
    """Versions of parameters at a time.

    Args:
        leaves: parameters
    """

    __slots__ = ("_known",)

    def __init__(self, leaves: Iterable[torch.Tensor]) -> None:
        self._known = [(weakref.ref(leaf), leaf._version) for leaf in leaves]

    @property
    def changed(self) -> bool:
        """Whether one of them was changed in place since."""
        return any(leaf is not None and leaf._version != version for leaf, version in self._now())

    def _now(self) -> Iterable[tuple[torch.Tensor | None, int]]:
        return ((reference(), version) for reference, version in self._known)


NO_VERSIONS = Versions([])


def leaves_behind(nodes: Iterable[Any]) -> list[torch.Tensor]:
    """Parameters that the operations of some autograd nodes read. Other leaves, as inputs are, change each step.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> [leaf is weight for leaf in leaves_behind([(weight * 3).grad_fn])]
        [True]
    """
    found: dict[int, torch.Tensor] = {}
    for node in nodes:
        for following, _ in node.next_functions:
            if type(following).__name__ != _LEAF:
                continue
            leaf = following.variable
            if isinstance(leaf, torch.nn.Parameter) and has_storage(leaf):
                found.setdefault(id(leaf), leaf)
    return list(found.values())


def is_unit(storage: TraceStorage) -> bool:
    """Whether a source of a recipe is a storage that autograd packs and that the plan follows by its packs."""
    return bool(storage.packs) and storage.role not in (Role.PARAMETER, Role.BUFFER)
