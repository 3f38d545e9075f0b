"""Copies between the device and the host, while operations run.

Two lanes, one for each direction; the copies of a lane run in the order in which they were asked for. Everything above
`CopyEngine` is written once. On a GPU the lanes are streams and a wait is an event in the stream of the operations; on
a CPU the lanes are threads, and the thread that waits blocks.

    compute   conv ████ relu ███  OFF         conv ████ ... DEL ▒▒ (waits for the copy's end, then releases)
                                   │                         ▲
    d2h                            └─▶ copy ═════════════════╝

A copy reads its source as the operations issued so far leave it. It holds both ends until it has ended.

On a CPU two threads take the place of the two copy engines of a GPU. Device and host are the same memory here, so
nothing is gained; but every byte is copied, in another thread, while operations run. So an error in the order of
operations and copies shows on a CPU, and a GPU adds speed only.

On a GPU there is a stream for each direction, and events.

    compute   conv ████ relu ███ ●─┐ ready          DEL ▒ waits for `saved`, in the stream; then the memory is released
    d2h                            └▶ copy ═════● saved
    compute   empty ●─┐ free         unpack ▒ waits for `loaded`, in the stream
    h2d               └▶ copy ═════● loaded

Points that matter:

1. `ready` is recorded on the compute stream, which is read before a copy stream is made current. Inside the block of a
   copy stream the current stream is that one, and an event on it would wait for nothing.
2. Only events are waited for. A tensor is never recorded on a stream: memory that is released after the compute stream
   waits for its copy may be used again by that stream at once.
3. Memory for what comes back is taken from the compute stream's pool, so that the copy streams need no pools. It may
   still be in use by operations before it: the copy waits for `free`.
4. The two streams live as long as the engine. New streams would each bring a pool.
5. The stream that waits is the current one of the thread that asks, which in a backward is the one of the forward.

`ArenaStore` saves bytes in an arena while a step is recorded: recording and execution then share one piece of host
memory. It waits for each copy at once: what is recorded may be written or freed as soon as its bytes are saved.
"""

import ctypes
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

import torch

from trimaran.base.errors import EnvironmentProblem, ExecutionError, InputError
from trimaran.graph.trace.record import Aside
from trimaran.memory_hooks.arena import HostArena, Slot
from trimaran.memory_hooks.coding import CODECS, Codec, CodecTraffic, Coding, bytes_at

TO_HOST = "d2h"
TO_DEVICE = "h2d"


class Copy(Protocol):
    """A copy on its way."""

    def wait(self) -> float:
        """Operations issued by this thread from now on come after the copy.

        Returns:
            Time for which this thread blocked [s]; on a GPU it does not.

        Raises:
            ExecutionError: the copy failed
        """

    def order(self) -> None:
        """Operations issued from now on come after the copy, without blocking and without raising."""

    def done(self) -> bool:
        """Whether it has ended."""

    def then(self, action: Callable[[], None]) -> None:
        """Do something once it has ended: at once if it has, perhaps in another thread, or at a later copy."""


class CopyEngine(ABC):
    """The two lanes of a device.

    Args:
        device: whose memory it copies from and to

    Attributes:
        device: the same
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._open = True

    def check_open(self, lane: str) -> None:
        """Refuse a copy after the end.

        Args:
            lane: that was asked for it

        Raises:
            ExecutionError: the engine is closed
        """
        if not self._open:
            raise ExecutionError(
                f"The copy engine is closed, and was asked to copy ({lane}).", code="copy-engine.closed", lane=lane
            )

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        """Device memory for the operations issued from now on (point 3), such as a copy back may fill.

        On a CPU a dispatch mode sees it, as it sees that of operations.
        """
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device).untyped_storage()

    def save(self, storage: torch.UntypedStorage, slot: Slot, offset: int = 0) -> Copy:
        """Start to copy to the host, behind what the current stream has been given.

        Args:
            storage: on the device
            slot: on the host; as many bytes as it has are copied
            offset: first byte of the storage that is copied [bytes]
        """
        return self.copy(TO_HOST, storage, slot, offset)

    def load(self, slot: Slot, storage: torch.UntypedStorage, offset: int = 0) -> Copy:
        """Start to copy to the device, behind what the current stream has been given.

        Args:
            slot: on the host
            storage: on the device
            offset: first byte of the storage that is filled [bytes]
        """
        return self.copy(TO_DEVICE, storage, slot, offset)

    @abstractmethod
    def copy(self, lane: str, storage: torch.UntypedStorage, slot: Slot, offset: int) -> Copy:
        """Start to copy on a lane.

        Args:
            lane: `TO_HOST` or `TO_DEVICE`
            storage: on the device
            slot: on the host
            offset: first byte of the storage [bytes]
        """

    def sweep(self) -> None:
        """Do what was to be done after copies that have ended, where no thread does it."""
        return

    def capturing(self) -> bool:
        """Whether operations are being captured into a CUDA graph, in which nothing here can be."""
        return False

    @abstractmethod
    def close(self) -> None:
        """End the lanes after what was asked for has been copied. Closing twice is allowed."""


def check_device(traced: str, engine: CopyEngine) -> None:
    """See that an engine is one of the device on which a step was recorded.

    Args:
        traced: kind of that device; tensors on "meta" stand for any
        engine: copies

    Raises:
        InputError: it is one of another device
    """
    if traced not in ("", "meta", engine.device.type):
        raise InputError(
            f"The step was recorded on {traced}, and the copy engine is one of {engine.device.type}: it would read and "
            "write memory that is not its own. Make the engine for the device of the network.",
            code="memory-plan.other-device",
            device=traced,
        )


class HostCopy:
    """A copy of one of the threads.

    Args:
        ended: when it has: with the error that stopped it, or None
        lane: name of the thread
    """

    __slots__ = ("_ended", "_lane")

    def __init__(self, ended: "Future[BaseException | None]", lane: str) -> None:
        self._ended = ended
        self._lane = lane

    def wait(self) -> float:
        """Block until it has ended."""
        blocked_s = 0.0
        if not self._ended.done():
            start_ns = time.perf_counter_ns()
            self._ended.result()
            blocked_s = (time.perf_counter_ns() - start_ns) * 1e-9
        error = self._ended.result()
        if error is not None:
            message = f"A copy between device and host failed ({self._lane}): {error}"
            raise ExecutionError(message, code="copy-engine.copy-failed", lane=self._lane) from error
        return blocked_s

    def order(self) -> None:
        """Nothing: the thread holds what it copies."""

    def done(self) -> bool:
        """Whether it has ended."""
        return self._ended.done()

    def then(self, action: Callable[[], None]) -> None:
        """In the copy thread, or at once."""
        self._ended.add_done_callback(lambda _: action())


class _Job(NamedTuple):
    storage: torch.UntypedStorage
    offset: int
    slot: Slot
    lane: str


class HostEngine(CopyEngine):
    """The CPU as a device.

    Example:
        >>> import torch
        >>> from trimaran.memory_hooks.arena import HostArena
        >>> engine, arena = HostEngine(), HostArena(4096)
        >>> source, target = torch.arange(3.0).untyped_storage(), engine.allocate(12)
        >>> slot = arena.allocate(12)
        >>> _ = engine.save(source, slot).wait(), engine.load(slot, target).wait()
        >>> torch.tensor([], dtype=torch.float32).set_(target, 0, (3,)).tolist()
        [0.0, 1.0, 2.0]
        >>> engine.close()
    """

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self._codecs: dict[str, Codec] = {name: make() for name, make in CODECS.items()}
        self._lanes = {name: ThreadPoolExecutor(1, f"trimaran-{name}") for name in (TO_HOST, TO_DEVICE)}

    def copy(self, lane: str, storage: torch.UntypedStorage, slot: Slot, offset: int) -> HostCopy:
        """Start to copy in a thread."""
        self.check_open(lane)
        return HostCopy(self._lanes[lane].submit(self._perform, [_Job(storage, offset, slot, lane)]), lane)

    def traffic(self, codec: str) -> CodecTraffic:
        """What a codec that plans name has coded so far.

        Args:
            codec: its name
        """
        return self._codecs[codec].traffic

    def close(self) -> None:
        """End the threads."""
        self._open = False
        for lane in self._lanes.values():
            lane.shutdown()

    def _perform(self, jobs: list[_Job]) -> BaseException | None:
        """Copy the only job of a list, which is empty afterwards: the storage can go as soon as the copy ends."""
        try:
            self._transfer(*jobs.pop())
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits for the copy must hear of it
            return error.with_traceback(None)
        return None

    def _transfer(self, storage: torch.UntypedStorage, offset: int, slot: Slot, lane: str) -> None:
        """Move the bytes."""
        if offset + slot.nbytes > storage.nbytes():
            raise ValueError(
                f"{slot.nbytes:,} bytes from byte {offset:,} are not in a storage of {storage.nbytes():,} bytes: it "
                "was resized"
            )
        device, to_host = storage.data_ptr() + offset, lane == TO_HOST
        codec = self._codecs[slot.codec] if slot.codec else None
        if to_host and codec is not None and slot.views and codec.takes(slot.views, offset):
            slot.coding = Coding(codec)
        if slot.coding is None:
            target, source = (slot.address, device) if to_host else (device, slot.address)
            ctypes.memmove(target, source, slot.nbytes)
        elif to_host:
            slot.coding.save(bytes_at(device, slot.nbytes), bytes_at(slot.address, slot.nbytes))
        else:
            slot.coding.load(bytes_at(slot.address, slot.nbytes), bytes_at(device, slot.nbytes))


class CudaCopy:
    """A copy on one of the streams."""

    __slots__ = ("_ended", "_engine", "_stream")

    def __init__(self, engine: "CudaEngine", ended: torch.cuda.Event, stream: torch.cuda.Stream) -> None:
        self._engine = engine
        self._ended = ended
        self._stream = stream

    def wait(self) -> float:
        """The current stream waits; the host does not."""
        torch.cuda.current_stream(self._engine.device).wait_event(self._ended)
        return 0.0

    def order(self) -> None:
        """The stream that asked for the copy waits: what the copy reads or fills is that stream's to use again."""
        self._stream.wait_event(self._ended)

    def done(self) -> bool:
        """Whether it has ended."""
        return bool(self._ended.query())

    def then(self, action: Callable[[], None]) -> None:
        """At once, or when the engine is next asked for something."""
        if self.done():
            action()
        else:
            self._engine.later(self._ended, action)


class CudaEngine(CopyEngine):
    """The copy engines of a GPU.

    Args:
        device: "cuda" or "cuda:<n>"

    Raises:
        EnvironmentProblem: torch sees no such device
    """

    def __init__(self, device: str | torch.device = "cuda") -> None:
        if not torch.cuda.is_available():
            raise EnvironmentProblem("torch sees no CUDA device here. Use HostEngine on a CPU.")
        wanted = torch.device(device)
        index = torch.cuda.current_device() if wanted.index is None else wanted.index
        super().__init__(torch.device("cuda", index))
        self._streams = {name: torch.cuda.Stream(self.device) for name in (TO_HOST, TO_DEVICE)}
        self._later: deque[tuple[torch.cuda.Event, Callable[[], None]]] = deque()

    def sweep(self) -> None:
        """Run the actions of copies that have ended. They end in order on each stream, not on both."""
        for _ in range(len(self._later)):
            ended, action = self._later.popleft()
            if ended.query():
                action()
            else:
                self._later.append((ended, action))

    def later(self, ended: torch.cuda.Event, action: Callable[[], None]) -> None:
        """Do something once an event has passed, when the engine is next asked for something."""
        self._later.append((ended, action))

    def capturing(self) -> bool:
        """Whether the current stream is being captured into a CUDA graph."""
        return bool(torch.cuda.is_current_stream_capturing())

    def close(self) -> None:
        """Wait for the copies, and do what was to be done after them."""
        if not self._open:
            return
        self._open = False
        for stream in self._streams.values():
            stream.synchronize()
        self.sweep()

    def copy(self, lane: str, storage: torch.UntypedStorage, slot: Slot, offset: int) -> CudaCopy:
        """Start to copy on a stream."""
        self.check_open(lane)
        # Point 1: before the copy stream is made current.
        compute = torch.cuda.current_stream(self.device)
        ready = torch.cuda.Event()
        ready.record(compute)
        stream = self._streams[lane]
        stream.wait_event(ready)
        host = slot.tensor()
        device = torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage, offset, (slot.nbytes,), (1,))
        with torch.cuda.stream(stream):
            target, source = (host, device) if lane == TO_HOST else (device, host)
            target.copy_(source, non_blocking=True)
        ended = torch.cuda.Event()
        ended.record(stream)
        return CudaCopy(self, ended, compute)


class ArenaStore:
    """Where a recorder saves bytes.

    Args:
        engine: copies
        arena: memory on the host

    Example:
        >>> from trimaran.graph.trace.record import Recorder
        >>> from trimaran.memory_hooks.copies import HostEngine
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
