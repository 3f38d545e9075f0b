"""Who runs a flight that is known: as autograd does, or under a plan.

The first flight under a plan is verified: what a recipe makes is compared with the real bytes. A recipe that does not
give the same bits is banned, and the flight planned again; the flight itself went on with the real bytes.
"""

from collections.abc import Collection

from trimaran.errors import InputError
from trimaran.graph.trace.calls import Recording
from trimaran.planner.memory.search import MemoryOutcome, plan_memory
from trimaran.runtime.memory.executor import MemoryExecutor
from trimaran.session.virtual.device import Device
from trimaran.session.virtual.flights import FlightStats
from trimaran.session.virtual.hooks import Pack, Unpack, keep_pack, keep_unpack
from trimaran.session.virtual.options import Options


class KeepFlyer:
    """Runs flights as autograd does."""

    phase = "keep"
    outcome: MemoryOutcome | None = None

    def begin(self) -> tuple[Pack, Unpack]:
        """Everything is kept."""
        return keep_pack, keep_unpack

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

    Raises:
        InfeasibleError: the budget is below the floor
    """

    def __init__(self, recording: Recording, device: Device, options: Options, budget_bytes: int) -> None:
        self._recording = recording
        self._device = device
        self._options = options
        self._budget_bytes = budget_bytes
        self._banned: frozenset[int] = frozenset()
        self.phase = "verify"
        self._plan()

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
        self._executor.flight(verify=self.phase == "verify")
        return self._executor.pack, self._executor.unpack

    def end(self) -> FlightStats:
        """It has ended; where a recipe failed, the next one has another plan."""
        seen = self._executor.finish_step()
        fell_back, verified = seen.mismatches > 0, self.phase == "verify"
        if verified and not fell_back:
            self._judge(seen.failed_recipes)
        return FlightStats(
            to_host_bytes=seen.to_host_bytes,
            to_device_bytes=seen.to_device_bytes,
            stall_s=None if self._device.kind == "cuda" else sum(seen.stalls_s.values()),
            fell_back=fell_back,
            verified=verified,
            ineffective=seen.ineffective,
        )

    def plan_again(self, budget_bytes: int) -> None:
        """Make another plan.

        Args:
            budget_bytes: of this flight [bytes]

        Raises:
            InfeasibleError: the budget is below the floor
        """
        self._budget_bytes = budget_bytes
        self._plan()

    def _judge(self, failed: Collection[int]) -> None:
        if failed:
            self._banned |= frozenset(failed)
            self._plan()
        else:
            self.phase = "run"

    def _plan(self) -> None:
        options, trace = self._options, self._recording.trace
        self.outcome = outcome = plan_memory(
            trace,
            self._device.costs(trace),
            budget_bytes=self._budget_bytes,
            host_bytes=self._device.host_bytes,
            smallest_bytes=options.smallest_bytes,
            limit_s=options.limit_s,
            banned=self._banned,
        )
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
