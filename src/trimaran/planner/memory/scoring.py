"""How good a choice is: bytes over the budgets first, then the time of the step."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from trimaran.planner.memory.building import step_time
from trimaran.planner.memory.problem import MemoryProblem
from trimaran.planner.memory.schedule import Schedule, schedule

Choice = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Score:
    """Of a choice; smaller is better.

    Attributes:
        excess: bytes over the budget of the device, summed over places, and over that of the host [bytes]; 0: it fits
        step_time_s: time of the step, taken as if the excess fitted [s]
    """

    excess: int
    step_time_s: float


class Scores:
    """Scores choices, each once, and counts.

    Args:
        problem: the step
        budget_bytes: peak on the device [bytes]
        host_bytes: most that may be offloaded at once [bytes]; None: as much as there is
        deadline_s: of `time.monotonic`, when a search should end whatever it has [s]
    """

    def __init__(
        self,
        problem: MemoryProblem,
        budget_bytes: int,
        host_bytes: int | None = None,
        deadline_s: float = float("inf"),
    ) -> None:
        self.problem = problem
        self.budget_bytes = budget_bytes
        self.host_bytes = host_bytes
        self.deadline_s = deadline_s
        self.evaluations = 0
        self._known: dict[bytes, tuple[Score, Schedule]] = {}

    def late(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.deadline_s

    def score(self, choice: Sequence[int]) -> Score:
        """Score of a choice."""
        return self.look(choice)[0]

    def look(self, choice: Sequence[int]) -> tuple[Score, Schedule]:
        """Score and schedule of a choice."""
        key = bytes(choice)
        known = self._known.get(key)
        if known is None:
            self.evaluations += 1
            found = schedule(self.problem, choice, self.budget_bytes)
            excess = found.excess + self._host_excess(found)
            known = (Score(excess=excess, step_time_s=step_time(self.problem, found)), found)
            self._known[key] = known
        return known

    def _host_excess(self, found: Schedule) -> int:
        if self.host_bytes is None:
            return 0
        return max(0, most_on_host(self.problem, found) - self.host_bytes)


def most_on_host(problem: MemoryProblem, found: Schedule) -> int:
    """Most bytes on the host at once [bytes]: of each unit from its OFF to its first use."""
    changes: list[tuple[int, int, int]] = []
    for unit in found.away:
        one = problem.units[unit]
        nbytes = problem.trace.storages[one.number].copy_bytes
        changes += [(one.packed, 1, nbytes), (found.first_use[unit], 0, -nbytes)]
    there = most = 0
    for _, _, nbytes in sorted(changes):
        there += nbytes
        most = max(most, there)
    return most
