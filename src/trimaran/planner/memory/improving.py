"""Local search: flips of units, one by one and in groups, as long as the step gets shorter."""

import random
from collections.abc import Iterator
from itertools import combinations

from trimaran.planner.memory.groups import groups
from trimaran.planner.memory.remaking import KEEP, OFFLOAD, RECOMPUTE
from trimaran.planner.memory.rounding import repair
from trimaran.planner.memory.scoring import Choice, Score, Scores

_LARGEST = 14
_SMALL = 40
_KICKS = 200
_SEED = 0


class Improvement:
    """A choice that gets better.

    Args:
        scores: scores choices
        most: evaluations after which it ends
        enough_s: step time at which it ends [s]
    """

    def __init__(self, scores: Scores, choice: Choice, *, most: int, enough_s: float = 0.0) -> None:
        self.scores = scores
        self.units = scores.problem.units
        self.choice = choice
        self.score: Score = scores.score(choice)
        self.most = most
        self.enough_s = enough_s

    def done(self) -> bool:
        """Whether it is good enough, or the evaluations or the time are used up."""
        enough = self.score.excess == 0 and self.score.step_time_s <= self.enough_s
        return enough or self.scores.evaluations >= self.most or self.scores.late()

    def run(self) -> Choice:
        """Search until nothing gets better, or the evaluations are used up."""
        before = None
        while before != self.score and not self.done():
            before = self.score
            for moves in (self._group_flips, self._single_flips, self._undone, self._pair_flips):
                for changed in moves():
                    if self.done():
                        return self.choice
                    self._try(changed)
        return self.choice

    def kicked(self) -> Choice:
        """Search; then change a few units at random and search again, from the best so far, while it may."""
        self.run()
        numbers = random.Random(_SEED)
        for _ in range(_KICKS):
            if self.done():
                break
            units = numbers.sample(range(len(self.units)), min(numbers.randint(2, 4), len(self.units)))
            changed = self._with(*((unit, numbers.choice(self._options(unit))) for unit in units))
            best = self.choice, self.score
            self.choice, self.score = repair(self.scores, changed, frozenset(units))
            if self.score.excess == 0:
                self.run()
            if best[1] <= self.score:
                self.choice, self.score = best
        return self.choice

    def _try(self, changed: Choice) -> bool:
        found = self.scores.score(changed)
        if found < self.score:
            self.choice, self.score = changed, found
            return True
        return False

    def _options(self, unit: int, *, near: bool = False) -> list[int]:
        """What else may become of a unit; where asked, and in large problems, with no ways far from the present."""
        here, ways = self.choice[unit], len(self.units[unit].ways)
        among = range(ways)
        if near or len(self.units) > _SMALL:
            among = range(max(0, here - RECOMPUTE - 1), min(ways, max(0, here - RECOMPUTE) + 2))
        options = [KEEP, *(RECOMPUTE + way for way in among), OFFLOAD]
        return [option for option in options if option != here]

    def _with(self, *flips: tuple[int, int]) -> Choice:
        changed = list(self.choice)
        for unit, decision in flips:
            changed[unit] = decision
        return tuple(changed)

    def _by_size(self) -> list[int]:
        return sorted(range(len(self.units)), key=lambda unit: (-self.units[unit].nbytes, unit))

    def _single_flips(self) -> Iterator[Choice]:
        for unit in self._by_size():
            for option in self._options(unit):
                yield self._with((unit, option))

    def _pair_flips(self) -> Iterator[Choice]:
        for one, other in combinations(self._by_size()[:_LARGEST], 2):
            for first in self._options(one, near=True):
                for second in self._options(other, near=True):
                    yield self._with((one, first), (other, second))

    def _group_flips(self) -> Iterator[Choice]:
        for members in groups(self.scores.problem):
            for option in (KEEP, RECOMPUTE, OFFLOAD):
                fitting = [unit for unit in members if option != RECOMPUTE or self.units[unit].ways]
                for part in (fitting, fitting[: len(fitting) // 2], fitting[len(fitting) // 2 :]):
                    if part:
                        yield repair(self.scores, self._with(*((unit, option) for unit in part)), frozenset(part))[0]

    def _undone(self) -> Iterator[Choice]:
        """What is moved is kept or moved in another way, dearest first, and others make place for it."""
        moved = [unit for unit in range(len(self.units)) if self.choice[unit] != KEEP]
        for unit in sorted(moved, key=lambda one: (-self._price(one), one)):
            for option in self._options(unit):
                if self.choice[unit] not in (KEEP, option):
                    yield repair(self.scores, self._with((unit, option)), frozenset((unit,)))[0]

    def _price(self, unit: int) -> float:
        one, way = self.units[unit], self.choice[unit] - RECOMPUTE
        return one.ways[way].recipe.duration_s if way >= 0 else one.copies_s
