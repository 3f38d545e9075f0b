"""Options of `trimaran crossover --measure`, checked before anything runs."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from trimaran.base.errors import InputError
from trimaran.base.units import parse_seconds
from trimaran.jobs.learning_rate import Schedule, check_rule


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergeRequest:
    """Options of a measurement.

    Attributes:
        batches: global batches [samples]; None: around the job's own
        target: value of the metric; None: the job's own, or by what it reaches
        repeats: runs of each batch, each of another seed
        rule: of the learning rate; None: by the optimizer
        warmup_epochs: over which the rate goes from the job's own to that of the rule [epochs]
        schedule: the job's own, with or without its decay
        max_epochs: limit of a run [epochs]; None: four times the job's
        time_limit_s: of the whole command [s]; None: there is none
        evaluations: most of an epoch
        devices: most that take part; None: all of this machine
        microbatch: samples that a device takes at once; None: the job's batch
        parent: folder of run directories; None: `runs` in the current directory
    """

    batches: tuple[int, ...] | None = None
    target: float | None = None
    repeats: int = 3
    rule: str | None = None
    warmup_epochs: float = 1.0
    schedule: Schedule = "hold"
    max_epochs: float | None = None
    time_limit_s: float | None = None
    evaluations: int = 4
    devices: int | None = None
    microbatch: int | None = None
    parent: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what means nothing.

        Raises:
            InputError: an unknown schedule or rule, a number of epochs out of range
        """
        if self.schedule not in get_args(Schedule):
            raise InputError(f'--schedule must be "hold" or "job", got "{self.schedule}"', value=self.schedule)
        if self.rule is not None:
            check_rule(self.rule)
        for name, value in (("--warmup", self.warmup_epochs), ("--max-epochs", self.max_epochs)):
            if value is not None and (not math.isfinite(value) or value < 0):
                raise InputError(
                    f"{name} must be a number of epochs, got {value}", code="converge.bad-epochs", value=str(value)
                )
        if self.max_epochs == 0:
            raise InputError("--max-epochs must be more than 0", value=self.max_epochs)


def parse_time_limit(text: str) -> float:
    """A limit of the time [s].

    Args:
        text: seconds, or with a unit, such as "10min"

    Raises:
        InputError: it is none, or leaves no time
    """
    seconds = parse_seconds(text)
    if not seconds > 0:
        raise InputError(f'--time-limit "{text}" leaves no time', code="converge.no-time", text=text)
    return seconds


def parse_target_value(text: str) -> float:
    """A value of the metric.

    Args:
        text: a number

    Raises:
        InputError: it is none
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(
            f'--target must be a number, such as 0.97, got "{text}"', code="converge.bad-target", value=text
        )
    return value
