"""What has happened so far: steps, their times, what was copied."""

import statistics
import time
import warnings
from collections import deque

from trimaran.session.virtual.flights import FlightStats
from trimaran.session.virtual.options import VERIFY_EVERY

_KEPT = 200
_ON_DEMAND = "flights that fit under no plan move storages on demand"
_UNNOTICED = (
    "virtual_memory: what was made again has other bits than what was there: {storages}. An operation behind it takes "
    "a number that has changed since the step was recorded. It is copied from now on; gradients of up to "
    f"{VERIFY_EVERY} steps before this one may be wrong. Make the number a tensor, so that it is noticed at once."
)


class Tally:
    """Counts steps and keeps the figures of the last one.

    Attributes:
        steps: ended so far
        recorded: of these, recorded
        fell_back: of these, not as planned
        peak_bytes: largest of the steps that were measured, but for verified ones [bytes]
        last: figures of the last step's flights
        last_planned: those of the last step that ran as planned, so neither on demand nor without a plan
        notes: what a person should know, in order
    """

    def __init__(self) -> None:
        self.steps = 0
        self.recorded = 0
        self.fell_back = 0
        self.peak_bytes: int | None = None
        self.last: tuple[FlightStats, ...] = ()
        self.last_planned: tuple[FlightStats, ...] = ()
        self.notes: list[str] = []
        self._last_recorded = False
        self._current: list[FlightStats] = []
        self._times_s: deque[float] = deque(maxlen=_KEPT)
        self._since_s: float | None = None

    @property
    def step_time_s(self) -> float | None:
        """Median of the steps that ran neither recorded nor on demand [s]."""
        return statistics.median(self._times_s) if self._times_s else None

    def add(self, stats: FlightStats) -> None:
        """A flight has ended."""
        self._current.append(stats)
        for storage in stats.banned:
            self.note(f"copied from now on, because making it again gave other bits: {storage}")
        if stats.infeasible and not any(note.startswith(_ON_DEMAND) for note in self.notes):
            self.note(f"{_ON_DEMAND}: {stats.infeasible}")
        if stats.unnoticed:
            warnings.warn(_UNNOTICED.format(storages="; ".join(stats.banned)), RuntimeWarning, stacklevel=2)

    def note(self, text: str) -> None:
        """Keep a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def as_planned(self) -> bool:
        """Whether the last step was neither recorded nor verified nor on demand."""
        return not self._last_recorded and not any(one.fell_back or one.verified for one in self.last)

    def end_step(self, *, recorded: bool, peak_bytes: int | None = None) -> None:
        """A step has ended; its time is that since the step before."""
        now_s = time.perf_counter()
        self.last, self._current = tuple(self._current), []
        if peak_bytes is not None and not recorded and not any(flight.verified for flight in self.last):
            self.peak_bytes = max(self.peak_bytes or 0, peak_bytes)
        fell_back = any(flight.fell_back for flight in self.last)
        if any(flight.planned for flight in self.last) and not fell_back:
            self.last_planned = self.last
        self.steps += 1
        self._last_recorded = recorded
        self.recorded += recorded
        self.fell_back += fell_back
        if self._since_s is not None and not recorded and not fell_back:
            self._times_s.append(now_s - self._since_s)
        self._since_s = now_s

    def start_peak(self) -> None:
        """Forget the peak so far: steps will run under other plans."""
        self.peak_bytes = None

    def resume(self) -> None:
        """What came since the step ended, such as planning, belongs to no step."""
        self._since_s = time.perf_counter()
