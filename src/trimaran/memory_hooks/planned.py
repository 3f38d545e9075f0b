"""Runs the steps of a plan at each tick, and finds the units that they name.

A recipe repeats the operations that were recorded. If a later step runs other operations on tensors of the same look,
the recipe makes other values. So the names of the autograd nodes behind a recomputed tensor are compared with those of
the first forward pass; its recipes are compared bit for bit if it is a verified one. Where the numbers that the nodes
keep differ from those of the first forward pass, the recipe is compared in this forward pass too. Numbers that no node
keeps, such as one that is added, show nowhere: a user who changes such a number verifies again.

Autograd tells how a tensor was made: by the nodes behind it, and the plain numbers that they keep.

A node keeps those numbers that its backward needs: the factor of a product, the bounds of a clamp, the slope of a
leaky ReLU. What is added, or put where a mask says, it does not keep.
"""

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from trimaran.graph.trace.in_place_changes import Witness
from trimaran.memory_hooks.residence import Residence
from trimaran.memory_hooks.schedule import NO_VERSIONS, Externals, Schedule, Steps, UnitPlan, leaves_behind
from trimaran.memory_hooks.units import ForwardPass, Unit
from trimaran.program.types import Kind

_FARTHEST = 24
"""Most nodes that are looked at: a look costs about a microsecond."""

_VIEWS = (
    "Alias", "AsStrided", "Chunk", "Expand", "Narrow", "Permute", "ReshapeAlias", "Select", "Slice", "Split", "Squeeze",
    "TBackward", "Transpose", "Unbind", "Unflatten", "UnsafeView", "Unsqueeze", "View",
)  # fmt: skip
"""Prefixes of nodes that only make a view of a storage: they are no operations of a recipe."""

_NUMBERS = (bool, int, float, complex, str)
_SHAPES = ("sym_", "sizes", "strides", "numel", "options", "scalar_type", "layout")


def ancestry(tensor: torch.Tensor, operations: int) -> list[Any]:
    """The autograd nodes behind a tensor, the nearest first, until `operations` of them are operations.

    Example:
        >>> import torch
        >>> [node.name() for node in ancestry(torch.zeros(2, requires_grad=True).sin().exp(), 2)]
        ['ExpBackward0', 'SinBackward0']
    """
    found: list[Any] = []
    nodes: deque[Any] = deque([tensor.grad_fn])
    left = operations
    while nodes and left and len(found) < _FARTHEST:
        node = nodes.popleft()
        if node is None:
            continue
        found.append(node)
        left -= not node.name().startswith(_VIEWS)
        nodes.extend(following for following, _ in node.next_functions)
    return found


def numbers(node: Any) -> tuple[object, ...]:
    """Plain numbers that a node keeps. Hooks of saved tensors are not called.

    Example:
        >>> import torch
        >>> x = torch.zeros(2, requires_grad=True)
        >>> numbers(x.clamp(0.25, 0.5).grad_fn), numbers((x + 1).grad_fn)
        ((0.5, 0.25), (1,))
    """
    found: list[object] = []
    kind: Any = type(node)
    for name, raw in _kept(kind):
        value = _number_of(getattr(node, name, None)) if raw else getattr(node, name, None)
        if isinstance(value, _NUMBERS):
            found.append(value)
    return tuple(found)


def _number_of(saved: Any) -> object:
    """A factor is saved as a tensor without hooks if it is a plain number, and else as what the hooks packed."""
    data = getattr(saved, "data", None)
    if not isinstance(data, torch.Tensor) or data.dim() or data.device.type != "cpu" or data.requires_grad:
        return None
    return data.item()


@functools.cache
def _kept(kind: type) -> tuple[tuple[str, bool], ...]:
    """Names of what the nodes of a type keep that may be numbers, and whether it is saved as a tensor."""
    names = set(dir(kind))
    plain = [
        (name, False)
        for name in sorted(names)
        if name.startswith("_saved_") and f"_raw{name}" not in names and not any(part in name for part in _SHAPES)
    ]
    return (*plain, ("_raw_saved_other", True)) if "_raw_saved_other" in names else tuple(plain)


class PlannedSteps:
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

    def bind(self, tensor: torch.Tensor, forward: ForwardPass, plan: UnitPlan, node: str) -> Unit | None:
        """The unit of a planned storage, made at its first pack; None: it is another storage than planned."""
        storage = tensor.untyped_storage()
        unit = forward.units.get(plan.number)
        if unit is not None and unit.alive:
            # Only what was not written between its packs is planned; nor may it be now, as what was released is older.
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
        unit = Unit(storage, Witness(tensor, node), plan)
        unit.versions = versions
        unit.checking = plan.recipe is not None and (forward.verify or other_numbers)
        if other_numbers:
            done = self._residence.done
            done.renumbered = tuple(sorted({*done.renumbered, plan.number}))
        forward.units[plan.number] = unit
        return unit

    def release_late(self, forward: ForwardPass) -> None:
        """Let go of what had to stay until all that its recipe reads was packed."""
        forward.deferred = [
            unit
            for unit in forward.deferred
            if unit.alive and not self._residence.release(unit, forward.sources_of(unit.plan.reads))
        ]

    def run(self, forward: ForwardPass, steps: Steps, moment: int) -> None:
        """Do the steps of a tick, in order.

        Args:
            forward: whose
            steps: which
            moment: of the tick
        """
        residence = self._residence
        residence.moment = moment
        made = []
        for kind, number in steps:
            unit = forward.units.get(number)
            if unit is None or not unit.alive:
                continue
            if kind is None:
                residence.arrive(unit)
            elif kind is Kind.OFFLOAD:
                residence.save(unit)
            elif kind is Kind.RELEASE:
                if not residence.release(unit, forward.sources_of(unit.plan.reads)):
                    forward.deferred.append(unit)
                    residence.done.kept += 1
            elif kind is Kind.PREFETCH:
                residence.fetch(unit)
            else:
                residence.remake(unit)
                made.append(unit)
        if self._observe is not None:
            self._observe(moment)
        for unit in made:
            residence.read(unit)

    def jump(self, forward: ForwardPass, schedule: Schedule, index: int) -> None:
        """Unpacks come in another order: go on behind this one, and let go of what the skipped ticks let go of."""
        place = next((place for place in schedule.places[index] if place >= forward.position), None)
        if place is None:
            return
        for position in range(forward.position, place):
            steps = tuple(step for step in schedule.steps[position] if step[0] in (Kind.OFFLOAD, Kind.RELEASE))
            self.run(forward, steps, schedule.moments[position])
        forward.position = place + 1
        self.run(forward, schedule.steps[place], schedule.moments[place])
