"""Pins as they are written on the command line."""

import math
from collections.abc import Iterable
from typing import get_args

from trimaran.errors import InputError
from trimaran.planner.kinds import read_kinds
from trimaran.planner.pins import Pins
from trimaran.program.compression import parse_compression
from trimaran.program.types import Schedule

MOST_WORKERS = 256
"""Of one rank, that a person may ask for."""


def parse_pins(
    *,
    keep: Iterable[str] = (),
    forbid: Iterable[str] = (),
    allow: Iterable[str] = (),
    dp: int | None = None,
    pp: int | None = None,
    tp: int | None = None,
    zero: int | None = None,
    microbatches: int | None = None,
    schedule: str | None = None,
    nodes: int | None = None,
    compression: str | None = None,
    powersgd_samples: float | None = None,
    workers: int | None = None,
) -> Pins:
    """Pins as they are written on the command line.

    Args:
        keep: such as "layer4=1"
        forbid: kinds of parallelism
        allow: kinds of parallelism; "compress" is consent, and restricts nothing
        dp: as in `Pins`
        pp: as in `Pins`
        tp: as in `Pins`
        zero: as in `Pins`
        microbatches: as in `Pins`
        schedule: as in `Pins`
        nodes: as in `Pins`
        compression: "none", "bf16", "fp16" or "powersgd:RANK"
        powersgd_samples: as in `Pins`
        workers: as in `Pins`

    Raises:
        InputError: a word or a figure that means nothing, or two pins that contradict each other

    Example:
        >>> parse_pins(keep=["layer4=1"], forbid=["pp"], tp=2).names
        ('--keep layer4=1', '--forbid pp', '--tp 2')
        >>> parse_pins(allow=["compress"]).names, parse_pins(compression="PowerSGD:2").names
        (('--allow compress',), ('--compression powersgd:2',))
    """
    if schedule is not None and schedule not in get_args(Schedule):
        raise InputError(
            f"--schedule must be one of {', '.join(get_args(Schedule))}, got {schedule!r}",
            code="pin.unknown-schedule",
            value=schedule,
        )
    if zero is not None and zero not in (0, 1, 2, 3):
        raise InputError(f"--zero must be 0, 1, 2 or 3, got {zero}", code="pin.bad-zero-stage", value=zero)
    if workers is not None and not 0 <= workers <= MOST_WORKERS:
        raise InputError(f"--workers must be 0 to {MOST_WORKERS}, got {workers}", value=workers)
    if powersgd_samples is not None and not 1.0 <= powersgd_samples < math.inf:
        raise InputError(
            f"--powersgd-samples must be 1 or more, times the samples without it, got {powersgd_samples}",
            code="pin.bad-powersgd-samples",
            value=powersgd_samples,
        )
    forbidden, allowed = read_kinds(forbid, option="--forbid"), read_kinds(allow, option="--allow")
    both = sorted(set(forbidden) & set(allowed))
    if both:
        raise InputError(
            f"{', '.join(both)}: both allowed and forbidden; leave out one of the two",
            code="pin.allowed-and-forbidden",
            kinds=tuple(both),
        )
    pins = Pins(
        keep=tuple(sorted({_read_keep(text) for texts in keep for text in texts.split(",")})),
        forbid=forbidden,
        allow=tuple(kind for kind in allowed if kind != "compress"),
        dp=dp,
        pp=pp,
        tp=tp,
        zero=zero,
        microbatches=microbatches,
        schedule=schedule,  # type: ignore[arg-type]  # checked above
        nodes=nodes,
        compress="compress" in allowed,
        compression=None if compression is None else _read_compression(compression),
        powersgd_samples=powersgd_samples,
        workers=workers,
    )
    may_be_powersgd = pins.consents and (pins.method is None or pins.method.method == "powersgd")
    if powersgd_samples is not None and not may_be_powersgd:
        raise InputError(
            f"--powersgd-samples {powersgd_samples:g}: no plan may use PowerSGD; add --allow compress or "
            "--compression powersgd:RANK, or leave it out",
            code="pin.powersgd-unused",
            value=powersgd_samples,
        )
    return pins


def _read_compression(text: str) -> str:
    method = parse_compression(text)
    return "none" if method is None else method.option


def _read_keep(text: str) -> tuple[str, int]:
    module, equals, row = (part.strip() for part in text.partition("="))
    if not module or not equals or not row.isdecimal():
        raise InputError(
            f'--keep "{text}": expected a module and the number of a row, such as "layer4=1"',
            code="pin.bad-keep",
            value=text,
        )
    return module, int(row)
