"""Who runs a flight that is known: as autograd does, or under a plan.

The first flight under a plan is verified: what a recipe makes is compared with the real bytes. A recipe that does not
give the same bits is banned, and the flight planned again; the flight itself went on with the real bytes.

It is verified again now and then: a recipe has plain numbers of the model in it, and a model may change these. Numbers
that autograd's nodes keep are compared in each flight, by the runtime; the others show only here.
"""

import torch

from trimaran.errors import InfeasibleError, InputError
from trimaran.graph.trace.calls import Recording
from trimaran.graph.trace.types import TraceOp
from trimaran.planner.memory.search import MemoryOutcome, plan_memory
from trimaran.runtime.memory.executor import MemoryExecutor
from trimaran.runtime.memory.schedule import staying
from trimaran.session.virtual.device import Device
from trimaran.session.virtual.flights import FlightStats
from trimaran.session.virtual.hooks import Pack, Unpack, keep_pack, keep_unpack
from trimaran.session.virtual.options import VERIFY_EVERY, Options
from trimaran.units import format_bytes

_MOST_STRANGERS = 3


class KeepFlyer:
    """Runs flights as autograd does."""

    phase = "keep"
    outcome: MemoryOutcome | None = None

    def begin(self) -> tuple[Pack, Unpack]:
        """Everything is kept."""
        return keep_pack, keep_unpack

    def confirm(self) -> None:
        """Nothing was made again."""

    def end(self) -> FlightStats:
        """Nothing was copied."""
        return FlightStats()


class PlanFlyer:
    """Runs flights under a plan.

    Args:
        recording: of the flight
        device: its engine and host memory
        options: what the user chose
        budget_bytes: of this flight [bytes]
        must: whether there must be a plan; otherwise flights move storages on demand where there is none

    Attributes:
        infeasible: why there is no plan; "" where there is one

    Raises:
        InfeasibleError: the budget is below the floor, and there must be a plan
    """

    def __init__(
        self, recording: Recording, device: Device, options: Options, budget_bytes: int, *, must: bool = True
    ) -> None:
        self._recording = recording
        self._device = device
        self._options = options
        self._budget_bytes = budget_bytes
        self._all = frozenset(range(len(recording.trace.storages)))
        self._banned: frozenset[int] = frozenset() if options.recompute else self._all
        self._strangers = 0
        self._flights = 0
        self._verifies = False
        self.phase = "verify"
        self.infeasible = ""
        self.outcome: MemoryOutcome | None = None
        self._plan(must=must)

    def begin(self) -> tuple[Pack, Unpack]:
        """A flight begins.

        Raises:
            InputError: it is being captured into a CUDA graph
        """
        if self._device.engine.capturing():
            raise InputError(
                "a forward under a memory plan is being captured into a CUDA graph, whose replays use fixed addresses: "
                "capture outside of virtual_memory, or train without CUDA graphs"
            )
        self._flights += 1
        self._verifies = self.phase == "verify" or self._flights % VERIFY_EVERY == 0
        self._executor.flight(verify=self._verifies)
        return self._executor.pack, self._executor.unpack

    def confirm(self) -> None:
        """See that what was made again had the right bytes, which is known late of a GPU.

        Raises:
            ExecutionError: it had others
        """
        self._executor.confirm()

    def end(self) -> FlightStats:
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
        return FlightStats(
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

    def plan_again(self, budget_bytes: int) -> None:
        """Make another plan.

        Args:
            budget_bytes: of this flight [bytes]

        Raises:
            InfeasibleError: the budget is below the floor
        """
        self._budget_bytes = budget_bytes
        self._plan(must=True)

    def _is_often_another(self) -> bool:
        """Whether flights have run with other parameters than recorded so often that nothing should be made again."""
        self._strangers += 1
        return self._strangers == _MOST_STRANGERS

    def _describe(self, number: int) -> str:
        """A storage that was to be made again, for a person."""
        storage = self._recording.trace.storages[number]
        recipe = self.outcome.plan.recipes.get(number) if self.outcome is not None else None
        events = [self._recording.trace.events[moment] for moment in (recipe.ops if recipe is not None else ())]
        names = ", ".join(event.name for event in events if isinstance(event, TraceOp))
        where = f" of {storage.module}" if storage.module else ""
        return f"{format_bytes(storage.nbytes)}{where} by {names}"

    def _plan(self, *, must: bool) -> None:
        options, trace = self._options, self._recording.trace
        try:
            self.outcome = outcome = plan_memory(
                trace,
                self._device.costs(trace),
                budget_bytes=self._budget_bytes,
                host_bytes=self._device.host_bytes,
                smallest_bytes=options.smallest_bytes,
                limit_s=options.limit_s,
                banned=self._banned,
            )
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
