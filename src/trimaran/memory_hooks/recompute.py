"""Recomputes a storage: runs the operations of its recipe.

    sources ──▶ call ──▶ call ──▶ call ──▶ the recipe's storage
                 what no later call reads is released at once

Nothing else is changed: running statistics of a batch norm stay as they are, and an operation in place writes only
what the recipe itself has made. Autograd, autocast and hooks of saved tensors are off.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from trimaran.base.errors import ExecutionError
from trimaran.graph.trace.calls import (
    RUNNING_STATISTICS,
    UPDATING_STATISTICS,
    Call,
    Recording,
    Ref,
    replaced,
    tensors_in,
)
from trimaran.graph.trace.record import Operations
from trimaran.graph.trace.storages import has_storage, look
from trimaran.program.memory import RecomputeRecipe

Storages = Mapping[int, torch.UntypedStorage]


def repeat(recording: Recording, recipe: RecomputeRecipe, sources: Storages) -> Storages:
    """Recompute the storage of a recipe.

    Args:
        recording: whose calls to run
        recipe: which, in order
        sources: storages that they read, by number; parameters and buffers are found without

    Returns:
        The storage that the recipe makes, by its number.

    Raises:
        ExecutionError: a call was not recorded, a source is missing, or a call would change what is not the recipe's
    """
    calls = [_call(recording, moment, recipe.storage) for moment in recipe.ops]
    last = {number: place for place, call in enumerate(calls) for number in _read(call)}
    made: dict[int, torch.UntypedStorage] = {}
    with _undisturbed():
        for place, call in enumerate(calls):
            _run(call, _Sources(recording, made, sources, recipe.storage))
            for number in [number for number in made if last.get(number, -1) <= place and number != recipe.storage]:
                del made[number]
    if recipe.storage not in made:
        raise ExecutionError(
            f"the recipe of storage {recipe.storage} does not make it: its operations are at {list(recipe.ops)}",
            code="recompute.not-made",
            storage=recipe.storage,
        )
    return {recipe.storage: made[recipe.storage]}


class _Sources:
    """The storages from which a call gets its arguments."""

    def __init__(
        self, recording: Recording, made: dict[int, torch.UntypedStorage], sources: Storages, target: int
    ) -> None:
        self.recording = recording
        self.made = made
        self.sources = sources
        self.target = target

    def tensor(self, ref: Ref) -> torch.Tensor:
        """The tensor that a reference stands for."""
        return look(self._storage(ref.value[0]), ref.view)

    def _storage(self, number: int) -> torch.UntypedStorage:
        storage = self.made.get(number, self.sources.get(number))
        if storage is None and number in self.recording.externals:
            storage = self.recording.externals[number]()
        if storage is None:
            raise ExecutionError(
                f"storage {self.target} cannot be recomputed: its recipe reads storage {number}, which is not there. "
                "Give it in `sources`",
                code="recompute.missing-source",
                storage=self.target,
                missing=number,
            )
        return storage


def _run(call: Call, sources: _Sources) -> None:
    name = call.op._schema.name
    args = list(_without_statistics(name, call.args))
    for place in UPDATING_STATISTICS.get(name, ()):
        args[place] = sources.tensor(args[place]).clone()  # it updates a copy
    written = {
        value.value[0]
        for value, argument in zip(args, call.op._schema.arguments, strict=False)
        if isinstance(value, Ref) and argument.alias_info is not None and argument.alias_info.is_write
    }
    foreign = written - sources.made.keys()
    if foreign:
        raise ExecutionError(
            f"storage {sources.target} cannot be recomputed: {call.op} would change storages {sorted(foreign)}, "
            "which its recipe does not make",
            code="recompute.changes-storages",
            storage=sources.target,
        )
    torch.set_grad_enabled(call.grad)
    out = call.op(*replaced(tuple(args), Ref, sources.tensor), **replaced(dict(call.kwargs), Ref, sources.tensor))
    outputs = [tensor for tensor in tensors_in(out) if has_storage(tensor)]
    for number, place in call.made.items():
        sources.made[number] = outputs[place].untyped_storage()


def _without_statistics(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A batch norm that trains needs no running statistics, and then updates none."""
    places = RUNNING_STATISTICS.get(name)
    if places is None or not args[places[2]]:
        return args
    mean, variance, _ = places
    return tuple(None if place in (mean, variance) else value for place, value in enumerate(args))


def _call(recording: Recording, moment: int, storage: int) -> Call:
    call = recording.calls.get(moment)
    if call is None:
        event = recording.trace.events[moment]
        raise ExecutionError(
            f"storage {storage} cannot be recomputed: {getattr(event, 'name', 'a tick')} at moment {moment} cannot be "
            "repeated",
            code="recompute.not-repeatable",
            storage=storage,
            moment=moment,
        )
    return call


def _read(call: Call) -> set[int]:
    numbers: set[int] = set()

    def note(ref: Ref) -> None:
        numbers.add(ref.value[0])

    replaced((call.args, dict(call.kwargs)), Ref, note)
    return numbers


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Below autograd, so that nothing is packed; no autocast; and no recording notes it as part of its step."""
    tapes = [mode.tape for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Operations)]
    before = [tape.busy for tape in tapes]
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(torch.is_grad_enabled()))  # puts it back as it was
        stack.enter_context(torch._C._AutoDispatchBelowAutograd())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        for tape in tapes:
            tape.busy = True
        try:
            yield
        finally:
            for tape, busy in zip(tapes, before, strict=True):
                tape.busy = busy
