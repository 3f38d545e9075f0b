"""A collective that starts when another one has ended, without the rank's own thread waiting for that.

    CPU    training   B0 ████████████████████████          issues the first, goes on computing
           chain         waits ▒▒▒▒▒│ starts the second    a thread, which sleeps in gloo
           gloo          first ══════ second ═══════

    GPU    host       B0 issues both, one after the other, and goes on
           chain         ▒▒▒▒▒▒▒▒▒▒▒ a stream that waits for the first; what is issued on it comes after
           NCCL          first ══════ second ═══════

Where a group's collectives must start in one order on all its members, nothing but one chain may start them.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

import torch

Start = Callable[[], Any]
"""Starts a collective, and gives what torch.distributed returned."""

_PATIENCE_S = 5.0


class Chain(Protocol):
    """Starts collectives after others."""

    def after(self, first: Any, start: Start) -> tuple[Any, Any]:
        """Start a second collective when the first has ended.

        Args:
            first: what torch.distributed returned for the first
            start: the second

        Returns:
            Both, to be waited for in the place of what torch.distributed returned.
        """

    def close(self) -> None:
        """Start nothing more."""


class _Ended:
    """The first of two collectives: the chain's thread waits for it, and others for that thread."""

    def __init__(self, future: "Future[None]") -> None:
        self._future = future

    def wait(self) -> None:
        """Wait until it has ended."""
        self._future.result()

    def get_future(self) -> "_Ended":
        """What tells the end; see `then`."""
        return self

    def then(self, done: Callable[[Any], None]) -> None:
        """Call when it has ended, unless it failed."""
        self._future.add_done_callback(lambda ended: None if ended.exception() else done(ended))


class _Started:
    """The second of two collectives, once it has been started."""

    def __init__(self, future: "Future[Any]") -> None:
        self._future = future

    def wait(self) -> None:
        """Wait until it has been started and has ended."""
        self._future.result().wait()

    def get_future(self) -> "_Started":
        """What tells the end; see `then`."""
        return self

    def then(self, done: Callable[[Any], None]) -> None:
        """Call when it has ended, unless it failed."""

        def ask(started: "Future[Any]") -> None:
            if not started.exception():
                started.result().get_future().then(done)

        self._future.add_done_callback(ask)


class HostChain:
    """A thread that waits for one first collective after the other, in the order in which they were started."""

    def __init__(self) -> None:
        self._links: queue.SimpleQueue[tuple[Any, Start, Future[None], Future[Any]] | None] = queue.SimpleQueue()
        # One that sleeps in a collective which never ends must not keep the process.
        self._thread = threading.Thread(target=_follow, args=(self._links,), name="trimaran-chain", daemon=True)
        self._thread.start()

    def after(self, first: Any, start: Start) -> tuple[Any, Any]:
        """See `Chain`."""
        ended: Future[None] = Future()
        started: Future[Any] = Future()
        self._links.put((first, start, ended, started))
        return _Ended(ended), _Started(started)

    def close(self) -> None:
        """End the thread, once what it was given has ended."""
        self._links.put(None)
        self._thread.join(_PATIENCE_S)


def _follow(links: "queue.SimpleQueue[tuple[Any, Start, Future[None], Future[Any]] | None]") -> None:
    while (link := links.get()) is not None:
        first, start, ended, started = link
        try:
            first.wait()
            ended.set_result(None)
            started.set_result(start())
        except Exception as error:  # noqa: BLE001 whatever it is, those who wait are told
            for future in (ended, started):
                if not future.done():
                    future.set_exception(error)
        # Until the next one comes nothing may keep these alive.
        del link, first, start, ended, started


class DeviceChain:
    """A stream that waits in the place of the host.

    Args:
        device: "cuda:<n>"
    """

    def __init__(self, device: str) -> None:
        self._stream = torch.cuda.Stream(torch.device(device))

    def after(self, first: Any, start: Start) -> tuple[Any, Any]:
        """See `Chain`."""
        with torch.cuda.stream(self._stream):
            first.wait()
            return first, start()

    def close(self) -> None:
        """Nothing is left to end."""


def open_chain(device: str) -> Chain:
    """The chain of a device.

    Args:
        device: "cpu" or "cuda:<n>"
    """
    return DeviceChain(device) if device.startswith("cuda") else HostChain()
