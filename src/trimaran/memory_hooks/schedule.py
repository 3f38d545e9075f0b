"""A plan and its trace as tables that the hooks look up at each tick.

A tick with nothing to do costs the look-up only: a storage that is kept, and that no recipe reads, needs no unit.

Externals are what recipes read besides activations: parameters, buffers, and whatever else was there before the step.
They have no unit. A plan was made for certain storages; a step may use others of the same look: another head, a second
model of the same class, weights that were replaced. So these checks see that they are the recorded ones:

    at the first pack   each is still there
    at each pack        a parameter that autograd packs is the recorded one
    at the first pack of a storage to recompute
                        the parameters behind it, by autograd's nodes, are those of the first forward pass
    at its release      they are held until it is recomputed, so that they can be replaced meanwhile
    when recomputed     none was changed in place since the pack

A change that no node knows, such as that of a frozen bias, shows in the recomputed bytes.
"""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trimaran.base.errors import InputError
from trimaran.graph.trace.calls import Recording
from trimaran.graph.trace.storages import dtype_of, extent, has_storage
from trimaran.graph.trace.types import Role, StepTrace, TraceStorage, View
from trimaran.program.memory import MEMORY_KINDS, Decision, MemoryPlan, RecomputeRecipe
from trimaran.program.types import Kind

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

    def hold(self, recipe: RecomputeRecipe) -> Mapping[int, torch.UntypedStorage]:
        """Externals that a recipe reads, by number; those that are gone are left out."""
        found = {number: one() for number, one in self._of.get(recipe.storage, {}).items() if one is not None}
        return {number: storage for number, storage in found.items() if storage is not None}

    def same_leaves(self, number: int, leaves: Sequence[torch.Tensor]) -> bool:
        """Whether the parameters behind a storage are those of the first forward pass.

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
        known = ((reference(), version) for reference, version in self._known)
        return any(leaf is not None and leaf._version != version for leaf, version in known)


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
    """Whether a source of a recipe is a storage that autograd packs: the plan follows it by its packs."""
    return bool(storage.packs) and storage.role not in (Role.PARAMETER, Role.BUFFER)


Steps = tuple[tuple[Kind | None, int], ...]
"""Actions at a tick, each with its storage; None: wait until it is back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPlan:
    """Facts about a storage that are known before it is packed.

    Attributes:
        number: of the storage in the trace; -1: it is not in a trace
        nbytes: size [bytes]
        unpacks: planned unpacks
        start: first byte to copy [bytes]
        stop: the one after the last byte to copy [bytes]
        recipe: how to recompute it
        reads: activations and inputs that the recipe reads and autograd packs
        outside: whether someone outside still holds it when it comes back
        views: of the packed tensors
        name: for a person
        codec: of its copies; "": they go as they are
    """

    number: int = -1
    nbytes: int
    unpacks: int = 0
    start: int = 0
    stop: int
    recipe: RecomputeRecipe | None = None
    reads: tuple[int, ...] = ()
    outside: bool = False
    views: tuple[View, ...] = ()
    name: str
    codec: str = ""


@dataclass(slots=True, kw_only=True)
class PackTick:
    """One pack.

    Attributes:
        moment: of the tick
        view: how the tensor looks at its storage
        dtype: of the view, as torch has it
        node: name of the node that made the tensor
        before: unpacks that come before it
        unit: what the storage is to the plan; None: the tensor is simply kept
        steps: to do first
        external: the parameter or buffer that it is, where recipes depend on its being the same; None: of no matter
    """

    moment: int
    view: View
    dtype: torch.dtype
    node: str
    before: int
    unit: UnitPlan | None
    steps: Steps = ()
    external: "weakref.ref[torch.UntypedStorage] | None" = None

    def matches(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor can be the one that was planned for."""
        same = self.external is None or self.external() is tensor.untyped_storage()
        return same and self.looks_like(tensor)

    def looks_like(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor looks like the one that was planned for, be it that one or not."""
        return (
            tensor.shape == self.view.shape
            and tensor.dtype is self.dtype
            and tensor.stride() == self.view.stride
            and tensor.storage_offset() == self.view.offset
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Tables that the hooks look up.

    Attributes:
        packs: by the number of the pack
        order: for each unpack, the number of the pack that it undoes
        steps: for each unpack, what to do first
        moments: of the unpacks
        places: for each pack, the numbers of its unpacks, ascending
    """

    packs: tuple[PackTick, ...]
    order: tuple[int, ...]
    steps: tuple[Steps, ...]
    moments: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]


def make_schedule(
    trace: StepTrace,
    plan: MemoryPlan,
    externals: "Mapping[int, weakref.ref[torch.UntypedStorage]] | None" = None,
) -> Schedule:
    """Look-up tables of a plan.

    Args:
        trace: of the step
        plan: for it
        externals: parameters and buffers of the recording

    Raises:
        InputError: the plan is not one of this trace
    """
    steps = _steps_by_moment(trace, plan)
    units = _units(trace, plan)
    fixed = _fixed(trace, plan)
    places: list[list[int]] = [[] for _ in trace.packs]
    for tick in trace.unpacks:
        places[tick.pack].append(tick.index)
    packs: list[PackTick] = []
    before = 0
    for event in trace.events:
        kind = getattr(event, "kind", "")
        if kind == "unpack":
            before += 1
        elif kind == "pack":
            tick = trace.packs[len(packs)]
            packs.append(
                PackTick(
                    moment=tick.moment,
                    view=tick.view,
                    dtype=dtype_of(tick.view.dtype),
                    node=tick.node,
                    before=before,
                    unit=units.get(tick.storage),
                    steps=steps.get(tick.moment, ()),
                    external=(externals or {}).get(tick.storage) if tick.storage in fixed else None,
                )
            )
    return Schedule(
        packs=tuple(packs),
        order=tuple(tick.pack for tick in trace.unpacks),
        steps=tuple(steps.get(tick.moment, ()) for tick in trace.unpacks),
        moments=tuple(tick.moment for tick in trace.unpacks),
        places=tuple(map(tuple, places)),
    )


def _steps_by_moment(trace: StepTrace, plan: MemoryPlan) -> dict[int, Steps]:
    ticks = {tick.moment for tick in (*trace.packs, *trace.unpacks)}
    steps: dict[int, list[tuple[Kind | None, int]]] = {}
    for number, moment in plan.waits.items():
        steps.setdefault(moment, []).append((None, number))
    released = set()
    for step in plan.steps:
        if step.moment not in ticks or step.kind not in MEMORY_KINDS or not 0 <= step.storage < len(trace.storages):
            raise InputError(
                f"Step {step.token} of the memory plan has no place in this trace: moment {step.moment} is no tick of "
                f"it, or it has no storage {step.storage}. Make the plan from the trace that is executed.",
                code="memory-plan.no-such-place",
                step=step.token,
            )
        if step.kind == Kind.RELEASE:
            released.add(step.storage)
        steps.setdefault(step.moment, []).append((step.kind, step.storage))
    for number, decision in plan.decisions.items():
        storage = trace.storages[number]
        if decision == Decision.KEEP:
            continue
        if not storage.movable:
            raise InputError(
                f"The memory plan moves storage {number} ({storage.role}, {storage.nbytes:,} bytes), which must stay: "
                "only activations and inputs that were packed at one version can be moved.",
                code="memory-plan.must-stay",
                storage=number,
            )
        if decision == Decision.RECOMPUTE and number not in released:
            steps.setdefault(storage.packs[-1], []).append((Kind.RELEASE, number))
    return {moment: tuple(todo) for moment, todo in steps.items()}


def _fixed(trace: StepTrace, plan: MemoryPlan) -> set[int]:
    """Storages that must be the recorded ones: parameters, if there are recipes; buffers that recipes read.

    A parameter tells which part of a model runs, also where the recipes read another one.
    """
    if not plan.recipes:
        return set()
    read = {number for recipe in plan.recipes.values() for number in recipe.sources}
    buffers = {number for number in read if trace.storages[number].role is Role.BUFFER}
    return buffers | {one.number for one in trace.storages if one.role is Role.PARAMETER}


def _units(trace: StepTrace, plan: MemoryPlan) -> dict[int, UnitPlan]:
    sources = {number for recipe in plan.recipes.values() for number in recipe.sources}
    returns: dict[int, int] = {}
    for step in plan.steps:
        if step.kind in (Kind.PREFETCH, Kind.RECOMPUTE):
            returns.setdefault(step.storage, step.moment)
    views: dict[int, list[View]] = {}
    for tick in trace.packs:
        views.setdefault(tick.storage, []).append(tick.view)
    wanted = {number for number in sources if is_unit(trace.storages[number])} | set(plan.moved)
    units = {}
    for number in wanted:
        storage = trace.storages[number]
        start, stop = _extent(storage, views[number], whole=number in sources)
        recipe = plan.recipes.get(number) if plan.of(number) == Decision.RECOMPUTE else None
        units[number] = UnitPlan(
            number=number,
            nbytes=storage.nbytes,
            unpacks=len(storage.unpacks),
            start=start,
            stop=stop,
            recipe=recipe,
            reads=() if recipe is None else tuple(n for n in recipe.sources if is_unit(trace.storages[n])),
            outside=storage.outside_end > returns.get(number, next(iter(storage.unpacks), trace.length)),
            views=tuple(dict.fromkeys(views[number])),
            name=_name(trace.names, storage),
            codec=plan.codecs.get(number, ""),
        )
    return units


def _extent(storage: TraceStorage, views: list[View], *, whole: bool) -> tuple[int, int]:
    """Range of the bytes to copy: those under the packed views, or all if a recipe may read elsewhere."""
    if whole:
        return 0, storage.nbytes
    ranges = [extent(view) for view in views]
    return min(start for start, _ in ranges), max(stop for _, stop in ranges)


def _name(names: Mapping[int, str], storage: TraceStorage) -> str:
    where = names.get(storage.number) or storage.module
    return f"storage {storage.number} of {where}" if where else f"storage {storage.number}"


def staying(recording: Recording) -> Iterable[torch.UntypedStorage]:
    """Parameters, buffers and the optimizer's state."""
    for number, reference in recording.externals.items():
        storage = reference()
        role = recording.trace.storages[number].role
        if storage is not None and role in (Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER):
            yield storage
