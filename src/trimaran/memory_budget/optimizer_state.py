"""Optimizer state on the host, for loops whose budget has no room for it.

    step    record ─────▶ state to the host, record again ─────▶ plan

In an update, the state visits the device bucket by bucket; a sixteenth of it at a time, at most three at once. What
cannot be taken apart stays where it is: sharded parameters, optimizers that look at all parameters together.
"""

import weakref
from collections.abc import Iterable

import torch
from torch.optim import Optimizer

from trimaran.base.errors import InputError
from trimaran.base.units import format_bytes
from trimaran.memory_budget.device import LoopDevice
from trimaran.memory_hooks.optimizer_state import HostState, stream_optimizer_state

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

    def take(self, optimizers: Iterable[Optimizer], device: LoopDevice) -> int:
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


def _stream(optimizer: Optimizer, device: LoopDevice, nbytes: int) -> HostState:
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


def _state_bytes(optimizer: Optimizer, device: LoopDevice) -> int:
    """State on the device that is worth a copy [bytes]."""
    return sum(
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.dim() and value.device.type == device.kind
    )
