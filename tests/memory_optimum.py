"""The best memory plan of a small step, by trying all: what a plan is compared with, as in Checkmate.

Every storage is kept, offloaded, or recomputed. A recipe that needs it when it is not there by itself has two ways: it
comes earlier, or stays longer; or it is made in passing, inside the other recipe, always or only the first time. Under
one choice the times of the steps follow: what is offloaded leaves in the order of packing, as late as the budget
allows, and comes back in the order of use, as early as it allows; what is recomputed is let go at its last pack. The
time of the step is that of the independent replay.

A choice whose operations and recomputes alone take longer than the best so far is not followed any further.

Source:
    Jain et al., MLSys 2020 (Checkmate): the optimum as the measure of heuristics.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.independent_replay import Rates, replay
from tests.memory_draws import recipe_from

from trimaran.graph.trace.types import StepTrace, Tick
from trimaran.program.memory import Decision, MemoryPlan, MemoryStep, RecomputeRecipe
from trimaran.program.types import Kind

Option = tuple[Decision, int]
"""What becomes of a storage, and how many of the recipes that need it out of its time make it in passing."""

ALWAYS = 99
_UNREAD = ((Decision.KEEP, 0), (Decision.OFFLOAD, 0))
"""No recipe reads what such a storage is made from."""


@dataclass(slots=True)
class Optimum:
    """The best plan found.

    Attributes:
        step_time_s: its time [s]; what was asked to be below, where nothing is
        plan: None: nothing fits, or nothing is fast enough
        tried: choices that were replayed
    """

    step_time_s: float = float("inf")
    plan: MemoryPlan | None = None
    tried: int = 0


def best_plan(trace: StepTrace, rates: Rates, budget_bytes: int, *, below_s: float = float("inf")) -> Optimum:
    """Try all choices.

    Args:
        trace: from `chain_trace`
        rates: of the machine
        budget_bytes: peak to keep [bytes]
        below_s: only plans that are faster count [s]
    """
    search = _Search(trace, rates, budget_bytes, below_s)
    search.run(0, {}, sum(rates.durations_s))
    return search.best


class _Search:
    def __init__(self, trace: StepTrace, rates: Rates, budget_bytes: int, below_s: float) -> None:
        self._trace, self._rates, self._budget_bytes = trace, rates, budget_bytes
        # Last ones first: what is made from a storage is chosen before it.
        self._numbers = [storage.number for storage in trace.movable][::-1]
        alone = {number: recipe_from(trace, number, set(self._numbers)) for number in self._numbers}
        self._recipes = {number: recipe for number, recipe in alone.items() if recipe is not None}
        self._readers: dict[int, set[int]] = {number: set() for number in self._numbers}
        for number, recipe in self._recipes.items():
            for source in set(recipe.sources) & self._readers.keys():
                self._readers[source].add(number)
        self.best = Optimum(step_time_s=below_s)

    def run(self, place: int, choice: dict[int, Option], least_s: float) -> None:
        # For the storage at a place, then for those behind it.
        if least_s >= self.best.step_time_s:
            return
        if place == len(self._numbers):
            self._try(choice)
            return
        number = self._numbers[place]
        for option in self._options(number, choice):
            extra_s = self._recipes[number].duration_s if option[0] == Decision.RECOMPUTE else 0.0
            self.run(place + 1, {**choice, number: option}, least_s + extra_s)

    def _options(self, number: int, choice: Mapping[int, Option]) -> Iterator[Option]:
        made = number in self._recipes
        read = any(choice[reader] not in _UNREAD for reader in self._readers[number])
        for decision in (Decision.KEEP, Decision.OFFLOAD, *([Decision.RECOMPUTE] if made else [])):
            yield decision, 0
            if made and read:
                yield decision, ALWAYS
                if decision != Decision.KEEP:
                    yield decision, 1

    def _try(self, choice: Mapping[int, Option]) -> None:
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
    choice: Mapping[int, Option]
    budget_bytes: int
    recipes: dict[int, RecomputeRecipe] = field(default_factory=dict)
    remade: dict[int, int] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    deadline: dict[int, int] = field(default_factory=dict)
    passed: dict[int, int] = field(default_factory=dict)
    levels: list[int] = field(default_factory=list)

    def plan(self) -> MemoryPlan | None:
        """The plan; None where it does not fit, or offloads what need not leave."""
        self._remake()
        offloaded = [number for number, (what, _) in self.choice.items() if what == Decision.OFFLOAD]
        for number in offloaded:
            self.deadline.setdefault(number, self.trace.storages[number].unpacks[0])
        away = self._leave(sorted(offloaded, key=self._packed))
        if away is None or len(away) < len(offloaded):
            return None
        return self._assemble(away, self._come_back(away))

    def _remake(self) -> None:
        """When each recomputed storage is made again: for its first use, or for that of a storage made from it."""
        for tick in self.trace.unpacks:
            if self._what(tick.storage) == Decision.RECOMPUTE and tick.storage not in self.remade:
                self._make(tick.storage, tick.moment)
            if self._what(tick.storage) == Decision.OFFLOAD:
                self.deadline[tick.storage] = min(self.deadline.get(tick.storage, tick.moment), tick.moment)

    def _what(self, number: int) -> Decision:
        return self.choice.get(number, (Decision.KEEP, 0))[0]

    def _make(self, number: int, moment: int) -> None:
        left = {other for other, (_, passes) in self.choice.items() if self.passed.get(other, 0) < passes}
        passing = {other for other in left if not self._is_there(other, moment)}
        recipe = recipe_from(self.trace, number, set(self.choice) - passing)
        if recipe is None:
            raise ValueError(f"storage {number} has no recipe")
        for other in passing - {number}:
            if self.trace.storages[other].birth in recipe.ops:
                self.passed[other] = self.passed.get(other, 0) + 1
        for source in recipe.sources:
            if self._what(source) == Decision.RECOMPUTE and source not in self.remade:
                self._make(source, moment)
            elif self._what(source) == Decision.OFFLOAD:
                self.deadline[source] = min(self.deadline.get(source, moment), moment)
        self.recipes[number], self.remade[number] = recipe, moment
        self.order.append(number)

    def _is_there(self, number: int, moment: int) -> bool:  # for its own uses
        storage, what = self.trace.storages[number], self._what(number)
        if what == Decision.RECOMPUTE:
            return number in self.remade and moment < storage.keep_end
        return (what == Decision.KEEP or storage.unpacks[0] <= moment) and moment < storage.keep_end

    def _leave(self, queue: list[int]) -> dict[int, int] | None:
        """When what is offloaded is let go: as late as possible, if it comes back as late as possible."""
        self.levels = self._levels()
        ticks = [event.moment for event in self.trace.events if isinstance(event, Tick)]
        away: dict[int, int] = {}
        waiting = list(queue)
        last_tick = 0
        for moment in range(self.trace.length):
            if moment in ticks:
                last_tick = moment
            while self._level(self.levels, moment, away) > self.budget_bytes:
                ready = [one for one in waiting if self._packed(one) <= last_tick < self.deadline[one]]
                if not ready:
                    return None
                away[ready[0]] = last_tick
                waiting.remove(ready[0])
        return away

    def _packed(self, number: int) -> int:
        return self.trace.storages[number].packs[-1]

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
            gone = self._packed(number)
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
            packed = self._packed(number)
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
