"""Whether the ranks of a launch still get on, and which of them holds the others up.

Ranks of one training wait for each other in every step, so that one that is stuck stops all of them within a step. Each
notes what it does (`activity`). When none of them has started anything for a while, the parent looks at the state of
their processes and at where their threads are, and follows who waits for whom:

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

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trimaran.base.errors import ExecutionError
from trimaran.base.outcome import LONGEST_S
from trimaran.base.units import format_count, format_seconds
from trimaran.launch.activity import INTERVAL_S, STEP, Note, Stacks
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


class Watch:
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
        if not live or (silent_s := self._silent_s(live, now)) < self._least_s():
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
        limit_s = self._limit_s(culprits, states)
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

    def _least_s(self) -> float:
        """Before this, nobody is asked [s]."""
        return min(self._limits.step_s or LEAST_S, self._limits.other_s or math.inf)

    def _step_limit_s(self, rank: int) -> float | None:
        """How long a rank may go without progress in a training step; None: as in anything else [s]."""
        # The one under way is not done.
        steps = self._ranks[rank].note.steps_begun - 1
        if self._limits.step_s is not None:
            return self._limits.step_s if steps > 0 else None
        known = [step_s for watched in self._ranks.values() for step_s in watched.steps_s]
        if steps < SETTLED_STEPS or not known:
            return None
        return max(LEAST_S, MEDIANS * statistics.median(known), PAUSES * self._longest_s)

    def _limit_s(self, culprits: Sequence[int], states: Mapping[int, str | None]) -> float:
        """How long what the culprits do may take [s]."""
        limits: list[float] = []
        for rank in culprits:
            watched, limit_s = self._ranks[rank], None
            if states[rank] in _STOPPED:
                limit_s = self._least_s()
            elif watched.note.phase == STEP and not watched.stacks.compiles:
                limit_s = self._step_limit_s(rank)
            if limit_s is None:
                limit_s = max(self._limits.other_s or math.inf, self._least_s())
            limits.append(limit_s)
        return max(limits)

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
