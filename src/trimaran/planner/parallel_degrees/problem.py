"""What a search over divisions is asked and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trimaran.machine.types import Machine
from trimaran.planner.pins import NO_PINS, Pins
from trimaran.pricing.closed_form.memory import Bookkeeping, RankMemory, largest_rank
from trimaran.pricing.closed_form.parallel_degrees import Division
from trimaran.pricing.closed_form.shapes import TransformerShape
from trimaran.pricing.closed_form.stage_work import StepConstants, head_forward, layer_forward, peak_of, step_constants
from trimaran.pricing.closed_form.step_time import (
    DividedStep,
    Exchange,
    Program,
    divided_step,
    least_seconds,
    machine_exchange,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DivisionLimits:
    """Where the search ends.

    Attributes:
        memory_bytes: a rank may need; None: what its device leaves to a job [bytes]
        reserve: share of memory that is kept free for fragments of an allocator [0..1]
        across_nodes: `tensor` ranks may be on different nodes
        most_microbatch: sequences
        least_context: tokens that a rank of a divided sequence keeps
        most_chunks: parts of the stack on each stage
        ratio: divisions whose bound is so many times the best time are not priced
        most_priced: after so many divisions the search ends with what it has
        runners_up: shown
    """

    memory_bytes: int | None = None
    reserve: float = 0.05
    across_nodes: bool = False
    most_microbatch: int = 16
    least_context: int = 2048
    most_chunks: int = 8
    ratio: float = 2.0
    most_priced: int = 40_000
    runners_up: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DivisionTask:
    """What is to be divided.

    Attributes:
        shape: the network
        machine: nodes and fabric
        devices: in use
        batch: sequences of a step, of all replicas
        program: what trains
        bookkeeping: what it keeps
        pins: decided by the user
        limits: where the search ends
    """

    shape: TransformerShape
    machine: Machine
    devices: int
    batch: int
    program: Program
    bookkeeping: Bookkeeping
    pins: Pins = NO_PINS
    limits: DivisionLimits = field(default_factory=DivisionLimits)


def degrees(division: Division) -> Mapping[str, object]:
    """What a division consists of, under the names of plans."""
    return {
        "tp": division.tp,
        "pp": division.pp,
        "cp": division.cp,
        "dp": division.dp,
        "ep": division.ep,
        "chunks": division.chunks,
        "schedule": "1f1b" if division.chunks == 1 else "interleaved",
        "microbatch_size": division.microbatch,
        "microbatches": division.microbatches,
        "zero": division.zero,
        "recompute": sorted(division.recomputed),
        "sequence_parallel": division.sequence_parallel,
    }


def division_name(division: Division) -> str:
    """The degrees that differ from one, in one line.

    Example:
        >>> division_name(Division(tp=8, pp=4, chunks=5, dp=32, zero=1, microbatches=32))
        'tp8 x pp4 (5 chunks) x dp32, zero1, 32 microbatches of 1'
    """
    parts = [
        f"{name}{degree}"
        + (f" ({division.chunks} chunks)" if name == "pp" and division.chunks > 1 else "")
        + (f" (ep{division.ep})" if name == "dp" and division.ep > 1 else "")
        for name, degree in (
            ("tp", division.tp),
            ("cp", division.cp),
            ("pp", division.pp),
            ("dp", division.dp),
        )
        if degree > 1
    ]
    more = [f"zero{division.zero}"] if division.zero else []
    more += ["recompute"] if "layers" in division.recomputed else []
    several = "" if division.microbatches == 1 else "es"
    more += [f"{division.microbatches} microbatch{several} of {division.microbatch}"]
    return ", ".join([" x ".join(parts) or "one device", *more])


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedDivision:
    """A division with what it costs.

    Attributes:
        division: degrees
        step: time by part
        memory: of the rank that needs most
        low: lower end of the 90 % interval of the step [s]
        high: its upper end [s]
        utilization: model FLOP over peak FLOP of all devices ("MFU"), recomputation not counted [0..1]
        devices: in use
    """

    division: Division
    step: DividedStep
    memory: RankMemory
    low: float
    high: float
    utilization: float
    devices: int

    @property
    def seconds(self) -> float:
        """Of a step [s]."""
        return self.step.seconds

    @property
    def name(self) -> str:
        """Its degrees in one line."""
        return division_name(self.division)

    @property
    def step_time_s(self) -> float:
        """Of a step, as of a simulated candidate [s]."""
        return self.seconds

    @property
    def interval_s(self) -> tuple[float, float]:
        """90 % interval of the step [s]."""
        return self.low, self.high

    @property
    def cases(self) -> tuple[float, float, float]:
        """The step with all costs low, at their median, and high [s]."""
        return self.low, self.seconds, self.high

    @property
    def time_s(self) -> float:
        """What is made small: the step [s]."""
        return self.seconds

    @property
    def objective_s(self) -> float:
        """Likewise, as often as training needs it: once [s]."""
        return self.seconds

    @property
    def objective(self) -> Literal["throughput"]:
        """What is made best."""
        return "throughput"

    @property
    def epoch_s(self) -> None:
        """Epochs are not simulated."""
        return None

    @property
    def samples_factor(self) -> float:
        """Gradients are sent whole, so training needs no more samples."""
        return 1.0

    @property
    def peak_bytes(self) -> tuple[float, ...]:
        """Of the rank that needs most [bytes]."""
        return (self.memory.peak,)

    @property
    def rank(self) -> tuple[float, int, str]:
        """By which divisions are sorted: time, then memory, then their text, so that equal ones keep their order."""
        return (self.seconds, self.memory.peak, repr(self.division))


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What others would run.

    Attributes:
        name: "fsdp" (states of all devices divided, nothing else), "ddp", "rule of thumb" (least model parallelism)
        priced: with its cost; None where nothing of it fits
        reason: why there is none
    """

    name: str
    priced: PricedDivision | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DivisionSearch:
    """What a search found.

    Attributes:
        task: what was asked
        chosen: the fastest that fits
        runners_up: the next ones of other degrees
        pareto: of time, memory and devices, fastest first
        baselines: what others would run
        rejected: how many were not priced, by reason
        priced: how many were
        bound_s: no division of these devices has a shorter step [s]
        complete: whether the whole space was looked at, so that neither time nor number ended the search
        seconds: that the search took [s]
    """

    task: DivisionTask
    chosen: PricedDivision
    runners_up: tuple[PricedDivision, ...]
    pareto: tuple[PricedDivision, ...]
    baselines: tuple[Baseline, ...]
    rejected: Mapping[str, int]
    priced: int
    bound_s: float
    complete: bool
    seconds: float

    @property
    def gap(self) -> float:
        """Of the chosen one over the bound, as a share."""
        return self.chosen.seconds / self.bound_s - 1.0


# ---------------------------------------------------------------------------------------------------------------------
# What a division costs: time by part, memory of the rank that needs most, share of the peak; a bound on the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricer:
    """Prices divisions of one task.

    Attributes:
        task: what is divided
        exchange: prices collectives
        constants: of steps
        model_flops: of a sequence, as papers count it [FLOP]
    """

    task: DivisionTask
    exchange: Exchange
    constants: StepConstants
    model_flops: float

    def bound(self, division: Division) -> float:
        """No division of these degrees, whatever its schedule and sharding, has a shorter step [s]."""
        return least_seconds(
            self.task.shape,
            division,
            self.task.program,
            device=self.task.machine.node.device,
            exchange=self.exchange,
            constants=self.constants,
        )

    def priced(self, division: Division) -> PricedDivision:
        """A division with what it costs."""
        task = self.task
        device = task.machine.node.device
        step = divided_step(
            task.shape, division, task.program, device=device, exchange=self.exchange, constants=self.constants
        )
        spread = self.constants.spread if task.shape.experts is None else self.constants.spread_experts
        sequences = division.dp * division.microbatch * division.microbatches
        return PricedDivision(
            division=division,
            step=step,
            memory=largest_rank(task.shape, division, bookkeeping=task.bookkeeping),
            low=step.seconds / (1.0 + spread),
            high=step.seconds * (1.0 + spread),
            utilization=sequences * self.model_flops / (step.seconds * division.devices * peak_of(device)),
            devices=division.devices,
        )


def pricer(task: DivisionTask) -> Pricer:
    """What prices a task's divisions."""
    return Pricer(
        task=task,
        exchange=machine_exchange(task.machine, ranks=task.devices, year=task.program.year),
        constants=step_constants(),
        model_flops=model_flops(task.shape),
    )


def model_flops(shape: TransformerShape) -> float:
    """Forward and backward of a sequence as papers count them: products three times, attention without its mask [FLOP].

    Example:
        GPT-3 with 2,048 tokens: 6 for each parameter and token, and 2.8 % for attention.

        >>> from trimaran.pricing.closed_form.shapes import gpt_shape
        >>> shape = gpt_shape(layers=96, hidden=12288, heads=96, vocabulary=51200, sequence=2048)
        >>> round(model_flops(shape) / (6 * 174.6e9 * 2048), 3)
        1.028
    """
    whole = Division()
    works = [layer_forward(shape, whole, attention="unfused", layer=layer) for layer in range(shape.layers)]
    head = head_forward(shape, whole)
    return 3.0 * (sum(work.products + work.attention for work in works) + head.products)


def memory_limit(task: DivisionTask) -> float:
    """What a rank may need [bytes]."""
    memory = task.machine.node.device.memory
    limit = task.limits.memory_bytes
    return (memory.reported_bytes - memory.context_bytes if limit is None else limit) * (1.0 - task.limits.reserve)
