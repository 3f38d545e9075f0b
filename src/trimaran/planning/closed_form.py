"""Transformers on many devices: degrees by closed forms, where tracing and simulating every rank would take too long.

A published decoder is described by its shape, so nothing of it is made. It is planned in this way where it would have
more ranks than a simulated step is kept for, or more weights than a trace is worth.

Transformers on many devices for a target: a search over divisions at each batch and count of devices.

Each search is stopped early: what is compared here are batches and counts, and the best division of each is found among
the first. The chosen one is searched again for as long as any plan.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.units import format_count
from trimaran.jobs.published_networks import NetworkReference, parse_network
from trimaran.jobs.resolve import resolve
from trimaran.machine.find import find_machine
from trimaran.networks.sizes import FAMILIES
from trimaran.planner.parallel_degrees.problem import DivisionLimits, DivisionPins, DivisionSearch, PricedDivision
from trimaran.planner.parallel_degrees.search import search_divisions
from trimaran.planner.pins import Pins
from trimaran.planner.target_estimates import Contender
from trimaran.planning.requests import ClusterRequest
from trimaran.planning.results import Outlook
from trimaran.planning.target import batches_to_try, batches_within, conclude, find_job_curve, goal_of
from trimaran.planning.transformer_shapes import named_shape
from trimaran.pricing.closed_form.parallel_degrees import Sharding
from trimaran.pricing.closed_form.shapes import TransformerShape, parameter_count

MOST_RANKS = 64
"""Up to so many ranks are simulated one by one."""

MOST_PARAMETERS = 5_000_000_000
"""Up to so many parameters a network is traced."""

DECODERS = frozenset({"gpt2", "gpt3", "gpt", "opt", "mpt", "llama", "llama1", "llama2", "llama3"})
"""Families of which a shape says everything."""

_SHARDING: dict[int, Sharding] = {0: "none", 1: "optimizer", 2: "gradients", 3: "parameters"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedPlan:
    """A plan of degrees for a transformer.

    Attributes:
        reference: of the network
        request: what was asked
        shape: of the network
        search: what was found
        outlook: what a training to the target takes, where that or a choice of batches was asked for
        notes: what the reader should know
    """

    reference: str
    request: ClusterRequest
    shape: TransformerShape
    search: DivisionSearch
    outlook: Outlook | None = None
    notes: tuple[str, ...] = ()


def shape_of(reference: str, request: ClusterRequest) -> TransformerShape | None:
    """The shape of a decoder that is planned by closed forms; None for everything else.

    Args:
        reference: of a job
        request: says on how many devices
    """
    network = parse_network(reference)
    if network is None or network.name not in DECODERS:
        return None
    shape = named_shape(f"{network.name}:{network.size}", sequence=_sequence(network, request))
    if shape is None:
        return None
    devices = request.devices or find_machine(request.cluster).devices
    return shape if devices > MOST_RANKS or parameter_count(shape) > MOST_PARAMETERS else None


def plan_divided(reference: str, shape: TransformerShape, request: ClusterRequest) -> DividedPlan:
    """Find the degrees of a transformer on many devices.

    Args:
        reference: of the network
        shape: of the network
        request: what is asked

    Raises:
        InputError: pins that mean nothing here
        InfeasibleError: nothing fits
    """
    machine = find_machine(request.cluster)
    network = parse_network(reference)
    usual = FAMILIES[network.name].batch if network else 1
    devices = request.devices or machine.devices
    found = search_divisions(
        shape,
        machine,
        batch=request.batch or max(usual, devices),
        precision="" if request.precision == "float32" else request.precision,
        devices=devices,
        limits=DivisionLimits(memory_bytes=request.memory_bytes),
        pins=division_pins(request.pins),
        **({} if request.time_limit_s is None else {"time_limit_s": request.time_limit_s}),
    )
    notes = [
        f"a transformer of {parameter_count(shape) / 1e9:.1f} billion parameters on "
        f"{format_count(devices, 'device')}: planned by closed forms of its layers, without a trace and without a "
        "simulation of every rank"
    ]
    if request.pins.consents:
        notes.append("compressing gradients was not tried: closed forms send them whole")
    if request.batch is None:
        notes.append(f"no --batch was given: {found.task.batch} sequences of {shape.sequence} tokens are taken")
    return DividedPlan(reference=reference, request=request, shape=shape, search=found, notes=tuple(notes))


def division_pins(pins: Pins) -> DivisionPins:
    """Pins in the words of divisions.

    Args:
        pins: as for any plan

    Raises:
        InputError: what a division does not name: modules on rows, some schedules, microbatches, levels, a compression

    Example:
        >>> division_pins(Pins(tp=8, zero=1, forbid=("pp",)))  # doctest: +ELLIPSIS
        DivisionPins(tensor=8, ..., sharding='optimizer', ..., forbid=frozenset({'pp'}))
    """
    for option, why in _unnamed(pins):
        raise InputError(f"{option}: {why}; leave it out", code="division.option-unsupported")
    forbid = set(pins.forbid)
    if pins.allow:
        forbid |= {"dp", "pp", "tp", "zero", "cp", "ep"} - set(pins.allow)
    if pins.schedule == "1f1b" or "interleaved" in forbid:
        forbid = forbid - {"interleaved"} | {"interleaving"}
    if "memory" in forbid:
        forbid = forbid - {"memory"} | {"recompute"}
    known = {"tp", "pp", "cp", "dp", "ep", "zero", "recompute", "interleaving", "uneven"}
    return DivisionPins(
        tensor=pins.tp,
        pipeline=pins.pp,
        data=pins.dp,
        chunks=1 if pins.schedule == "1f1b" else None,
        sharding=None if pins.zero is None else _SHARDING[pins.zero],
        forbid=frozenset(forbid & known),
    )


def _unnamed(pins: Pins) -> Iterator[tuple[str, str]]:
    """Options that a division has no word for, and why."""
    forms = "a transformer on so many devices is planned by closed forms"
    if pins.keep:
        yield pins.names[0], "a transformer on so many devices is planned by its layers, not by modules"
    if pins.schedule in ("gpipe", "zero-bubble"):
        yield f"--schedule {pins.schedule}", "at this size a plan has 1f1b or interleaved"
    if pins.microbatches is not None:
        yield f"--microbatches {pins.microbatches}", f"{forms}, which choose the sequences of a microbatch"
    if pins.nodes is not None and pins.nodes > 1:
        yield f"--nodes {pins.nodes}", f"{forms} that sum gradients as one group"
    if pins.method is not None:
        yield f"--compression {pins.compression}", f"{forms} that send whole gradients"
    if pins.powersgd_samples is not None:
        yield f"--powersgd-samples {pins.powersgd_samples:g}", f"{forms} that send whole gradients"


def _sequence(network: NetworkReference, request: ClusterRequest) -> int:
    usual = FAMILIES[network.name].sequence
    asked = request.options.get("sequence")
    return network.number("sequence", usual) if asked is None else int(asked)


CELL_S = 2.0
"""A search for one batch on one count of devices [s]."""

COUNTS = 4
"""Counts of devices that are compared: all, half, a quarter, an eighth."""


def plan_divided_for_target(reference: str, shape: TransformerShape, request: ClusterRequest) -> DividedPlan:
    """Find division, devices and batch that are best for reaching the target.

    Args:
        reference: of the network
        shape: of the network
        request: what is asked

    Raises:
        InputError: no such machine or curve, a curve of another task, or pins that mean nothing here
        InfeasibleError: nothing fits at any batch
    """
    asked = goal_of(request.objective, request.target)
    machine = find_machine(request.cluster)
    known = find_job_curve(resolve(reference), reference, request.target, samples=None)
    network = parse_network(reference)
    devices = request.devices or machine.devices
    base = request.batch or max(FAMILIES[network.name].batch if network else 1, devices)
    wanted = batches_to_try(base, known, request.target, devices=devices, fixed=request.batch is not None)
    batches, left_out = batches_within(wanted, known)
    contenders: list[Contender] = []
    for batch in batches:
        found = list(_at_batch(reference, shape, request, batch, devices, left_out))
        contenders += found

    def concluded(chosen: Contender | None = None) -> Outlook:
        return conclude(
            contenders,
            asked=asked,
            known=known,
            request=request.target,
            batches=batches,
            left_out=left_out,
            price=machine.node.price,
            node_devices=machine.node.devices,
            chosen=chosen,
        )

    outlook = concluded()
    planned = plan_divided(
        reference,
        shape,
        dataclasses.replace(request, batch=outlook.chosen.global_batch, devices=outlook.chosen.devices),
    )
    chosen, longer = outlook.chosen.contender.origin, planned.search.chosen
    if longer.seconds < chosen.seconds:
        better = contender_of_division(longer, outlook.chosen.global_batch)
        contenders.append(better)
        outlook, chosen = concluded(better), longer
    search = dataclasses.replace(planned.search, chosen=chosen)
    return dataclasses.replace(
        planned, request=request, search=search, outlook=outlook, notes=(*planned.notes, *outlook.warnings)
    )


def _at_batch(
    reference: str,
    shape: TransformerShape,
    request: ClusterRequest,
    batch: int,
    devices: int,
    left_out: list[tuple[int, str]],
) -> Iterator[Contender]:
    reason = ""
    some = False
    for halvings in range(COUNTS):
        count = devices >> halvings
        if count < 1 or count << halvings != devices:
            break
        limit = CELL_S if request.time_limit_s is None else min(CELL_S, request.time_limit_s)
        asked = dataclasses.replace(request, batch=batch, devices=count, time_limit_s=limit)
        try:
            found = plan_divided(reference, shape, asked).search
        except InfeasibleError as error:
            reason = reason or error.message
            continue
        some = True
        for priced in _of_interest(found):
            yield contender_of_division(priced, batch)
    if not some:
        left_out.append((batch, reason or "no count of devices is possible"))


def _of_interest(found: DivisionSearch) -> Iterator[PricedDivision]:
    """The fastest, and what data parallelism alone would do where it fits."""
    yield found.chosen
    for one in (*found.runners_up, *(each.priced for each in found.baselines)):
        if one is not None and one.memory.peak <= _limit(found) and one is not found.chosen:
            yield one


def _limit(found: DivisionSearch) -> float:
    from trimaran.planner.parallel_degrees.problem import memory_limit

    return memory_limit(found.task)


def contender_of_division(priced: PricedDivision, batch: int) -> Contender:
    """A division as one of those that are compared.

    Args:
        priced: with its cost
        batch: sequences of one update
    """
    division = priced.division
    spread = division.tensor * division.pipeline * division.context
    shape = 4 * (division.tensor * division.context > 1) + 2 * (division.pipeline > 1) + (division.data > 1)
    return Contender(
        name=priced.name,
        devices=priced.devices,
        global_batch=batch,
        replicas=division.data,
        microbatches=max(1, math.ceil(batch / (division.data * division.microbatch))),
        cases=(priced.low, priced.seconds, priced.high),
        peak_bytes=int(priced.memory.peak),
        simplicity=(shape, priced.devices, spread, division.chunks, division.microbatches),
        is_hybrid=spread > 1,
        origin=priced,
    )
