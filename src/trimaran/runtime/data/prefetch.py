"""Microbatches as the training takes them: on the device, in the job's precision, with the time that this took.

    InLine        training   take i: load i+1, begin its copy │ step i ███████████ │ take i+1: load i+2, …
                  lane                                   copy i+1 ═════╝
    ByWorkers     training   take: wait for a worker │ place │ step i              take: …
    Ahead         training   take i ▒ │ step i ███████████████ │ take i+1 │ step i+1
                  its thread    wait for a worker, place i+1 ══╝ i+2 ═════╝        some are ready or being copied

Without workers the training's own thread loads, also where copies are ahead: a data set draws from the same generators
as dropout, so that no other thread may read it. Only the copies overlap with what the device computes.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from trimaran.runtime.data.loader import Loader
from trimaran.runtime.data.reading import Answer, Key, now, since
from trimaran.runtime.streams import Lane, Stamp
from trimaran.user_code.batches import name_tensors

# ---------------------------------------------------------------------------------------------------------------------
# What it took to get a microbatch


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadingTimes:
    """What it took to get one microbatch, as it was observed.

    With workers, reading and preparing overlap with the training, whose own thread spends `waited_s` and `taken_s`.
    Without, its own thread reads and prepares, and `waited_s` is 0.

    Attributes:
        samples: of the microbatch
        read_s: blocked while the data set was asked: neither computing nor waiting for a core [s]
        prepared_s: work of data set and collate function, and waiting for a core meanwhile [s]
        waited_s: the training's thread was blocked until a worker had the batch ready [s]
        taken_s: time of the training's thread to start the workers, where this is their first, and its work to take it
            over from one [s]
        copied_s: the training's thread brought it to the device, or waited until it was there [s]
        in_line: the training's own thread loaded it
    """

    samples: int
    read_s: float = 0.0
    prepared_s: float = 0.0
    waited_s: float = 0.0
    taken_s: float = 0.0
    copied_s: float = 0.0
    in_line: bool = True


Place = Callable[[Any], Any]
"""Brings a batch to the device, in the job's precision."""


class Taken(NamedTuple):
    """A microbatch.

    Attributes:
        key: which one
        batch: on the device
        loading: what it took
    """

    key: Key
    batch: Any
    loading: LoadingTimes


class Arrivals(Protocol):
    """Gives microbatches in their order."""

    def take(self) -> Taken:
        """The next one.

        Raises:
            StopIteration: there is none
            InputError: the data set or the collate function raised
            ExecutionError: a worker died, or hangs
        """

    def close(self) -> None:
        """End what works for it."""


class ByWorkers:
    """Workers load them, and each is placed when it is taken.

    Args:
        loader: loads them in workers
        place: brings one to the device
    """

    def __init__(self, loader: Loader, place: Place) -> None:
        self._loader = loader
        self._place = place

    def take(self) -> Taken:
        """Wait for the worker that loads it, and place it."""
        start = now()
        answer = self._loader.next()
        blocked_s, busy_s = since(start)
        start_ns = time.perf_counter_ns()
        batch = self._place(answer.batch)
        copied_s = (time.perf_counter_ns() - start_ns) * 1e-9
        return Taken(answer.key, batch, _by_worker(answer, blocked_s, busy_s, copied_s))

    def close(self) -> None:
        """End the workers."""
        self._loader.close()


class _Begun(NamedTuple):
    taken: Taken
    copied: Stamp


class InLine:
    """The thread that takes them loads them, and begins the copies of those that follow.

    Args:
        loader: loads them in line
        place: brings one to the device
        lane: for copies; of the host, where none is ahead
        count: of copies that are ahead; 0: each is loaded and placed when it is taken
    """

    def __init__(self, loader: Loader, place: Place, lane: Lane, count: int) -> None:
        self._loader = loader
        self._place = place
        self._lane = lane
        self._count = count
        self._begun: deque[_Begun | Exception] = deque()

    def take(self) -> Taken:
        """One that was begun before, once those that come after it are begun too."""
        while len(self._begun) <= self._count and not (self._begun and isinstance(self._begun[-1], StopIteration)):
            self._begun.append(self._begin())
        found = self._begun.popleft()
        if isinstance(found, Exception):
            # An error is raised when its microbatch is asked for.
            raise found
        self._lane.finish(name_tensors(found.taken.batch).values(), found.copied)
        return found.taken

    def close(self) -> None:
        """Nothing works for it."""
        self._loader.close()

    def _begin(self) -> _Begun | Exception:
        try:
            asked_ns = time.perf_counter_ns()
            answer = self._loader.next()
            start_ns = time.perf_counter_ns()
            batch, copied = self._lane.start(partial(self._place, answer.batch))
        except Exception as error:  # noqa: BLE001 of any class: it belongs to a later batch
            return error
        loading = LoadingTimes(
            samples=answer.samples,
            read_s=answer.read_s,
            # What the loader does around it is work of this thread too.
            prepared_s=max(0.0, (start_ns - asked_ns) * 1e-9 - answer.read_s),
            copied_s=(time.perf_counter_ns() - start_ns) * 1e-9,
        )
        return _Begun(Taken(answer.key, batch, loading), copied)


class _Placed(NamedTuple):
    answer: Answer
    batch: Any
    copied: Stamp
    arrived_ns: int


class Ahead:
    """A thread takes them from the workers, and places a number of them before they are asked for.

    Args:
        loader: loads them in workers
        place: brings one to the device
        lane: on which it does
        count: how many are ready or on their way
    """

    def __init__(self, loader: Loader, place: Place, lane: Lane, count: int) -> None:
        self._loader = loader
        self._place = place
        self._lane = lane
        self._room = threading.Semaphore(count)
        self._placed: queue.SimpleQueue[_Placed | BaseException] = queue.SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="trimaran-feed", daemon=True)
        self._thread.start()

    def take(self) -> Taken:
        """Wait until it is on the device, or on its way there."""
        start = now()
        found = self._placed.get()
        if isinstance(found, BaseException):
            # Nothing follows it, however often it is asked for.
            self._placed.put(found)
            raise found
        self._room.release()
        self._lane.finish(name_tensors(found.batch).values(), found.copied)
        blocked_s, busy_s = since(start)
        # The worker blocked it until the batch had come, and the copy from then on.
        waited_s = min(blocked_s, max(0.0, (found.arrived_ns - start.clock_ns) * 1e-9))
        return Taken(found.answer.key, found.batch, _by_worker(found.answer, waited_s, busy_s, blocked_s - waited_s))

    def close(self) -> None:
        """End the thread and the workers."""
        self._closing = True
        self._loader.stop()
        self._room.release()
        self._thread.join()
        self._loader.close()

    def _run(self) -> None:
        try:
            while self._room.acquire() and not self._closing:
                answer = self._loader.next()
                arrived_ns = time.perf_counter_ns()
                batch, copied = self._lane.start(partial(self._place, answer.batch))
                self._placed.put(_Placed(answer, batch, copied, arrived_ns))
                # The one who takes it owns it now.
                del answer, batch, copied
        except BaseException as error:  # noqa: BLE001 the training must hear of it, whatever it is
            self._placed.put(error)


def _by_worker(answer: Answer, waited_s: float, taken_s: float, copied_s: float) -> LoadingTimes:
    return LoadingTimes(
        samples=answer.samples,
        read_s=answer.read_s,
        prepared_s=answer.prepared_s,
        waited_s=waited_s,
        taken_s=taken_s,
        copied_s=copied_s,
        in_line=False,
    )
