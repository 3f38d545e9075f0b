"""The backend of plans for transformers on many devices: parallel degrees, priced by the analytical model.

Tracing the network and simulating every rank would take too long there.

A published decoder is described by its shape, so it is neither built nor traced. The analytical model plans it where it
would have more ranks than are simulated one by one, or more weights than a trace is worth.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence

from trimaran.base.errors import InputError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.units import format_bytes, format_count
from trimaran.jobs.resolve import JobSource, resolve
from trimaran.machine.find import find_machine
from trimaran.networks.names import NetworkReference, parse_network
from trimaran.networks.sizes import FAMILIES
from trimaran.planner.analytical.candidates import AnalyticalCandidate, AnalyticalProblem
from trimaran.planner.analytical.search import search_degrees, transformer_problem
from trimaran.planner.pins import Pins
from trimaran.planner.result import Search
from trimaran.planner.search import prices_of_pins
from trimaran.planner.target_estimates import Contender, Goal
from trimaran.planner.target_search import contender_of
from trimaran.planning.plan_files import plan_of_degrees
from trimaran.planning.precision import ANALYTICAL_PRECISIONS, DECODERS, choose_precision, settle_precision
from trimaran.planning.requests import PlanRequest
from trimaran.planning.results import Modelled, Planned
from trimaran.planning.target import CatalogBackend, Cell, Compared, Known, compare_each, find_job_curve
from trimaran.pricing.analytical.fit import WHOLE
from trimaran.pricing.analytical.shapes import TransformerShape, decoder_of, parameter_count

MOST_RANKS = 64
"""Up to this number of ranks are simulated one by one."""

MOST_PARAMETERS = 5_000_000_000
"""Up to this number of parameters a network is traced."""


COUNTS = 4
"""Counts of devices that are compared: all, half, a quarter, an eighth."""


def shape_of(reference: str, request: PlanRequest) -> TransformerShape | None:
    """The shape of a decoder that the analytical model plans; None for everything else.

    Args:
        reference: of a job
        request: says on how many devices
    """
    shape = decoder_shape(reference, request)
    if shape is None:
        return None
    devices = request.devices or find_machine(request.cluster).devices
    return shape if devices > MOST_RANKS or parameter_count(shape) > MOST_PARAMETERS else None


def decoder_shape(reference: str, request: PlanRequest) -> TransformerShape | None:
    """The shape of a published decoder; None for everything else.

    Args:
        reference: of a job
        request: may have an option `sequence`
    """
    network = parse_network(reference)
    if network is None or network.name not in DECODERS:
        return None
    return decoder_of(f"{network.name}:{network.size}", _sequence(network, request))


class Analytical(CatalogBackend):
    """Plans the degrees of a transformer on a machine of the catalog.

    Attributes:
        source: where the network comes from
        request: of the user
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
        """Sequences of one update without --batch: the usual number, and one for each device."""
        network = parse_network(self.source.reference)
        usual = FAMILIES[network.name].batch if network else 1
        return self.request.batch or max(usual, self.devices)

    def curve(self) -> Known:
        """The network's convergence curve; see `find_job_curve`."""
        reference = self.source.reference
        return find_job_curve(resolve(reference), reference, self.request.target, samples=None)

    def plan(self) -> Planned:
        """The best degrees at the batch that is asked for, or the usual one.

        Raises:
            InfeasibleError: nothing fits
        """
        self._progress("searching", 0, 0)
        problem = self.problem(Cell(batch=self.batch, devices=self.devices), self.request.time_limit_s)
        return self._planned(problem, search_degrees(problem))

    def compare(self, batches: Sequence[int], known: Known, goal: Goal) -> Compared:
        """The best degrees at each batch, on all devices, half, a quarter and an eighth of them.

        Args:
            batches: sequences of one update
            known: the curve, which a search at one batch does not need
            goal: objective over all batches; at one batch it is the time of a step
        """
        del known, goal
        asked_s = self.request.time_limit_s
        until_s = None if asked_s is None else time.monotonic() + asked_s
        searches: dict[Cell, tuple[AnalyticalProblem, Search[AnalyticalCandidate]]] = {}
        counts = [self.devices >> halvings for halvings in range(COUNTS) if self.devices % (1 << halvings) == 0]

        def plan_cell(cell: Cell) -> Iterator[Contender]:
            problem = self.problem(cell, None if until_s is None else max(0.0, until_s - time.monotonic()))
            searches[cell] = problem, search_degrees(problem)
            for one in of_interest(*searches[cell]):
                yield contender_of(one, cell.batch)

        def settle(contender: Contender) -> tuple[Planned, Contender]:
            problem, found = searches[Cell(batch=contender.global_batch, devices=contender.devices)]
            chosen: AnalyticalCandidate = contender.origin
            others = tuple(one for one in found.candidates if one.strategy != chosen.strategy)
            found = dataclasses.replace(found, chosen=chosen, candidates=(chosen, *others))
            return self._planned(problem, found), contender

        cells = [Cell(batch=batch, devices=count) for batch in batches for count in counts]
        found = compare_each(cells, plan_cell, settle)
        return dataclasses.replace(found, is_complete=all(one.is_complete for _, one in searches.values()))

    def problem(self, cell: Cell, time_limit_s: float | None) -> AnalyticalProblem:
        """The problem at a batch on some devices.

        Args:
            cell: the batch, the devices
            time_limit_s: of the search [s]; None: none
        """
        request = self.request
        return transformer_problem(
            self.shape,
            find_machine(request.cluster),
            batch=cell.batch,
            precision=self._precision.name,
            software=request.software,
            devices=cell.devices,
            memory_bytes=request.memory_bytes,
            reserve=request.reserve,
            pins=with_microbatch(request.pins, cell.batch),
            time_limit_s=time_limit_s,
        )

    def _planned(self, problem: AnalyticalProblem, found: Search[AnalyticalCandidate]) -> Planned:
        notes = [
            f"a transformer of {parameter_count(self.shape) / 1e9:.1f} billion parameters on "
            f"{format_count(problem.devices, 'device')}: planned by the analytical model, without a trace and without "
            "a simulation of every rank"
        ]
        notes.append(memory_words(problem, found.chosen))
        if problem.program.precision in WHOLE:
            notes.append(
                f"products in {problem.program.precision} are taken to reach the share of their peak that is known of "
                "16 bits: no published step in 32 bits is among the model's data"
            )
        if self.request.pins.allows_compression:
            notes.append("compressing gradients was not tried: the analytical model sends them whole")
        if self.request.software is None:
            notes.append(
                f"software assumed: Megatron of {problem.program.year:g} with its fused kernels; plans of up to 64 "
                "devices are simulated for eager PyTorch, which is slower, and take --software megatron too"
            )
        if self.request.batch is None and not self.request.asks_for_outlook:
            notes.append(f"no --batch was given: {problem.batch} sequences of {self.shape.sequence} tokens are taken")
        return Planned(
            source=self.source,
            request=self.request,
            evidence=Modelled(
                problem=problem,
                plan=plan_of_degrees(self.source.reference, str(self.request.cluster), problem, found),
                chosen=found.chosen,
                search=found,
            ),
            notes=tuple(notes),
        )


def memory_words(problem: AnalyticalProblem, chosen: AnalyticalCandidate) -> str:
    """What the memory of a plan assumes, in a sentence.

    Args:
        problem: of the plan
        chosen: its strategy
    """
    keeping = problem.bookkeeping.of(chosen.strategy)
    need, strategy = chosen.need, chosen.strategy
    if problem.reserve is None:
        free = "buffers of collectives and fragments of the allocator are assumed (--reserve says them)"
    else:
        free = f"{format_bytes(problem.device_bytes - problem.memory_limit)} stay free"
    said = (
        f"memory assumes {keeping.weight_bytes} bytes a parameter, {keeping.gradient_bytes} of its gradient and "
        f"{keeping.optimizer_bytes:g} of the optimizer; {free}: {format_bytes(need.least)} to {format_bytes(need.most)}"
        f" of {format_bytes(problem.memory_limit)}"
    )
    asked = problem.pins.types
    taken = [
        f"--{option} {value}"
        for option, value in (("gradients", strategy.gradients), ("optimizer-state", strategy.optimizer_state))
        if value is not None and option not in asked
    ]
    if taken:
        said += f"; {' '.join(taken)} because it does not fit otherwise"
    return said if need.most <= problem.memory_limit else f"{said}; not sure that it fits"


def with_prices(evidence: Modelled) -> Modelled:
    """A plan with the cost of each of its pins.

    Args:
        evidence: of the plan
    """
    problem, found = evidence.problem, evidence.search
    # A plan for a target may be another than the fastest of its search, which is no price of a pin.
    fastest = min((found.chosen, *found.pareto), key=lambda one: one.step_time_s)
    paid = prices_of_pins(
        problem.pins, fastest, lambda pins: search_degrees(dataclasses.replace(problem, pins=pins)).chosen
    )
    return dataclasses.replace(evidence, prices=paid)


def check_pins(pins: Pins) -> None:
    """Refuse pins that the analytical model cannot keep: modules on rows, some schedules, microbatches, a compression.

    Raises:
        InputError: with the reason
    """
    for option, why in _unsupported(pins):
        raise InputError(f"{option}: {why}; leave it out", code="analytical.option-unsupported")


def with_microbatch(pins: Pins, batch: int) -> Pins:
    """Pins with the sequences of a microbatch that follow from replicas and microbatches.

    Args:
        pins: of the request
        batch: sequences of one update

    Raises:
        InputError: the batch has no equal shares for them

    Example:
        >>> with_microbatch(Pins(dp=8, microbatches=4), 64).microbatch
        2
    """
    if pins.microbatches is None or pins.dp is None:
        return pins
    shares = pins.dp * pins.microbatches
    if batch % shares:
        raise InputError(
            f"a batch of {batch} has no equal shares for {pins.dp} replicas of {pins.microbatches} microbatches: take "
            f"a multiple of {shares}, or other pins",
            code="analytical.microbatches-do-not-divide",
            batch=batch,
        )
    return dataclasses.replace(pins, microbatch=batch // shares)


def _unsupported(pins: Pins) -> Iterator[tuple[str, str]]:
    """Options that mean nothing to the analytical model, and why."""
    model = "a transformer on many devices is planned by the analytical model"
    if pins.keep:
        yield pins.names[0], "a transformer on many devices is planned by its layers, not by modules"
    if pins.allows_stale:
        yield (
            "--schedule pipedream" if pins.schedule else "--allow stale",
            (f"{model}, whose pipelines are flushed after each step; for up to 64 devices a program is simulated"),
        )
    if pins.schedule in ("gpipe", "zero-bubble"):
        yield f"--schedule {pins.schedule}", "at this size a plan has 1f1b or interleaved"
    if pins.microbatches is not None and pins.dp is None:
        yield f"--microbatches {pins.microbatches}", f"{model}, to which it says something only with --dp"
    if pins.nodes is not None and pins.nodes > 1:
        yield f"--nodes {pins.nodes}", f"{model}, which sums gradients as one group"
    if pins.method is not None:
        yield f"--compression {pins.compression}", f"{model}, which sends whole gradients"
    if pins.powersgd_samples is not None:
        yield f"--powersgd-samples {pins.powersgd_samples:g}", f"{model}, which sends whole gradients"


def _sequence(network: NetworkReference, request: PlanRequest) -> int:
    usual = FAMILIES[network.name].sequence
    asked = request.options.get("sequence")
    return network.number("sequence", usual) if asked is None else int(asked)


def of_interest(problem: AnalyticalProblem, found: Search[AnalyticalCandidate]) -> Iterator[AnalyticalCandidate]:
    """The fastest, and data parallelism alone where it fits.

    Args:
        problem: of the search
        found: the search
    """
    yield found.chosen
    for one in (*found.candidates, *found.references):
        if one is not found.chosen and one.memory.peak <= problem.memory_limit:
            yield one
