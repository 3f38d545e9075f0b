"""What a rank does at this moment, and how its parent is told.

The training's thread notes the instruction that it starts and the communication that it waits for, each by an
assignment; no clock is read. What it does is also on a page of memory that the parent reads (`Page`), so that it is
known of a process that does not run any more. Another thread looks at these notes once a second and sends a `Beat`
to the parent:

    training   F0 ███ B0 ██████ wait AR#b0 ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
    beats              │ B0, 0 s      │ AR#b0, 1 s      │ AR#b0, 2 s
    parent             ▼              ▼                 ▼ nobody starts anything: see `hangs`

When the parent asks, a rank says where its threads are, by the lines of the user's code. A process whose threads do not
get to run, because it is stopped or a library keeps the interpreter's lock, sends no beat and does not answer; the
parent sees that too.
"""

import faulthandler
import functools
import mmap
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from trimaran.base import outcome
from trimaran.base.system import c_function
from trimaran.base.user_errors import frame_lines, frames_written, is_users

if TYPE_CHECKING:
    from trimaran.program.types import Instruction

BEAT = "beat"
"""Kind of a message from a rank: what it does."""

PAGE = "page"
"""Kind of a message from a rank: the descriptor of its page."""

STACKS = "stacks"
"""Kind of a command that asks a rank where its threads are, and of its answer."""

INTERVAL_S = 1.0
"""From one beat to the next [s]."""

STEP = "step"
"""The phase in which a training step is run; others are for people, such as "evaluation"."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A communication that a rank waits for.

    Attributes:
        what: token of its instruction, or words for people
        ranks: that take part; empty: all
        step: the training steps that had been done when it began
    """

    what: str
    ranks: tuple[int, ...] = ()
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a rank does, as it says about once a second.

    Attributes:
        phase: `STEP`, or what else is under way
        steps: training steps that have been done
        doing: token of the instruction under way; empty: none is
        started: instructions and phases that have been started; it grows while the rank gets on
        waits: the communication that it waits for; None: it waits for none that it knows of
        entered: communication that it has begun, and not seen the end of
        before_bytes: its memory before the job was made; 0: that is still to come [bytes]
        resident_bytes: its memory now [bytes]
        steps_begun: training steps that this process has begun, of a training that goes on without those before
    """

    phase: str
    steps: int
    doing: str
    started: int
    waits: Wait | None
    entered: tuple[str, ...]
    before_bytes: int = 0
    resident_bytes: int = 0
    steps_begun: int = 0


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


_STEPS = slice(0, 8)
_BEGUN = slice(8, 16)
_PHASE = slice(16, 64)
DOING = slice(64, 128)
"""Where the instruction under way stands on a page; `padded` gives what is written there."""

_ASKED = slice(128, 128 + outcome.PAGE_BYTES)
PAGE_BYTES = _ASKED.stop


def padded(text: str, place: slice = DOING) -> bytes:
    r"""A text as it stands in a place of a page, cut off where it is longer.

    Example:
        >>> len(padded("0F0")), padded("0F0")[:4]
        (64, b'0F0\x00')
    """
    size = int(place.stop - place.start)
    return text.encode()[:size].ljust(size, b"\0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a process was doing when somebody looked.

    Attributes:
        phase: see `Beat`
        steps: see `Beat`
        doing: see `Beat`
        steps_begun: see `Beat`
        asked: of the user's code; empty: nothing
    """

    phase: str
    steps: int
    doing: str
    steps_begun: int = 0
    asked: str = ""

    @classmethod
    def read(cls, memory: bytes) -> "Page":
        """What stands on a page.

        Args:
            memory: its bytes
        """
        return cls(
            phase=memory[_PHASE].rstrip(b"\0").decode(errors="replace"),
            steps=int.from_bytes(memory[_STEPS], sys.byteorder),
            doing=memory[DOING].rstrip(b"\0").decode(errors="replace"),
            steps_begun=int.from_bytes(memory[_BEGUN], sys.byteorder),
            asked=outcome.asked_on(memory[_ASKED]),
        )


class Activity:
    """Notes of one process. Its training's thread writes them, others read.

    Attributes:
        instruction: under way, or the last one
        page: what another process may read
        started: see `Beat`
        waits: what is waited for, the ranks that take part (empty: all); None: nothing is
        begun: the communication that is under way, by token; it grows and shrinks elsewhere
        before_bytes: memory that was there, and address space that was taken, before the job was made [bytes]
        steps_begun: see `Beat`
    """

    __slots__ = ("_phase", "_steps", "before_bytes", "begun", "instruction", "page", "started", "steps_begun", "waits")

    def __init__(self) -> None:
        self.page: bytearray | mmap.mmap = bytearray(PAGE_BYTES)
        self.steps_begun = 0
        self.phase = "starting"
        self.steps = 0
        self.instruction: Instruction | None = None
        self.started = 0
        self.waits: tuple[str, Sequence[int]] | None = None
        self.begun: Collection[str] = ()
        self.before_bytes = 0, 0

    @property
    def doing(self) -> str:
        """See `Beat`."""
        return "" if self.instruction is None else self.instruction.token

    @property
    def phase(self) -> str:
        """See `Beat`."""
        return self._phase

    @phase.setter
    def phase(self, phase: str) -> None:
        if phase == STEP:
            self.steps_begun += 1
            self.page[_BEGUN] = self.steps_begun.to_bytes(8, sys.byteorder)
        self._note_phase(phase)

    def _note_phase(self, phase: str) -> None:
        self._phase = phase
        self.page[_PHASE] = padded(phase, _PHASE)

    @property
    def steps(self) -> int:
        """See `Beat`."""
        return self._steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._steps = steps
        self.page[_STEPS] = steps.to_bytes(8, sys.byteorder)

    def share(self) -> int | None:
        """Move the page to where another process can read it.

        Returns:
            Its descriptor, which the other process opens; None: the system has no such memory.
        """
        if not hasattr(os, "memfd_create"):
            return None
        try:
            memory = os.memfd_create("trimaran-activity")
            os.ftruncate(memory, PAGE_BYTES)
            page = mmap.mmap(memory, PAGE_BYTES)
        except OSError:
            return None
        page[:] = bytes(self.page)
        self.page = page
        outcome.note_on(memoryview(page)[_ASKED])
        return memory

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Around something that is not a training step.

        Args:
            phase: its name, for people
        """
        before, self.phase = self.phase, phase
        self.started += 1
        try:
            yield
        finally:
            self._note_phase(before)
            self.started += 1

    @contextmanager
    def waiting(self, what: str, ranks: Sequence[int] = ()) -> Iterator[None]:
        """Around a wait for other ranks.

        Args:
            what: is waited for
            ranks: that take part; empty: all
        """
        before, self.waits = self.waits, (what, ranks)
        self.started += 1
        try:
            yield
        finally:
            self.waits = before

    def beat(self) -> Beat:
        """What is noted now."""
        instruction = self.instruction if self.phase != "starting" else None
        waits, begun = self.waits, tuple(self.begun)
        if waits is None and instruction is not None and instruction.communicates:
            peers = instruction.group if instruction.peer is None else (instruction.peer,)
            waits = (instruction.token, peers)
        return Beat(
            phase=self.phase,
            steps=self.steps,
            doing=self.doing,
            started=self.started,
            waits=None if waits is None else Wait(what=waits[0], ranks=tuple(waits[1]), step=self.steps),
            entered=begun if waits is None or waits[0] in begun else (*begun, waits[0]),
            before_bytes=self.before_bytes[0],
            resident_bytes=memory_bytes()[0],
            steps_begun=self.steps_begun,
        )


ACTIVITY = Activity()
"""Of this process: one thread trains in it."""


def memory_bytes() -> tuple[int, int]:
    """Memory of this process that is there, and address space that it has taken [bytes]; zeros where nothing tells."""
    try:
        taken, there, *_ = Path("/proc/self/statm").read_text().split()
        return int(there) * os.sysconf("SC_PAGE_SIZE"), int(taken) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0, 0


def open_page(pid: int, descriptor: int) -> mmap.mmap | None:
    """The page of another process; None: the system does not show it.

    Args:
        pid: of the process
        descriptor: from `Activity.share`, in that process
    """
    try:
        opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return mmap.mmap(opened, PAGE_BYTES, prot=mmap.PROT_READ)
    except (OSError, ValueError):
        return None
    finally:
        os.close(opened)


def send_beats(send: Callable[[Beat], None], ended: threading.Event, activity: Activity = ACTIVITY) -> None:
    """Send a beat in each interval, until there is nobody to send to.

    Args:
        send: raises OSError where nobody listens any more
        ended: set when there is nothing more to say
        activity: notes to be sent
    """
    while not ended.wait(INTERVAL_S):
        try:
            send(activity.beat())
        except OSError:
            return


def stacks_of(thread: int | None = None) -> Stacks:
    """Where the threads of this process are.

    Args:
        thread: the training's, by the number that the system gives it; None: the main thread
    """
    # On Linux the main thread has the number of the process; after a fork Python still has that of the parent.
    thread = os.getpid() if thread is None else thread
    main = _calls(thread)
    lines = frame_lines(main)
    for other in threading.enumerate():
        if other is not threading.main_thread() and other.native_id not in (None, thread, threading.get_native_id()):
            lines += frame_lines(_calls(other.native_id or 0))
    last_user = max((at for at, frame in enumerate(main) if is_users(frame.filename)), default=-1)
    last_ours = max((at for at, frame in enumerate(main) if "trimaran/runtime/" in frame.filename), default=-1)
    waits = any(part in frame.filename for frame in main[-3:] for part in _DISTRIBUTED)
    return Stacks(
        lines=tuple(lines),
        innermost=tuple(f"    {one.filename}:{one.lineno}, in {one.name}" for one in main[-3:]),
        in_communication=waits,
        from_user=waits and last_user > last_ours,
        compiles=any(part in frame.filename for frame in main for part in _COMPILING),
    )


def _calls(thread: int) -> list[traceback.FrameSummary]:
    """The calls of a thread, innermost last, as it writes them down itself; empty where it does not.

    No thread can look at another one's: the frames of `sys._current_frames` are gone under who looks, and
    `faulthandler.dump_traceback` finds threads of torch that are only coming to be. Either ends the process.
    """
    return frames_written(_written_by(thread))


# One that no library uses, and no user of a cluster sends.
_WRITE_DOWN = getattr(signal, "SIGRTMAX", 0) - 2
_send_signal = c_function("tgkill")
_MOST_S = 1.0
_SETTLED_S = 0.02


@functools.cache
def _notebook() -> IO[bytes] | None:
    """Where a thread writes its calls when it gets the signal; None: the system has no such signals, or no room."""
    if _WRITE_DOWN < 0 or _send_signal is None:
        return None
    import fcntl

    try:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 as long as the process
        fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
    except OSError:
        return None
    faulthandler.register(_WRITE_DOWN, file=file, all_threads=False)
    return file


def _written_by(thread: int) -> bytes:
    file = _notebook()
    if file is None or _send_signal is None:
        return b""
    try:
        os.ftruncate(file.fileno(), 0)
        if _send_signal(os.getpid(), thread, _WRITE_DOWN):
            return b""  # it has ended
        # Nothing says that it is done: it is when no more comes.
        size, end = 0, time.monotonic() + _MOST_S
        while time.monotonic() < end:
            time.sleep(_SETTLED_S)
            before, size = size, os.fstat(file.fileno()).st_size
            if before == size > 0:
                break
        return os.pread(file.fileno(), size, 0)
    except OSError:
        return b""
