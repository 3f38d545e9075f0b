"""The backend of plans for transformers on many devices: parallel degrees, priced by closed forms.

Tracing the network and simulating every rank would take too long there.

A published decoder is described by its shape, so nothing of it is made. It is planned in this way where it would have
more ranks than a simulated step is kept for, or more weights than a trace is worth.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence

from trimaran.base.errors import InputError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.units import format_count
from trimaran.jobs.published_networks import NetworkReference, parse_network
from trimaran.jobs.resolve import JobSource, resolve
from trimaran.machine.find import find_machine
from trimaran.networks.sizes import FAMILIES
from trimaran.planner.parallel_degrees.problem import DivisionLimits, DivisionSearch, PricedDivision, memory_limit
from trimaran.planner.parallel_degrees.search import search_divisions
from trimaran.planner.pins import Pins
from trimaran.planner.target_estimates import Contender, Goal
from trimaran.planning.precision import ANALYTICAL_PRECISIONS, DECODERS, choose_precision, settle_precision
from trimaran.planning.requests import PlanRequest
from trimaran.planning.results import ClosedForm, Planned
from trimaran.planning.target import CatalogBackend, Cell, Compared, Known, compare_each, find_job_curve
from trimaran.planning.transformer_shapes import named_shape
from trimaran.pricing.closed_form.shapes import TransformerShape, parameter_count

MOST_RANKS = 64
"""Up to so many ranks are simulated one by one."""

MOST_PARAMETERS = 5_000_000_000
"""Up to so many parameters a network is traced."""

CELL_S = 2.0
"""A search for one batch on one count of devices [s]."""

COUNTS = 4
"""Counts of devices that are compared: all, half, a quarter, an eighth."""


def shape_of(reference: str, request: PlanRequest) -> TransformerShape | None:
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


class ClosedForms(CatalogBackend):
    """Plans the degrees of a transformer on a machine of the catalog.

    Attributes:
        source: where the network comes from
        request: what is asked
        shape: of the network
    """

    def __init__(
        self,
        source: JobSource,
        request: PlanRequest,
        shape: TransformerShape,
        progress: Progress = ignore_progress,
    ) -> None:
        """Nothing is searched yet.

        Raises:
            InputError: pins that mean nothing here, or a precision without figures
        """
        check_pins(request.pins)
        device = find_machine(request.cluster).node.device
        chosen = choose_precision(source.reference, request.precision, device, ANALYTICAL_PRECISIONS)
        self.source = source
        self.request = settle_precision(request, chosen)
        self._precision = chosen
        self.shape = shape
        self._progress = progress

    @property
    def batch(self) -> int:
        """Sequences of one update, where no others are asked for: what is usual, and one for each device."""
        network = parse_network(self.source.reference)
        usual = FAMILIES[network.name].batch if network else 1
        return self.request.batch or max(usual, self.devices)

    def curve(self) -> Known:
        """What is known of the network's convergence; see `find_job_curve`."""
        reference = self.source.reference
        return find_job_curve(resolve(reference), reference, self.request.target, samples=None)

    def plan(self) -> Planned:
        """The best degrees at the batch that is asked for, or the usual one.

        Raises:
            InfeasibleError: nothing fits
        """
        self._progress("searching", 0, 0)
        cell = Cell(batch=self.batch, devices=self.devices)
        return self._planned(cell, self._search(cell, self.request.time_limit_s))

    def compare(self, batches: Sequence[int], known: Known, goal: Goal) -> Compared:
        """The best degrees at each batch, on all devices, half, a quarter and an eighth of them.

        Each search is stopped early: what is compared here are batches and counts, and the best degrees of each are
        found among the first. The chosen one is searched again for as long as any plan.

        Args:
            batches: sequences of one update
            known: the curve, which a search at one batch does not need
            goal: what is made best over all batches; at one batch it is the time of a step
        """
        del known, goal
        asked_s = self.request.time_limit_s
        limit_s = CELL_S if asked_s is None else min(CELL_S, asked_s)
        counts = [self.devices >> halvings for halvings in range(COUNTS) if self.devices % (1 << halvings) == 0]

        def plan_cell(cell: Cell) -> Iterator[Contender]:
            for priced in of_interest(self._search(cell, limit_s)):
                yield contender_of_division(priced, cell.batch)

        def settle(contender: Contender) -> tuple[Planned, Contender]:
            cell = Cell(batch=contender.global_batch, devices=contender.devices)
            found = self._search(cell, asked_s)
            if found.chosen.seconds < contender.origin.seconds:
                contender = contender_of_division(found.chosen, cell.batch)
            return self._planned(cell, dataclasses.replace(found, chosen=contender.origin)), contender

        cells = [Cell(batch=batch, devices=count) for batch in batches for count in counts]
        return compare_each(cells, plan_cell, settle)

    def _search(self, cell: Cell, time_limit_s: float | None) -> DivisionSearch:
        request = self.request
        return search_divisions(
            self.shape,
            find_machine(request.cluster),
            batch=cell.batch,
            precision=self._precision.name,
            software=request.software,
            devices=cell.devices,
            limits=DivisionLimits(memory_bytes=request.memory_bytes),
            pins=request.pins,
            **({} if time_limit_s is None else {"time_limit_s": time_limit_s}),
        )

    def _planned(self, cell: Cell, found: DivisionSearch) -> Planned:
        notes = [
            f"a transformer of {parameter_count(self.shape) / 1e9:.1f} billion parameters on "
            f"{format_count(cell.devices, 'device')}: planned by closed forms of its layers, without a trace and "
            "without a simulation of every rank"
        ]
        if self.request.pins.consents:
            notes.append("compressing gradients was not tried: closed forms send them whole")
        if self.request.software is None:
            notes.append(
                f"software assumed: Megatron of {found.task.program.year:g} with its fused kernels; plans of up to 64 "
                "devices are simulated for eager PyTorch, which is slower, and take --software megatron too"
            )
        if self.request.batch is None and not self.request.asks_for_outlook:
            notes.append(f"no --batch was given: {cell.batch} sequences of {self.shape.sequence} tokens are taken")
        return Planned(
            source=self.source,
            request=self.request,
            evidence=ClosedForm(shape=self.shape, search=found),
            notes=tuple(notes),
        )


def check_pins(pins: Pins) -> None:
    """Refuse pins that closed forms cannot keep: modules on rows, some schedules, microbatches, levels, a compression.

    Raises:
        InputError: with the reason
    """
    for option, why in _unnamed(pins):
        raise InputError(f"{option}: {why}; leave it out", code="division.option-unsupported")


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


def _sequence(network: NetworkReference, request: PlanRequest) -> int:
    usual = FAMILIES[network.name].sequence
    asked = request.options.get("sequence")
    return network.number("sequence", usual) if asked is None else int(asked)


def of_interest(found: DivisionSearch) -> Iterator[PricedDivision]:
    """The fastest, and what data parallelism alone would do where it fits."""
    yield found.chosen
    for one in (*found.runners_up, *(each.priced for each in found.baselines)):
        if one is not None and one.memory.peak <= memory_limit(found.task) and one is not found.chosen:
            yield one


def contender_of_division(priced: PricedDivision, batch: int) -> Contender:
    """A division as one of those that are compared.

    Args:
        priced: with its cost
        batch: sequences of one update
    """
    division = priced.division
    spread = division.tp * division.pp * division.cp
    shape = 4 * (division.tp * division.cp > 1) + 2 * (division.pp > 1) + (division.dp > 1)
    return Contender(
        name=priced.name,
        devices=priced.devices,
        global_batch=batch,
        replicas=division.dp,
        microbatches=max(1, math.ceil(batch / (division.dp * division.microbatch))),
        cases=(priced.low, priced.seconds, priced.high),
        peak_bytes=int(priced.memory.peak),
        simplicity=(shape, priced.devices, spread, division.chunks, division.microbatches),
        is_hybrid=spread > 1,
        origin=priced,
    )
