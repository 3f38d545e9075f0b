"""Puts bytes aside in an arena while a step is recorded: recording and execution then share one piece of host memory.

A copy is waited for at once: what is recorded may be written or freed as soon as its bytes are aside.
"""

import weakref

import torch

from trimaran.graph.trace.saved import Aside
from trimaran.runtime.memory.arena import HostArena, Slot
from trimaran.runtime.memory.engine import CopyEngine


class ArenaStore:
    """What a recorder puts bytes aside in.

    Args:
        engine: copies
        arena: memory on the host

    Example:
        >>> from trimaran.graph.trace.record import Recorder
        >>> from trimaran.runtime.memory.host import HostEngine
        >>> recorder = Recorder(store=ArenaStore(HostEngine(), HostArena(1 << 20)))
    """

    def __init__(self, engine: CopyEngine, arena: HostArena) -> None:
        self._engine = engine
        self._arena = arena

    def put(self, storage: torch.UntypedStorage) -> Aside:
        """Copy the bytes of a storage."""
        return _Bytes(self._engine, self._arena, storage)


class _Bytes:
    """The bytes of one storage."""

    def __init__(self, engine: CopyEngine, arena: HostArena, storage: torch.UntypedStorage) -> None:
        self._engine = engine
        self._nbytes = storage.nbytes()
        self._slot: Slot | None = None
        if storage.device.type != engine.device.type or not self._nbytes:
            # Of a meta tensor there are no bytes; of another device's (a scalar on the host) few.
            self._elsewhere = storage.clone() if storage.device.type != "meta" else storage
            return
        self._slot = arena.allocate(self._nbytes)
        engine.save(storage, self._slot).wait()
        weakref.finalize(self, self._slot.free)

    def restore(self) -> torch.UntypedStorage:
        """A new storage with the bytes."""
        if self._slot is None:
            fresh = torch.UntypedStorage(self._nbytes, device=self._elsewhere.device)
            return fresh.copy_(self._elsewhere) if self._elsewhere.device.type != "meta" else fresh
        fresh = self._engine.allocate(self._nbytes)
        self._engine.load(self._slot, fresh).wait()
        return fresh
