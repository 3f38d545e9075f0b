"""What a rank does at this moment, and where its threads are, as its parent sees them also when it does not run.

A rank notes on a page of memory that the parent reads: the training's thread the instruction that it starts, by an
assignment; another thread once a second what is waited for, and that this process still gets to run Python:

    training   F0 ███ B0 ██████ wait AR#b0 ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
    beats              │ 1            │ 2: AR#b0        │ 3: AR#b0
    parent             ▼              ▼                 ▼ nobody starts anything: see `hangs`

When nobody gets on, the parent sends each thread of Python a signal, at which that writes its calls down itself
(`faulthandler`), also where a library keeps the interpreter's lock. No other thread can look at them: the frames of
`sys._current_frames` are gone under who looks, and `faulthandler.dump_traceback` finds threads of torch that are only
coming to be. Either ends the process.
"""

import faulthandler
import mmap
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trimaran.base import outcome
from trimaran.base.system import c_function
from trimaran.base.user_errors import frame_lines, frames_written, is_users

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

    __slots__ = ("_begun_steps", "_phase", "_steps", "before_bytes", "begun", "instruction", "page", "started", "waits")

    def __init__(self) -> None:
        self.page: bytearray | mmap.mmap = bytearray(PAGE_BYTES)
        self._begun_steps = 0
        self.phase = "starting"
        self.steps = 0
        self.instruction: Instruction | None = None
        self.started = 0
        self.waits: tuple[str, Sequence[int]] | None = None
        self.begun: Collection[str] = ()
        self.before_bytes = 0, 0

    @property
    def doing(self) -> str:
        """See `Note`."""
        return "" if self.instruction is None else self.instruction.token

    @property
    def phase(self) -> str:
        """See `Note`."""
        return self._phase

    @phase.setter
    def phase(self, phase: str) -> None:
        if phase == STEP:
            self._begun_steps += 1
            self.page[_BEGUN] = self._begun_steps.to_bytes(8, sys.byteorder)
        self._note_phase(phase)

    def _note_phase(self, phase: str) -> None:
        self._phase = phase
        self.page[_PHASE] = padded(phase, _PHASE)

    @property
    def steps(self) -> int:
        """See `Note`."""
        return self._steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._steps = steps
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
        """Around something that is not a training step, by its name for people."""
        before, self.phase = self.phase, phase
        self.started += 1
        try:
            yield
        finally:
            self._note_phase(before)
            self.started += 1

    @contextmanager
    def waiting(self, what: str, ranks: Sequence[int] = ()) -> Iterator[None]:
        """Around a wait for other ranks; none: all of them take part."""
        before, self.waits = self.waits, (what, ranks)
        self.started += 1
        try:
            yield
        finally:
            self.waits = before

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
