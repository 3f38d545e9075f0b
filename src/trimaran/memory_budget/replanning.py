"""From recorded passes to plans, and what is tried where no plan keeps the budget.

The state of optimizers goes to the host where that is wanted, or where otherwise no plan keeps the budget. The step is
recorded again then, as it holds less.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping

import torch
from torch.optim import Optimizer

from trimaran.base.errors import InfeasibleError
from trimaran.base.units import format_bytes
from trimaran.memory_budget.optimizer_state import StateTier
from trimaran.memory_budget.options import Options
from trimaran.memory_budget.passes import Key
from trimaran.memory_budget.plans import Plans
from trimaran.memory_budget.recording import AllocatorLimit, Recorded


class Replanning:
    """Makes plans.

    Args:
        options: what the user chose
        plans: made here
        note: takes what a person should know

    Attributes:
        states: optimizers whose state lives on the host
    """

    def __init__(self, options: Options, plans: Plans, note: Callable[[str], None]) -> None:
        self.states = StateTier()
        self._options = options
        self._plans = plans
        self._note = note
        self._limit = AllocatorLimit()
        self._begun = False

    def takes_state(self, recorded: Mapping[Key, Recorded], optimizers: Iterable[Optimizer]) -> bool:
        """Take the state of optimizers to the host, if the user wants it there; whether there was any to take."""
        return self._options.optimizer_state == "host" and self._take(recorded, optimizers)

    def plan(self, recorded: Mapping[Key, Recorded], optimizers: Iterable[Optimizer]) -> bool:
        """Plan passes.

        Args:
            recorded: passes of a step that ended with what it began with
            optimizers: of the loop

        Returns:
            Whether they are planned; else the state of optimizers has gone to the host, and the step must be recorded
            again.

        Raises:
            InfeasibleError: no plan keeps the budget, and these are the first passes: what is met later in a
                training that has run for long moves its storages on demand instead
        """
        budget_bytes = self._plans.resolve(recorded.values())
        try:
            for key, one in recorded.items():
                self._plans.make(key, one, must=not one.carried_bytes)
        except InfeasibleError as error:
            if self._options.optimizer_state == "auto" and self._take(recorded, optimizers):
                self._plans.forget()
                return False
            if not self._begun:
                raise self._explained(error) from None
            for key, one in recorded.items():
                self._plans.make(key, one, must=False)
        self._begun = True
        if self._plans.device == "cuda" and not self._plans.all_fit:
            torch.cuda.empty_cache()  # blocks of recorded steps have other sizes than those of planned ones
        for note in self._plans.block_notes():
            self._note(note)
        if self._options.enforce and self._plans.device == "cuda":
            self._limit.hold(budget_bytes)
        elif self._options.enforce:
            self._note("enforce: only the allocator of a GPU can be limited to the budget")
        return True

    def tighten(self, over_bytes: int) -> bool:
        """Plan again with a smaller budget, because a step held more than it was planned to.

        Args:
            over_bytes: by how much [bytes]

        Returns:
            Whether steps will run under other plans.
        """
        if not len(self._plans):
            return False
        before = self._plans.predicted_peak_bytes
        self._note(self._plans.tighten(over_bytes))
        return self._plans.predicted_peak_bytes != before

    def start_over(self) -> None:
        """Plan first passes again."""
        self._plans.forget()
        self._begun = False

    def close(self) -> None:
        """Leave the allocator and the optimizers as they were."""
        with contextlib.ExitStack() as last_first:
            last_first.callback(self.states.close)
            last_first.callback(self._limit.release)

    def _take(self, recorded: Mapping[Key, Recorded], optimizers: Iterable[Optimizer]) -> bool:
        device = self._plans.device_of(next(iter(recorded.values())).recording)
        taken_bytes = self.states.take(optimizers, device)
        if taken_bytes:
            self._note(f"{format_bytes(taken_bytes)} of optimizer state live on the host")
        for reason in self.states.reasons:
            self._note(f"optimizer state stays on the device: {reason}")
        return taken_bytes > 0

    def _explained(self, error: InfeasibleError) -> InfeasibleError:
        """The error, with what was tried with the state of optimizers, or why it was not."""
        tried = ["The state of the optimizer is on the host already."] if self.states else []
        tried += [f"The state of the optimizer stays on the device: {reason}." for reason in self.states.reasons]
        return (
            InfeasibleError(f"{error.message}. {' '.join(tried)}", code=error.code, **error.figures) if tried else error
        )
