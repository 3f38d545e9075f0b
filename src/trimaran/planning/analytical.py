"""The backend of plans for transformers on many devices: parallel degrees, priced by the analytical model.

A decoder with a known shape, by its name or its Hugging Face configuration, is neither built nor traced: the analytical
model plans it on any number of devices, so that plans of few and of many devices agree. Where something is asked that
only a simulation of every rank answers, such as another framework, and the network and the devices are few enough, it
is traced and simulated, and the plan says why. Which of the two answers follows from the question alone.

Where the two contradict each other the analytical model is trusted: its constants are fitted to measured steps of
decoders on 1 to 1,024 devices, while the simulation prices single kernels and is compared with published steps on one
device. A factor between the two would depend on the strategy. Neither the clock nor the outcome of a first attempt
decides, and `--software` changes constants alone.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.base.precision import Precision
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.units import MOST_SEQUENCE, format_bytes, format_count, format_seconds, format_span, whole_number
from trimaran.jobs.huggingface import configuration_of_job, is_configuration, read_configuration
from trimaran.jobs.resolve import JobSource, resolve
from trimaran.machine.find import find_machine
from trimaran.networks.names import parse_network
from trimaran.networks.sizes import FAMILIES, find_size
from trimaran.planner.analytical.candidates import AnalyticalCandidate, AnalyticalProblem
from trimaran.planner.analytical.given import complete_strategy, on_all, unpriced
from trimaran.planner.analytical.search import (
    NearbyBatch,
    assumed_software,
    fastest,
    glance,
    nearby_batches,
    search_degrees,
    transformer_problem,
)
from trimaran.planner.pins import NO_PINS, OPT_IN, Pins
from trimaran.planner.result import Search
from trimaran.planner.search import prices_of_pins
from trimaran.planner.target_estimates import Contender, Goal
from trimaran.planner.target_search import contender_of
from trimaran.planning.answer.evidence import Modelled
from trimaran.planning.answer.results import Planned
from trimaran.planning.answer.written_plans import plan_of_degrees, types_taken
from trimaran.planning.measured_jobs import MeasuredJob, StepCorrection, compare_step
from trimaran.planning.precision import ANALYTICAL_PRECISIONS, DECODERS, choose_precision, settle_precision
from trimaran.planning.requests import PlanRequest
from trimaran.planning.target import CatalogBackend, Cell, Compared, Known, compare_each, find_job_curve
from trimaran.pricing.analytical.fits_device import WHOLE
from trimaran.pricing.analytical.huggingface_config import (
    Configured,
    is_known,
    rough_count,
    shape_of_configuration,
)
from trimaran.pricing.analytical.layers import active_count, parameter_count, prediction_count
from trimaran.pricing.analytical.memory import Bookkeeping
from trimaran.pricing.analytical.shapes import TransformerShape, decoder_of
from trimaran.program.strategy import Degrees, Strategy, said_by

MOST_RANKS = 64
"""Up to this number of ranks are simulated one by one."""

MOST_PARAMETERS = 5_000_000_000
"""Up to this number of parameters a network is traced."""


BY_SHAPE = "plan takes this decoder's from its shape, with Megatron's fused kernels, unless --software names another"
"""Said of figures by other software where `planned_by_shape` finds a shape."""

LEFT_FREE = 0.05
"""Of a device's memory: a plan leaves it unless a strategy, --memory or --reserve is given, or only more fits: people
run below 95 %, as an allocator close to the end gives back and asks anew."""

COUNTS = 4
"""Counts of devices that are compared: all, half, a quarter, an eighth."""


def shape_of(reference: str, request: PlanRequest) -> TransformerShape | None:
    """The shape of a decoder that the analytical model plans; None for everything else.

    Args:
        reference: of a job
        request: may ask for something that only a simulation answers
    """
    shape = decoder_shape(reference, request)
    if shape is None or (is_traceable(shape, request) and reason_to_trace(reference, request)):
        return None
    return shape


def planned_by_shape(reference: str, request: PlanRequest) -> TransformerShape | None:
    """The shape from which `plan` takes a step by the analytical model; None: it does not, or refuses the job.

    Args:
        reference: of a job
        request: of a plan, where nothing else is asked for
    """
    try:
        return shape_of(reference, request)
    except InputError:
        return None


def is_traceable(shape: TransformerShape, request: PlanRequest) -> bool:
    """Whether a decoder is small enough to be traced, and its devices few enough to be simulated one by one.

    Experts cannot be traced, as the values of tokens choose them.

    Args:
        shape: of the decoder
        request: says on how many devices
    """
    devices = request.devices or find_machine(request.cluster).devices
    return devices <= MOST_RANKS and parameter_count(shape) <= MOST_PARAMETERS and shape.experts is None


def reason_to_trace(reference: str, request: PlanRequest) -> str:
    """What a request asks of a decoder that only a simulation of every rank answers, and why; empty: nothing.

    Args:
        reference: of a decoder
        request: of the user
    """
    option, why = next(_only_simulated(reference, request), ("", ""))
    return option and f"{option}: {why}"


def _only_simulated(reference: str, request: PlanRequest) -> Iterator[tuple[str, str]]:
    """Options that the analytical model does not honour, and why."""
    yield from _unsupported(request.pins)
    yield from _of_program(request)
    if request.loading.is_given:
        yield "--loader and its like", "the analytical model takes data as ready"
    device = find_machine(request.cluster).node.device
    chosen = choose_precision(reference, request.precision, device, get_args(Precision), by_shape=True)
    if chosen.name not in ANALYTICAL_PRECISIONS:
        yield f"--precision {chosen.name}", f"the analytical model has figures of {', '.join(ANALYTICAL_PRECISIONS)}"


def _of_program(request: PlanRequest) -> Iterator[tuple[str, str]]:
    """Options of how a program of this package runs."""
    if request.execution != "any":
        yield f"--execution {request.execution}", "how segments run is a choice of programs that are simulated"


def decoder_shape(reference: str, request: PlanRequest) -> TransformerShape | None:
    """The shape of a decoder, as `decoder_of_job` finds it; None for everything else.

    Args:
        reference: of a job
        request: says on how many devices, may have an option `sequence`, and say how unequally experts are visited

    Raises:
        InputError: a configuration without a known shape that is too large to be traced, with what is missing; experts
            that are visited unequally, of a network without them
    """
    try:
        found = decoder_of_job(reference, request)
    except InputError:
        if not is_configuration(reference):
            return None  # whoever makes the job says what is wrong with it
        devices = request.devices or find_machine(request.cluster).devices
        if devices > MOST_RANKS or rough_count(read_configuration(reference).values) > MOST_PARAMETERS:
            raise
        return None
    return None if found is None else with_imbalance(found.shape, request.expert_imbalance, reference)


def decoder_of_job(reference: str, request: PlanRequest) -> Configured | None:
    """The shape of a job's network, without the network: by its name, or by its configuration.

    Args:
        reference: a published decoder, a Hugging Face configuration, or `file.py:factory` whose model is made of a
            configuration of transformers alone
        request: may have an option `sequence`

    Returns:
        The shape, with what is assumed; None for jobs that are neither.

    Raises:
        InputError: a configuration that no shape is known for
    """
    network = parse_network(reference)
    asked = _sequence_of(request)
    if network is not None:
        if network.name not in DECODERS:
            return None
        sequence = asked or network.number("sequence", FAMILIES[network.name].sequence)
        shape = decoder_of(f"{network.name}:{network.size}", sequence)
        published = find_size(network.name, network.size).positions
        if shape is None or shape.positions <= published:
            return None if shape is None else Configured(shape=shape)
        grown = f"{shape.positions:,} learned positions are planned, {network.name}:{network.size} has {published:,}"
        return Configured(shape=shape, assumed=(grown,))
    if is_configuration(reference):
        read = read_configuration(reference)
        return shape_of_configuration(read.values, sequence=asked or read.sequence, source=read.source)
    if ".py:" not in reference:
        return None
    values = configuration_of_job(resolve(reference))
    if values is None or not is_known(values.get("model_type")):
        return None
    return shape_of_configuration(values, sequence=asked, source=reference)


def _sequence_of(request: PlanRequest) -> int | None:
    """Tokens of a sequence that a request asks for; None: it does not say.

    Raises:
        InputError: no such number
    """
    text = request.options.get("sequence")
    found = None if text is None else whole_number(text, least=1, most=MOST_SEQUENCE)
    if text is not None and found is None:
        raise InputError(
            f'sequence: expected tokens, a whole number from 1 to {MOST_SEQUENCE:,}, got "{text}"',
            code="request.bad-sequence",
        )
    return found


def with_imbalance(shape: TransformerShape, imbalance: float, reference: str) -> TransformerShape:
    """A network whose busiest rank of experts has more visits than the others.

    Args:
        shape: of the network
        imbalance: visits of the busiest rank, by those of a rank if all had the same
        reference: of the network

    Raises:
        InputError: the network has no experts
    """
    if imbalance == 1.0:
        return shape
    if shape.experts is None:
        raise InputError(
            f"--expert-imbalance {imbalance:g}: {reference} has no experts; leave it out",
            code="experts.none",
            reference=reference,
        )
    return dataclasses.replace(shape, experts=dataclasses.replace(shape.experts, imbalance=imbalance))


def checkpoint_bytes(reference: str, request: PlanRequest, degrees: Degrees) -> float:
    """State that a training of a decoder goes on from: its weights and its optimizer's state [bytes].

    Args:
        reference: of a decoder
        request: may have an option `sequence`
        degrees: of a strategy, which may say the types of the optimizer's state
    """
    shape, keeping = decoder_shape(reference, request), Bookkeeping().of(degrees)
    return 0.0 if shape is None else float(parameter_count(shape) * (keeping.weight_bytes + keeping.optimizer_bytes))


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
            InputError: pins or loading that mean nothing here, or a precision without figures
        """
        check_pins(request.pins)
        if request.loading.is_given:
            given = (
                f"--{name.replace('_', '-')}"
                for name, value in dataclasses.asdict(request.loading).items()
                if value is not None
            )
            smaller = f", or ask for at most {MOST_RANKS} devices and {MOST_PARAMETERS / 1e9:g} billion parameters"
            raise InputError(
                f"the analytical model plans {source.reference} there, which takes its data as ready: leave "
                f"{' and '.join(given)} out{smaller if shape.experts is None else ''}",
                code="loading.analytical",
            )
        _refuse(_of_program(request))
        _refuse(_of_experts(request.pins, shape, source.reference))
        device = find_machine(request.cluster).node.device
        chosen = choose_precision(source.reference, request.precision, device, ANALYTICAL_PRECISIONS, by_shape=True)
        self.source = source
        self.request = settle_precision(request, chosen)
        self._precision = chosen
        self.shape = shape
        self._progress = progress
        self._measured = None if request.measured is None else self._compared(request.measured)

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
            InputError: a strategy is named that cannot be built
        """
        self._progress("searching", 0, 0)
        cell = Cell(batch=self.batch, devices=self.devices)
        problem, found = self._search(cell, self.request.time_limit_s)
        nearby = () if self.request.pins.microbatches else nearby_batches(problem, found.chosen)
        return self._planned(problem, found, nearby)

    def glance(self) -> AnalyticalCandidate | None:
        """The fastest degrees that a short search finds at the batch that is asked for; None: none."""
        return glance(self.problem(Cell(batch=self.batch, devices=self.devices), None, leaves_free=True))

    def compare(self, batches: Sequence[int], known: Known, goal: Goal) -> Compared:
        """The best degrees at each batch, on all devices, half, a quarter and an eighth of them.

        Args:
            batches: sequences of one update
            known: the curve, which a search at one batch does not need
            goal: objective over all batches; at one batch it is the time of a step
        """
        del known, goal
        searches: dict[Cell, tuple[AnalyticalProblem, Search[AnalyticalCandidate]]] = {}
        halved = [self.devices >> halvings for halvings in range(COUNTS) if self.devices % (1 << halvings) == 0]
        counts = self.request.target.counts or halved
        cells = [Cell(batch=batch, devices=count) for batch in batches for count in counts]
        asked_s = self.request.time_limit_s
        each_s = None if asked_s is None else asked_s / len(cells)
        # Some of the devices may be idle, so that two cells may have the same plan.
        cell_of: dict[tuple[int, Strategy], Cell] = {}

        def plan_cell(cell: Cell) -> Iterator[Contender]:
            try:
                searches[cell] = self._search(cell, each_s)
            except InputError as error:
                if not self.request.pins.strategy:
                    raise
                # Of a strategy that is named: at other batches, or on more devices, it may be built.
                raise InfeasibleError(error.message, code=error.code) from error
            for one in of_interest(*searches[cell]):
                if cell_of.setdefault((cell.batch, one.strategy), cell) is cell:
                    yield contender_of(one, cell.batch)

        def plan_chosen(contender: Contender) -> Planned:
            chosen: AnalyticalCandidate = contender.origin
            problem, found = searches[cell_of[contender.global_batch, chosen.strategy]]
            others = tuple(one for one in found.candidates if one.strategy != chosen.strategy)
            found = dataclasses.replace(found, chosen=chosen, candidates=(chosen, *others))
            return self._planned(problem, found)

        found = compare_each(cells, plan_cell, plan_chosen)
        return dataclasses.replace(found, is_complete=all(one.is_complete for _, one in searches.values()))

    def _search(self, cell: Cell, time_limit_s: float | None) -> tuple[AnalyticalProblem, Search[AnalyticalCandidate]]:
        """The best degrees that leave a part of a device free; where nothing does, those that fit."""
        problem = self.problem(cell, time_limit_s, leaves_free=True)
        try:
            return problem, search_degrees(problem)
        except InfeasibleError:
            whole = self.problem(cell, time_limit_s)
            if whole.memory_limit == problem.memory_limit:
                raise
            return whole, search_degrees(whole)

    def problem(self, cell: Cell, time_limit_s: float | None, *, leaves_free: bool = False) -> AnalyticalProblem:
        """The problem at a batch on some devices.

        Args:
            cell: the batch, the devices
            time_limit_s: work of the search [s on the reference]; None: no limit
            leaves_free: a strategy may not fill a device unless that is asked for
        """
        request = self.request
        problem = transformer_problem(
            self.shape,
            find_machine(request.cluster),
            batch=cell.batch,
            precision=self._precision.name,
            software=request.software,
            devices=cell.devices,
            memory_bytes=request.memory_bytes,
            reserve=request.reserve,
            pins=completed_pins(request.pins, self.shape, cell),
            time_limit_s=time_limit_s,
            documents=request.documents,
            gap=request.gap,
            free=0.0 if request.pins.strategy or not leaves_free else LEFT_FREE,
        )
        found = self._measured
        if found is None:
            return problem
        keeping = dataclasses.replace(problem.bookkeeping, measured_share=found.memory_share)
        return dataclasses.replace(problem, bookkeeping=keeping, measured=found.factor)

    def _compared(self, measured: MeasuredJob) -> StepCorrection:
        """A measured step with the same one as the model has it."""
        if measured.kind not in ("step", "profile"):
            raise InputError(
                f"--measured {measured.text}: {measured.kind} of kernels or of this machine, and the analytical model "
                'starts from a step of a strategy: say such as "dp8 zero1, step=4.1 s, batch=64", or a profile',
                code="measured.not-of-a-strategy",
            )
        words = measured.strategy or self.request.pins.strategy or ("one device" if measured.kind == "profile" else "")
        self._measured = None
        given = complete_strategy(
            words,
            self.shape,
            most_devices=find_machine(self.request.cluster).devices,
            batch=measured.batch or self.request.batch,
            usual_batch=self.batch,
        )
        cell = Cell(batch=given.batch, devices=given.strategy.devices)
        request, self.request = self.request, dataclasses.replace(self.request, pins=NO_PINS)
        try:
            problem = self.problem(cell, None)
        finally:
            self.request = request
        return compare_step(problem, given.strategy, measured)

    def _planned(
        self,
        problem: AnalyticalProblem,
        found: Search[AnalyticalCandidate],
        nearby: tuple[NearbyBatch, ...] = (),
    ) -> Planned:
        notes = [
            f"a transformer of {_counted(self.shape)} on {format_count(problem.devices, 'device')}: planned by the "
            f"analytical model, without a trace and without a simulation{' of every rank' * (problem.devices > 1)}"
        ]
        described = decoder_of_job(self.source.reference, self.request)
        if described is not None:
            notes += described.assumed
        notes.append(memory_words(problem, found.chosen))
        notes += () if self._measured is None else self._measured.notes
        if problem.program.precision in WHOLE:
            notes.append(
                f"products in {problem.program.precision} are taken to reach the share of their peak that is known of "
                "16 bits: no published step in 32 bits is among the model's data"
            )
        if self.request.pins.allows_compression:
            notes.append("compressing gradients was not tried: the analytical model sends them whole")
        if self.request.software is None:
            notes.append(
                f"software assumed: {assumed_software(problem.machine.node.device).text}, with its fused kernels "
                "(--software names another framework)"
            )
        notes += [*idle_notes(problem, found), *nearby_notes(problem, nearby)]
        return Planned(
            source=self.source,
            request=self.request,
            evidence=Modelled(
                problem=problem,
                plan=plan_of_degrees(
                    self.source.reference, self.request, problem, found, in_fp32=in_fp32(problem, found.chosen)
                ),
                chosen=found.chosen,
                search=found,
                nearby=nearby,
            ),
            notes=tuple(notes),
        )


def in_fp32(problem: AnalyticalProblem, chosen: AnalyticalCandidate) -> AnalyticalCandidate | None:
    """The fastest that keeps gradients and the optimizer's state in fp32, where the chosen one keeps less unasked.

    Args:
        problem: of the plan
        chosen: its strategy
    """
    if not any(types_taken(problem, chosen)):
        return None
    pins = problem.pins
    whole = dataclasses.replace(
        pins, gradients=pins.gradients or "fp32", optimizer_state=pins.optimizer_state or "fp32"
    )
    try:
        return fastest(dataclasses.replace(problem, pins=whole))
    except InfeasibleError:
        return None


def memory_words(problem: AnalyticalProblem, chosen: AnalyticalCandidate) -> str:
    """What the memory of a plan assumes, in a sentence.

    Args:
        problem: of the plan
        chosen: its strategy
    """
    need, strategy = chosen.need, chosen.fits_as
    keeping = problem.bookkeeping.of(strategy)
    if problem.reserve is None:
        free = "buffers of collectives and fragments of the allocator are assumed (--reserve says them)"
    else:
        free = f"{format_bytes(problem.device_bytes - problem.memory_limit)} stay free"
    said = (
        f"memory assumes {keeping.weight_bytes} bytes a parameter, {keeping.gradient_bytes} of its gradient and "
        f"{keeping.optimizer_bytes:g} of Adam (the update of others, such as Muon, is not known); {free}: "
        f"{format_span(format_bytes(need.least), format_bytes(need.most))} of {format_bytes(problem.memory_limit)}"
    )
    return said if need.most <= problem.memory_limit else f"{said}; not sure that it fits"


def _counted(shape: TransformerShape) -> str:
    """Parameters in words: all, those that a token visits, and those of modules that predict further tokens."""
    count = parameter_count(shape)
    counted = f"{count / 1e9:.1f} billion parameters" if count >= 1e9 else f"{count / 1e6:.0f} million parameters"
    if shape.experts is not None:
        counted += f" ({active_count(shape) / 1e9:.1f} of them for each token)"
    if shape.prediction_layers:
        counted += f" and {prediction_count(shape) / 1e9:.1f} billion that predict further tokens"
    return counted


def idle_notes(problem: AnalyticalProblem, found: Search[AnalyticalCandidate]) -> Iterator[str]:
    """Which devices the chosen plan leaves idle, and why; nothing where it takes all.

    Args:
        problem: that was searched
        found: the search
    """
    chosen, node = found.chosen, problem.machine.node.devices
    idle = problem.devices - chosen.devices
    if not idle:
        return
    what = f"{idle} of {format_count(problem.devices, 'device')}"
    if idle % node == 0 == problem.devices % node and problem.devices > node:
        what = f"{idle // node} of {problem.devices // node} nodes ({what})"
    if problem.pins.strategy:
        why = f"the strategy takes {chosen.devices}{on_all(chosen.strategy, problem.devices)}"
    elif found.on_all is None:
        why = f"no strategy that fits takes all {problem.devices}"
    else:
        longer = found.on_all.step_time_s / chosen.step_time_s - 1.0
        why = (
            f"the best on all {problem.devices}, {found.on_all.name}, takes "
            f"{format_seconds(found.on_all.step_time_s)} a step, {100 * longer:.1f} % longer"
        )
    yield f"{what} idle, the last ones: {why}"


def nearby_notes(problem: AnalyticalProblem, nearby: Iterable[NearbyBatch]) -> Iterator[str]:
    """Batches near by that are faster per sample.

    Args:
        problem: that was searched
        nearby: the batches
    """
    told = [
        f"{one.batch} by {100 * one.faster:.0f} % ({one.strategy}, {format_seconds(one.step_time_s)} a step)"
        for one in nearby
    ]
    if told:
        yield f"batches near {problem.batch} that are faster per sample: {', '.join(told)}"


def with_prices(evidence: Modelled) -> Modelled:
    """A plan with the cost of each of its pins.

    Args:
        evidence: of the plan
    """
    problem, found = evidence.problem, evidence.search
    # A plan for a target may be another than the fastest of its search, which is no price of a pin.
    quickest = min((found.chosen, *found.pareto), key=lambda one: one.step_time_s)
    paid = prices_of_pins(problem.pins, quickest, lambda pins: fastest(dataclasses.replace(problem, pins=pins)))
    return dataclasses.replace(evidence, prices=paid)


def _of_experts(pins: Pins, shape: TransformerShape, reference: str) -> Iterator[tuple[str, str]]:
    """Degrees of experts that a network without them does not have, and why."""
    if shape.experts is None and not pins.strategy:
        if pins.ep not in (None, 1):
            yield f"--ep {pins.ep}", f"{reference} has no experts"
        if pins.etp not in (None, 1, pins.tp):
            yield f"--etp {pins.etp}", f"{reference} has no experts"


def check_pins(pins: Pins) -> None:
    """Refuse pins that the analytical model cannot keep: modules on rows, some schedules, microbatches, a compression.

    Raises:
        InputError: with the reason
    """
    _refuse(_unsupported(pins))


def _refuse(options: Iterator[tuple[str, str]]) -> None:
    for option, why in options:
        raise InputError(f"{option}: {why}; leave it out", code="analytical.option-unsupported")


def completed_pins(pins: Pins, shape: TransformerShape, cell: Cell) -> Pins:
    """Pins with what follows from them: all that the words of a strategy leave out, or sequences of a microbatch.

    Args:
        pins: of the request
        shape: of the network
        cell: the batch, the devices

    Raises:
        InputError: the batch has no equal shares for them, or the strategy cannot be built

    Example:
        >>> from trimaran.planner.pins import pins_of_strategy
        >>> shape, cell = decoder_of("llama3:8b", 8192), Cell(batch=64, devices=8)
        >>> completed_pins(Pins(dp=8, microbatches=4), shape, cell).microbatch
        2
        >>> completed_pins(pins_of_strategy("dp4 pp2"), shape, cell).schedule
        '1f1b'
    """
    if pins.strategy:
        whole = complete_strategy(pins.strategy, shape, most_devices=cell.devices, batch=cell.batch).strategy
        return dataclasses.replace(
            pins,
            zero=whole.zero,
            etp=whole.expert_tp,
            schedule=whole.schedule,
            segment_layers=whole.segment_layers,
            microbatch_group=whole.microbatch_group,
            microbatch=whole.microbatch,
            microbatches=None,
        )
    if pins.microbatches is None or pins.dp is None:
        return pins
    shares = pins.dp * pins.microbatches
    if cell.batch % shares:
        raise InputError(
            f"a batch of {cell.batch} has no equal shares for {pins.dp} replicas of {pins.microbatches} microbatches: "
            f"take a multiple of {shares}, or other pins",
            code="analytical.microbatches-do-not-divide",
            batch=cell.batch,
        )
    return dataclasses.replace(pins, microbatch=cell.batch // shares)


_KINDS = frozenset({"dp", "pp", "tp", "zero", "cp", "ep", "1f1b", "interleaved", "zero-bubble", "memory"})
"""Kinds of parallelism that the analytical model has; layers that are computed again stand for "memory"."""


def _unsupported(pins: Pins) -> Iterator[tuple[str, str]]:
    """Options that mean nothing to the analytical model, and why."""
    model = "a transformer on many devices is planned by the analytical model"
    said = said_by(pins.strategy) if pins.strategy else {}
    for word, why in unpriced(Strategy(**said), said):
        yield f'--strategy "{pins.strategy}": {word}', why
    if pins.keep:
        yield pins.names[0], "a transformer on many devices is planned by its layers, not by modules"
    if pins.allows_stale:
        yield (
            "--schedule pipedream" if pins.schedule else "--allow stale",
            f"{model}, whose pipelines are flushed after each step",
        )
    if pins.schedule == "gpipe" and not pins.strategy:
        yield f"--schedule {pins.schedule}", "at this size a plan has 1f1b, interleaved or zero-bubble"
    if pins.microbatches is not None and pins.dp is None:
        yield f"--microbatches {pins.microbatches}", f"{model}, to which it says something only with --dp"
    if pins.nodes is not None and pins.nodes > 1:
        yield f"--nodes {pins.nodes}", f"{model}, which sums gradients as one group"
    if pins.allows_compression:
        option = OPT_IN if pins.method is None else f"--compression {pins.compression}"
        yield option, f"{model}, which sends whole gradients"
    if not pins.strategy and pins.held:
        yield ", ".join(pins.held), f"{model}, which has none"
    if not pins.strategy and pins.bucket_bytes is not None:
        yield f"bucket_bytes {pins.bucket_bytes}", f"{model}, which has no buckets"
    if pins.codec is not None:
        yield f"--codec {pins.codec}", f"{model}, which recomputes layers and moves no activations to the host"
    others = [kind for kind in pins.allow if kind not in _KINDS]
    if others:
        yield f"--allow {','.join(pins.allow)}", f"{model}, which knows no {', '.join(others)}"
    if pins.powersgd_samples is not None:
        yield f"--powersgd-samples {pins.powersgd_samples:g}", f"{model}, which sends whole gradients"


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
