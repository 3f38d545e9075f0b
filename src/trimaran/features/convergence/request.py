"""What a person asks of `trimaran converge`, checked before anything runs."""

import math
from dataclasses import dataclass
from pathlib import Path

from trimaran.base.errors import InputError
from trimaran.base.units import parse_seconds
from trimaran.jobs.learning_rate import Schedule, check_rule
from trimaran.measure.convergence.batches import parse_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergeRequest:
    """What is to be measured, and within which limits.

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


def parse_converge_request(
    *,
    batches: str | None = None,
    target: str | None = None,
    repeats: int = 3,
    rule: str | None = None,
    warmup: float = 1.0,
    schedule: str = "hold",
    max_epochs: float | None = None,
    time_limit: str | None = None,
    evaluations: int = 4,
    devices: int | None = None,
    microbatch: int | None = None,
    runs: Path | None = None,
) -> ConvergeRequest:
    """A request as it is written on the command line.

    Args:
        batches: such as "32,64,…,1024"
        target: a number
        repeats: as in `ConvergeRequest`
        rule: "linear", "sqrt", "constant", or "file.py:function"
        warmup: as in `ConvergeRequest` [epochs]
        schedule: "hold" or "job"
        max_epochs: as in `ConvergeRequest`
        time_limit: seconds, or with a unit, such as "10min"
        evaluations: as in `ConvergeRequest`
        devices: as in `ConvergeRequest`
        microbatch: as in `ConvergeRequest`
        runs: as in `ConvergeRequest`

    Raises:
        InputError: a text that means nothing, a figure out of range
    """
    if schedule not in ("hold", "job"):
        raise InputError(f'--schedule must be "hold" or "job", got "{schedule}"', value=schedule)
    if rule is not None:
        check_rule(rule)
    for name, value in (("--warmup", warmup), ("--max-epochs", max_epochs)):
        if value is not None and (not math.isfinite(value) or value < 0):
            raise InputError(
                f"{name} must be a number of epochs, got {value}", code="converge.bad-epochs", value=str(value)
            )
    if max_epochs == 0:
        raise InputError("--max-epochs must be more than 0", value=max_epochs)
    return ConvergeRequest(
        batches=None if batches is None else parse_batches(batches),
        target=None if target is None else _number(target, "--target"),
        repeats=repeats,
        rule=rule,
        warmup_epochs=warmup,
        schedule="job" if schedule == "job" else "hold",
        max_epochs=max_epochs,
        time_limit_s=None if time_limit is None else _time_limit(time_limit),
        evaluations=evaluations,
        devices=devices,
        microbatch=microbatch,
        parent=runs,
    )


def _time_limit(text: str) -> float:
    seconds = parse_seconds(text)
    if not seconds > 0:
        raise InputError(f'--time-limit "{text}" leaves no time', code="converge.no-time", text=text)
    return seconds


def _number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f'{name} must be a number, such as 0.97, got "{text}"', code="converge.bad-target", value=text)
    return value
