"""What a training goes on from: the checkpoint that was taken, those that were passed over, and what has changed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trimaran.base.files import shown_path
from trimaran.base.units import format_count

_MOST_LINES = 10
"""Of what has changed, on standard error; `run.json` has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """A newer checkpoint that was not taken.

    Attributes:
        path: its directory
        reason: what is wrong with it
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{Path(self.path).name} is newer and was passed over: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Something that is not as it was when the state was saved.

    Attributes:
        what: an option of the optimizer or the schedule, modules of the model, or what else the state is of
        saved: its value in the state; options are those that the job had made, before any step
        now: its value as this job has made it
        counts: whose value the training goes on with
    """

    what: str
    saved: str
    now: str
    counts: Literal["checkpoint", "job"]

    def __str__(self) -> str:
        whose = "the checkpoint" if self.counts == "checkpoint" else "this job"
        return f"{self.what}: {self.saved} in the checkpoint, {self.now} in this job: that of {whose} counts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a training goes on from; as text, what is said before its first step.

    Attributes:
        path: directory of the checkpoint, or what else was given
        step: training steps that it has; None: a training begins from its weights
        passed_over: newer checkpoints that were not taken
        changed: what is not as it was when it was saved
    """

    path: str
    step: int | None = None
    passed_over: tuple[PassedOver, ...] = ()
    changed: tuple[Changed, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """All but what was taken."""
        return tuple(map(str, (*self.passed_over, *self.changed)))

    @property
    def taken(self) -> str:
        """What was."""
        begins = "begins from weights" if self.step is None else f"goes on from step {self.step}"
        return f"the training {begins}: {shown_path(Path(self.path))}"

    def __str__(self) -> str:
        lines = [self.taken, *self.notes]
        if len(lines) > _MOST_LINES:
            lines[_MOST_LINES:] = [f"{format_count(len(lines) - _MOST_LINES, 'more difference')}"]
        if any(one.counts == "checkpoint" for one in self.changed):
            lines.append(
                "to train with the options of this job, begin from the checkpoint's weights and the optimizer's state: "
                f"--weights {shown_path(Path(self.path))} --with-optimizer, or session.load(path, optimizer=True)"
            )
        return "\n".join(f"trimaran: {line}" for line in lines)
