"""What autograd packs, while a step is recorded: it gets a handle, and the tensor is let go.

    pack     the storage's bytes are put aside, once for each version of it; autograd gets a handle
    unpack   a new storage takes the bytes; unpacks that overlap in time share it
    drop     autograd lets go of the handle: in the backward, as soon as its node has run

On meta tensors there are no bytes to put aside. Parameters, buffers and the optimizer's state stay where they are.

Autograd checks that a saved tensor was not changed before it is used, but not one that hooks have packed; so the
handle keeps the tensor's version counter, and makes the check.
"""

import re
import weakref
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from trimaran.graph.trace.storages import PERSISTENT, has_storage, look, view_of
from trimaran.graph.trace.tape import Tape
from trimaran.graph.trace.types import Tick


class Aside(Protocol):
    """Bytes of a storage, put aside."""

    def restore(self) -> torch.UntypedStorage:
        """A new storage on the device, with the bytes."""


class Store(Protocol):
    """Where bytes are put aside."""

    def put(self, storage: torch.UntypedStorage) -> Aside:
        """Copy the bytes of a storage; it may be written or freed when this returns."""


class HostStore:
    """Puts bytes aside in ordinary memory of the host; of meta tensors, nothing."""

    def put(self, storage: torch.UntypedStorage) -> Aside:
        """Copy the bytes of a storage."""
        return _HostBytes(storage)


class _HostBytes:
    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._device = storage.device
        self._nbytes = storage.nbytes()
        self._bytes: torch.UntypedStorage | None = None
        if storage.device.type != "meta":
            self._bytes = torch.UntypedStorage(self._nbytes)
            self._bytes.copy_(storage)

    def restore(self) -> torch.UntypedStorage:
        fresh = torch.UntypedStorage(self._nbytes, device=self._device)
        if self._bytes is not None:
            fresh.copy_(self._bytes)
        return fresh


class Dropped:
    """One version of a storage that autograd has packed: its bytes, and the storage that has them again while used."""

    def __init__(self, number: int, aside: Aside) -> None:
        self.number = number
        self.aside = aside
        self.users: list[int] = []  # moments of unpacks
        self._fresh: weakref.ref[torch.UntypedStorage] | None = None

    def storage(self, tape: Tape, tick: Tick | None) -> torch.UntypedStorage:
        """The storage that has the bytes again."""
        fresh = self._fresh() if self._fresh is not None else None
        if fresh is None:
            fresh = self.aside.restore()
            self._fresh = weakref.ref(fresh)
            if not tape.stopped:
                self.users = []
                tape.book.stand_in(fresh, self.number, _ender(tape, self.users))
        if tick is not None:
            self.users.append(tick.moment)
        return fresh


def _ender(tape: Tape, users: list[int]) -> Any:
    def gone() -> None:
        tape.ends.update(dict.fromkeys(users, tape.now()))

    return gone


class Handle:
    """What autograd holds in the place of a tensor."""

    __slots__ = ("__weakref__", "_tape", "counter", "description", "dropped", "kept", "saved_version", "tick", "view")

    def __init__(self, tape: Tape, tensor: torch.Tensor, tick: Tick, dropped: Dropped | None) -> None:
        self._tape = tape
        self.tick = tick
        self.view = tick.view
        self.dropped = dropped
        self.saved_version = tensor._version
        self.description = _description(tensor, tick.node)
        self.counter = tensor.detach()  # shares the version counter
        self.kept: torch.Tensor | None = None
        if dropped is None:
            self.kept = self.counter
        else:
            self.counter.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)

    def check(self) -> None:
        """Raise as autograd does if the tensor was changed after it was packed."""
        version = self.counter._version
        if version != self.saved_version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{self.description} is at version {version}; expected version {self.saved_version} instead. Hint: "
                "enable anomaly detection to find the operation that failed to compute its gradient, with "
                "torch.autograd.set_detect_anomaly(True, check_nan=False)."
            )

    def __del__(self) -> None:
        if not self._tape.stopped:
            self._tape.ends[self.tick.moment] = self._tape.now()


class SavedTensors:
    """The pair of hooks.

    Args:
        tape: where ticks are noted
        meet: gives the number of a tensor's storage, also if it was not met yet
        store: where bytes are put aside
    """

    def __init__(self, tape: Tape, meet: Any, store: Store) -> None:
        self._tape = tape
        self._meet = meet
        self._store = store
        self._dropped: weakref.WeakValueDictionary[tuple[int, int], Dropped] = weakref.WeakValueDictionary()

    def pack(self, tensor: torch.Tensor) -> Any:
        """Let go of a tensor."""
        tape = self._tape
        if tape.busy or tape.stopped or not _is_plain(tensor):
            return tensor
        node = tensor.grad_fn.name() if tensor.requires_grad and tensor.grad_fn is not None else ""
        tape.busy = True
        try:
            number = self._meet(tensor)
            record = tape.book.records[number]
            tick = Tick(
                moment=len(tape.events),
                kind="pack",
                index=tape.packs,
                pack=tape.packs,
                storage=number,
                version=record.version,
                view=view_of(tensor),
                node=node,
            )
            tape.packs += 1
            tape.events.append(tick)
            record.packed_at.add(record.version)
            return Handle(tape, tensor, tick, self._drop(number, tensor))
        finally:
            tape.busy = False

    def unpack(self, handle: Any) -> torch.Tensor:
        """Give a tensor back."""
        if not isinstance(handle, Handle):
            return handle  # type: ignore[no-any-return]
        tape, was_busy = self._tape, self._tape.busy
        handle.check()
        tape.busy = True
        try:
            tick = self._note(handle)
            if handle.dropped is None:
                return handle.kept  # type: ignore[return-value]
            return look(handle.dropped.storage(tape, tick), handle.view)
        finally:
            tape.busy = was_busy

    def changed(self, number: int, storage: torch.UntypedStorage) -> None:
        """An operation has changed a storage: what a later unpack gives must have the change, as autograd has it.

        Where autograd would not allow it, the check of the version says so.
        """
        record = self._tape.book.records[number]
        if not record.packed_at:
            return
        record.changed = True
        for version in record.packed_at:
            dropped = self._dropped.get((number, version))
            if dropped is not None:
                dropped.aside = self._store.put(storage)

    def held_bytes(self) -> int:
        """Storages of which autograd still has something that was packed [bytes]."""
        numbers = {dropped.number for dropped in self._dropped.values()}
        return sum(self._tape.book.records[number].nbytes for number in numbers)

    def _drop(self, number: int, tensor: torch.Tensor) -> Dropped | None:
        record = self._tape.book.records[number]
        if record.role in PERSISTENT:
            return None
        dropped = self._dropped.get((number, record.version))
        if dropped is None:
            dropped = Dropped(number, self._store.put(tensor.untyped_storage()))
            self._dropped[number, record.version] = dropped
        return dropped

    def _note(self, handle: Handle) -> Tick | None:
        tape = self._tape
        if tape.stopped:
            return None
        tick = replace(handle.tick, moment=len(tape.events), kind="unpack", index=tape.unpacks)
        if handle.dropped is None:
            tape.ends[tick.moment] = tick.moment + 1
        tape.unpacks += 1
        tape.events.append(tick)
        return tick


def _is_plain(tensor: torch.Tensor) -> bool:
    return has_storage(tensor) and not is_traceable_wrapper_subclass(tensor)


def _description(tensor: torch.Tensor, node: str) -> str:
    kind = f"[{tensor.type()} {list(tensor.shape)}]"
    return f"{kind}, which is output {tensor.output_nr} of {re.sub('Backward[0-9]*$', '', node)}," if node else kind
