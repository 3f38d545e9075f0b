"""The plans of a loop: one for each look of a batch, a small number of them, those used last."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from trimaran.errors import InfeasibleError
from trimaran.graph.trace.calls import Recording
from trimaran.graph.trace.types import StepTrace
from trimaran.planner.memory.floor import floor
from trimaran.program.memory import KEEP_ALL
from trimaran.session.virtual.batches import Signature, is_within
from trimaran.session.virtual.device import Device
from trimaran.session.virtual.flights import FlightStats, Flyer, Key
from trimaran.session.virtual.flying import KeepFlyer, PlanFlyer
from trimaran.session.virtual.options import MOST_PLANS, MOST_TIGHTENED, Options
from trimaran.session.virtual.recording import Recorded
from trimaran.simulator.memory import live_bytes
from trimaran.units import format_bytes

_MOST_MET = 256
_LEFT_TOO_OFTEN = 2
_MOST_RENEWED = 2


@dataclass(slots=True, kw_only=True)
class Planned:
    """What was planned for a key.

    Attributes:
        recorded: the flight
        keep_peak_bytes: peak without help [bytes]
        flyer: who runs it, under a plan or without
        left: how often in a row a flight has left the plan
    """

    recorded: Recorded
    keep_peak_bytes: int
    flyer: Flyer
    left: int = 0

    @property
    def trace(self) -> StepTrace:
        """Of the flight."""
        return self.recorded.recording.trace

    @property
    def fits(self) -> bool:
        """Whether it needs no plan."""
        return isinstance(self.flyer, KeepFlyer)

    @property
    def floor_bytes(self) -> int:
        """Least memory that any plan can reach [bytes]."""
        return floor(self.trace).nbytes + self.recorded.outside_bytes

    @property
    def compute_s(self) -> float:
        """Time of its operations, as measured while it was recorded [s]."""
        return sum(operation.duration_s or 0.0 for operation in self.trace.ops)

    @property
    def peak_bytes(self) -> int:
        """Peak that is expected [bytes]."""
        outcome = self.flyer.outcome
        if outcome is None:
            return self.keep_peak_bytes if self.fits else self.floor_bytes
        return outcome.live.peak + self.recorded.outside_bytes


class Plans:
    """What was planned so far.

    Args:
        options: what the user chose
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._planned: OrderedDict[Key, Planned] = OrderedDict()
        self._met: OrderedDict[Key, int] = OrderedDict()
        self._renewed: dict[Key, int] = {}
        self._tightened = 0
        self._device: Device | None = None
        self.budget_bytes = options.budget.nbytes
        self.margin_bytes = 0
        self.device = "cpu"

    @property
    def all_fit(self) -> bool:
        """Whether everything known fits without a plan."""
        return bool(self._planned) and all(one.fits for one in self._planned.values())

    @property
    def phase(self) -> str:
        """What the next flight is for, by the flight used last."""
        last = next(reversed(self._planned.values()), None)
        return "record" if last is None else last.flyer.phase

    @property
    def largest(self) -> Planned | None:
        """The flight that needs most."""
        return max(self._planned.values(), key=lambda one: one.keep_peak_bytes, default=None)

    @property
    def predicted_peak_bytes(self) -> int | None:
        """Largest peak that is expected of any flight [bytes]."""
        return max((one.peak_bytes for one in self._planned.values()), default=None)

    def __len__(self) -> int:
        return sum(one.flyer.outcome is not None for one in self._planned.values())

    def covers(self, signature: Signature) -> bool:
        """Whether a batch is known to fit: it looks like one that does, or is no larger than it."""
        return any(
            is_within(signature, known) for one in self._planned.values() if one.fits for known in one.recorded.seen
        )

    def find(self, key: Key) -> Flyer | None:
        """Who runs a flight; None: it is not known, and must be recorded.

        A batch that is no larger than one that fits, fits too. One that is no larger than one with a plan is run with
        that plan the first time: it leaves it at once, and goes on with storages moved on demand. The next one of its
        look is recorded, unless there are as many plans as may be.
        """
        planned = self._planned.get(key)
        if planned is not None:
            self._planned.move_to_end(key)
            return planned.flyer
        larger = next((one for known, one in self._planned.items() if _is_smaller(key, known)), None)
        if larger is None:
            return None
        often = self._met.get(key, 0) + 1
        self._met[key] = often
        while len(self._met) > _MOST_MET:
            self._met.popitem(last=False)
        return larger.flyer if larger.fits or often == 1 or len(self._planned) >= MOST_PLANS else None

    def judge(self, key: Key, stats: FlightStats) -> None:
        """Drop a plan that its own batches leave again and again: it is recorded anew, a few times."""
        planned = self._planned.get(key)
        if planned is None or planned.flyer.outcome is None:
            return
        planned.left = planned.left + 1 if stats.fell_back else 0
        if planned.left >= _LEFT_TOO_OFTEN and self._renewed.get(key, 0) < _MOST_RENEWED:
            self._renewed[key] = self._renewed.get(key, 0) + 1
            del self._planned[key]

    def resolve(self, recorded: Iterable[Recorded]) -> int:
        """The budget in bytes; a share is of the peak of the largest flight in the first step that is planned."""
        if self.budget_bytes is None:
            peaks = [_keep_peak_bytes(one) for one in recorded]
            self.budget_bytes = self._options.budget.resolve(max(peaks, default=0))
        return self.budget_bytes

    def make(self, key: Key, recorded: Recorded, *, must: bool = True) -> None:
        """Plan a flight.

        Args:
            key: what it is
            recorded: the flight
            must: whether there must be a plan; otherwise it moves storages on demand where no plan keeps the budget

        Raises:
            InfeasibleError: the budget is below the floor, and there must be a plan
        """
        budget_bytes = self.resolve([recorded]) - self.margin_bytes
        self.device = recorded.recording.trace.device
        keep_peak_bytes = _keep_peak_bytes(recorded)
        flyer: KeepFlyer | PlanFlyer = KeepFlyer()
        if keep_peak_bytes > budget_bytes:
            device = self.device_of(recorded.recording)
            left_bytes = budget_bytes - recorded.outside_bytes
            flyer = PlanFlyer(recorded.recording, device, self._options, left_bytes, must=must)
        self._put(key, Planned(recorded=recorded, keep_peak_bytes=keep_peak_bytes, flyer=flyer))

    def tighten(self, over_bytes: int) -> str:
        """Plan again with a smaller budget, because a step held more than it was planned to.

        Args:
            over_bytes: by how much [bytes]

        Returns:
            What was done, for a person.
        """
        if self._tightened >= MOST_TIGHTENED:
            return f"no more than {MOST_TIGHTENED} times planned again"
        self._tightened += 1
        self.margin_bytes += over_bytes
        budget_bytes = (self.budget_bytes or 0) - self.margin_bytes
        for planned in self._planned.values():
            if isinstance(planned.flyer, PlanFlyer) and planned.flyer.outcome is not None:
                try:
                    planned.flyer.plan_again(budget_bytes - planned.recorded.outside_bytes)
                except InfeasibleError as error:
                    return f"planning again with {format_bytes(over_bytes)} less failed: {error.message}"
        return f"planned again with {format_bytes(self.margin_bytes)} less than the budget"

    def confirm(self) -> None:
        """See that what was made again in this step had the right bytes, before its gradients are used.

        Raises:
            ExecutionError: it had others
        """
        for planned in self._planned.values():
            planned.flyer.confirm()

    def forget(self) -> None:
        """Drop all plans."""
        self._planned.clear()

    def close(self) -> None:
        """Drop all plans, and end the copies."""
        self.forget()
        if self._device is not None:
            self._device.close()
            self._device = None

    def _put(self, key: Key, planned: Planned) -> None:
        self._planned.pop(key, None)
        self._planned[key] = planned
        while len(self._planned) > MOST_PLANS:
            self._planned.popitem(last=False)

    def device_of(self, recording: Recording) -> Device:
        """The device of a recorded flight, with its copies."""
        if self._device is None:
            self._device = Device(recording.trace.device, self._options.host_bytes)
        return self._device


def _is_smaller(key: Key, known: Key) -> bool:
    return key[1:] == known[1:] and is_within(key.signature, known.signature)


def _keep_peak_bytes(recorded: Recorded) -> int:
    return live_bytes(recorded.recording.trace, KEEP_ALL).peak + recorded.outside_bytes
