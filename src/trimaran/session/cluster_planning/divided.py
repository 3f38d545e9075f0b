"""Transformers on many devices: degrees by closed forms, where tracing and simulating every rank would take too long.

A published decoder is described by its shape, so nothing of it is made. It is planned in this way where it would have
more ranks than a simulated step is kept for, or more weights than a trace is worth.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from trimaran.cluster.find import find_machine
from trimaran.costs.transformers.division import Sharding
from trimaran.costs.transformers.shapes import TransformerShape, parameter_count
from trimaran.errors import InputError
from trimaran.networks.sizes import FAMILIES
from trimaran.planner.divisions.search import search_divisions
from trimaran.planner.divisions.types import DivisionLimits, DivisionPins, DivisionSearch
from trimaran.planner.pins import Pins
from trimaran.session.accuracy.types import Outlook
from trimaran.session.cluster_planning.request import ClusterRequest
from trimaran.session.network_references import NetworkReference, parse_network
from trimaran.session.validation.model_parallel_shapes import named_shape
from trimaran.units import format_count

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
