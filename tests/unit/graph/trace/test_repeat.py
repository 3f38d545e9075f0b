"""Running recorded operations again: bit for bit, and nothing else is changed."""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from tests.raising import raises
from tests.unit.graph.trace.steps import NETWORKS, Step
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from trimaran.base.errors import ExecutionError
from trimaran.graph.trace.calls import Recording
from trimaran.graph.trace.live_bytes import writers
from trimaran.graph.trace.record import Aside, HostStore, Recorder
from trimaran.graph.trace.storages import PERSISTENT
from trimaran.graph.trace.types import Role, TraceOp, TraceStorage
from trimaran.memory_hooks.recompute import repeat


@dataclass(frozen=True)
class OneLevel:
    storage: int
    ops: tuple[int, ...]


class Remembering(HostStore):
    """Remembers what is put aside, in order."""

    def __init__(self) -> None:
        self.bytes: list[torch.UntypedStorage] = []

    def put(self, storage: torch.UntypedStorage) -> Aside:
        self.bytes.append(storage.clone())
        return super().put(storage)


def record(step: Step) -> tuple[Recording, dict[int, torch.UntypedStorage]]:
    """A recorded step, and what was packed by storage."""
    store = Remembering()
    recorder = Recorder(step.model, store=store)
    with recorder:
        step.run()
    recording = recorder.recording
    roles = [storage.role for storage in recording.trace.storages]
    order = dict.fromkeys(tick.storage for tick in recording.trace.packs if roles[tick.storage] not in PERSISTENT)
    assert len(order) == len(store.bytes)
    return recording, dict(zip(order, store.bytes, strict=True))


def recipes(recording: Recording) -> list[OneLevel]:
    """For each movable storage, all operations that wrote it, where they can be repeated from what autograd packs."""
    trace, made = recording.trace, writers(recording.trace)
    found = []
    for storage in trace.movable:
        ops = tuple(made.get((storage.number, version), -1) for version in range((storage.version or 0) + 1))
        if not all(moment in recording.calls for moment in ops):
            continue
        reads = {value for moment in ops for value in trace.events[moment].reads if value[0] != storage.number}
        if all(_can_read(trace.storages[number], version) for number, version in reads):
            found.append(OneLevel(storage.number, ops))
    return found


def _can_read(storage: TraceStorage, version: int) -> bool:
    return storage.role in (Role.PARAMETER, Role.BUFFER) or (storage.movable and storage.version == version)


def content(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", NETWORKS)
def test_every_recipe_of_one_level_makes_its_storage_bit_for_bit(name: str) -> None:
    step = Step(name)
    recording, saved = record(step)
    before = copy.deepcopy(step.model.state_dict())
    found = recipes(recording)
    for recipe in found:
        storage = repeat(recording, recipe, saved)[recipe.storage]
        assert torch.equal(content(storage), content(saved[recipe.storage]))
    assert len(found) >= 4
    assert all(torch.equal(value, before[key]) for key, value in step.model.state_dict().items())


@dataclass(frozen=True)
class Small:
    """A recorded sine, dropout and addition in place, with the moments of their operations."""

    recording: Recording
    saved: dict[int, torch.UntypedStorage]

    def moment(self, name: str) -> int:
        return next(operation.moment for operation in self.recording.trace.ops if name in operation.name)

    def made_by(self, name: str) -> int:
        event = self.recording.trace.events[self.moment(name)]
        assert isinstance(event, TraceOp)
        return event.writes[0][0]


def small() -> Small:
    leaf = torch.linspace(0.0, 1.0, 8).requires_grad_()
    store = Remembering()
    with Recorder(store=store) as recorder:
        result = functional.dropout(leaf.sin().add_(leaf), 0.5)
        result.square().sum().backward()
    return Small(recorder.recording, {})


def test_a_recipe_with_a_random_operation_is_refused() -> None:
    step = small()
    recipe = OneLevel(step.made_by("bernoulli"), (step.moment("empty_like"), step.moment("bernoulli")))
    with raises("recompute.not-repeatable", ExecutionError):
        repeat(step.recording, recipe, {})


def test_a_missing_source_is_named() -> None:
    step = small()
    with raises("recompute.missing-source", ExecutionError) as refused:
        repeat(step.recording, OneLevel(step.made_by("sin"), (step.moment("sin"),)), {})
    assert refused.value.figures["missing"] == 0


def test_an_operation_in_place_never_writes_what_the_recipe_did_not_make() -> None:
    step = small()
    source = torch.ones(8).untyped_storage()
    recipe = OneLevel(step.made_by("sin"), (step.moment("add_"),))
    with raises("recompute.changes-storages", ExecutionError):
        repeat(step.recording, recipe, {0: source, step.made_by("sin"): source})
    assert torch.equal(content(source), content(torch.ones(8).untyped_storage()))


def test_a_recipe_that_makes_something_else_is_refused() -> None:
    step = small()
    with raises("recompute.not-made", ExecutionError):
        repeat(step.recording, OneLevel(99, (step.moment("sin"),)), {0: torch.ones(8).untyped_storage()})


def test_repeating_packs_nothing_and_ignores_autocast() -> None:
    step = Step("vgg16")
    recording, saved = record(step)
    recipe = recipes(recording)[0]
    packed = []
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: packed.append(1) or tensor, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        storage = repeat(recording, recipe, saved)[recipe.storage]
        assert torch.is_grad_enabled()
    assert packed == []
    assert torch.equal(content(storage), content(saved[recipe.storage]))


def test_who_counts_memory_sees_a_repetition_and_a_recording_does_not() -> None:
    class Counting(TorchDispatchMode):
        seen: ClassVar[list[str]] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(func._opname)
            return func(*args, **(kwargs or {}))

    step = small()
    with Counting(), Recorder() as recorder:
        repeat(
            step.recording,
            OneLevel(step.made_by("sin"), (step.moment("sin"),)),
            {0: torch.ones(8).untyped_storage()},
        )
    assert "sin" in Counting.seen
    assert "aten.sin.default" not in {operation.name for operation in recorder.recording.trace.ops}
