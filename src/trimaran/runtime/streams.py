"""Time and waiting, the same for a CPU and a GPU.

On a CPU the host computes, so that an instruction has ended when the call returns, and a stamp is a reading of the
host's clock. On a GPU the host runs ahead, and a stamp is an event on the stream of the device, which becomes a time
once the device has passed it. Everything else in the runtime uses `Streams`.

    CPU    host    F0 ████ B0 ██████ wait ▒▒ U ██          stamps: host clock
           gloo         all-reduce ════════╝               end of a collective: its future

    GPU    host    F0 B0 wait U                            (only issues)
           device     F0 ████ B0 ██████ ▒▒ U ██            stamps: events on the compute stream
           NCCL             all-reduce ════╝               end: an event on a stream that only waits for it
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

Stamp = Any
"""A moment: nanoseconds of the host's clock, or an event of the device."""

# The time between two events is a 32-bit float: exact to 0.1 µs at a second, only to 0.2 ms after an hour. So the event
# from which times are counted moves along.
_FARTHEST_MS = 1000.0


class Streams(Protocol):
    """How a rank's device keeps time and waits.

    Attributes:
        host_blocks: an instruction has ended when the call that issued it returns
    """

    host_blocks: bool

    def stamp(self) -> Stamp:
        """This moment, in the order of what the device computes."""

    def watch(self, work: Any, channel: str, done: Callable[[Stamp], None]) -> None:
        """Find out when a piece of communication has ended, without waiting for it.

        Args:
            work: what torch.distributed returned
            channel: communication that runs in order has one channel
            done: called with the moment, perhaps from another thread
        """

    def nanoseconds(self, stamp: Stamp) -> int:
        """A moment on the host's clock [ns]; the device must have passed it."""

    def synchronize(self) -> None:
        """Wait until the device has done all that was issued."""


class HostStreams:
    """A CPU: the host computes, threads of gloo communicate."""

    host_blocks = True

    def stamp(self) -> int:
        """This moment [ns]."""
        return time.perf_counter_ns()

    def watch(self, work: Any, channel: str, done: Callable[[Stamp], None]) -> None:
        """Collectives of gloo have a future; its sends and receives have none, and must not be asked."""
        work.get_future().then(lambda _: done(time.perf_counter_ns()))

    def nanoseconds(self, stamp: Stamp) -> int:
        """The stamp itself [ns]."""
        nanoseconds: int = stamp
        return nanoseconds

    def synchronize(self) -> None:
        """Nothing to wait for."""


class CudaStreams:
    """A GPU: events on the current stream, and one stream a channel that waits for communication.

    Args:
        device: "cuda:<n>"
    """

    host_blocks = False

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._watchers: dict[str, torch.cuda.Stream] = {}
        torch.cuda.synchronize(self._device)
        self._origin = self._event()
        torch.cuda.synchronize(self._device)
        self._origin_ns = time.perf_counter_ns()

    def stamp(self) -> torch.cuda.Event:
        """An event on the current stream."""
        return self._event()

    def watch(self, work: Any, channel: str, done: Callable[[Stamp], None]) -> None:
        """An event on a stream that waits for the communication and does nothing else."""
        stream = self._watchers.get(channel)
        if stream is None:
            stream = self._watchers[channel] = torch.cuda.Stream(self._device)
        with torch.cuda.stream(stream):
            work.wait()
            done(self._event())

    def nanoseconds(self, stamp: Stamp) -> int:
        """The event on the host's clock [ns]."""
        if isinstance(stamp, int):
            return stamp
        elapsed_ms: float = self._origin.elapsed_time(stamp)
        nanoseconds = self._origin_ns + round(elapsed_ms * 1e6)
        if elapsed_ms > _FARTHEST_MS:
            self._origin, self._origin_ns = stamp, nanoseconds
        return nanoseconds

    def synchronize(self) -> None:
        """Wait until the device has done all that was issued."""
        torch.cuda.synchronize(self._device)

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


class Lane:
    """Copies of batches to a device, which overlap with what it computes.

    host      load i+1  start  │ step i (issues)      │ finish, step i+1
    lane               copy ═══════╝                   │
    device    F i ████████ B i ████████████████ U ██   ▒ waits for the copy

    On a CPU the thread that starts a copy has made it when `start` returns. A GPU has a stream for copies, for which
    the stream that computes waits.

    Args:
        device: "cpu" or "cuda:<n>"
    """

    def __init__(self, device: str) -> None:
        self._stream = torch.cuda.Stream(torch.device(device)) if device.startswith("cuda") else None

    def start(self, copy: Callable[[], Any]) -> tuple[Any, Stamp]:
        """Begin to copy.

        Args:
            copy: issues the copies

        Returns:
            What `copy` returned, and the moment at which the device has it.
        """
        if self._stream is None:
            return copy(), 0
        with torch.cuda.stream(self._stream):
            copied = copy()
            event = torch.cuda.Event()
            event.record(self._stream)
        return copied, event

    def finish(self, tensors: Iterable[torch.Tensor], copied: Stamp) -> None:
        """Operations that are issued from now on come after the copy, whose memory is not used again before they end.

        Args:
            tensors: that were made by it
            copied: its moment
        """
        if self._stream is not None:
            stream = torch.cuda.current_stream(self._stream.device)
            stream.wait_event(copied)
            for tensor in tensors:
                tensor.record_stream(stream)


def fetch(tensor: torch.Tensor) -> Callable[[], list[float]]:
    """Start to bring a tensor to the host.

    On a GPU the copy follows what has been issued so far, and asking for the values waits for no more than that:

        host      F0   fetch  B0 (issues)  ask ▒▒ U           goes on as soon as the copy is there
        device    F0 ████████ copy B0 ████████████████ U ██   has the backward left to do meanwhile

    Args:
        tensor: flat, on any device

    Returns:
        What waits and gives the values.

    Example:
        >>> fetch(torch.tensor([1.5, 2.0]))()
        [1.5, 2.0]
    """
    if not tensor.is_cuda:
        return lambda: list(tensor.tolist())
    # Into page-locked memory, so that the copy needs no help of the host.
    host = tensor.to("cpu", non_blocking=True)
    copied = torch.cuda.Event()
    copied.record(torch.cuda.current_stream(tensor.device))

    def values() -> list[float]:
        copied.synchronize()
        return list(host.tolist())

    return values


def open_streams(device: str) -> Streams:
    """The streams of a device.

    Args:
        device: "cpu" or "cuda:<n>"
    """
    return CudaStreams(device) if device.startswith("cuda") else HostStreams()
