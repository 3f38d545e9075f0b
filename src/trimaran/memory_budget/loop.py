"""The phases of virtual memory around an unchanged loop: record, plan, verify, run.

A **pass** is one forward with its backward; a **step** is the passes up to the optimizer's step, with its update. A
plan is for one pass: a look of the batch, and whether it is the first of its step or a later one, which finds
gradients there.

    loop      forward  backward  update │ forward  backward  update │ forward  backward  update │ ...
    phase     record ──────────────────▶│ record ──────────────────▶│ verify ──────────────────▶│ run
                                      (1)                        (2)                         (3)

(1) The first step makes the optimizer's state, and often leaves gradients to the next one. Plans are made once a step
    ends with what it began with: usually the second.
(2) Plans of all passes of the step. Where the whole step fits, the hooks go, and only the pre-hooks of the outermost
    modules remain, which notice a batch that is larger.
(3) Recipes that did not give the same bits are banned, and the pass is planned again.

A pass begins with the call of an outermost module, or with the first pack where that comes earlier. It ends where the
next begins, or with the optimizer's step. Where nothing was seen of an optimizer, each pass is a step.

A stage of a pipeline has several microbatches in flight: forwards and backwards alternate, in one order each step.
There a pass is all of a step (`Options.whole_steps`), so that one plan knows what each microbatch holds at each moment.

    stage 0 of 2   F0 F1 B0 F2 B1 F3 B2 B3 update │ F0 F1 ...
    pass           ──────────────────────────────▶│

The outermost modules that a loop calls, found without being told.

While a step is recorded, the stack of Python calls is read at each pack: the outermost call of a module is a root. A
root gets a pre-hook, which sees each batch before the forward begins; it is the only thing that we leave on a user's
module, and it goes when the context is left. A copy of the module carries a pre-hook that does nothing.

The ends of updates, by torch's hooks of all optimizers.

An optimizer that steps inside the backward, for each gradient as it comes, ends no step.
"""

import contextlib
import functools
import statistics
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from trimaran.base.units import format_bytes
from trimaran.graph.trace.record import Operations
from trimaran.graph.trace.tape import ModuleHook
from trimaran.graph.trace.types import StepTrace
from trimaran.memory_budget.options import SETTLING_STEPS, VERIFY_EVERY, Options
from trimaran.memory_budget.passes import UNSEEN, ActivePass, Key, OpenStep, PassStats, is_steady
from trimaran.memory_budget.plans import PassPlan, Plans
from trimaran.memory_budget.recording import (
    Gauge,
    HookPair,
    ModePlace,
    Pack,
    Recorded,
    Signature,
    StepRecorder,
    keep_pack,
    keep_unpack,
    look_at,
    look_at_tensor,
)
from trimaran.memory_budget.replanning import Replanning
from trimaran.memory_hooks.accountant import Accountant
from trimaran.program.memory import Decision
from trimaran.report.memory import StorageLine, storage_lines
from trimaran.report.virtual_memory import MemoryReport

_CALL = nn.Module._wrapped_call_impl.__code__

Called = Callable[[Signature], None]


class Roots:
    """Outermost modules of a loop, each with its pre-hook.

    Args:
        called: told the look of each batch that goes into a root while gradients are wanted and no backward runs
    """

    def __init__(self, called: Called) -> None:
        self._called = called
        self._handles: dict[int, Any] = {}
        self._modules: dict[int, weakref.ref[nn.Module]] = {}

    @property
    def known(self) -> bool:
        """Whether any root was found."""
        return bool(self._handles)

    @property
    def first(self) -> nn.Module | None:
        """The root that was found first, if it is still there."""
        for reference in self._modules.values():
            return reference()
        return None

    def find(self) -> Signature | None:
        """The outermost module call around the caller, which becomes a root; its batch, if it is a new root.

        Returns:
            Look of the batch of a root that had no pre-hook yet; None where there is no module call or it is known.
        """
        frame: FrameType | None = sys._getframe(1)
        outermost: FrameType | None = None
        while frame is not None:
            if frame.f_code is _CALL:
                outermost = frame
            frame = frame.f_back
        if outermost is None:
            return None
        call = outermost.f_locals
        module = call["self"]
        if id(module) in self._handles or isinstance(module, torch.jit.ScriptModule):
            return None  # a script takes no hooks: a pass of it is known by the first tensor that autograd packs
        self._watch(module)
        return look_at(module, call["args"], call["kwargs"])

    def close(self) -> None:
        """Take all pre-hooks away."""
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        self._modules.clear()

    def _watch(self, module: nn.Module) -> None:
        number = id(module)
        self._handles[number] = module.register_forward_pre_hook(ModuleHook(self._call), prepend=True, with_kwargs=True)
        self._modules[number] = weakref.ref(module, lambda _: self._forget(number))

    def _forget(self, number: int) -> None:
        self._handles.pop(number, None)
        self._modules.pop(number, None)

    def _call(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
            self._called(look_at(module, args, kwargs))


class Updates:
    """Notices the optimizers of the thread that makes it.

    Args:
        ended: called when an optimizer has stepped; with whether it is the first that did
        begun: called when an optimizer is about to use gradients: as it steps, and after each call of its closure

    Attributes:
        after: number of the optimizer that stepped last
    """

    def __init__(self, ended: Callable[[bool], None], begun: Callable[[], None]) -> None:
        self.after = 0
        self._ended = ended
        self._begun = begun
        self._numbers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._thread = threading.get_ident()
        self._updating = False
        self._handles: list[Any] = []

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that have stepped."""
        return list(self._numbers)

    def open(self) -> None:
        """Notice from now on."""
        self._handles.append(register_optimizer_step_pre_hook(self._begin))

    def close(self) -> None:
        """Notice no more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def come_last(self) -> None:
        """Others have added hooks: the one for the end of an update goes behind them, as it takes some of them away."""
        if self._updating:
            while len(self._handles) > 1:
                self._handles.pop().remove()
            self._handles.append(register_optimizer_step_post_hook(self._end))

    def _begin(
        self, _optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not self._is_outside():
            return None
        self._updating = True
        self.come_last()
        self._begun()
        # The optimizer itself is the first argument, its closure the second.
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._then_begun(args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, kwargs | {"closure": self._then_begun(kwargs["closure"])}
        return None

    def _then_begun(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        """A closure whose gradients are about to be used when it is over."""

        @functools.wraps(closure)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = closure(*args, **kwargs)
            if self._handles:
                self._begun()
            return result

        return wrapper

    def _end(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not self._is_outside() or _is_within_step(optimizer):
            return
        self._updating = False
        first = not self._numbers
        self.after = self._numbers.setdefault(optimizer, len(self._numbers))
        self._ended(first)

    def _is_outside(self) -> bool:
        return threading.get_ident() == self._thread and torch._C._current_graph_task_id() == -1


def _is_within_step(optimizer: Optimizer) -> bool:
    """Whether the step that ends is part of another one of the same optimizer, as where a subclass calls its parent's.

    Asked from a hook: torch runs hooks around each of them.
    """
    frame, around = sys._getframe(1), 0
    while frame is not None and around < 2:  # the first is the one that ends
        code = frame.f_code
        if code.co_name == "wrapper" and code.co_filename == _HOOKED and frame.f_locals.get("self") is optimizer:
            around += 1
        frame = frame.f_back  # type: ignore[assignment]
    return around == 2


_HOOKED = register_optimizer_step_post_hook.__code__.co_filename


# ---------------------------------------------------------------------------------------------------------------------
# What has happened so far: steps, their times, what was copied


_KEPT = 200
_ON_DEMAND = "passes that fit under no plan move storages on demand"
_UNNOTICED = (
    "virtual_memory: recomputed storages have other bits than those that were there: {storages}. An operation behind "
    "them takes a number that has changed since the step was recorded. They are copied from now on; gradients of up to "
    f"{VERIFY_EVERY} steps before this one may be wrong. Make the number a tensor, so that it is noticed at once."
)


class StepFigures:
    """Counts steps and keeps the figures of the last one.

    Attributes:
        steps: ended so far
        recorded: of these, recorded
        fell_back: of these, not as planned
        peak_bytes: largest of the steps that were measured, but for verified ones [bytes]
        last: figures of the last step's passes
        last_planned: those of the last step that ran as planned, so neither on demand nor without a plan
        notes: what a person should know, in order
    """

    def __init__(self) -> None:
        self.steps = 0
        self.recorded = 0
        self.fell_back = 0
        self.peak_bytes: int | None = None
        self.last: tuple[PassStats, ...] = ()
        self.last_planned: tuple[PassStats, ...] = ()
        self.notes: list[str] = []
        self._last_recorded = False
        self._current: list[PassStats] = []
        self._times_s: deque[float] = deque(maxlen=_KEPT)
        self._since_s: float | None = None

    @property
    def step_time_s(self) -> float | None:
        """Median of the steps that ran neither recorded nor on demand [s]."""
        return statistics.median(self._times_s) if self._times_s else None

    def add(self, stats: PassStats) -> None:
        """A pass has ended."""
        self._current.append(stats)
        for storage in stats.banned:
            self.note(f"copied from now on, because recomputing it gave other bits: {storage}")
        if stats.infeasible and not any(note.startswith(_ON_DEMAND) for note in self.notes):
            self.note(f"{_ON_DEMAND}: {stats.infeasible}")
            warnings.warn(f"virtual_memory: steps hold more than the budget; {self.notes[-1]}", RuntimeWarning, 2)
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
        if peak_bytes is not None and not recorded and not any(pass_.verified for pass_ in self.last):
            self.peak_bytes = max(self.peak_bytes or 0, peak_bytes)
        fell_back = any(pass_.fell_back for pass_ in self.last)
        if any(pass_.planned for pass_ in self.last) and not fell_back:
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
        """Time since the end of the step, such as planning, belongs to no step."""
        self._since_s = time.perf_counter()


# ---------------------------------------------------------------------------------------------------------------------
# From what was counted and planned to the report


OUTRUN = (
    "steps run faster now than while they were recorded, so that the lower bound and the planned time, which rest on "
    "what was recorded, are too long: they are not shown"
)
"""What is said where the lower bound on the step time is above a measured step."""


def summarize(phase: str, tally: StepFigures, plans: Plans, state_bytes: int) -> MemoryReport:
    """The report of a loop so far.

    Args:
        phase: what the next step is for
        tally: what happened
        plans: what was planned
        state_bytes: of optimizers, on the host [bytes]
    """
    passes = tally.last_planned or tally.last
    stalls_s = [pass_.stall_s for pass_ in passes if pass_.stall_s is not None]
    largest = plans.largest
    outcome = None if largest is None else largest.runner.outcome
    is_stopped = outcome is not None and not outcome.is_complete
    step_s, bound_s = tally.step_time_s, None if outcome is None else outcome.bound.step_time_s
    # Operations ran slower while they were recorded: what rests on that is no bound of the steps since.
    is_outrun = step_s is not None and bound_s is not None and step_s < bound_s
    outrun = [OUTRUN] if is_outrun else []
    stopped = ["planning was stopped by its time limit, limit_s"] if is_stopped else []
    return MemoryReport(
        phase=phase,
        device=plans.device,
        budget_bytes=plans.budget_bytes,
        keep_peak_bytes=None if largest is None else largest.keep_peak_bytes,
        minimum_memory_bytes=None if largest is None else largest.minimum_memory_bytes,
        predicted_peak_bytes=plans.predicted_peak_bytes,
        measured_peak_bytes=tally.peak_bytes,
        steps=tally.steps,
        recorded_steps=tally.recorded,
        fallback_steps=tally.fell_back,
        plans=len(plans),
        state_host_bytes=state_bytes,
        step_time_s=step_s,
        keep_time_s=None if largest is None else largest.compute_s,
        planned_time_s=None if outcome is None or is_outrun else outcome.run.step_time_s,
        lower_bound_s=None if is_outrun else bound_s,
        ratio_to_lower_bound=None if outcome is None else outcome.ratio_to_limit,
        stall_s=None if len(stalls_s) < len(passes) else sum(stalls_s),
        to_host_bytes=sum(pass_.to_host_bytes for pass_ in passes),
        to_device_bytes=sum(pass_.to_device_bytes for pass_ in passes),
        codec=plans.codec,
        coding_ratio=plans.coding_ratio,
        decisions=_decisions(largest),
        notes=(*tally.notes, *stopped, *outrun),
    )


def _decisions(planned: PassPlan | None) -> tuple[StorageLine, ...]:
    if planned is None or planned.runner.outcome is None:
        return ()
    lines = storage_lines(planned.trace, planned.runner.outcome.plan)
    return tuple(line for line in lines if line.decision != Decision.KEEP)


class Virtualizer:
    """The phases of one loop in one thread.

    Args:
        options: what the user chose

    Attributes:
        tally: what happened, for the report
        plans: by key
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.tally = StepFigures()
        self.plans = Plans(options)
        self._hooks = HookPair()
        self._roots = Roots(self._called)
        place = ModePlace((Operations, Accountant))
        self._replanning = Replanning(options, self.plans, lambda text: self.tally.note(text))
        self._recorder = StepRecorder(place, self._replanning.states.holds, self.plans.device_of)
        self._gauge = Gauge(place, account=options.account)
        self._step = OpenStep()
        self._pass: ActivePass | None = None
        self._unsettled = SETTLING_STEPS
        self._updates = Updates(self._updated, self.plans.confirm)
        self._thread = threading.get_ident()
        self._last_report: MemoryReport | None = None
        self._work: Pack = keep_pack

    def open(self) -> None:
        """Begin: the first step is recorded."""
        self._hooks.open()
        self._updates.open()
        self._record()

    def close(self) -> None:
        """Leave nothing behind, wherever the loop stopped."""
        with contextlib.ExitStack() as last_first:  # each of these, also when one of them fails
            last_first.callback(self._let_go)
            last_first.callback(self._hooks.remove)
            last_first.callback(self._replanning.close)
            last_first.callback(self._gauge.stop)
            last_first.callback(self._recorder.abandon)
            last_first.callback(self._roots.close)
            last_first.callback(self._updates.close)
            self._last_report = self.report()

    def _let_go(self) -> None:
        self._hooks.work(keep_pack, keep_unpack)
        self._work = keep_pack
        self._pass = None
        self._step.forget()
        self.plans.close()

    @property
    def phase(self) -> str:
        """Purpose of the next step."""
        if self._unsettled:
            return "record"
        if not self._hooks.pushed:
            return "keep"
        return self.plans.phase

    def report(self) -> MemoryReport:
        """The report so far, or until the end."""
        return self._last_report or summarize(self.phase, self.tally, self.plans, self._replanning.states.host_bytes)

    def _called(self, signature: Signature) -> None:
        """An outermost module is called."""
        if threading.get_ident() != self._thread:
            return
        if not self._hooks.pushed:
            if self.plans.covers(signature) or not self._hooks.push():
                return
            self.tally.note("a batch larger than those before, or another model, was recorded")
        elif self._pass is not None and not self._walked:
            self._pass.seen.add(signature)
            return
        self._begin(signature)

    @property
    def _walked(self) -> bool:
        """Whether the next forward begins another pass: the backward of this one has begun."""
        return self._hooks.unpacked and not self.options.whole_steps

    def _pack(self, tensor: torch.Tensor) -> Any:
        """A tensor is packed between passes, or while no outermost module is known."""
        begins = (self._pass is None or self._walked) and torch._C._current_graph_task_id() == -1
        found = self._roots.find() if begins or self._recorder.is_recording else None
        if begins and (found is not None or self._pass is None or not self._pass.has_module):
            self._begin(found or look_at_tensor(tensor))
        elif found is not None and self._pass is not None:
            self._pass.seen.add(found)
        return self._work(tensor)

    def _updated(self, first: bool) -> None:
        """An optimizer has stepped."""
        if first and self.tally.steps:
            self._start_over()
        elif not self._hooks.pushed:
            self._end_tally(recorded=False)
            self._gauge.start(self.plans.device)
        elif self._step.passes:
            self._end_step()
        elif self._step.is_unseen(self._updates.after) and self._unsettled:
            self._recorder.abandon()
            self._rest()
            self._end_tally(recorded=False)
            self.tally.note(UNSEEN)

    def _start_over(self) -> None:
        """Passes were taken for steps, until an optimizer was seen: their plans know nothing of its state."""
        self._end_pass()
        self._gauge.stop()
        self._step.forget()
        self._replanning.start_over()
        self.tally = StepFigures()
        self.tally.end_step(recorded=True)
        self._unsettled = SETTLING_STEPS
        self._hooks.push()
        self._record()

    def _begin(self, signature: Signature) -> None:
        if self._pass is not None:
            self._end_pass()
            if not self._updates.optimizers:
                self._end_step()
        key = self._step.begin(signature, self._updates.after)
        self._hooks.unpacked = False
        planned = None if self._unsettled else self.plans.find(key)
        self._pass = ActivePass(key=key, planned=planned, seen={signature})
        if planned is None:
            self._record()
            return
        self._recorder.abandon()
        self._work, unpack = planned.begin()
        self._hooks.work(self._work if self._pass.has_module else self._pack, unpack)

    def _end_pass(self) -> None:
        pass_, self._pass = self._pass, None
        if pass_ is None:
            return
        if pass_.planned is not None:
            stats = pass_.planned.end()
            self.tally.add(stats)
            self.plans.judge(pass_.key, stats)
            if stats.ineffective:
                self.tally.note("storages that were let go are still held by the loop, as when it keeps an output")
        recorded = self._recorder.stop()
        if recorded is not None:
            self._step.add(pass_, recorded)
        self._rest()

    def _end_step(self) -> None:
        self._end_pass()
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
            if self.options.on_violation == "replan" and self._replanning.tighten(over_bytes):
                self.tally.start_peak()

    def _settle(self, recorded: dict[Key, Recorded]) -> None:
        """Plan what was recorded, once a step ends with what it began with."""
        if self._replanning.takes_state(recorded, self._updates.optimizers):
            self._unsettled = SETTLING_STEPS - 1
            return
        if self._unsettled:
            self._unsettled -= 1
            if self._unsettled and not self._is_typical([one.recording.trace for one in recorded.values()]):
                return
        self._unsettled = 0
        if not self._replanning.plan(recorded, self._updates.optimizers):
            self._unsettled = SETTLING_STEPS - 1

    def _is_typical(self, traces: list[StepTrace]) -> bool:
        """Whether the next step will be like the one that was recorded, and its modules are known."""
        return self._recorder.knows(self._roots.first) and is_steady(traces[0], traces[-1])

    def _record(self) -> None:
        self._recorder.start(self._roots.first, self._updates.optimizers, waiting=self._pass is None)
        self._updates.come_last()
        self._rest()

    def _rest(self) -> None:
        """Record, or between passes keep: the first pack begins a pass, where no module has."""
        self._work, unpack = self._recorder.hooks or (keep_pack, keep_unpack)
        self._hooks.work(self._pack, unpack)
