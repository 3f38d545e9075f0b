"""What a person asks of a plan: how many devices, how much memory, which links, which objective."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from trimaran.cluster import Link
from trimaran.errors import InputError
from trimaran.planner.pins import NO_PINS, Pins
from trimaran.program.plan import Objective
from trimaran.session.accuracy.request import NO_TARGET, TargetRequest
from trimaran.units import parse_bytes, parse_rate

Executions = Literal["any", "eager", "compiled"]
"""How segments may be run; "any" lets the plan decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a plan is to look for, and within which limits.

    Attributes:
        devices: most devices that may take part; None: all of this machine
        memory_bytes: memory that each device may use [bytes]; None: what it has
        oversubscribe: allow more ranks than the machine has devices
        link: what the links between local ranks are held to; None: nothing
        objective: what is made best; None: throughput, or what a given plan was made for
        execution: how segments may be run
        calibration: file of `trimaran calibrate` whose figures are used; None: what is known of this machine
        pins: what is decided already
        time_limit_s: time after which the search takes the best that it has [s]; None: it ends by itself
        gap: the search may stop when its best is within this share of what anything takes at least
        target: curve, batches and prices of a training to a target
        accept_inexact: plans by which something else would be trained than by one process are not refused
    """

    devices: int | None = None
    memory_bytes: int | None = None
    oversubscribe: bool = False
    link: Link | None = None
    objective: Objective | None = None
    execution: Executions = "any"
    calibration: Path | None = None
    pins: Pins = NO_PINS
    time_limit_s: float | None = None
    gap: float = 0.0
    target: TargetRequest = NO_TARGET
    accept_inexact: bool = False

    @property
    def asks_for_outlook(self) -> bool:
        """Whether batches are compared, or a training to a target is asked for."""
        return self.objective in ("time", "cost") or self.target.is_asked


EVERYTHING = PlanRequest()


def parse_request(
    *,
    devices: int | None = None,
    memory: str | None = None,
    oversubscribe: bool = False,
    link: str | None = None,
    objective: str | None = None,
    execution: str = "any",
    calibration: Path | None = None,
    pins: Pins = NO_PINS,
    time_limit_s: float | None = None,
    gap: float = 0.0,
    target: TargetRequest = NO_TARGET,
    accept_inexact: bool = False,
) -> PlanRequest:
    """A request as it is written on the command line.

    Args:
        devices: as in `PlanRequest`
        memory: such as "12GiB"
        oversubscribe: as in `PlanRequest`
        link: a rate such as "1Gb/s"
        objective: "throughput", "epoch", "time" or "cost"; None as in `PlanRequest`
        execution: "any", "eager" or "compiled"
        calibration: as in `PlanRequest`
        pins: as in `PlanRequest`
        time_limit_s: as in `PlanRequest`
        gap: as in `PlanRequest`
        target: as in `PlanRequest`
        accept_inexact: as in `PlanRequest`

    Raises:
        InputError: a text that means nothing

    Example:
        >>> request = parse_request(memory="1KiB", link="1Gb/s")
        >>> request.memory_bytes, request.link.bytes_per_s
        (1024, 125000000.0)
    """
    return PlanRequest(
        devices=devices,
        memory_bytes=None if memory is None else parse_bytes(memory),
        oversubscribe=oversubscribe,
        link=None if link is None else parse_link(link),
        objective=None if objective is None else _one_of(objective, Objective, "objective"),
        execution=_one_of(execution, Executions, "execution"),
        calibration=calibration,
        pins=pins,
        time_limit_s=time_limit_s,
        gap=gap,
        target=target,
        accept_inexact=accept_inexact,
    )


def parse_link(text: str) -> Link:
    """A link between local ranks as it is written on the command line.

    Args:
        text: a rate such as "1Gb/s"

    Raises:
        InputError: a text that means no rate
    """
    return Link(bytes_per_s=parse_rate(text), latency_s=0.0, source=f"asked: {text}")


def _one_of(text: str, choices: object, what: str):  # type: ignore[no-untyped-def]  # the literal it was checked against
    if text not in get_args(choices):
        raise InputError(f'{what} must be one of {", ".join(get_args(choices))}, got "{text}"', value=text)
    return text
