"""What happens when, around a loop that knows nothing of it: record, plan, verify, run.

A **flight** is one forward with its backward; a **step** is the flights up to the optimizer's step, with its update. A
plan is for one flight: a look of the batch, and whether it is the first of its step or a later one, which finds
gradients there.

    loop      forward  backward  update │ forward  backward  update │ forward  backward  update │ ...
    phase     record ──────────────────▶│ record ──────────────────▶│ verify ──────────────────▶│ run
                                      (1)                        (2)                         (3)

(1) The first step makes the optimizer's state, and often leaves gradients to the next one. Plans are made once a step
    ends with what it began with: usually the second.
(2) Plans of all flights of the step. Where everything fits, the hooks go, and only the pre-hooks of the outermost
    modules remain, which notice a batch that is larger.
(3) Recipes that did not give the same bits are banned, and the flight is planned again.

A flight begins with the call of an outermost module, or with the first pack where that comes earlier. It ends where the
next begins, or with the optimizer's step. Where nothing was seen of an optimizer, each flight is a step.
"""

import contextlib
import threading
from typing import Any

import torch

from trimaran.graph.trace.operations import Operations
from trimaran.graph.trace.types import StepTrace
from trimaran.runtime.memory.accountant import Accountant
from trimaran.session.virtual.batches import Signature, look_at_tensor
from trimaran.session.virtual.flights import Flight, Key
from trimaran.session.virtual.gauge import Gauge
from trimaran.session.virtual.hooks import HookPair, Pack, keep_pack, keep_unpack
from trimaran.session.virtual.modes import ModePlace
from trimaran.session.virtual.open_step import UNSEEN, OpenStep
from trimaran.session.virtual.options import SETTLING_STEPS, Options
from trimaran.session.virtual.plans import Plans
from trimaran.session.virtual.recording import Recorded, StepRecorder
from trimaran.session.virtual.report import MemoryReport
from trimaran.session.virtual.roots import Roots
from trimaran.session.virtual.settling import Settling
from trimaran.session.virtual.stability import is_steady
from trimaran.session.virtual.summary import summarize
from trimaran.session.virtual.tally import Tally
from trimaran.session.virtual.updates import Updates
from trimaran.units import format_bytes


class Machine:
    """The phases of one loop in one thread.

    Args:
        options: what the user chose

    Attributes:
        tally: what happened, for the report
        plans: by key
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.tally = Tally()
        self.plans = Plans(options)
        self._hooks = HookPair()
        self._roots = Roots(self._called)
        place = ModePlace((Operations, Accountant))
        self._settling = Settling(options, self.plans, lambda text: self.tally.note(text))
        self._recorder = StepRecorder(place, self._settling.states.holds, self.plans.device_of)
        self._gauge = Gauge(place, account=options.account)
        self._step = OpenStep()
        self._flight: Flight | None = None
        self._unsettled = SETTLING_STEPS
        self._updates = Updates(self._updated, self.plans.confirm)
        self._thread = threading.get_ident()
        self._last_report: MemoryReport | None = None
        self._work: Pack = keep_pack

    def open(self) -> None:
        """Begin: the first step is recorded."""
        self._hooks.push()
        self._updates.open()
        self._record()

    def close(self) -> None:
        """Leave nothing behind, wherever the loop stopped."""
        with contextlib.ExitStack() as last_first:  # each of these, also when one of them fails
            last_first.callback(self._let_go)
            last_first.callback(self._hooks.remove)
            last_first.callback(self._settling.close)
            last_first.callback(self._gauge.stop)
            last_first.callback(self._recorder.abandon)
            last_first.callback(self._roots.close)
            last_first.callback(self._updates.close)
            self._last_report = self.report()

    def _let_go(self) -> None:
        self._hooks.work(keep_pack, keep_unpack)
        self._work = keep_pack
        self._flight = None
        self._step.forget()
        self.plans.close()

    @property
    def phase(self) -> str:
        """What the next step is for."""
        if self._unsettled:
            return "record"
        if not self._hooks.pushed:
            return "keep"
        return self.plans.phase

    def report(self) -> MemoryReport:
        """What happened so far, or until the end."""
        return self._last_report or summarize(self.phase, self.tally, self.plans, self._settling.states.host_bytes)

    def _called(self, signature: Signature) -> None:
        """An outermost module is called."""
        if threading.get_ident() != self._thread:
            return
        if not self._hooks.pushed:
            if self.plans.covers(signature) or not self._hooks.push():
                return
            self.tally.note("a batch larger than those before, or another model, was recorded")
        elif self._flight is not None and not self._hooks.unpacked:
            self._flight.seen.add(signature)
            return
        self._begin(signature)

    def _pack(self, tensor: torch.Tensor) -> Any:
        """A tensor is packed between flights, or while no outermost module is known."""
        walked = self._flight is None or self._hooks.unpacked
        begins = walked and torch._C._current_graph_task_id() == -1
        found = self._roots.find() if begins or self._recorder.is_recording else None
        if begins and (found is not None or self._flight is None or not self._flight.has_module):
            self._begin(found or look_at_tensor(tensor))
        elif found is not None and self._flight is not None:
            self._flight.seen.add(found)
        return self._work(tensor)

    def _updated(self, first: bool) -> None:
        """An optimizer has stepped."""
        if first and self.tally.steps:
            self._start_over()
        elif not self._hooks.pushed:
            self._end_tally(recorded=False)
            self._gauge.start(self.plans.device)
        elif self._step.flights:
            self._end_step()
        elif self._step.is_unseen(self._updates.after) and self._unsettled:
            self._recorder.abandon()
            self._rest()
            self._end_tally(recorded=False)
            self.tally.note(UNSEEN)

    def _start_over(self) -> None:
        """Flights were taken for steps, until an optimizer was seen: their plans know nothing of its state."""
        self._end_flight()
        self._gauge.stop()
        self._step.forget()
        self._settling.start_over()
        self.tally = Tally()
        self.tally.end_step(recorded=True)
        self._unsettled = SETTLING_STEPS
        self._hooks.push()
        self._record()

    def _begin(self, signature: Signature) -> None:
        if self._flight is not None:
            self._end_flight()
            if not self._updates.optimizers:
                self._end_step()
        key = self._step.begin(signature, self._updates.after)
        self._hooks.unpacked = False
        planned = None if self._unsettled else self.plans.find(key)
        self._flight = Flight(key=key, planned=planned, seen={signature})
        if planned is None:
            self._record()
            return
        self._recorder.abandon()
        self._work, unpack = planned.begin()
        self._hooks.work(self._work if self._flight.has_module else self._pack, unpack)

    def _end_flight(self) -> None:
        flight, self._flight = self._flight, None
        if flight is None:
            return
        if flight.planned is not None:
            stats = flight.planned.end()
            self.tally.add(stats)
            self.plans.judge(flight.key, stats)
            self._step.ran(flight, stats)
            if stats.ineffective:
                self.tally.note("storages that were let go are still held by the loop, as when it keeps an output")
        recorded = self._recorder.stop()
        if recorded is not None:
            self._step.add(flight, recorded)
        self._rest()

    def _end_step(self) -> None:
        self._end_flight()
        self._recorder.end_step()
        recorded = self._step.end(self._updates.after)
        self._end_tally(recorded=bool(recorded))
        if recorded:
            self._settle(recorded)
        self.tally.resume()
        if self._unsettled:
            self._record()
            return
        self._gauge.start(self.plans.device)
        if self.plans.all_fit and self._roots.known:
            self._hooks.park()

    def _end_tally(self, *, recorded: bool) -> None:
        """A step has ended: note it, and look whether it kept the budget."""
        peak_bytes = self._gauge.stop()
        self.tally.end_step(recorded=recorded, peak_bytes=peak_bytes)
        over_bytes = 0 if peak_bytes is None else peak_bytes - (self.plans.budget_bytes or peak_bytes)
        if over_bytes > 0 and self.tally.as_planned:
            self.tally.note(f"a step held more than the budget, by {format_bytes(over_bytes)}")
            if self.options.on_violation == "replan" and self._settling.tighten(over_bytes):
                self.tally.start_peak()

    def _settle(self, recorded: dict[Key, Recorded]) -> None:
        """Plan what was recorded, once a step ends with what it began with."""
        recorded = self._settling.compare(recorded)
        if self._settling.takes_state(recorded, self._updates.optimizers):
            self._unsettled = SETTLING_STEPS - 1
            return
        if self._unsettled:
            self._unsettled -= 1
            if self._unsettled and not self._is_typical([one.recording.trace for one in recorded.values()]):
                return
        self._unsettled = 0
        if not self._settling.plan(recorded, self._updates.optimizers):
            self._unsettled = SETTLING_STEPS - 1

    def _is_typical(self, traces: list[StepTrace]) -> bool:
        """Whether the next step will be like the one that was recorded, and its modules are known."""
        return self._recorder.knows(self._roots.first) and is_steady(traces[0], traces[-1])

    def _record(self) -> None:
        self._recorder.start(self._roots.first, self._updates.optimizers, waiting=self._flight is None)
        self._updates.come_last()
        self._rest()

    def _rest(self) -> None:
        """Record, or between flights keep: the first pack begins a flight, where no module has."""
        self._work, unpack = self._recorder.hooks or (keep_pack, keep_unpack)
        self._hooks.work(self._pack, unpack)
