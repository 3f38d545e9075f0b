"""Whether the ranks of a launch still get on, and which of them holds the others up.

Ranks of one training wait for each other in every step, so that one that is stuck stops all of them within a step. The
ranks say once a second what they do (`activity`). When none of them has started anything for a while, the parent looks
at the state of their processes, asks where their threads are, and follows who waits for whom:

    rank 0    waits for AR#b0 of ranks 0, 1, 2 ─┐
    rank 2    waits for RECV from rank 0 ───────┼─▶ rank 1: in 0F0, waits for nobody: it is the culprit
    rank 1    0F0 ██████████████████████████████┘   its process runs; its stack is in job.py:12

A rank is a culprit if its process is stopped, else if it waits for no other rank, or does not answer. Where all of them
wait, it is one that the user's own code has made wait, else one that has not entered what another one waits for.

How long that may take depends on what the culprit does. In a training step it is `HangLimits.step_s`, by default the
largest of 30 s, 20 times the median step so far, and 3 times the longest pause in one so far, from the third step on.
Anything else (imports, capture, the first steps and others that compile; an evaluation, a callback, weights that are
written) may take `HangLimits.other_s`. A process that a signal has stopped does none of these, whatever it was at.

The time in which this process itself did not run (it was stopped, the machine slept) does not count.
"""

import math
import mmap
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trimaran.base.errors import ExecutionError
from trimaran.base.outcome import LONGEST_S
from trimaran.base.units import format_count, format_seconds
from trimaran.launch.activity import INTERVAL_S, STEP, Beat, Page, Stacks
from trimaran.launch.world import TIMEOUT_S

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

# A rank is asked where it is, and has this long to answer; it is asked again after the second time.
_ANSWER_S = 3.0
_ASK_AGAIN_S = 10.0
# Without a beat for this long, what it has said does not hold any more.
_FRESH_S = 5 * INTERVAL_S
# This process looks several times a second, unless it has been kept from it.
_OWN_PAUSE_S = 2.0
_KEPT = 101


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


_LATER_S = 120.0

_STATES = {
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
    """The state of a process by its letter in `/proc/<pid>/stat`; empty: it is gone; None: the system does not tell.

    Args:
        pid: of the process
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return "" if Path("/proc/self/stat").exists() else None
    except OSError:
        return None
    # The name of the program stands in brackets, and may have brackets in it.
    return text.rpartition(")")[2].split()[0]


@dataclass(slots=True, kw_only=True)
class _Watched:
    """What is known of a rank.

    Attributes:
        pid: of its process
        moved_at: when it was seen to get on
        heard_at: when its last beat came
        beat: the last one
        page: on which it notes what it does; None: the system does not show it
        content: of the page, when it was looked at last; empty: it was not
        stacks: its answer to the last question; None: it has not answered
        anchor: steps done at a moment in a training step, from which the next ones are timed
    """

    pid: int
    moved_at: float
    heard_at: float
    beat: Beat | None = None
    page: mmap.mmap | None = None
    content: bytes = b""
    stacks: Stacks | None = None
    anchor: tuple[int, float] | None = None
    steps_s: list[float] = field(default_factory=list)

    @property
    def seen(self) -> Page | None:
        """What it does: as it stands on its page, else as it has said last."""
        if self.page is not None:
            return Page.read(self.page[:])
        beat = self.beat
        if beat is None:
            return None
        return Page(phase=beat.phase, steps=beat.steps, doing=beat.doing, steps_begun=beat.steps_begun)

    @property
    def in_step(self) -> bool:
        """Whether it was in a training step when it was last seen to get on."""
        phase = Page.read(self.content).phase if self.content else "" if self.beat is None else self.beat.phase
        return phase == STEP

    @property
    def steps_here(self) -> int:
        """Training steps that it has done in this launch; the one under way is not done."""
        return 0 if self.seen is None else max(0, self.seen.steps_begun - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Who holds the others up.

    Attributes:
        culprits: ranks
        states: of the process of each rank that has not finished, by its letter; None: not known
        all_entered: every rank waits for what all of them have entered
    """

    culprits: tuple[int, ...]
    states: Mapping[int, str | None]
    all_entered: bool = False


class Watch:
    """Watches the ranks of one launch.

    Args:
        pids: of the ranks' processes, by rank
        limits: how long they may go without progress
        now: the time, on a clock that only goes forward [s]
    """

    def __init__(self, pids: Sequence[int], limits: HangLimits, now: float) -> None:
        self._ranks = {rank: _Watched(pid=pid, moved_at=now, heard_at=now) for rank, pid in enumerate(pids)}
        self._limits = limits
        self._looked_at = now
        self._asked_at: float | None = None
        self._longest_s = 0.0

    def moved(self, rank: int, now: float) -> None:
        """A rank has said something that shows that it gets on.

        Args:
            rank: which
            now: the time [s]
        """
        if all(watched.in_step for watched in self._ranks.values()):
            # Where one of them was elsewhere, the others have waited for that, and not for a step.
            self._longest_s = max(self._longest_s, self._silent_s(tuple(self._ranks), now))
        self._ranks[rank].moved_at = now
        self._asked_at = None

    def hear(self, rank: int, beat: Beat, now: float) -> None:
        """A rank says what it does.

        Args:
            rank: which
            beat: what it says
            now: the time [s]
        """
        watched = self._ranks[rank]
        before = watched.beat
        in_step = beat.phase == STEP and before is not None and before.phase == STEP
        if before is None or beat.started != before.started:
            self.moved(rank, now)
        watched.beat, watched.heard_at = beat, now
        if not in_step or watched.anchor is None:
            watched.anchor = (beat.steps, now) if beat.phase == STEP else None
        elif beat.steps > watched.anchor[0]:
            steps, since = watched.anchor
            watched.steps_s.append((now - since) / (beat.steps - steps))
            del watched.steps_s[:-_KEPT]
            watched.anchor = (beat.steps, now)

    def read(self, rank: int, page: mmap.mmap | None) -> None:
        """Where a rank notes what it does, also while it cannot say it.

        Args:
            rank: which
            page: None: the system does not show it
        """
        self._ranks[rank].page = page

    def seen(self, rank: int) -> Page | None:
        """What a rank did when it was last seen, also where it is gone now; None: not known.

        Args:
            rank: which
        """
        return self._ranks[rank].seen

    def answer(self, rank: int, stacks: Stacks) -> None:
        """A rank says where its threads are.

        Args:
            rank: which
            stacks: its answer
        """
        self._ranks[rank].stacks = stacks

    def to_ask(self, ranks: Iterable[int], now: float) -> tuple[int, ...]:
        """The ranks that are to be asked where they are, because none gets on; to be called several times a second.

        Args:
            ranks: that have not finished
            now: the time [s]
        """
        live = tuple(ranks)
        self._leave_out_own_pause(now)
        self._look_at_pages(live, now)
        if not live or self._silent_s(live, now) < self._least_s():
            return ()
        if self._asked_at is not None and now - self._asked_at < _ASK_AGAIN_S:
            return ()
        self._asked_at = now
        for rank in live:
            self._ranks[rank].stacks = None
        return live

    def judge(self, ranks: Iterable[int], now: float) -> ExecutionError | None:
        """The error that ends the launch, once the ranks that were asked have answered or have had time to.

        Args:
            ranks: that have not finished
            now: the time [s]
        """
        live = tuple(ranks)
        self._look_at_pages(live, now)
        if self._asked_at is None or not live:
            return None
        if any(self._ranks[rank].stacks is None for rank in live) and now - self._asked_at < _ANSWER_S:
            return None
        found = self._find(live, now)
        limit_s = self._limit_s(found)
        silent_s = self._silent_s(live, now)
        if limit_s is None or silent_s < limit_s:
            return None
        return self._error(live, found, now, silent_s=silent_s, limit_s=limit_s)

    def _leave_out_own_pause(self, now: float) -> None:
        paused_s, self._looked_at = now - self._looked_at, now
        if paused_s < _OWN_PAUSE_S:
            return
        for watched in self._ranks.values():
            watched.moved_at += paused_s
            watched.heard_at += paused_s
            watched.anchor = None
        self._asked_at = None

    def _look_at_pages(self, live: Sequence[int], now: float) -> None:
        """Notice what a rank has done since its last beat."""
        for rank in live:
            watched = self._ranks[rank]
            if watched.page is not None and (content := watched.page[:]) != watched.content:
                self.moved(rank, now)
                watched.content = content

    def _silent_s(self, live: Sequence[int], now: float) -> float:
        return now - max(self._ranks[rank].moved_at for rank in live)

    def _least_s(self) -> float:
        """Before this, nobody is asked [s]."""
        return min(self._limits.step_s or LEAST_S, self._limits.other_s or math.inf)

    def _step_limit_s(self, rank: int) -> float | None:
        """How long a rank may go without progress in a training step; None: as in anything else [s]."""
        steps = self._ranks[rank].steps_here
        if self._limits.step_s is not None:
            return self._limits.step_s if steps > 0 else None
        known = [step_s for watched in self._ranks.values() for step_s in watched.steps_s]
        if steps < SETTLED_STEPS or not known:
            return None
        return max(LEAST_S, MEDIANS * statistics.median(known), PAUSES * self._longest_s)

    def _limit_s(self, found: Finding) -> float | None:
        """How long what the culprits do may take; None: as long as it takes [s]."""
        limits: list[float] = []
        for rank in found.culprits:
            seen = self._ranks[rank].seen
            limit_s = None
            if found.states[rank] in _STOPPED:
                limit_s = self._least_s()
            elif seen is not None and seen.phase == STEP and not self._compiles(rank):
                limit_s = self._step_limit_s(rank)
            if limit_s is None and self._limits.other_s is not None:
                limit_s = max(self._limits.other_s, self._least_s())
            if limit_s is None:
                return None
            limits.append(limit_s)
        return max(limits)

    def _find(self, live: Sequence[int], now: float) -> Finding:
        states = {rank: process_state(self._ranks[rank].pid) for rank in live}
        stopped = tuple(rank for rank in live if states[rank] in _STOPPED)
        if stopped:
            return Finding(culprits=stopped, states=states)
        free = tuple(rank for rank in live if not self._waits(rank, now))
        if free:
            return Finding(culprits=free, states=states)
        users = tuple(rank for rank in live if self._from_user(rank))
        if users:
            return Finding(culprits=users, states=states)
        behind = tuple(other for other in live if any(self._missed(rank, other) for rank in live if rank != other))
        return Finding(culprits=behind or tuple(live), states=states, all_entered=not behind)

    def _waits(self, rank: int, now: float) -> bool:
        watched = self._ranks[rank]
        if watched.beat is None or now - watched.heard_at > _FRESH_S:
            return False
        return watched.beat.waits is not None or (watched.stacks is not None and watched.stacks.in_communication)

    def _from_user(self, rank: int) -> bool:
        stacks = self._ranks[rank].stacks
        return stacks is not None and stacks.from_user

    def _compiles(self, rank: int) -> bool:
        stacks = self._ranks[rank].stacks
        return stacks is not None and stacks.compiles

    def _missed(self, rank: int, other: int) -> bool:
        """Whether a rank waits for something that another one takes part in and has not entered."""
        mine, theirs = self._ranks[rank].beat, self._ranks[other].beat
        if mine is None or mine.waits is None or theirs is None:
            return False
        if mine.waits.ranks and other not in mine.waits.ranks:
            return False
        return theirs.steps < mine.steps or (theirs.steps == mine.steps and mine.waits.what not in theirs.entered)

    def _error(
        self, live: Sequence[int], found: Finding, now: float, *, silent_s: float, limit_s: float
    ) -> ExecutionError:
        first = found.culprits[0]
        seen = self._ranks[first].seen
        lines = [
            f"no rank has made progress for {format_seconds(silent_s)} (limit {format_seconds(limit_s)}). "
            + _blamed(found, self._place(first))
        ]
        for rank in found.culprits:
            lines.append(f"Rank {rank}: {self._state(rank, found.states[rank])}")
            lines += self._stack(rank, found.states[rank])
        for rank in live:
            if rank not in found.culprits:
                lines.append(f"Rank {rank} {self._waited_for(rank)}")
        in_step = seen is not None and seen.phase == STEP
        lines.append(_advice(found, self._ranks[first].pid, in_step=in_step))
        return ExecutionError(
            "\n".join(lines),
            code="rank.hangs",
            rank=first,
            ranks=list(found.culprits),
            state=found.states[first] or "",
            phase="" if seen is None else seen.phase,
            step=None if seen is None else seen.steps,
            instruction="" if seen is None else seen.doing,
            last_heard_s=round(now - self._ranks[first].heard_at, 1),
            silent_s=round(silent_s, 1),
            limit_s=round(limit_s, 1),
        )

    def _place(self, rank: int) -> str:
        """What a rank does, for people."""
        seen = self._ranks[rank].seen
        if seen is None:
            return "has not begun its work"
        if seen.phase != STEP:
            return f"is in: {seen.phase}, after {format_count(seen.steps, 'step')}"
        return f"is in {seen.doing or 'the beginning'} of step {seen.steps}"

    def _state(self, rank: int, state: str | None) -> str:
        watched = self._ranks[rank]
        told = "is in a state that this system does not tell" if state is None else _STATES.get(state, f"is in {state}")
        return f"{self._place(rank)}; its process {watched.pid} {told}"

    def _stack(self, rank: int, state: str | None) -> list[str]:
        stacks = self._ranks[rank].stacks
        if stacks is None:
            if state in _STOPPED:
                return []
            return ["    it does not answer: code that is not Python, such as an extension, keeps the interpreter"]
        return list(stacks.lines) or [*stacks.innermost, "    (no line of your code)"]

    def _waited_for(self, rank: int) -> str:
        beat = self._ranks[rank].beat
        if beat is None or beat.waits is None:
            return self._place(rank)
        others = [str(other) for other in beat.waits.ranks or self._ranks if other != rank]
        return f"waits for {beat.waits.what} of step {beat.steps}, with rank {', '.join(others)}"


def _blamed(found: Finding, doing: str) -> str:
    ranks = ", ".join(map(str, found.culprits))
    if found.all_entered:
        return f"Ranks {ranks} have all entered what they wait for, and it does not end"
    many = len(found.culprits) > 1
    return f"{'Ranks' if many else 'Rank'} {ranks} {'hold' if many else 'holds'} the others up" + (
        "" if many else f": it {doing}"
    )


def _advice(found: Finding, pid: int, *, in_step: bool) -> str:
    if "T" in (found.states[rank] for rank in found.culprits):
        return f"A stopped process goes on with kill -CONT {pid}"
    if found.all_entered:
        return "Look at the links between the ranks (trimaran doctor)"
    option = "hang" if in_step else "callback"
    return f"If it may take that long, give --{option}-timeout of trimaran train a longer time"
