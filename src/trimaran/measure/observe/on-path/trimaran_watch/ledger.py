"""The time of a step, by what it is spent on.

At every moment exactly one kind is being spent: the innermost that was entered. So the kinds of a step sum to it, and
what nests (a `.item()` in a forward) is counted once.

    step k     load │ other │ forward │ loss │ backward ── exposed │ update │ other
                                                 ↑ the gradients are there; what follows is waiting for their exchange
    a step ends where the optimizer's step ends

Only one thread is watched, the one that trains. Entering or leaving a kind costs about half a microsecond.
"""

import threading
import time
from collections import deque

KINDS = (
    "other",  # none of the others: Python between them
    "load",  # waiting for the DataLoader's next batch
    "start",  # making the iterator of a DataLoader, its workers included
    "forward",  # a root module with gradients on
    "loss",  # from the end of the forward to the start of the backward
    "backward",  # autograd
    "exposed",  # DDP: from the last gradient to the end of the backward, and buffers that it sends
    "update",  # the optimizer's step, zeroing, clipping
    "sync",  # reading a value: .item(), .cpu(), if tensor
    "collective",  # blocked in torch.distributed outside of DDP
    "copy",  # moving a batch to the device
    "evaluation",  # a root module with gradients off
    "own",  # the watch itself
)
OTHER, LOAD, START, FORWARD, LOSS, BACKWARD, EXPOSED, UPDATE, SYNC, COLLECTIVE, COPY, EVALUATION, OWN = range(
    len(KINDS)
)

COUNTS = (
    "forwards",
    "backwards",
    "samples",
    "batches_loaded",
    "load_cpu_ns",
    "syncs",
    "collectives",
    "collective_nbytes",
    "in_forward",  # collectives inside a forward
    "dry",  # CUDA: the device had nothing left to do when the next step began
    "queued_ns",  # the thread was ready and others had the processors
    "load_asleep_ns",  # of loading, in which the process neither computed nor was ready to
)
FORWARDS, BACKWARDS, SAMPLES, BATCHES, LOAD_CPU, SYNCS, COLLECTIVES, NBYTES, IN_FORWARD, DRY, QUEUED, ASLEEP = range(
    len(COUNTS)
)

COLUMNS = ("step", "end_ns", "cpu_ns", *(f"{kind}_ns" for kind in KINDS), *COUNTS)
"""Fields of a row: step number, clock at its end, processor time of the process at its end, times, counts."""

_MOST_ROWS = 4000

Place = tuple[int, str, int, str]
"""A line of code that waits: the kind of the waiting, file, line, function."""

_MOST_PLACES = 200

# Asking the system takes some microseconds, so that short steps are asked for together.
_ASK_NS = 5_000_000

# Loads that are shorter are not asked how long they slept: they then count as if they had not.
_SHORT_NS = 1_000_000

_clock = time.perf_counter_ns


def _queued_ns() -> int:
    """How long the calling thread has waited for a processor so far [ns]; 0 where the system does not say."""
    try:
        with open("/proc/thread-self/schedstat", encoding="ascii") as file:  # noqa: PTH123
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _add(places: dict[Place, list[int]], place: Place, calls: int, ns: int) -> None:
    known = places.get(place)
    if known is not None:
        known[0] += calls
        known[1] += ns
    elif len(places) < _MOST_PLACES:
        places[place] = [calls, ns]


class Ledger:
    """Time by kind, a row a step.

    Attributes:
        thread: the thread that is watched; 0: nothing is
        stack: kinds entered and not left, the innermost last; the first is spent between all others
        spent: time of the step under way by kind [ns]
        counts: of the step under way
        rows: the latest steps
        steps: how many there were
        places: lines of code that waited in the step under way, with how often and how long [ns]
        all_places: the same of all steps without an evaluation
    """

    __slots__ = (
        "_asked",
        "_last",
        "_loads_are_long",
        "_queued",
        "all_places",
        "counts",
        "places",
        "rows",
        "spent",
        "stack",
        "steps",
        "thread",
    )

    def __init__(self) -> None:
        self.thread = 0
        self.reset()

    def reset(self) -> None:
        """Forget everything, and watch no thread."""
        self.thread = 0
        self.stack = [OTHER]
        self.spent = [0] * len(KINDS)
        self.counts = [0] * len(COUNTS)
        self.rows: deque[list[int]] = deque(maxlen=_MOST_ROWS)
        self.steps = 0
        self.places: dict[Place, list[int]] = {}
        self.all_places: dict[Place, list[int]] = {}
        self._last = self._asked = _clock()
        self._queued = 0
        self._loads_are_long = False

    def begin(self) -> None:
        """Watch the calling thread from now on."""
        self.thread = threading.get_ident()
        self._last = self._asked = _clock()
        self._queued = _queued_ns()

    def enter(self, kind: int) -> int:
        """Spend time on a kind from now on.

        Returns:
            What `leave` wants.
        """
        now = _clock()
        stack = self.stack
        self.spent[stack[-1]] += now - self._last
        self._last = now
        stack.append(kind)
        return len(stack) - 1

    def leave(self, depth: int) -> None:
        """Leave what `enter` entered, with everything inside that an exception left open."""
        now = _clock()
        stack = self.stack
        self.spent[stack[-1]] += now - self._last
        self._last = now
        del stack[depth or 1 :]

    def turn(self, kind: int) -> None:
        """Go on with another kind in place of the innermost."""
        now = _clock()
        self.spent[self.stack[-1]] += now - self._last
        self._last = now
        self.stack[-1] = kind

    def begin_load(self) -> tuple[int, int, int]:
        """Clock, processor time of the process, and what the thread was queued; -1: loads are too short to ask."""
        return _clock(), time.process_time_ns(), _queued_ns() if self._loads_are_long else -1

    def end_load(self, begun: tuple[int, int, int]) -> None:
        """Count what of a load the process slept.

        Args:
            begun: of `begin_load`
        """
        start, cpu, queued = begun
        took = _clock() - start
        if queued >= 0:
            busy = time.process_time_ns() - cpu + _queued_ns() - queued
            self.counts[ASLEEP] += max(0, took - busy)
        self._loads_are_long = took > _SHORT_NS

    def waited(self, place: Place, ns: int) -> None:
        """A line of code has waited.

        Args:
            place: the line
            ns: how long [ns]
        """
        _add(self.places, place, 1, ns)

    def end_step(self) -> None:
        """Close the row of the step under way."""
        now = _clock()
        self.spent[self.stack[-1]] += now - self._last
        self._last = now
        if self.thread and now - self._asked > _ASK_NS:
            queued = _queued_ns()
            self.counts[QUEUED] = queued - self._queued
            self._asked, self._queued = now, queued
        self.rows.append([self.steps, now, time.process_time_ns(), *self.spent, *self.counts])
        self.steps += 1
        if self.places:
            if not self.spent[EVALUATION]:
                for place, (calls, ns) in self.places.items():
                    _add(self.all_places, place, calls, ns)
            self.places = {}
        self.spent = [0] * len(KINDS)
        self.counts = [0] * len(COUNTS)


LEDGER = Ledger()
"""The ledger of this process."""
