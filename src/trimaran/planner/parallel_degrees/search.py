"""Search for the division of a transformer over many devices with the shortest step.

    minimise    seconds(division)                                 pricing/closed_form
    over        t, p, c, d, b, v, sharding, recompute, parts      candidates.py says which can be built
    subject to  memory of every stage <= memory of a device

Bounds come first: divisions with the same degrees, microbatch and recomputation do the same work, which takes at least
the time of evenly loaded stages without bubble and without exchanges between replicas. Groups are priced in the order
of that bound, until it is some times the best step found; what is cut off can be neither chosen nor a runner-up. The
bound of the whole is the least of the groups in which something fits, or that were not looked at. With a time limit
the search ends early and says so. Left out: devices that differ, expert placement, offloading.

What others would run: replicas alone, states of all devices divided (FSDP, ZeRO-3), the field's rule of thumb.

The rule of thumb: the least model parallelism that fits, inside a node by layers first, then by stages; states of the
optimizer divided over replicas, an ordinary 1F1B pipeline of stages as even as can be, the largest microbatch that
fits, and layers computed again only where nothing fits without.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.precision import Precision
from trimaran.base.units import format_count
from trimaran.machine.types import Device, Machine
from trimaran.planner.choice import front_of
from trimaran.planner.parallel_degrees.candidates import groups, members
from trimaran.planner.parallel_degrees.problem import (
    Baseline,
    DivisionLimits,
    DivisionSearch,
    DivisionTask,
    PricedDivision,
    memory_limit,
    pricer,
)
from trimaran.planner.pins import NO_PINS, Pins
from trimaran.pricing.closed_form.memory import Bookkeeping
from trimaran.pricing.closed_form.shapes import TransformerShape
from trimaran.pricing.closed_form.step_time import Program
from trimaran.pricing.kernels.software import Software

TIME_LIMIT_S = 20.0
"""Of a search, where nothing else is asked for [s]."""

_NO_MODEL = ("cp", "pp", "tp")


def baselines(task: DivisionTask) -> tuple[Baseline, ...]:
    """Each baseline with its cost, or the reason why it cannot be run; pins of the task do not bind them."""
    return (
        _best(task, "ddp", Pins(zero=0, forbid=_NO_MODEL)),
        _best(task, "fsdp", Pins(zero=3, forbid=_NO_MODEL)),
        _rule_of_thumb(task),
    )


def _fitting(task: DivisionTask, pins: Pins) -> tuple[list[PricedDivision], str]:
    free = replace(task, pins=pins)
    pricing, limit, rejected = pricer(free), memory_limit(free), Counter[str]()
    every = [pricing.priced(each) for group in groups(free, rejected) for each in members(free, group)]
    fitting = [found for found in every if found.memory.peak <= limit]
    if fitting:
        return fitting, ""
    if every:
        least = min(found.memory.peak for found in every)
        return [], f"needs at least {least / 1e9:.1f} GB on a rank, of {limit / 1e9:.1f} GB"
    return [], next(iter(rejected), "cannot be built")


def _best(task: DivisionTask, name: str, pins: Pins) -> Baseline:
    fitting, reason = _fitting(task, pins)
    return Baseline(name=name, priced=min(fitting, key=lambda found: found.rank, default=None), reason=reason)


def _rule_of_thumb(task: DivisionTask) -> Baseline:
    pins = Pins(chunks=1, zero=1, forbid=("cp",))
    if task.devices == 1:
        pins = replace(pins, zero=0)
    fitting, reason = _fitting(task, pins)

    def order(found: PricedDivision) -> tuple[int, int, bool, int]:
        division = found.division
        again = bool(division.recomputed)
        return (division.tp * division.pp, division.pp, again, -division.microbatch)

    return Baseline(name="rule of thumb", priced=min(fitting, key=order, default=None), reason=reason)


_EARLY = ("volta", "turing", "pascal", "maxwell", "kepler")
"""Architectures without bfloat16, on which attention is two batched products."""


def search_divisions(
    shape: TransformerShape,
    machine: Machine,
    *,
    batch: int,
    precision: Precision = "bf16",
    software: Software | None = None,
    devices: int | None = None,
    limits: DivisionLimits | None = None,
    pins: Pins = NO_PINS,
    time_limit_s: float = TIME_LIMIT_S,
) -> DivisionSearch:
    """The fastest division that fits, with what else was looked at.

    Args:
        shape: the network
        machine: nodes and fabric
        batch: sequences of a step, of all replicas
        precision: of products: "bf16", "fp16" or "fp8"
        software: Megatron and its year; None: of 2025, on old devices of 2022
        devices: in use; None: all of the machine
        limits: where the search ends
        pins: what the user has decided
        time_limit_s: after which the search ends with what it has [s]

    Raises:
        InputError: a count that is not positive, or a precision that the device has not
        InfeasibleError: no division fits; the message says the least that one needs
    """
    task = division_task(
        shape, machine, batch=batch, precision=precision, software=software, devices=devices, limits=limits, pins=pins
    )
    return search_task(task, time_limit_s=time_limit_s)


def division_task(
    shape: TransformerShape,
    machine: Machine,
    *,
    batch: int,
    precision: Precision = "bf16",
    software: Software | None = None,
    devices: int | None = None,
    limits: DivisionLimits | None = None,
    pins: Pins = NO_PINS,
) -> DivisionTask:
    """What is asked, checked, with the program that trains."""
    device = machine.node.device
    count = machine.devices if devices is None else devices
    if batch < 1 or not 1 <= count <= machine.devices:
        raise InputError(
            f"batch {batch}, {format_count(count, 'device')}: expected a positive batch and 1 to "
            f"{format_count(machine.devices, 'device')}",
            code="division.bad-request",
            batch=batch,
            devices=count,
        )
    program = program_of(device, precision, software)
    return DivisionTask(
        shape=shape,
        machine=machine,
        devices=count,
        batch=batch,
        program=program,
        bookkeeping=Bookkeeping(attention=program.attention),
        pins=pins,
        limits=limits or DivisionLimits(),
    )


def program_of(device: Device, precision: Precision, software: Software | None) -> Program:
    """What trains a transformer on a device.

    Args:
        device: old ones compute attention as two batched products
        precision: of products
        software: Megatron and its year; None: of 2025, on old devices of 2022

    Raises:
        InputError: another framework
    """
    if software is not None and software.framework != "megatron":
        raise InputError(
            "the analytical model of transformers has figures of Megatron's fused kernels, not of "
            f'"{software.framework}": leave --software out, say --software megatron:YEAR, or ask for up to 64 devices '
            "and 5 billion parameters, where every operation is priced under any software",
            code="software.not-priced",
            software=software.framework,
        )
    early = device.architecture in _EARLY
    year = (2022.0 if early else 2025.0) if software is None else software.year
    return Program(precision=precision, attention="unfused" if early else "fused", tensor_overlaps=not early, year=year)


def search_task(task: DivisionTask, *, time_limit_s: float = TIME_LIMIT_S) -> DivisionSearch:
    """As `search_divisions`, of a task."""
    start = time.monotonic()
    rejected: Counter[str] = Counter()
    fitting, bound_s, complete, least = _priced(task, rejected, start + time_limit_s)
    if not fitting:
        raise InfeasibleError(_nothing_fits(task, rejected, least), code="division.nothing-fits")
    ordered = sorted(fitting, key=lambda found: found.rank)
    fewer = _with_fewer(task, ordered[0], start + time_limit_s)
    return DivisionSearch(
        task=task,
        chosen=ordered[0],
        runners_up=_others(ordered, task.limits.runners_up),
        pareto=front_of(
            [*ordered, *fewer], order=lambda one: one.rank, costs=lambda one: (one.memory.peak, one.devices)
        ),
        baselines=baselines(task),
        rejected=dict(rejected.most_common()),
        priced=len(fitting),
        bound_s=bound_s,
        complete=complete,
        seconds=time.monotonic() - start,
    )


def _priced(
    task: DivisionTask, rejected: Counter[str], until: float
) -> tuple[list[PricedDivision], float, bool, float]:
    """Divisions that fit; the bound of all groups in which one fits; whether all were looked at; the least memory."""
    pricing, limit = pricer(task), memory_limit(task)
    bounded = sorted(
        ((pricing.bound(group.division), number, group) for number, group in enumerate(groups(task, rejected))),
        key=lambda item: item[:2],
    )
    fitting: list[PricedDivision] = []
    best = least = lowest = float("inf")
    for bound, _, group in bounded:
        if bound > task.limits.ratio * best:
            rejected[f"at least {task.limits.ratio:g} times the chosen step, by its bound"] += 1
            continue
        if fitting and time.monotonic() > until:
            return fitting, min(lowest, bound), False, least
        for division in members(task, group):
            found = pricing.priced(division)
            least = min(least, found.memory.peak)
            if found.memory.peak > limit:
                rejected["does not fit the memory of a device"] += 1
                continue
            fitting.append(found)
            best, lowest = min(best, found.seconds), min(lowest, bound)
    return fitting, lowest, True, least


def _with_fewer(task: DivisionTask, chosen: PricedDivision, until: float) -> list[PricedDivision]:
    """The best of half and of a quarter of the devices, in what time is left."""
    found = []
    for share in (2, 4):
        count = task.devices // share
        left = until - time.monotonic()
        if task.devices % share or count < 1 or left <= 0:
            continue
        pins = replace(task.pins, dp=None)
        fewer = replace(task, devices=count, pins=pins, limits=replace(task.limits, ratio=1.05))
        fitting, *_ = _priced(fewer, Counter(), until)
        found += sorted(fitting, key=lambda priced: priced.rank)[:1]
    return [priced for priced in found if priced.devices < chosen.devices]


def _others(ordered: Sequence[PricedDivision], most: int) -> tuple[PricedDivision, ...]:
    """The next ones, one of each (t, p, c, d)."""
    seen: set[tuple[int, ...]] = set()
    found = []
    for priced in ordered:
        division = priced.division
        degrees = (division.tp, division.pp, division.cp, division.dp)
        if degrees not in seen:
            seen.add(degrees)
            found.append(priced)
    return tuple(found[1 : most + 1])


def _nothing_fits(task: DivisionTask, rejected: Counter[str], least: float) -> str:
    limit = memory_limit(task) / 1e9
    what = f"no division of {format_count(task.devices, 'device')}"
    if least < float("inf"):
        return (
            f"{what} fits: the smallest needs {least / 1e9:.1f} GB on a rank, a device leaves {limit:.1f} GB; "
            "take more devices, allow recomputation and ZeRO, or a smaller microbatch"
        )
    reasons = "; ".join(f"{count} x {reason}" for reason, count in rejected.most_common(3))
    return f"{what} can be built ({reasons or 'pinned degrees do not divide the devices'}); change a pin or the batch"
