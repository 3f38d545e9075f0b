"""The best memory plan of a small step, by trying all: what a plan is compared with, as in Checkmate.

Every storage is kept, offloaded, or recomputed. A recipe that needs it before its own time has two ways: it comes then,
and stays; or it is made in passing, inside the other recipe, and comes by itself later. Under one choice the times of
the steps follow: what is offloaded leaves in the order of packing, as late as the budget allows, and comes back in the
order of use, as early as it allows; what is recomputed is let go at its last pack. The time of the step is that of the
independent replay.

A choice whose operations and recomputes alone take longer than the best so far is not followed any further.

Source:
    Jain et al., MLSys 2020 (Checkmate): the optimum as the measure of heuristics.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.independent_replay import Rates, replay
from tests.memory_chains import recipe_from

from trimaran.graph.trace.types import StepTrace, Tick
from trimaran.program.memory import Decision, MemoryPlan, MemoryStep, Recipe
from trimaran.program.types import Kind

KEEP, OFFLOAD, OFFLOAD_PASS, STAY, PASS = "keep", "offload", "offload, in passing", "recompute", "recompute, in passing"


@dataclass(slots=True)
class Optimum:
    """The best plan found.

    Attributes:
        step_time_s: its time [s]; infinite: nothing fits
        plan: None: nothing fits
        tried: choices that were replayed
    """

    step_time_s: float = float("inf")
    plan: MemoryPlan | None = None
    tried: int = 0


def best_plan(trace: StepTrace, rates: Rates, budget_bytes: int) -> Optimum:
    """Try all choices.

    Args:
        trace: from `chain_trace`
        rates: of the machine
        budget_bytes: peak to keep [bytes]
    """
    search = _Search(trace, rates, budget_bytes)
    search.run(0, {}, sum(rates.durations_s))
    return search.best


class _Search:
    def __init__(self, trace: StepTrace, rates: Rates, budget_bytes: int) -> None:
        self._trace, self._rates, self._budget_bytes = trace, rates, budget_bytes
        self._numbers = [storage.number for storage in trace.movable]
        alone = {number: recipe_from(trace, number, set(self._numbers)) for number in self._numbers}
        self._recipes = {number: recipe for number, recipe in alone.items() if recipe is not None}
        self._read = {source for recipe in self._recipes.values() for source in recipe.sources}
        self.best = Optimum()

    def run(self, place: int, choice: dict[int, str], least_s: float) -> None:
        """Choose for the storage at a place, then for those behind it."""
        if least_s >= self.best.step_time_s:
            return
        if place == len(self._numbers):
            self._try(choice)
            return
        number = self._numbers[place]
        for what in self._options(number):
            extra_s = self._recipes[number].duration_s if what in (STAY, PASS) else 0.0
            self.run(place + 1, {**choice, number: what}, least_s + extra_s)

    def _options(self, number: int) -> Iterator[str]:
        yield from (KEEP, OFFLOAD)
        if number in self._recipes:
            yield STAY
            if number in self._read:
                yield PASS
                yield OFFLOAD_PASS

    def _try(self, choice: Mapping[int, str]) -> None:
        plan = _Scheduling(self._trace, choice, self._budget_bytes).plan()
        if plan is None:
            return
        self.best.tried += 1
        found = replay(self._trace, plan, self._rates)
        if found.peak_bytes <= self._budget_bytes and found.step_time_s < self.best.step_time_s:
            self.best.step_time_s, self.best.plan = found.step_time_s, plan


@dataclass(slots=True)
class _Scheduling:
    """From a choice to steps."""

    trace: StepTrace
    choice: Mapping[int, str]
    budget_bytes: int
    recipes: dict[int, Recipe] = field(default_factory=dict)
    remade: dict[int, int] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    deadline: dict[int, int] = field(default_factory=dict)
    levels: list[int] = field(default_factory=list)

    def plan(self) -> MemoryPlan | None:
        """The plan; None where it does not fit, or offloads what need not leave."""
        self._remake()
        offloaded = [number for number, what in self.choice.items() if what in (OFFLOAD, OFFLOAD_PASS)]
        for number in offloaded:
            self.deadline.setdefault(number, self.trace.storages[number].unpacks[0])
        away = self._leave(sorted(offloaded, key=lambda number: self.trace.storages[number].packs[-1]))
        if away is None or len(away) < len(offloaded):
            return None
        return self._assemble(away, self._come_back(away))

    def _remake(self) -> None:
        """When each recomputed storage is made again: for its first use, or for that of a storage made from it."""
        for tick in self.trace.unpacks:
            if self.choice.get(tick.storage) in (STAY, PASS) and tick.storage not in self.remade:
                self._make(tick.storage, tick.moment)
            if self.choice.get(tick.storage) == OFFLOAD:
                self.deadline[tick.storage] = min(self.deadline.get(tick.storage, tick.moment), tick.moment)

    def _make(self, number: int, moment: int) -> None:
        absent = {
            other
            for other, what in self.choice.items()
            if (what == PASS and other not in self.remade)
            or (what == OFFLOAD_PASS and not self._is_back(other, moment))
        }
        recipe = recipe_from(self.trace, number, set(self.choice) - absent)
        if recipe is None:
            raise ValueError(f"storage {number} has no recipe")
        for source in recipe.sources:
            what = self.choice.get(source)
            if what == STAY and source not in self.remade:
                self._make(source, moment)
            elif what in (OFFLOAD, OFFLOAD_PASS):
                self.deadline[source] = min(self.deadline.get(source, moment), moment)
        self.recipes[number], self.remade[number] = recipe, moment
        self.order.append(number)

    def _is_back(self, number: int, moment: int) -> bool:
        return self.trace.storages[number].unpacks[0] <= moment

    def _leave(self, queue: list[int]) -> dict[int, int] | None:
        """When what is offloaded is let go: in order, as late as possible, if it comes back as late as possible."""
        self.levels = self._levels()
        ticks = [event.moment for event in self.trace.events if isinstance(event, Tick)]
        away: dict[int, int] = {}
        waiting = list(queue)
        last_tick = 0
        for moment in range(self.trace.length):
            if moment in ticks:
                last_tick = moment
            while self._level(self.levels, moment, away) > self.budget_bytes:
                ready = [
                    number
                    for number in waiting
                    if self.trace.storages[number].packs[-1] <= last_tick < self.deadline[number]
                ]
                if not ready:
                    return None
                away[ready[0]] = last_tick
                waiting.remove(ready[0])
        return away

    def _level(self, levels: list[int], moment: int, away: Mapping[int, int]) -> int:
        return levels[moment] - sum(
            self.trace.storages[number].nbytes
            for number, gone in away.items()
            if max(gone, self.trace.storages[number].outside_end) <= moment < self.deadline[number]
        )

    def _levels(self) -> list[int]:
        """Most bytes at each moment if what is offloaded were kept."""
        steps = [step for _, _, step in self._recompute_steps()]
        decisions = dict.fromkeys(self.recipes, Decision.RECOMPUTE)
        plan = MemoryPlan(
            policy="", budget_bytes=None, decisions=decisions, steps=tuple(steps), recipes=self.recipes, reasons={}
        )
        rates = Rates(durations_s=[0.0] * self.trace.length, to_host_bytes_per_s=1.0, to_device_bytes_per_s=1.0)
        return list(replay(self.trace, plan, rates).peaks)

    def _recompute_steps(self) -> list[tuple[int, int, MemoryStep]]:
        steps = []
        for place, number in enumerate(self.order):
            gone = self.trace.storages[number].packs[-1]
            steps.append((gone, 1, MemoryStep(moment=gone, kind=Kind.RELEASE, storage=number)))
            back = self.remade[number]
            steps.append((back, 4 + place, MemoryStep(moment=back, kind=Kind.RECOMPUTE, storage=number)))
        return sorted(steps, key=lambda entry: entry[:2])

    def _come_back(self, away: Mapping[int, int]) -> dict[int, int]:
        """When what is offloaded comes back: in the order of use, as early as memory allows."""
        levels = [self._level(self.levels, moment, away) for moment in range(self.trace.length)]
        ticks = [event.moment for event in self.trace.events if isinstance(event, Tick)]
        back: dict[int, int] = {}
        earliest = 0
        for number in sorted(away, key=lambda other: self.deadline[other]):
            nbytes, deadline = self.trace.storages[number].nbytes, self.deadline[number]
            start = deadline
            for tick in reversed([tick for tick in ticks if max(earliest, away[number]) <= tick < deadline]):
                if any(levels[moment] + nbytes > self.budget_bytes for moment in range(tick, start)):
                    break
                start = tick
            for moment in range(start, deadline):
                levels[moment] += nbytes
            back[number] = earliest = start
        return back

    def _assemble(self, away: Mapping[int, int], back: Mapping[int, int]) -> MemoryPlan:
        steps = self._recompute_steps()
        for number in sorted(away, key=lambda other: self.deadline[other]):
            packed = self.trace.storages[number].packs[-1]
            steps.append((packed, 0, MemoryStep(moment=packed, kind=Kind.OFFLOAD, storage=number)))
            steps.append((away[number], 2, MemoryStep(moment=away[number], kind=Kind.RELEASE, storage=number)))
            come = MemoryStep(moment=back[number], kind=Kind.PREFETCH, storage=number)
            steps.append((back[number], 3, come))
        steps.sort(key=lambda entry: entry[:2])
        decisions = dict.fromkeys(self.recipes, Decision.RECOMPUTE) | dict.fromkeys(away, Decision.OFFLOAD)
        return MemoryPlan(
            policy="optimum",
            budget_bytes=self.budget_bytes,
            decisions=decisions,
            steps=tuple(step for _, _, step in steps),
            recipes=self.recipes,
            reasons={},
        )
