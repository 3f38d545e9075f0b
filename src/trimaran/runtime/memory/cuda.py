"""Copies on a GPU: a stream for each direction, and events.

    compute   conv ████ relu ███ ●─┐ ready          DEL ▒ waits for `saved`, in the stream; then the memory is let go
    d2h                            └▶ copy ═════● saved
    compute   empty ●─┐ free         unpack ▒ waits for `loaded`, in the stream
    h2d               └▶ copy ═════● loaded

Points that matter:

1. `ready` is recorded on the compute stream, which is read before a copy stream is made current. Inside the block of a
   copy stream the current stream is that one, and an event on it would wait for nothing.
2. Only events are waited for. A tensor is never recorded on a stream: memory that is let go after the compute stream
   waits for its copy may be used again by that stream at once.
3. Memory for what comes back is taken from the compute stream's pool, not from one of the copy streams, so that no pool
   grows beside it. It may still be in use by operations before it: the copy waits for `free`.
4. The two streams live as long as the engine. New streams would each bring a pool of their own.
5. The stream that waits is the current one of the thread that asks, which in a backward is the one of the forward.
"""

from collections import deque
from collections.abc import Callable

import torch

from trimaran.errors import EnvironmentProblem, ExecutionError
from trimaran.runtime.memory.arena import Slot
from trimaran.runtime.memory.engine import TO_DEVICE, TO_HOST


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


class CudaEngine:
    """The copy engines of a GPU.

    Args:
        device: "cuda" or "cuda:<n>"

    Attributes:
        device: with its number

    Raises:
        EnvironmentProblem: torch sees no such device
    """

    def __init__(self, device: str | torch.device = "cuda") -> None:
        if not torch.cuda.is_available():
            raise EnvironmentProblem("torch sees no CUDA device here. Use HostEngine on a CPU.")
        wanted = torch.device(device)
        index = torch.cuda.current_device() if wanted.index is None else wanted.index
        self.device = torch.device("cuda", index)
        self._streams = {name: torch.cuda.Stream(self.device) for name in (TO_HOST, TO_DEVICE)}
        self._later: deque[tuple[torch.cuda.Event, Callable[[], None]]] = deque()
        self._open = True

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        """From the pool of the current stream (point 3)."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device).untyped_storage()

    def save(self, storage: torch.UntypedStorage, slot: Slot, offset: int = 0) -> CudaCopy:
        """Start to copy to the host, behind what the current stream has been given."""
        return self._copy(TO_HOST, storage, slot, offset)

    def load(self, slot: Slot, storage: torch.UntypedStorage, offset: int = 0) -> CudaCopy:
        """Start to copy to the device, behind what the current stream has been given."""
        return self._copy(TO_DEVICE, storage, slot, offset)

    def sweep(self) -> None:
        """What was to be done after copies that have ended. They end in order on each stream, not on both."""
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

    def _copy(self, lane: str, storage: torch.UntypedStorage, slot: Slot, offset: int) -> CudaCopy:
        if not self._open:
            raise ExecutionError(f"The copy engine is closed, and was asked to copy ({lane}).", lane=lane)
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
