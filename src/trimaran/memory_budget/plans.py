"""The plans of a loop: one for each look of a batch, a small number of them, those used last.

Who runs a pass that is known: as autograd does, or under a plan.

The first pass under a plan is verified: what a recipe makes is compared with the real bytes. A recipe that does not
give the same bits is banned, and the pass planned again; the pass itself went on with the real bytes.

It is verified again now and then: a recipe has plain numbers of the model in it, and a model may change these. Numbers
that autograd's nodes keep are compared in each pass, by the runtime; the others show only here.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.units import format_bytes
from trimaran.graph.trace.calls import Recording
from trimaran.graph.trace.types import StepTrace, TraceOp
from trimaran.memory.blocks import BlockFit, plan_blocks
from trimaran.memory.minimum import minimum_memory
from trimaran.memory.search import MemoryOutcome, plan_memory
from trimaran.memory_budget.device import LoopDevice
from trimaran.memory_budget.options import MOST_PLANS, MOST_TIGHTENED, VERIFY_EVERY, Options
from trimaran.memory_budget.passes import Key, PassStats, Runner
from trimaran.memory_budget.recording import (
    Pack,
    Recorded,
    Signature,
    Unpack,
    is_within,
)
from trimaran.memory_hooks.executor import MemoryExecutor
from trimaran.memory_hooks.schedule import staying
from trimaran.program.memory import KEEP_ALL
from trimaran.simulator.memory import live_bytes

_MOST_STRANGERS = 3


class PlannedRunner(Runner):
    """Runs passes under a plan.

    Args:
        recording: of the pass
        device: its engine and host memory
        options: what the user chose
        budget_bytes: of this pass [bytes]
        outside_bytes: part of it that what is no part of the pass holds all the time [bytes]
        must: whether there must be a plan; otherwise passes move storages on demand where there is none

    Attributes:
        infeasible: why there is no plan; "" where there is one
        fit: the plan in the blocks of a GPU's allocator; None on a CPU, and without a plan
        expands: whether segments of that allocator grow

    Raises:
        InfeasibleError: the budget is below the minimum memory, and there must be a plan
    """

    def __init__(
        self,
        recording: Recording,
        device: LoopDevice,
        options: Options,
        budget_bytes: int,
        *,
        outside_bytes: int = 0,
        must: bool = True,
    ) -> None:
        self._outside_bytes = outside_bytes
        self.fit: BlockFit | None = None
        self.expands = False
        self._recording = recording
        self._device = device
        self._options = options
        self._budget_bytes = budget_bytes
        self._all = frozenset(range(len(recording.trace.storages)))
        self._banned: frozenset[int] = frozenset() if options.recompute else self._all
        self._strangers = 0
        self._passes = 0
        self._verifies = False
        self.phase = "verify"
        self.infeasible = ""
        self.outcome = None
        self._plan(must=must)

    def begin(self) -> tuple[Pack, Unpack]:
        """A pass begins.

        Raises:
            InputError: it is being captured into a CUDA graph
        """
        if self._device.engine.capturing():
            raise InputError(
                "a forward under a memory plan is being captured into a CUDA graph, whose replays use fixed addresses: "
                "capture outside of virtual_memory, or train without CUDA graphs"
            )
        self._passes += 1
        self._verifies = self.phase == "verify" or self._passes % VERIFY_EVERY == 0
        self._executor.begin_forward(verify=self._verifies)
        return self._executor.pack, self._executor.unpack

    def confirm(self) -> None:
        """See that recomputed storages had the right bytes, which is known late of a GPU.

        Raises:
            ExecutionError: it had others
        """
        self._executor.confirm()

    def end(self) -> PassStats:
        """It has ended; where a recipe failed, or the model is another one too often, the next one has another plan."""
        self._executor.confirm()
        seen = self._executor.finish_step()
        fell_back, first = seen.mismatches > 0 or self.outcome is None, self.phase == "verify"
        failed = () if fell_back else seen.failed_recipes
        banned = tuple(self._describe(number) for number in failed)
        if failed:
            self._banned |= frozenset(failed)
            self._plan(must=False)
        elif seen.strangers and self._is_often_another():
            self._banned = self._all
            self._plan(must=False)
        elif first and not fell_back:
            self.phase = "run"
        return PassStats(
            to_host_bytes=seen.to_host_bytes,
            to_device_bytes=seen.to_device_bytes,
            stall_s=None if self._device.kind == "cuda" else sum(seen.stalls_s.values()),
            fell_back=fell_back,
            verified=self._verifies or bool(seen.renumbered),
            ineffective=seen.ineffective,
            planned=self.outcome is not None,
            banned=banned,
            infeasible=self.infeasible,
            unnoticed=not first and not set(failed) <= set(seen.renumbered),
        )

    @property
    def spared_bytes(self) -> int:
        """Part of the budget that was left to gaps between the allocator's blocks [bytes]."""
        return 0 if self.outcome is None else self._budget_bytes - self._outside_bytes - self.outcome.budget_bytes

    def plan_again(self, budget_bytes: int) -> None:
        """Make another plan.

        Args:
            budget_bytes: of this pass, with what is no part of it [bytes]

        Raises:
            InfeasibleError: the budget is below the minimum memory
        """
        self._budget_bytes = budget_bytes
        self._plan(must=True)

    def _is_often_another(self) -> bool:
        """Whether passes have run with other parameters than recorded so often that nothing should be recomputed."""
        self._strangers += 1
        return self._strangers == _MOST_STRANGERS

    def _describe(self, number: int) -> str:
        """A storage that was to be recomputed, for a person."""
        storage = self._recording.trace.storages[number]
        recipe = self.outcome.plan.recipes.get(number) if self.outcome is not None else None
        events = [self._recording.trace.events[moment] for moment in (recipe.ops if recipe is not None else ())]
        names = ", ".join(event.name for event in events if isinstance(event, TraceOp))
        where = f" of {storage.module}" if storage.module else ""
        return f"{format_bytes(storage.nbytes)}{where} by {names}"

    def _plan(self, *, must: bool) -> None:
        options, trace = self._options, self._recording.trace
        room = self._device.room(self._budget_bytes if options.enforce else None, outside_bytes=self._outside_bytes)

        def plan(budget_bytes: int) -> MemoryOutcome:
            return plan_memory(
                trace,
                self._device.costs(trace),
                budget_bytes=budget_bytes,
                smallest_bytes=options.smallest_bytes,
                limit_s=options.limit_s,
                banned=self._banned,
                outside_bytes=self._outside_bytes,
            )

        left_bytes = self._budget_bytes - self._outside_bytes
        self.fit, self.expands = None, room is not None and room.settings.expandable
        try:
            if room is None:
                self.outcome = outcome = plan(left_bytes)
            else:
                outcome, self.fit = plan_blocks(plan, trace, room, left_bytes)
                self.outcome = outcome
        except InfeasibleError as error:
            if must:
                raise
            self._go_on_demand(error.message)
            return
        self.infeasible = ""
        # What is recomputed goes to the host as well while its recipe is verified.
        moved_bytes = sum(trace.storages[number].nbytes for number in outcome.plan.moved)
        self._executor = MemoryExecutor(
            self._recording,
            outcome.plan,
            self._device.engine,
            self._device.arena(moved_bytes),
            smallest_bytes=max(options.smallest_bytes, 1),
            predicted_peak_bytes=outcome.live.peak,
        )
        self.phase = "verify" if outcome.plan.recipes else "run"

    def _go_on_demand(self, reason: str) -> None:
        """Each large storage goes to the host as it is packed: slow, and the least memory that can be had."""
        packed_bytes = sum(one.nbytes for one in self._recording.trace.storages if one.packs)
        self._executor = MemoryExecutor.without_plan(
            self._device.engine,
            self._device.arena(packed_bytes),
            keep=[torch.empty(0, device=one.device).set_(one) for one in staying(self._recording)],
            smallest_bytes=max(self._options.smallest_bytes, 1),
        )
        self.outcome = None
        self.infeasible = reason
        self.phase = "run"


_MOST_MET = 256
_LEFT_TOO_OFTEN = 2
_MOST_RENEWED = 2


@dataclass(slots=True, kw_only=True)
class PassPlan:
    """The plan for a key.

    Attributes:
        recorded: the pass
        keep_peak_bytes: peak without a plan [bytes]
        runner: who runs it, under a plan or without
        left: how often in a row a pass has left the plan
    """

    recorded: Recorded
    keep_peak_bytes: int
    runner: Runner
    left: int = 0

    @property
    def trace(self) -> StepTrace:
        """Of the pass."""
        return self.recorded.recording.trace

    @property
    def fits(self) -> bool:
        """Whether it needs no plan."""
        return not isinstance(self.runner, PlannedRunner)

    @property
    def minimum_memory_bytes(self) -> int:
        """Least memory that any plan can reach [bytes]."""
        return minimum_memory(self.trace).nbytes + self.recorded.outside_bytes

    @property
    def compute_s(self) -> float:
        """Time of its operations, as measured while it was recorded [s]."""
        return sum(operation.duration_s or 0.0 for operation in self.trace.ops)

    @property
    def peak_bytes(self) -> int:
        """Peak that is expected [bytes]."""
        outcome = self.runner.outcome
        if outcome is None:
            return self.keep_peak_bytes if self.fits else self.minimum_memory_bytes
        return outcome.live.peak + self.recorded.outside_bytes


class Plans:
    """The plans so far.

    Args:
        options: what the user chose
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._planned: OrderedDict[Key, PassPlan] = OrderedDict()
        self._met: OrderedDict[Key, int] = OrderedDict()
        self._renewed: dict[Key, int] = {}
        self._tightened = 0
        self._device: LoopDevice | None = None
        self.budget_bytes = options.budget.nbytes
        self.margin_bytes = 0
        self.device = "cpu"

    @property
    def codec(self) -> str:
        """By which copies may be coded; "": by none."""
        return "" if self._options.codec is None else self._options.codec.name

    @property
    def coding_ratio(self) -> float | None:
        """How many times fewer bytes were copied of what was coded so far; None: nothing was."""
        traffic = None if self._device is None else self._device.traffic
        return traffic.ratio if traffic is not None and traffic.coded_bytes else None

    @property
    def all_fit(self) -> bool:
        """Whether everything known fits without a plan."""
        return bool(self._planned) and all(one.fits for one in self._planned.values())

    @property
    def phase(self) -> str:
        """Purpose of the next pass, by the pass used last."""
        last = next(reversed(self._planned.values()), None)
        return "record" if last is None else last.runner.phase

    @property
    def largest(self) -> PassPlan | None:
        """The pass that needs most."""
        return max(self._planned.values(), key=lambda one: one.keep_peak_bytes, default=None)

    @property
    def predicted_peak_bytes(self) -> int | None:
        """Largest peak that is expected of any pass [bytes]."""
        return max((one.peak_bytes for one in self._planned.values()), default=None)

    def __len__(self) -> int:
        return sum(one.runner.outcome is not None for one in self._planned.values())

    def covers(self, signature: Signature) -> bool:
        """Whether a batch is known to fit: it looks like one that does, or is no larger than it."""
        return any(
            is_within(signature, known) for one in self._planned.values() if one.fits for known in one.recorded.seen
        )

    def find(self, key: Key) -> Runner | None:
        """Who runs a pass; None: it is not known, and must be recorded.

        A batch that is no larger than one that fits, fits too. One that is no larger than one with a plan is run with
        that plan the first time: it leaves it at once, and goes on with storages moved on demand. The next one of its
        look is recorded, unless there are as many plans as may be.
        """
        planned = self._planned.get(key)
        if planned is not None:
            self._planned.move_to_end(key)
            return planned.runner
        larger = next((one for known, one in self._planned.items() if _is_smaller(key, known)), None)
        if larger is None:
            return None
        often = self._met.get(key, 0) + 1
        self._met[key] = often
        while len(self._met) > _MOST_MET:
            self._met.popitem(last=False)
        return larger.runner if larger.fits or often == 1 or len(self._planned) >= MOST_PLANS else None

    def judge(self, key: Key, stats: PassStats) -> None:
        """Drop a plan that its own batches leave again and again: it is recorded anew, a few times."""
        planned = self._planned.get(key)
        if planned is None or planned.runner.outcome is None:
            return
        planned.left = planned.left + 1 if stats.fell_back else 0
        if planned.left >= _LEFT_TOO_OFTEN and self._renewed.get(key, 0) < _MOST_RENEWED:
            self._renewed[key] = self._renewed.get(key, 0) + 1
            del self._planned[key]

    def resolve(self, recorded: Iterable[Recorded]) -> int:
        """The budget in bytes; a share is of the peak of the largest pass in the first step that is planned."""
        if self.budget_bytes is None:
            peaks = [_keep_peak_bytes(one) for one in recorded]
            self.budget_bytes = self._options.budget.resolve(max(peaks, default=0))
        return self.budget_bytes

    def make(self, key: Key, recorded: Recorded, *, must: bool = True) -> None:
        """Plan a pass.

        Args:
            key: what it is
            recorded: the pass
            must: whether there must be a plan; otherwise it moves storages on demand where no plan keeps the budget

        Raises:
            InfeasibleError: the budget is below the minimum memory, and there must be a plan
        """
        budget_bytes = self.resolve([recorded]) - self.margin_bytes
        self.device = recorded.recording.trace.device
        keep_peak_bytes = _keep_peak_bytes(recorded)
        runner = Runner()
        if keep_peak_bytes > budget_bytes:
            device = self.device_of(recorded.recording)
            runner = PlannedRunner(
                recorded.recording,
                device,
                self._options,
                budget_bytes,
                outside_bytes=recorded.outside_bytes,
                must=must,
            )
        self._put(key, PassPlan(recorded=recorded, keep_peak_bytes=keep_peak_bytes, runner=runner))

    def block_notes(self) -> list[str]:
        """What the allocator's blocks have to do with the plans, for a person."""
        notes = []
        for planned in self._planned.values():
            runner = planned.runner
            if not isinstance(runner, PlannedRunner) or runner.fit is None:
                continue
            if runner.spared_bytes:
                notes.append(f"{format_bytes(runner.spared_bytes)} of the budget are left to gaps of the allocator")
            if runner.fit.failures:
                notes.append(
                    "a step may run out of memory: gaps between the allocator's blocks may be too small for it"
                )
            elif runner.fit.returns:
                notes.append(
                    "in each step the allocator waits for the device and gives blocks back, as gaps between them are "
                    "too small; without room for its workspace a convolution takes another algorithm, which is slower "
                    "and rounds otherwise"
                )
            if runner.fit.failures or runner.fit.returns:
                grow = "" if runner.expands else ", or PYTORCH_ALLOC_CONF=expandable_segments:True"
                notes[-1] += f". A larger budget{grow} would help"
        return notes

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
            if isinstance(planned.runner, PlannedRunner) and planned.runner.outcome is not None:
                try:
                    planned.runner.plan_again(budget_bytes)
                except InfeasibleError as error:
                    return f"planning again with {format_bytes(over_bytes)} less failed: {error.message}"
        return f"planned again with {format_bytes(self.margin_bytes)} less than the budget"

    def confirm(self) -> None:
        """See that storages recomputed in this step had the right bytes, before its gradients are used.

        Raises:
            ExecutionError: it had others
        """
        for planned in self._planned.values():
            planned.runner.confirm()

    def forget(self) -> None:
        """Drop all plans."""
        self._planned.clear()

    def close(self) -> None:
        """Drop all plans, and end the copies."""
        self.forget()
        if self._device is not None:
            self._device.close()
            self._device = None

    def _put(self, key: Key, planned: PassPlan) -> None:
        self._planned.pop(key, None)
        self._planned[key] = planned
        while len(self._planned) > MOST_PLANS:
            self._planned.popitem(last=False)

    def device_of(self, recording: Recording) -> LoopDevice:
        """The device of a recorded pass, with its copies."""
        if self._device is None:
            self._device = LoopDevice(recording.trace.device, self._options.host_bytes, self._options.codec)
        return self._device


def _is_smaller(key: Key, known: Key) -> bool:
    return key[1:] == known[1:] and is_within(key.signature, known.signature)


def _keep_peak_bytes(recorded: Recorded) -> int:
    return live_bytes(recorded.recording.trace, KEEP_ALL).peak + recorded.outside_bytes
