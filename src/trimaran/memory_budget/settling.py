"""From recorded passes to plans, and what is tried where no plan keeps the budget.

The state of optimizers goes to the host where that is wanted, or where otherwise no plan keeps the budget. The step is
recorded again then, as it holds less.

Numbers among the arguments of operations, which a recipe repeats as they were.

A pass is recorded twice as a rule. A number that was another one the second time, such as a temperature that falls
from step to step, will be another one again: the operation that takes it is never repeated.

Optimizer state on the host, for loops whose budget has no room for it.

    step    record ─────▶ state to the host, record again ─────▶ plan

In an update, the state visits the device bucket by bucket; a sixteenth of it at a time, at most three at once. What
cannot be taken apart stays where it is: sharded parameters, optimizers that look at all parameters together.
"""

import contextlib
import dataclasses
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.units import format_bytes
from trimaran.graph.trace.calls import Call, Recording
from trimaran.graph.trace.types import TraceOp
from trimaran.graph.types import Phase
from trimaran.memory_budget.device import Device
from trimaran.memory_budget.options import Options
from trimaran.memory_budget.passes import Key
from trimaran.memory_budget.plans import Plans
from trimaran.memory_budget.recording import AllocatorLimit, Recorded
from trimaran.memory_hooks.optimizer_state import HostState, stream_optimizer_state

_MOST_KEYS = 64

Number = bool | int | float | complex


class Taken(NamedTuple):
    """Arguments of an operation of a forward.

    Attributes:
        name: of the operator
        numbers: in order; empty where it cannot be repeated
    """

    name: str
    numbers: tuple[Number, ...]


class KnownNumbers:
    """Of each pass, what its operations took when it was recorded last, and which of them were seen to change."""

    def __init__(self) -> None:
        self._taken: OrderedDict[Key, list[Taken]] = OrderedDict()
        self._changing: dict[Key, set[int]] = {}

    def settle(self, key: Key, recorded: Recorded) -> Recorded:
        """A pass without calls whose numbers change.

        Args:
            key: what it is
            recorded: the pass
        """
        operations = [one for one in recorded.recording.trace.ops if one.phase is Phase.FORWARD]
        taken = [Taken(one.name, _numbers_of(recorded.recording.calls.get(one.moment))) for one in operations]
        before = self._taken.pop(key, None)
        self._taken[key] = taken
        changing = self._changing.setdefault(key, set())
        if before is not None:
            changing |= changed(before, taken)
        while len(self._taken) > _MOST_KEYS:
            self._changing.pop(self._taken.popitem(last=False)[0])
        moments = {operations[place].moment for place in changing if place < len(operations)}
        return dataclasses.replace(recorded, recording=without(recorded.recording, moments)) if moments else recorded


def changed(before: Sequence[Taken], now: Sequence[Taken]) -> set[int]:
    """Places of operations that took other numbers than before.

    Both are compared from their beginnings as far as they run the same operations, and from their ends likewise.

    Example:
        >>> before = [Taken("exp", ()), Taken("mul", (0.5,)), Taken("mul", (3,))]
        >>> changed(before, [Taken("exp", ()), Taken("mul", (0.4,)), Taken("mul", (3,))])
        {1}
    """
    return {place for one, other, place in _pairs(before, now) if one.numbers != other.numbers}


def without(recording: Recording, moments: set[int]) -> Recording:
    """A recording in which some operations cannot be repeated.

    Args:
        recording: with them
        moments: of the operations
    """
    events = tuple(
        dataclasses.replace(event, repeatable=False)
        if event.moment in moments and isinstance(event, TraceOp)
        else event
        for event in recording.trace.events
    )
    calls = {moment: call for moment, call in recording.calls.items() if moment not in moments}
    return dataclasses.replace(recording, trace=dataclasses.replace(recording.trace, events=events), calls=calls)


def _pairs(before: Sequence[Taken], now: Sequence[Taken]) -> Iterator[tuple[Taken, Taken, int]]:
    least = min(len(before), len(now))
    same = next((place for place in range(least) if before[place].name != now[place].name), least)
    for place in range(same):
        yield before[place], now[place], place
    for back in range(1, least - same + 1):
        if before[-back].name != now[-back].name:
            return
        yield before[-back], now[-back], len(now) - back


def _numbers_of(call: Call | None) -> tuple[Number, ...]:
    return () if call is None else tuple(_numbers_in((call.args, dict(call.kwargs))))


def _numbers_in(value: Any) -> Iterator[Number]:
    if isinstance(value, bool | int | float | complex):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _numbers_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _numbers_in(part)


_BUCKETS = 16
_LEAST_BUCKET_BYTES = 4096
_MOST_BUCKET_BYTES = 64 << 20
_SLOT_BYTES = 4096
"""Bytes that a slot may take in addition to its contents."""


class StateTier:
    """The optimizers of a loop whose state lives on the host.

    Attributes:
        reasons: why others stay on the device, each once
    """

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self._states: dict[Optimizer, HostState] = {}
        self._refused: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def __bool__(self) -> bool:
        return bool(self._states)

    @property
    def host_bytes(self) -> int:
        """State on the host [bytes]."""
        return sum(state.host_bytes for state in self._states.values())

    def holds(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage is one of the host's, with state in it."""
        return any(state.holds(storage) for state in self._states.values())

    def take(self, optimizers: Iterable[Optimizer], device: Device) -> int:
        """Take the state of optimizers to the host, where they allow it.

        Args:
            optimizers: all of the loop; those whose state is there already stay as they are
            device: with the copies, and host memory

        Returns:
            What was taken [bytes].
        """
        before = self.host_bytes
        for optimizer in optimizers:
            nbytes = _state_bytes(optimizer, device)
            if optimizer in self._states or optimizer in self._refused or not nbytes:
                continue
            try:
                self._states[optimizer] = _stream(optimizer, device, nbytes)
            except InputError as error:
                self._refused.add(optimizer)
                if error.message not in self.reasons:
                    self.reasons.append(error.message)
        return self.host_bytes - before

    def close(self) -> None:
        """Bring everything back to the device."""
        states, self._states = self._states, {}
        for state in states.values():
            state.close()


def _stream(optimizer: Optimizer, device: Device, nbytes: int) -> HostState:
    slots = sum(len(state) for state in optimizer.state.values())
    room = nbytes + slots * _SLOT_BYTES
    if room > device.host_bytes:
        raise InputError(
            f"the state of {type(optimizer).__name__} needs {format_bytes(room)} of the host, which has "
            f"{format_bytes(max(device.host_bytes, 0))} to spare",
            nbytes=room,
        )
    bucket_bytes = min(max(nbytes // _BUCKETS, _LEAST_BUCKET_BYTES), _MOST_BUCKET_BYTES)
    state = stream_optimizer_state(
        optimizer, engine=device.engine, arena=device.own_arena(room), bucket_bytes=bucket_bytes
    )
    device.host_bytes -= room  # less is left to plans
    return state


def _state_bytes(optimizer: Optimizer, device: Device) -> int:
    """State on the device that is worth a copy [bytes]."""
    return sum(
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.dim() and value.device.type == device.kind
    )


class Settling:
    """Makes plans.

    Args:
        options: what the user chose
        plans: made here
        note: takes what a person should know

    Attributes:
        states: optimizers whose state lives on the host
    """

    def __init__(self, options: Options, plans: Plans, note: Callable[[str], None]) -> None:
        self.states = StateTier()
        self._options = options
        self._plans = plans
        self._note = note
        self._limit = AllocatorLimit()
        self._begun = False
        self._numbers = KnownNumbers()

    def compare(self, recorded: Mapping[Key, Recorded]) -> dict[Key, Recorded]:
        """Look which numbers have changed since a pass was recorded before: no recipe may have these."""
        return {key: self._numbers.settle(key, one) for key, one in recorded.items()}

    def takes_state(self, recorded: Mapping[Key, Recorded], optimizers: Iterable[Optimizer]) -> bool:
        """Take the state of optimizers to the host, if the user wants it there; whether there was any to take."""
        return self._options.optimizer_state == "host" and self._take(recorded, optimizers)

    def plan(self, recorded: Mapping[Key, Recorded], optimizers: Iterable[Optimizer]) -> bool:
        """Plan passes.

        Args:
            recorded: passes of a step that ended with what it began with
            optimizers: of the loop

        Returns:
            Whether they are planned; else the state of optimizers has gone to the host, and the step must be recorded
            again.

        Raises:
            InfeasibleError: no plan keeps the budget, and these are the first passes: what is met later in a
                training that has run for long moves its storages on demand instead
        """
        budget_bytes = self._plans.resolve(recorded.values())
        try:
            for key, one in recorded.items():
                self._plans.make(key, one, must=not one.carried_bytes)
        except InfeasibleError as error:
            if self._options.optimizer_state == "auto" and self._take(recorded, optimizers):
                self._plans.forget()
                return False
            if not self._begun:
                raise self._explained(error) from None
            for key, one in recorded.items():
                self._plans.make(key, one, must=False)
        self._begun = True
        if self._plans.device == "cuda" and not self._plans.all_fit:
            torch.cuda.empty_cache()  # blocks of recorded steps have other sizes than those of planned ones
        for note in self._plans.block_notes():
            self._note(note)
        if self._options.enforce and self._plans.device == "cuda":
            self._limit.hold(budget_bytes)
        elif self._options.enforce:
            self._note("enforce: only the allocator of a GPU can be limited to the budget")
        return True

    def tighten(self, over_bytes: int) -> bool:
        """Plan again with a smaller budget, because a step held more than it was planned to.

        Args:
            over_bytes: by how much [bytes]

        Returns:
            Whether steps will run under other plans.
        """
        if not len(self._plans):
            return False
        before = self._plans.predicted_peak_bytes
        self._note(self._plans.tighten(over_bytes))
        return self._plans.predicted_peak_bytes != before

    def start_over(self) -> None:
        """Plan first passes again."""
        self._plans.forget()
        self._begun = False

    def close(self) -> None:
        """Leave the allocator and the optimizers as they were."""
        with contextlib.ExitStack() as last_first:
            last_first.callback(self.states.close)
            last_first.callback(self._limit.release)

    def _take(self, recorded: Mapping[Key, Recorded], optimizers: Iterable[Optimizer]) -> bool:
        device = self._plans.device_of(next(iter(recorded.values())).recording)
        taken_bytes = self.states.take(optimizers, device)
        if taken_bytes:
            self._note(f"{format_bytes(taken_bytes)} of optimizer state live on the host")
        for reason in self.states.reasons:
            self._note(f"optimizer state stays on the device: {reason}")
        return taken_bytes > 0

    def _explained(self, error: InfeasibleError) -> InfeasibleError:
        """The error, with what was tried with the state of optimizers, or why it was not."""
        tried = ["The state of the optimizer is on the host already."] if self.states else []
        tried += [f"The state of the optimizer stays on the device: {reason}." for reason in self.states.reasons]
        return (
            InfeasibleError(f"{error.message}. {' '.join(tried)}", code=error.code, **error.figures) if tried else error
        )
