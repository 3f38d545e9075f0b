"""Copies on a CPU: two threads, in place of the two copy engines of a GPU.

Device and host are the same memory here, so that nothing is gained; but every byte is really copied, in another thread,
while operations run. What is wrong in the order of things shows on a CPU then, and nothing but speed is left to a GPU.
"""

import ctypes
import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from trimaran.errors import ExecutionError
from trimaran.runtime.memory.arena import Slot
from trimaran.runtime.memory.coding import Codec, Coding, bytes_at
from trimaran.runtime.memory.engine import TO_DEVICE, TO_HOST

Delay = Callable[[str], None]
"""Called by a copy thread with the name of its lane, before and after each copy."""


class HostCopy:
    """A copy of one of the threads."""

    __slots__ = ("_actions", "_ended", "_error", "_guard", "_lane")

    def __init__(self, lane: "_Lane") -> None:
        self._lane = lane
        self._ended = threading.Event()
        self._guard = threading.RLock()
        self._actions: list[Callable[[], None]] = []
        self._error: BaseException | None = None

    def wait(self) -> float:
        """Stand still until it has ended."""
        stalled_s = 0.0
        if not self._ended.is_set():
            start_ns = time.perf_counter_ns()
            self._ended.wait()
            stalled_s = (time.perf_counter_ns() - start_ns) * 1e-9
        if self._error is not None:
            message = f"A copy between device and host failed ({self._lane.name}): {self._error}"
            raise ExecutionError(message, code="copy-engine.copy-failed", lane=self._lane.name) from self._error
        return stalled_s

    def order(self) -> None:
        """Nothing: the thread holds what it copies."""

    def done(self) -> bool:
        """Whether it has ended."""
        return self._ended.is_set()

    def then(self, action: Callable[[], None]) -> None:
        """In the copy thread, or at once."""
        with self._guard:
            if not self._ended.is_set():
                self._actions.append(action)
                return
        action()

    def finish(self, error: BaseException | None) -> None:
        """It has ended."""
        with self._guard:
            self._error = error
            self._ended.set()
            actions, self._actions = self._actions, []
        for action in actions:
            action()


class _Job(NamedTuple):
    copy: HostCopy
    storage: torch.UntypedStorage
    offset: int
    slot: Slot
    to_host: bool


class _Lane:
    """One thread and what it has to do."""

    def __init__(self, name: str, delay: Delay | None, codec: Codec | None) -> None:
        self.name = name
        self._delay = delay
        self._codec = codec
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"trimaran-{name}", daemon=True)
        self._open = True
        self._thread.start()

    def put(self, storage: torch.UntypedStorage, offset: int, slot: Slot) -> HostCopy:
        if not self._open:
            raise ExecutionError(
                f"The copy engine is closed, and was asked to copy ({self.name}).",
                code="copy-engine.closed",
                lane=self.name,
            )
        copy = HostCopy(self)
        self._jobs.put(_Job(copy, storage, offset, slot, self.name == TO_HOST))
        return copy

    def close(self) -> None:
        if self._open:
            self._open = False
            self._jobs.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            copy = job.copy
            error = self._perform(job)
            # The storage must be able to go as soon as someone has seen the end of the copy.
            del job
            copy.finish(error)
            del copy

    def _perform(self, job: _Job) -> BaseException | None:
        try:
            if self._delay is not None:
                self._delay(self.name)
            device = job.storage.data_ptr() + job.offset
            if job.offset + job.slot.nbytes > job.storage.nbytes():
                raise ValueError(
                    f"{job.slot.nbytes:,} bytes from byte {job.offset:,} are not in a storage of "
                    f"{job.storage.nbytes():,} bytes: it was resized"
                )
            self._transfer(job, device)
            if self._delay is not None:
                self._delay(self.name)
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits for the copy must hear of it
            return error.with_traceback(None)
        return None

    def _transfer(self, job: _Job, device: int) -> None:
        """Move the bytes."""
        slot = job.slot
        if job.to_host and self._codec is not None and slot.views and self._codec.takes(slot.views, job.offset):
            slot.coding = Coding(self._codec)
        if slot.coding is None:
            target, source = (slot.address, device) if job.to_host else (device, slot.address)
            ctypes.memmove(target, source, slot.nbytes)
            return
        ours, theirs = bytes_at(device, slot.nbytes), bytes_at(slot.address, slot.nbytes)
        if job.to_host:
            slot.coding.save(ours, theirs)
        else:
            slot.coding.load(theirs, ours)


class HostEngine:
    """The CPU as a device.

    Args:
        delay: called around each copy; tests stretch copies with it, to find what does not wait for them
        codec: codes what is offloaded, in the copy threads; None: bytes go as they are

    Attributes:
        device: the CPU

    Example:
        >>> import torch
        >>> from trimaran.runtime.memory.arena import HostArena
        >>> engine, arena = HostEngine(), HostArena(4096)
        >>> source, target = torch.arange(3.0).untyped_storage(), engine.allocate(12)
        >>> slot = arena.allocate(12)
        >>> _ = engine.save(source, slot).wait(), engine.load(slot, target).wait()
        >>> torch.tensor([], dtype=torch.float32).set_(target, 0, (3,)).tolist()
        [0.0, 1.0, 2.0]
        >>> engine.close()
    """

    def __init__(self, *, delay: Delay | None = None, codec: Codec | None = None) -> None:
        self.device = torch.device("cpu")
        self._lanes = {name: _Lane(name, delay, codec) for name in (TO_HOST, TO_DEVICE)}

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        """Memory that a dispatch mode sees, as it sees that of operations."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device).untyped_storage()

    def save(self, storage: torch.UntypedStorage, slot: Slot, offset: int = 0) -> HostCopy:
        """Start to copy to the host."""
        return self._lanes[TO_HOST].put(storage, offset, slot)

    def load(self, slot: Slot, storage: torch.UntypedStorage, offset: int = 0) -> HostCopy:
        """Start to copy to the device."""
        return self._lanes[TO_DEVICE].put(storage, offset, slot)

    def sweep(self) -> None:
        """Nothing: the threads do it."""

    def capturing(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """End the threads."""
        for lane in self._lanes.values():
            lane.close()
