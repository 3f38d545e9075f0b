"""A second opinion on memory plans: goes through a step event by event and keeps, for each storage, who holds it.

It shares no code with the planner's simulator and works in another way: there, lives are intervals whose bytes are
summed; here, every event adds and removes holders, and what someone holds is there.

    holder        of                            from               to
    "outside"     every storage                 birth              outside_end
    "plan"        every storage                 birth              DEL; where it is kept, keep_end and after
                                                                   the last recipe that reads it
                  what comes back               PRE or RE          the end of its last window, and after the
                                                                   last recipe that reads it
    "unpack i"    what was unpacked             the unpack         the end of its window
    (a recipe)    what it makes                 its operation      its last reader in the recipe

At a moment, first those leave whose time is over, then the steps of the plan are done one by one, then the event
itself takes place. The most that is there at any of these points is the peak.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from trimaran.graph.trace.types import Role, StepTrace, Tick, TraceOp
from trimaran.program.memory import Decision, MemoryPlan, MemoryStep, RecomputeRecipe
from trimaran.program.types import Kind

_NEVER = -2
"""A moment that does not come: a plan lets go by a step of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What came out.

    Attributes:
        peaks: most bytes at each moment [bytes]
        step_time_s: end of the last event, or of the last copy [s]
        to_host_bytes: copied to the host
        to_device_bytes: copied back
    """

    peaks: tuple[int, ...]
    step_time_s: float
    to_host_bytes: int
    to_device_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Most bytes of all moments."""
        return max(self.peaks, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How fast a machine is.

    Attributes:
        durations_s: of each event; 0 for ticks [s]
        to_host_bytes_per_s: of copies to the host
        to_device_bytes_per_s: of copies back
        latency_s: of each copy [s]
    """

    durations_s: Sequence[float]
    to_host_bytes_per_s: float
    to_device_bytes_per_s: float
    latency_s: float = 0.0


def replay(trace: StepTrace, plan: MemoryPlan, rates: Rates) -> Replay:
    """Go through a step under a plan.

    Args:
        trace: of the step
        plan: what happens to its storages
        rates: of the machine
    """
    device, clock = _Device(trace, plan), _Clock(trace, rates)
    steps: dict[int, list[MemoryStep]] = defaultdict(list)
    for step in plan.steps:
        steps[step.moment].append(step)
    peaks = []
    for moment, event in enumerate(trace.events):
        device.expire(moment)
        clock.synchronize([storage for storage, tick in plan.waits.items() if tick == moment])
        most = 0
        for step in steps[moment]:
            if step.kind != Kind.OFFLOAD:
                most = max(most, device.take(step, plan.recipes.get(step.storage)))
            clock.take(step, plan.recipes.get(step.storage))
        device.bear(moment)
        scratch_bytes = event.scratch_bytes if isinstance(event, TraceOp) else 0
        peaks.append(max(most, device.bytes + scratch_bytes))
        clock.pass_event(event)
    return Replay(
        peaks=tuple(peaks),
        step_time_s=max(clock.compute_s, clock.to_host_s, clock.to_device_s),
        to_host_bytes=clock.to_host_bytes,
        to_device_bytes=clock.to_device_bytes,
    )


class _Device:
    """Who holds what. What comes back is a new storage: a moved one has two lives, which may overlap."""

    def __init__(self, trace: StepTrace, plan: MemoryPlan) -> None:
        self._trace, self._plan = trace, plan
        self._holders: dict[tuple[int, int], set[str]] = defaultdict(set)  # by storage and life
        self._leave: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
        self._born_at: dict[int, list[int]] = defaultdict(list)
        for storage in trace.storages:
            if storage.birth < 0:
                self._hold_from_birth(storage.number)
            else:
                self._born_at[storage.birth].append(storage.number)

    @property
    def bytes(self) -> int:
        return sum(self._trace.storages[number].nbytes for (number, _), holders in self._holders.items() if holders)

    def bear(self, moment: int) -> None:
        for number in self._born_at[moment]:
            self._hold_from_birth(number)
        event = self._trace.events[moment]
        if isinstance(event, Tick) and event.kind == "unpack":
            # Whoever unpacks holds what he is given for a while, whatever the plan does.
            life = 2 if (event.storage, 2) in self._holders else 1
            self._hold(event.storage, life, f"unpack {event.index}", event.end)

    def _hold_from_birth(self, number: int) -> None:
        storage = self._trace.storages[number]
        self._hold(number, 1, "outside", storage.outside_end)
        end = storage.keep_end
        if storage.movable:
            reads = [
                step.moment
                for step in self._plan.steps
                if step.kind == Kind.RECOMPUTE and number in self._plan.recipes[step.storage].sources
            ]
            end = max([end, *(moment + 1 for moment in reads)]) if self._plan.of(number) == Decision.KEEP else _NEVER
        self._hold(number, 1, "plan", end)

    def _hold(self, number: int, life: int, holder: str, end: int) -> None:
        self._holders[number, life].add(holder)
        self._leave[end].append((number, life, holder))

    def expire(self, moment: int) -> None:
        """Let those go whose time is over when this moment begins."""
        for number, life, holder in self._leave.pop(moment, []):
            self._holders[number, life].discard(holder)

    def take(self, step: MemoryStep, recipe: RecomputeRecipe | None) -> int:
        """Do a step; the most bytes while it is done."""
        most = 0
        if step.kind == Kind.RELEASE:
            self._holders[step.storage, 1].discard("plan")
        elif step.kind == Kind.PREFETCH:
            self._hold(step.storage, 2, "plan", self._last_use(step))
        elif step.kind == Kind.RECOMPUTE and recipe is not None:
            most = self.bytes + self._most_of_recipe(step.storage, recipe)
            self._hold(step.storage, 2, "plan", self._last_use(step))
        return max(most, self.bytes)

    def _last_use(self, back: MemoryStep) -> int:
        """When what comes back is used no more: after its last window, and after recipes that will read it."""
        place = self._plan.steps.index(back)
        windows = [tick.end for tick in self._trace.unpacks if tick.storage == back.storage]
        reads = [
            step.moment + 1
            for step in self._plan.steps[place + 1 :]
            if step.kind == Kind.RECOMPUTE and back.storage in self._plan.recipes[step.storage].sources
        ]
        return max([back.moment + 1, *windows, *reads])

    def _most_of_recipe(self, target: int, recipe: RecomputeRecipe) -> int:
        ops = [event for event in (self._trace.events[moment] for moment in recipe.ops) if isinstance(event, TraceOp)]
        made: dict[int, int] = {}
        most = 0
        for position, op in enumerate(ops):
            for number, _ in op.writes:
                if self._trace.storages[number].role != Role.BUFFER:
                    made[number] = self._trace.storages[number].nbytes
            most = max(most, sum(made.values()) + op.scratch_bytes)
            needed = {number for later in ops[position + 1 :] for number, _ in (*later.reads, *later.writes)}
            made = {number: nbytes for number, nbytes in made.items() if number in needed or number == target}
        return most


class _Clock:
    """When what is done: three lanes, each in the order in which it is given its work."""

    def __init__(self, trace: StepTrace, rates: Rates) -> None:
        self._trace, self._rates = trace, rates
        self.compute_s = self.to_host_s = self.to_device_s = 0.0
        self.to_host_bytes = self.to_device_bytes = 0
        self._left: dict[int, float] = {}  # when the copy to the host has ended
        self._back: dict[int, float] = {}  # when the copy back has ended

    def take(self, step: MemoryStep, recipe: RecomputeRecipe | None) -> None:
        number = step.storage
        nbytes, latency_s = self._trace.storages[number].copy_bytes, self._rates.latency_s
        if step.kind == Kind.OFFLOAD:
            start_s = max(self.compute_s, self.to_host_s)
            self.to_host_s = self._left[number] = start_s + latency_s + nbytes / self._rates.to_host_bytes_per_s
            self.to_host_bytes += nbytes
        elif step.kind == Kind.RELEASE:
            self.compute_s = max(self.compute_s, self._left.get(number, 0.0))
        elif step.kind == Kind.PREFETCH:
            start_s = max(self.compute_s, self.to_device_s)
            self.to_device_s = self._back[number] = start_s + latency_s + nbytes / self._rates.to_device_bytes_per_s
            self.to_device_bytes += nbytes
        elif step.kind == Kind.RECOMPUTE and recipe is not None:
            arrived_s = max((self._back.get(source, 0.0) for source in recipe.sources), default=0.0)
            self.compute_s = max(self.compute_s, arrived_s) + recipe.duration_s

    def synchronize(self, storages: Sequence[int]) -> None:
        """The operations wait for copies back before they need them."""
        self.compute_s = max([self.compute_s, *(self._back[number] for number in storages)])

    def pass_event(self, event: TraceOp | Tick) -> None:
        if isinstance(event, Tick):
            if event.kind == "unpack":
                self.compute_s = max(self.compute_s, self._back.get(event.storage, 0.0))
        else:
            self.compute_s += float(self._rates.durations_s[event.moment])
