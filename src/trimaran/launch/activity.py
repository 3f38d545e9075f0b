"""What each rank does, and since when; and which of them holds the others up.

A rank notes on a page of memory that the parent reads: the training's thread the instruction that it starts, by an
assignment; another thread once a second what is waited for, and that this process still gets to run Python:

    training   F0 ███ B0 ██████ wait AR#b0 ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
    beats              │ 1            │ 2: AR#b0        │ 3: AR#b0
    parent             ▼              ▼                 ▼ nobody starts anything: who waits for whom?

When nobody gets on, the parent sends each thread of Python a signal, at which that writes its calls down itself
(`faulthandler`), also where a library keeps the interpreter's lock. No other thread can look at them: the frames of
`sys._current_frames` are gone under who looks, and `faulthandler.dump_traceback` finds threads of torch that are only
coming to be. Either ends the process. Then it follows who waits for whom:

    rank 0    waits for AR#b0 of ranks 0, 1, 2 ─┐
    rank 2    waits for RECV from rank 0 ───────┼─▶ rank 1: in 0F0, waits for nobody: it is the culprit
    rank 1    0F0 ██████████████████████████████┘   its process runs; its stack is in job.py:12

A rank is a culprit if its process is stopped, else if it waits for no other rank, or no thread of Python runs in it.
Where all of them wait, it is one that the user's own code has made wait, else one that has not entered what another one
waits for.

How long that may take depends on what the culprit does. In a training step it is `HangLimits.step_s`, by default the
largest of 30 s, 20 times the median step so far, and 3 times the longest pause in one so far, from the third step on.
Anything else (imports, capture, the first steps and others that compile; an evaluation, a callback, weights that are
written) may take `HangLimits.other_s`. A process that a signal has stopped does none of these, whatever it was at.

The time in which this process itself did not run (it was stopped, the machine slept) does not count.
"""

import faulthandler
import math
import mmap
import os
import signal
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trimaran.base import outcome
from trimaran.base.errors import ExecutionError
from trimaran.base.outcome import LONGEST_S
from trimaran.base.system import c_function
from trimaran.base.units import format_count, format_seconds
from trimaran.base.user_errors import frame_lines, frames_written, is_users
from trimaran.launch.world import TIMEOUT_S

if TYPE_CHECKING:
    from trimaran.program.types import Instruction

PAGE = "page"
"""Kind of a message from a rank: descriptors of its page, and of the file of its calls."""

INTERVAL_S = 1.0
"""From one beat to the next [s]."""

STEP = "step"
"""The phase in which a training step is run; others are for people, such as "evaluation"."""

_STEPS = slice(0, 8)
_BEGUN = slice(8, 16)
_PHASE = slice(16, 64)
DOING = slice(64, 128)
"""Where the instruction under way stands on a page; `padded` gives what is written there."""

_ASKED = slice(128, 128 + outcome.PAGE_BYTES)
# Which of two places has the last beat; the next one is written into the other.
_PLACE = _ASKED.stop
_BEAT_BYTES = 2**16
_BEATS = [slice(_PLACE + 1 + n * _BEAT_BYTES, _PLACE + 1 + (n + 1) * _BEAT_BYTES) for n in (0, 1)]
PAGE_BYTES = _BEATS[1].stop
_MOST_ENTERED = 500


def padded(text: str, place: slice = DOING) -> bytes:
    r"""A text as it stands in a place of a page, cut off where it is longer.

    Example:
        >>> len(padded("0F0")), padded("0F0")[:4]
        (64, b'0F0\x00')
    """
    size = int(place.stop - place.start)
    return text.encode()[:size].ljust(size, b"\0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a rank does.

    Attributes:
        phase: `STEP`, or what else is under way
        steps: training steps that have been done
        steps_begun: training steps that this process has begun, of a training that goes on without those before
        doing: token of the instruction under way; empty: none is
        asked: of the user's code; empty: nothing
        written: all of that as it stands on the page; it changes while the rank gets on
        started: instructions and phases that have been started; this and what follows are a second old at most
        waits: the communication that it waits for, a token or words for people; empty: none that it knows of
        ranks: that take part in it; empty: all
        entered: communication that it has begun, and not seen the end of
        threads: of Python, besides the training's, by the numbers that the system gives them
        before_bytes: its memory before the job was made; 0: that is still to come [bytes]
        resident_bytes: its memory now [bytes]
        beats: that it has made so far
    """

    phase: str = ""
    steps: int = 0
    steps_begun: int = 0
    doing: str = ""
    asked: str = ""
    written: bytes = b""
    started: int = 0
    waits: str = ""
    ranks: tuple[int, ...] = ()
    entered: tuple[str, ...] = ()
    threads: tuple[int, ...] = ()
    before_bytes: int = 0
    resident_bytes: int = 0
    beats: int = 0

    @classmethod
    def read(cls, page: mmap.mmap | bytearray) -> "Note":
        """What stands on a page."""
        written = bytes(page[: _ASKED.stop])
        beat = bytes(page[_BEATS[page[_PLACE] % 2]]).rstrip(b"\0")
        return cls(
            phase=written[_PHASE].rstrip(b"\0").decode(errors="replace"),
            steps=int.from_bytes(written[_STEPS], sys.byteorder),
            steps_begun=int.from_bytes(written[_BEGUN], sys.byteorder),
            doing=written[DOING].rstrip(b"\0").decode(errors="replace"),
            asked=outcome.asked_on(written[_ASKED]),
            written=written,
            **(msgspec.json.decode(beat) if beat else {}),
        )


class Activity:
    """Notes of one process. Its training's thread writes them, others read.

    Attributes:
        instruction: under way, or the last one
        page: what another process may read
        started: see `Note`
        waits: what is waited for, the ranks that take part (empty: all); None: nothing is
        begun: the communication that is under way, by token; it grows and shrinks elsewhere
        before_bytes: memory that was there, and address space that was taken, before the job was made [bytes]
    """

    __slots__ = ("_begun_steps", "before_bytes", "begun", "instruction", "page", "phase", "started", "waits")

    def __init__(self) -> None:
        self.page: bytearray | mmap.mmap = bytearray(PAGE_BYTES)
        self._begun_steps = self.started = 0
        self._note_phase("starting")
        self.instruction: Instruction | None = None
        self.waits: tuple[str, Sequence[int]] | None = None
        self.begun: Collection[str] = ()
        self.before_bytes = 0, 0

    @property
    def doing(self) -> str:
        """See `Note`."""
        return "" if self.instruction is None else self.instruction.token

    @property
    def steps(self) -> int:
        """See `Note`."""
        return int.from_bytes(self.page[_STEPS], sys.byteorder)

    @steps.setter
    def steps(self, steps: int) -> None:
        self.page[_STEPS] = steps.to_bytes(8, sys.byteorder)

    def share(self) -> tuple[int, int]:
        """Move the page to where another process can read it, and beat once a second from now on.

        Returns:
            Descriptors of the page, and of the file into which threads write their calls; for `opened`.
        """
        import fcntl  # of Linux, as ranks are

        memory, calls = os.memfd_create("trimaran-activity"), os.memfd_create("trimaran-calls")
        os.ftruncate(memory, PAGE_BYTES)
        page = mmap.mmap(memory, PAGE_BYTES)
        page[:] = bytes(self.page)
        self.page = page
        outcome.note_on(memoryview(page)[_ASKED])
        fcntl.fcntl(calls, fcntl.F_SETFL, os.O_APPEND)
        faulthandler.register(_WRITE_DOWN, file=calls, all_threads=False)
        threading.Thread(target=self._beat, daemon=True).start()
        return memory, calls

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Around a training step, `STEP`, or something else, by its name for people."""
        before = self.phase
        if phase == STEP:
            self._begun_steps += 1
            self.page[_BEGUN] = self._begun_steps.to_bytes(8, sys.byteorder)
        self._note_phase(phase)
        try:
            yield
        finally:
            self._note_phase(before)

    def _note_phase(self, phase: str) -> None:
        self.phase, self.page[_PHASE] = phase, padded(phase, _PHASE)
        self.started += 1

    @contextmanager
    def waiting(self, what: str, ranks: Sequence[int] = ()) -> Iterator[None]:
        """Around a wait for other ranks; none: all of them take part."""
        before, self.waits = self.waits, (what, ranks)
        try:
            yield
        finally:
            self.waits = before
            self.started += 1

    def _beat(self) -> None:
        beats = 0
        while True:
            time.sleep(INTERVAL_S)
            beats += 1
            self.write(beats)

    def write(self, beats: int) -> None:
        """Write the part of a note that is written once a second.

        Args:
            beats: that were written so far, with this one
        """
        instruction = self.instruction if self.phase != "starting" else None
        waits, begun = self.waits, tuple(self.begun)
        if waits is None and instruction is not None and instruction.communicates:
            peers = instruction.group if instruction.peer is None else (instruction.peer,)
            waits = (instruction.token, peers)
        what, ranks = waits or ("", ())
        main, here = threading.main_thread(), threading.get_native_id()
        beat = {
            "started": self.started,
            "waits": what,
            "ranks": tuple(ranks),
            "entered": (*begun[-_MOST_ENTERED:], *([what] if what and what not in begun else [])),
            "threads": [one.native_id for one in threading.enumerate() if one is not main and one.native_id != here],
            "before_bytes": self.before_bytes[0],
            "resident_bytes": memory_bytes()[0],
            "beats": beats,
        }
        self.page[_BEATS[beats % 2]] = msgspec.json.encode(beat).ljust(_BEAT_BYTES, b"\0")
        self.page[_PLACE] = beats % 2


ACTIVITY = Activity()
"""Of this process: one thread trains in it."""


def memory_bytes() -> tuple[int, int]:
    """Memory of this process that is there, and address space that it has taken [bytes]; zeros where nothing tells."""
    try:
        taken, there, *_ = Path("/proc/self/statm").read_text().split()
        return int(there) * os.sysconf("SC_PAGE_SIZE"), int(taken) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0, 0


def opened(pid: int, memory: int, calls: int) -> tuple[mmap.mmap, int]:
    """The page of another process, and a descriptor of its calls, by its descriptors of both (`Activity.share`).

    Raises:
        OSError: the system does not show them
    """
    page = os.open(f"/proc/{pid}/fd/{memory}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        mapped = mmap.mmap(page, PAGE_BYTES, prot=mmap.PROT_READ)
    finally:
        os.close(page)
    return mapped, os.open(f"/proc/{pid}/fd/{calls}", os.O_RDWR | os.O_CLOEXEC)


# ---------------------------------------------------------------------------------------------------------------------
# Where threads are


_DISTRIBUTED = ("torch/distributed/", "trimaran/runtime/communication/", "trimaran/runtime/zero/collectives")
# Code that is compiled already runs in other files of torch.compile.
_COMPILING = (
    "torch/_dynamo/convert_frame",
    "torch/_dynamo/symbolic_convert",
    "torch/_inductor/codegen/",
    "torch/_inductor/compile_fx",
    "torch/_inductor/graph",
    "torch/_inductor/scheduler",
)
# One that no library uses, and no user of a cluster sends.
_WRITE_DOWN = getattr(signal, "SIGRTMAX", 0) - 2
_send_signal = c_function("tgkill")
# For all threads of all processes: who asks must not be taken for one that was stopped.
_MOST_S = 1.0
_SETTLED_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """Where the threads of a rank are.

    Attributes:
        lines: of the user's code, innermost last, those of the training's thread first; empty: no thread is in it
        innermost: the innermost lines of whosever code in the training's thread
        in_communication: the training's thread waits in torch.distributed, or in what stands on it here
        from_user: the user's own code has called that
        compiles: the training's thread is in torch.compile, which compiles again for new sizes
    """

    lines: tuple[str, ...] = ()
    innermost: tuple[str, ...] = ()
    in_communication: bool = False
    from_user: bool = False
    compiles: bool = False

    @classmethod
    def of(cls, main: Sequence[traceback.FrameSummary], *others: Sequence[traceback.FrameSummary]) -> "Stacks":
        """By the calls of the training's thread, and of others, innermost last."""
        last_user = max((at for at, frame in enumerate(main) if is_users(frame.filename)), default=-1)
        last_ours = max((at for at, frame in enumerate(main) if "trimaran/runtime/" in frame.filename), default=-1)
        waits = any(part in frame.filename for frame in main[-3:] for part in _DISTRIBUTED)
        return cls(
            lines=tuple(line for calls in (main, *others) for line in frame_lines(calls)),
            innermost=tuple(f"    {one.filename}:{one.lineno}, in {one.name}" for one in main[-3:]),
            in_communication=waits,
            from_user=waits and last_user > last_ours,
            compiles=any(part in frame.filename for frame in main for part in _COMPILING),
        )


def stacks_of(processes: Mapping[int, tuple[int, int, Sequence[int]]]) -> dict[int, Stacks]:
    """Where the threads of processes are, each asked in its turn to write that down.

    Args:
        processes: by rank: its number, a descriptor of the file of its calls, and its threads, the training's first
    """
    calls: dict[int, list[list[traceback.FrameSummary]]] = {rank: [] for rank in processes}
    end = time.monotonic() + _MOST_S
    for place in range(max((len(threads) for *_, threads in processes.values()), default=0)):
        sizes: dict[int, int] = {}
        for rank, (pid, file, threads) in processes.items():
            os.ftruncate(file, 0)
            if place < len(threads) and _send_signal is not None and not _send_signal(pid, threads[place], _WRITE_DOWN):
                sizes[rank] = 0
        # Nothing says that one is done: it is when no more comes.
        settled = False
        while sizes and not settled and time.monotonic() < end:
            time.sleep(_SETTLED_S)
            before, sizes = sizes, {rank: os.fstat(processes[rank][1]).st_size for rank in sizes}
            settled = before == sizes and all(sizes.values())
        for rank, size in sizes.items():
            calls[rank].append(frames_written(os.pread(processes[rank][1], size, 0)))
    return {rank: Stacks.of(*(written or [[]])) for rank, written in calls.items()}


# ---------------------------------------------------------------------------------------------------------------------
# Who holds the others up


LEAST_S = 30.0
"""Without progress in a training step, by default [s]."""

MEDIANS = 20.0
"""Likewise, in median steps."""

PAUSES = 3.0
"""Likewise, in the longest pauses that a step has made so far."""

SETTLED_STEPS = 3
"""Before as many have been done by default, steps may take as long as anything else: they compile."""

OTHER_S = LONGEST_S
"""Without progress in anything but a training step, by default [s]."""

_ASK_AGAIN_S = 10.0
# Whether a rank whose beat is late still runs is known when that comes, or this long after the last one.
_LATE_S = 2 * INTERVAL_S
_FRESH_S = 5 * INTERVAL_S
# This process looks several times a second, unless it has been kept from it.
_OWN_PAUSE_S = 2.0
_KEPT = 101
_LATER_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HangLimits:
    """How long ranks may go without progress.

    Attributes:
        step_s: in a training step after the first one [s]; None: derived from the steps so far
        other_s: in anything else [s]; None: as long as it takes
    """

    step_s: float | None = None
    other_s: float | None = OTHER_S


def collective_timeout(limits: HangLimits | None) -> float:
    """How long a collective may wait where a watch has these limits, so that the watch is the first to say [s].

    Args:
        limits: of the watch; None: nobody watches, and ranks wait at least as long for each other as under a watch
    """
    longest = (OTHER_S,) if limits is None else (limits.other_s or 0.0, limits.step_s or 0.0)
    return max(TIMEOUT_S, *(limit_s + _LATER_S for limit_s in longest if limit_s < math.inf))


_STATES = {
    None: "is in a state that this system does not tell",
    "R": "runs",
    "S": "sleeps, as one that waits does",
    "D": "is in an uninterruptible sleep: a disk or a network file system does not answer",
    "T": "is stopped by a signal",
    "t": "is stopped by a debugger",
    "Z": "has ended",
    "X": "has ended",
    "": "is gone",
}
_STOPPED = ("T", "Z", "X", "")


def process_state(pid: int) -> str | None:
    """The state of a process by its letter in `/proc/<pid>/stat`; empty: it is gone; None: the system does not tell."""
    try:
        # The name of the program stands in brackets, and may have brackets in it.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "" if Path("/proc/self/stat").exists() else None
    except OSError:
        return None


@dataclass(slots=True, kw_only=True)
class _Watched:
    """What is known of a rank.

    Attributes:
        pid: of its process
        moved_at: when it was seen to get on
        heard_at: when a thread of Python was seen to run in it
        note: what it does
        stacks: where its threads were when they were asked
        anchor: steps done at a moment in a training step, from which the next ones are timed
    """

    pid: int
    moved_at: float
    heard_at: float
    note: Note = field(default_factory=Note)
    stacks: Stacks = field(default_factory=Stacks)
    anchor: tuple[int, float] | None = None
    steps_s: list[float] = field(default_factory=list)


class ActivityWatch:
    """Watches the ranks of one launch.

    Args:
        pids: of the ranks' processes, by rank
        limits: how long they may go without progress
        now: the time, on a clock that only goes forward [s]
        ask: where the threads of ranks are; of one that cannot say it, nothing
    """

    def __init__(
        self,
        pids: Sequence[int],
        limits: HangLimits,
        now: float,
        ask: Callable[[Sequence[int]], Mapping[int, Stacks]],
    ) -> None:
        self._ranks = {rank: _Watched(pid=pid, moved_at=now, heard_at=now) for rank, pid in enumerate(pids)}
        self._limits = limits
        self._ask = ask
        # Before this, nobody is asked.
        self._least_s = min(limits.step_s or LEAST_S, limits.other_s or math.inf)
        self._looked_at = now
        self._asked_at: float | None = None
        self._longest_s = 0.0

    def moved(self, rank: int, now: float) -> None:
        """A rank has said something that shows that it gets on."""
        if all(watched.note.phase == STEP for watched in self._ranks.values()):
            # Where one of them was elsewhere, the others have waited for that, and not for a step.
            self._longest_s = max(self._longest_s, self._silent_s(self._ranks, now))
        self._ranks[rank].moved_at = now
        self._asked_at = None

    def hear(self, rank: int, note: Note, now: float) -> None:
        """What a rank does; to be called before each `look`."""
        watched = self._ranks[rank]
        before = watched.note
        if (note.written, note.started) != (before.written, before.started):
            self.moved(rank, now)
        if note.beats != before.beats:
            watched.heard_at = now
        watched.note = note
        if note.phase != STEP or before.phase != STEP or watched.anchor is None:
            watched.anchor = (note.steps, now) if note.phase == STEP else None
        elif note.steps > watched.anchor[0]:
            steps, since = watched.anchor
            watched.steps_s.append((now - since) / (note.steps - steps))
            del watched.steps_s[:-_KEPT]
            watched.anchor = (note.steps, now)

    def look(self, ranks: Iterable[int], now: float) -> ExecutionError | None:
        """The error that ends the launch, where a rank holds the others up; to be called several times a second.

        Args:
            ranks: that have not finished
            now: the time [s]
        """
        live = tuple(ranks)
        paused_s, self._looked_at = now - self._looked_at, now
        if paused_s >= _OWN_PAUSE_S:
            for watched in self._ranks.values():
                watched.moved_at += paused_s
                watched.heard_at += paused_s
                watched.anchor = None
            self._asked_at = None
        if not live or (silent_s := self._silent_s(live, now)) < self._least_s:
            return None
        states = {rank: process_state(self._ranks[rank].pid) for rank in live}
        late_s = [now - self._ranks[rank].heard_at for rank in live if states[rank] not in _STOPPED]
        if any(_LATE_S < one <= _FRESH_S for one in late_s):
            return None
        if self._asked_at is None or now - self._asked_at >= _ASK_AGAIN_S:
            self._asked_at = now
            # What is not Python may take a signal for the end of a wait.
            self._ask_now(live, [rank for rank in live if states[rank] not in _STOPPED and self._is_fresh(rank, now)])
        culprits, all_entered = self._find(states, now)
        limit_s = max(self._limit_s(rank, states[rank]) for rank in culprits)
        if silent_s < limit_s:
            return None
        kept = [rank for rank in culprits if states[rank] not in _STOPPED and not self._is_fresh(rank, now)]
        self._ask_now(kept, kept)
        return self._error(culprits, states, now, all_entered=all_entered, silent_s=silent_s, limit_s=limit_s)

    def _ask_now(self, forgotten: Iterable[int], asked: Sequence[int]) -> None:
        answers = self._ask(asked)
        for rank in forgotten:
            self._ranks[rank].stacks = answers.get(rank, Stacks())

    def _silent_s(self, live: Iterable[int], now: float) -> float:
        return now - max(self._ranks[rank].moved_at for rank in live)

    def _limit_s(self, rank: int, state: str | None) -> float:
        """How long what a rank does may take [s]."""
        watched, other_s = self._ranks[rank], max(self._limits.other_s or math.inf, self._least_s)
        if state in _STOPPED:
            return self._least_s
        # The step under way is not done.
        steps = watched.note.steps_begun - 1
        if watched.note.phase != STEP or watched.stacks.compiles or steps < 1:
            return other_s
        if self._limits.step_s is not None:
            return self._limits.step_s
        known = [step_s for one in self._ranks.values() for step_s in one.steps_s]
        if steps < SETTLED_STEPS or not known:
            return other_s
        return max(LEAST_S, MEDIANS * statistics.median(known), PAUSES * self._longest_s)

    def _find(self, states: Mapping[int, str | None], now: float) -> tuple[tuple[int, ...], bool]:
        """The culprits, and whether every rank waits for what all of them have entered."""
        live = self._ranks.keys() & states.keys()
        for is_culprit in (
            lambda rank: states[rank] in _STOPPED,
            lambda rank: not self._waits(rank, now),
            lambda rank: self._ranks[rank].stacks.from_user,
            lambda rank: any(self._missed(waiting, rank) for waiting in live - {rank}),
        ):
            if found := tuple(sorted(filter(is_culprit, live))):
                return found, False
        return tuple(sorted(live)), True

    def _is_fresh(self, rank: int, now: float) -> bool:
        return now - self._ranks[rank].heard_at <= _FRESH_S

    def _waits(self, rank: int, now: float) -> bool:
        watched = self._ranks[rank]
        return self._is_fresh(rank, now) and (bool(watched.note.waits) or watched.stacks.in_communication)

    def _missed(self, rank: int, other: int) -> bool:
        """Whether a rank waits for something that another one takes part in and has not entered."""
        mine, theirs = self._ranks[rank].note, self._ranks[other].note
        if not mine.waits or not theirs.beats or (mine.ranks and other not in mine.ranks):
            return False
        return theirs.steps < mine.steps or (theirs.steps == mine.steps and mine.waits not in theirs.entered)

    def _error(
        self,
        culprits: Sequence[int],
        states: Mapping[int, str | None],
        now: float,
        *,
        all_entered: bool,
        silent_s: float,
        limit_s: float,
    ) -> ExecutionError:
        first = culprits[0]
        note, pid = self._ranks[first].note, self._ranks[first].pid
        listed = ", ".join(map(str, culprits))
        if all_entered:
            blamed = f"Ranks {listed} have all entered what they wait for, and it does not end"
            advice = "Look at the links between the ranks (trimaran doctor)"
        else:
            many = len(culprits) > 1
            blamed = f"Ranks {listed} hold the others up" if many else f"Rank {first} holds the others up: it "
            blamed += "" if many else self._place(first)
            option = "hang" if note.phase == STEP else "callback"
            advice = f"If it may take that long, give --{option}-timeout of trimaran train a longer time"
        if "T" in (states[rank] for rank in culprits):
            advice = f"A stopped process goes on with kill -CONT {pid}"
        head = f"no rank has made progress for {format_seconds(silent_s)} (limit {format_seconds(limit_s)}). {blamed}"
        lines = [head]
        for rank in culprits:
            state = _STATES.get(states[rank], f"is in {states[rank]}")
            lines.append(f"Rank {rank}: {self._place(rank)}; its process {self._ranks[rank].pid} {state}")
            if states[rank] not in _STOPPED:
                lines += self._stack(rank, now)
        lines += [f"Rank {rank} {self._waited_for(rank)}" for rank in states if rank not in culprits]
        return ExecutionError(
            "\n".join([*lines, advice]),
            code="rank.hangs",
            rank=first,
            ranks=list(culprits),
            state=states[first] or "",
            phase=note.phase,
            step=note.steps if note.phase else None,
            instruction=note.doing,
            last_heard_s=round(now - self._ranks[first].heard_at, 1),
            silent_s=round(silent_s, 1),
            limit_s=round(limit_s, 1),
        )

    def _place(self, rank: int) -> str:
        """What a rank does, for people."""
        note = self._ranks[rank].note
        if not note.phase:
            return "has not begun its work"
        if note.phase != STEP:
            return f"is in: {note.phase}, after {format_count(note.steps, 'step')}"
        return f"is in {note.doing or 'the beginning'} of step {note.steps}"

    def _stack(self, rank: int, now: float) -> list[str]:
        stacks = self._ranks[rank].stacks
        kept = "    it does not answer: code that is not Python, such as an extension, keeps the interpreter"
        lines = list(stacks.lines) or [*stacks.innermost, "    (no line of your code)"]
        return lines if self._is_fresh(rank, now) else [*(lines if stacks.innermost else []), kept]

    def _waited_for(self, rank: int) -> str:
        note = self._ranks[rank].note
        if not note.waits:
            return self._place(rank)
        others = [str(other) for other in note.ranks or self._ranks if other != rank]
        return f"waits for {note.waits} of step {note.steps}, with rank {', '.join(others)}"
