"""The profile of a job: its step by phase, its memory by class, and where its compute goes.

Every figure says where it comes from: measured at this batch size, interpolated between measured ones, analytic, or
assumed. Times of phases are those of a simulated step, whose parts sum to it; their intervals are the same parts with
all costs at the low and at the high end of theirs.

Where a job's compute goes: its operations, alone or grouped by module or by kind, and whether they are too small.

An operation's time is its share of the whole model's: measured alone, times the factor between the whole model in one
piece and the sum of its operations (`pricing/compute.py`). So the groups sum to the forward and the backward of a step.

An operation is *small* if more than half of its time does not depend on the batch, while it neither computes nor moves
bytes at a quarter of the best rate that the job reaches anywhere: what it costs is being called. What does not depend
on the batch is read off the batch sizes that were measured. A large weight that is read once a step also costs the same
for any batch, but moves bytes quickly, and so is not small.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.table import Table

from trimaran.base.html import DataTable
from trimaran.base.units import format_bytes, format_seconds, format_span
from trimaran.graph.types import Graph, Op
from trimaran.pricing.compute import Context, context_of, operation_costs
from trimaran.pricing.tables import CostTable, Form, OperationKey
from trimaran.pricing.types import Cost, OpCost, add, multiply
from trimaran.program.json_files import to_plain
from trimaran.report.tables import add_words, frame_table, table_view, unit_of

Grouping = Literal["module", "operation", "kind"]
"""The unit of one line of a profile."""

# See the definition of a small operation above.
SMALL_FIXED_SHARE = 0.5
SMALL_RATE = 0.25
# From this share of the compute on, small operations are what limits it.
BOUND_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Hotspot:
    """One line of a profile.

    Attributes:
        name: of the module, operation or kind
        operations: how many operations it stands for
        forward: of them, as part of the whole model
        backward: likewise
        flops: of both [FLOP]
        nbytes: read and written by both [bytes]
        parameters: elements of the parameters that they are the first to use
        saved_bytes: kept from forward to backward [bytes]
    """

    name: str
    operations: int
    forward: Cost
    backward: Cost
    flops: float
    nbytes: float
    parameters: int
    saved_bytes: float

    @property
    def seconds(self) -> float:
        """Forward and backward [s]."""
        return self.forward.seconds + self.backward.seconds

    @property
    def flops_per_s(self) -> float:
        """Rate of computing that is reached [FLOP/s]; 0 where it takes no time."""
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Rate of moving bytes that is reached [bytes/s]; 0 where it takes no time."""
        return self.nbytes / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """Overhead of a job's compute, in addition to its arithmetic.

    Attributes:
        forward: whole forward over the sum of its operations [1]
        backward: likewise
        operations: number of operations
        small: number of small ones; None where only one batch size was measured
        small_share: their share of forward and backward [0..1]; None likewise
        fixed_share: share of forward and backward that does not depend on the batch [0..1]; None likewise
    """

    forward: Cost
    backward: Cost
    operations: int
    small: int | None
    small_share: float | None
    fixed_share: float | None

    @property
    def is_bound_by_small_operations(self) -> bool:
        """Whether calling operations, rather than what they do, limits the compute."""
        return self.small_share is not None and self.small_share >= BOUND_SHARE


def find_spots(
    graph: Graph, table: CostTable, *, batch: int, form: Form, by: Grouping
) -> tuple[tuple[Hotspot, ...], Overhead]:
    """Where forward and backward go, most expensive first; and how much of them is host work and small operations.

    Args:
        graph: the job's
        table: measured costs, of eager execution
        batch: samples of a microbatch
        form: how the model runs
        by: what one line stands for

    Raises:
        InputError: the table lacks an operation
    """
    costs = operation_costs(graph, table, batch=batch, execution="eager")
    context = context_of(graph, table, costs, batch=batch, form=form, execution="eager")
    singles = _singles(graph, costs, context, batch)
    groups: dict[str, list[Hotspot]] = {}
    for op in graph.ops:
        groups.setdefault(_NAMES[by](op), []).append(singles[op.id])
    spots = [_together(name, members) for name, members in groups.items()]
    ordered = tuple(sorted(spots, key=lambda spot: (-spot.seconds, spot.name)))
    return ordered, _overhead(graph, table, context, singles, batch)


def _overhead(graph: Graph, table: CostTable, context: Context, singles: Mapping[str, Hotspot], batch: int) -> Overhead:
    fixed = {op.id: _fixed_share(op, table, batch) for op in graph.ops}
    total_s = math.fsum(spot.seconds for spot in singles.values())
    if not total_s or any(share is None for share in fixed.values()):
        small, small_share, fixed_share = None, None, None
    else:
        names = _small(singles, {name: share or 0.0 for name, share in fixed.items()})
        small = len(names)
        small_share = math.fsum(singles[name].seconds for name in names) / total_s
        fixed_share = math.fsum((share or 0.0) * singles[name].seconds for name, share in fixed.items()) / total_s
    return Overhead(
        forward=context.forward,
        backward=context.backward,
        operations=len(graph.ops),
        small=small,
        small_share=small_share,
        fixed_share=fixed_share,
    )


_NAMES: Mapping[Grouping, Callable[[Op], str]] = {
    "module": lambda op: op.module or ("(loss)" if op.target == "loss" else "(model)"),
    "operation": lambda op: op.id,
    "kind": lambda op: op.target,
}


def _singles(graph: Graph, costs: Mapping[str, OpCost], context: Context, batch: int) -> dict[str, Hotspot]:
    """Each operation by itself, by id; a parameter or a storage counts with the first that uses or keeps it."""
    elements = {parameter.name: math.prod(parameter.shape) for parameter in graph.parameters}
    kept = {name: size.at(batch) for name, size in graph.kept_storages.items()}
    singles = {}
    for op in graph.ops:
        singles[op.id] = Hotspot(
            name=op.id,
            operations=1,
            forward=multiply(costs[op.id].forward, context.forward),
            backward=multiply(costs[op.id].backward, context.backward),
            flops=op.flops.at(batch) + op.backward_flops.at(batch),
            nbytes=op.bytes_moved.at(batch) + op.backward_bytes_moved.at(batch),
            parameters=sum(elements.pop(name, 0) for name in op.parameters),
            saved_bytes=math.fsum(kept.pop(name, 0.0) for name in op.saved),
        )
    return singles


def _together(name: str, members: Sequence[Hotspot]) -> Hotspot:
    return Hotspot(
        name=name,
        operations=len(members),
        forward=_sum([spot.forward for spot in members]),
        backward=_sum([spot.backward for spot in members]),
        flops=math.fsum(spot.flops for spot in members),
        nbytes=math.fsum(spot.nbytes for spot in members),
        parameters=sum(spot.parameters for spot in members),
        saved_bytes=math.fsum(spot.saved_bytes for spot in members),
    )


def _sum(costs: Sequence[Cost]) -> Cost:
    """The sum, as well known as the worst known of those that take time."""
    kinds = {kind_of(cost.source): cost.source for cost in costs if cost.seconds}
    worst = next((kinds[kind] for kind in ("assumed", "analytic", "interpolated") if kind in kinds), None)
    return add(costs, source=worst)


def kind_of(source: str) -> str:
    """First word of a source, which says how a figure came about.

    Example:
        >>> kind_of("measured: 2 ranks busy")
        'measured'
    """
    return source.partition(":")[0]


def _fixed_share(op: Op, table: CostTable, batch: int) -> float | None:
    """Share of an operation's time that does not depend on the batch; None where one batch size was measured."""
    points = table.operations.get(OperationKey(op.content, "eager"), {})
    if len(points) < 2:
        return None
    few, many = min(points), max(points)
    at_few, at_many = (points[size].forward.seconds + points[size].backward.seconds for size in (few, many))
    per_sample_s = max(0.0, (at_many - at_few) / (many - few))
    fixed_s = max(0.0, at_few - few * per_sample_s)
    total_s = fixed_s + batch * per_sample_s
    return fixed_s / total_s if total_s else 0.0


def _small(singles: Mapping[str, Hotspot], fixed: Mapping[str, float]) -> list[str]:
    flops_per_s = max((spot.flops_per_s for spot in singles.values()), default=0.0)
    bytes_per_s = max((spot.bytes_per_s for spot in singles.values()), default=0.0)
    return [
        name
        for name, spot in singles.items()
        if spot.seconds
        and fixed[name] > SMALL_FIXED_SHARE
        and spot.flops_per_s <= SMALL_RATE * flops_per_s
        and spot.bytes_per_s <= SMALL_RATE * bytes_per_s
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigure:
    """A part of a step.

    Attributes:
        name: "load", "FP", "BP", "WU update", "WU exchange", "idle"
        seconds: of it [s]
        low: lower end of the 90 % interval [s]
        high: upper end of the 90 % interval [s]
        share: of the step [0..1]
        source: where the figure comes from
    """

    name: str
    seconds: float
    low: float
    high: float
    share: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryClasses:
    """Memory of the fullest rank at its peak.

    Attributes:
        parameters: of the model [bytes]
        gradients: of those that are trained [bytes]
        optimizer_state: kept for them [bytes]
        buffers: such as running statistics [bytes]
        activations: the rest of the peak: what is kept for the backward, and what passes through [bytes]
    """

    parameters: int
    gradients: int
    optimizer_state: int
    buffers: int
    activations: int

    @property
    def peak_bytes(self) -> int:
        """All of it [bytes]."""
        return self.parameters + self.gradients + self.optimizer_state + self.buffers + self.activations


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """One step of one strategy, on rank 0.

    Attributes:
        strategy: its name
        samples: of rank 0 in a step
        step_time_s: length of the step [s]
        interval_s: 90 % interval of it [s]
        phases: the parts, which sum to the step
        overlapped_s: communication while rank 0 computes, no part of the step [s]
        memory: at the peak
    """

    strategy: str
    samples: int
    step_time_s: float
    interval_s: tuple[float, float]
    phases: tuple[PhaseFigure, ...]
    overlapped_s: float
    memory: MemoryClasses


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The profile of a job.

    Attributes:
        job: its name
        device: name of a device
        ranks: that were busy while it was measured
        global_batch_size: samples of one update
        steps: one device, then data parallelism on all
        by: what one line of `spots` stands for
        samples: batch size on a rank that `spots` and `overhead` are for
        spots: most expensive first; all of them
        overhead: of the host
        unseen: what could not be seen
    """

    job: str
    device: str
    ranks: int
    global_batch_size: int
    steps: tuple[StepProfile, ...]
    by: Grouping
    samples: int
    spots: tuple[Hotspot, ...]
    overhead: Overhead
    unseen: tuple[str, ...]


def profile_document(profile: Profile, *, top: int | None = None) -> dict[str, Any]:
    """A profile as JSON data.

    Args:
        profile: the profile
        top: lines of `spots`; None: all
    """
    plain: dict[str, Any] = to_plain(profile)
    rows = list(zip(plain["spots"], profile.spots, strict=True))[:top]
    for step, entry in zip(plain["steps"], profile.steps, strict=True):
        step["memory"]["peak_bytes"] = entry.memory.peak_bytes
    bound = {"is_bound_by_small_operations": profile.overhead.is_bound_by_small_operations}
    return plain | {
        "spots": [row | {"flops_per_s": spot.flops_per_s, "bytes_per_s": spot.bytes_per_s} for row, spot in rows],
        "overhead": plain["overhead"] | bound,
    }


def step_table(step: StepProfile) -> Table:
    """A step by phase, with intervals, shares and sources."""
    overlapped = f"\nexchange overlapped with compute: {format_seconds(step.overlapped_s)}" if step.overlapped_s else ""
    legend = f"{_phases(step)}\ninterval: 90 %{overlapped}".lstrip()
    rows = [
        (
            phase.name,
            format_seconds(phase.seconds),
            f"{format_seconds(phase.low)} – {format_seconds(phase.high)}",
            f"{100 * phase.share:.1f} %",
            phase.source,
        )
        for phase in step.phases
        if phase.seconds or phase.high
    ]
    rows.append(
        ("step", format_seconds(step.step_time_s), " – ".join(map(format_seconds, step.interval_s)), "", "simulated")
    )
    columns = ("phase", "time", "interval", "share", "source")
    table = DataTable(columns=columns, rows=rows, words=frozenset({0, 4}), sums=1)
    return table_view(table, f"{step.strategy}, {step.samples} samples a device", legend)


def _phases(step: StepProfile) -> str:
    """Abbreviations of the phases that a table has."""
    known = {"FP": "forward", "BP": "backward", "WU": "weight update"}
    used = {word for phase in step.phases if phase.seconds or phase.high for word in phase.name.split()}
    return "; ".join(f"{short}: {whole}" for short, whole in known.items() if short in used)


def verdict_line(profile: Profile) -> str:
    """How long a step takes on one device, and its largest phase."""
    step = profile.steps[0]
    largest = max(step.phases, key=lambda phase: phase.seconds)
    interval = format_span(*map(format_seconds, step.interval_s))
    return (
        f"{profile.job}: {format_seconds(step.step_time_s)} a step (90 %: {interval}) "
        f"by {step.strategy}, {100 * largest.share:.0f} % of it {_SPELLED.get(largest.name, largest.name)}."
    )


_SPELLED = {"FP": "forward", "BP": "backward", "load": "loading", "WU update": "update", "WU exchange": "exchange"}


def memory_table(steps: Sequence[StepProfile]) -> Table:
    """Memory at the peak by class, one column a strategy."""
    table = frame_table("Memory of a device at its peak", "not counted: the allocator's rounding and workspaces")
    add_words(table, "class")
    for step in steps:
        table.add_column(step.strategy, justify="right")
    for name in ("parameters", "gradients", "optimizer_state", "buffers", "activations"):
        table.add_row(name.replace("_", " "), *(format_bytes(getattr(step.memory, name)) for step in steps))
    table.add_section()
    table.add_row("peak", *(format_bytes(step.memory.peak_bytes) for step in steps), style="bold")
    return table


def spot_table(profile: Profile, *, top: int) -> Table:
    """The most expensive modules, operations or kinds.

    Args:
        profile: the profile
        top: lines
    """
    total_s = sum(spot.seconds for spot in profile.spots) or 1.0
    shown = profile.spots[:top]
    unit, size = unit_of(shown[0].seconds if shown else 0.0)
    rows = [
        (
            f"{spot.name} ({spot.operations})" if spot.operations > 1 else spot.name,
            *(f"{cost.seconds / size:.{_digits(cost.seconds / size)}f}" for cost in (spot.forward, spot.backward)),
            f"{100 * spot.seconds / total_s:.1f} %",
            *(_short(value) for value in (spot.flops, spot.flops_per_s, spot.bytes_per_s, spot.parameters)),
            _short(spot.saved_bytes),
            _source_letter(spot),
        )
        for spot in shown
    ]
    columns = (profile.by, "FP", "BP", "share", "FLOP", "FLOP/s", "B/s", "param", "saved", "src")
    return table_view(
        DataTable(columns=columns, rows=rows, words=frozenset({0, 9})),
        f"Compute by {profile.by}, {profile.samples} samples [{unit}]",
        "share: of FP and BP; FLOP: of both; FLOP/s, B/s: reached; param: elements\n"
        "saved: bytes kept for the backward\n"
        "src: m measured, i interpolated, a assumed or analytic",
    )


def overhead_lines(overhead: Overhead) -> tuple[str, ...]:
    """The overhead of calling operations, in sentences."""
    parts = [f"{name} {_factor(cost)}" for name, cost in (("FP", overhead.forward), ("BP", overhead.backward))]
    lines = [f"The whole model takes, of the sum of its {overhead.operations} operations: {', '.join(parts)}."]
    if overhead.small is None or overhead.small_share is None or overhead.fixed_share is None:
        return (*lines, "One batch size does not show whether it is bound by small operations.")
    lines.append(f"{100 * overhead.fixed_share:.0f} % of FP and BP does not depend on the batch.")
    verdict = "It is bound by" if overhead.is_bound_by_small_operations else "It is not bound by"
    share = f"{100 * overhead.small_share:.0f} %"
    lines.append(
        f"{verdict} many small operations: {overhead.small} of {overhead.operations} are small, with {share} of FP "
        "and BP."
    )
    return tuple(lines)


def _digits(value: float) -> int:
    return 0 if value >= 100 else 1 if value >= 10 else 2


def _short(value: float) -> str:
    """A number with its decimal prefix, three digits.

    Example:
        >>> _short(61_706), _short(0), _short(1.5e9), _short(12)
        ('61.7k', '–', '1.50G', '12')
    """
    if not value:
        return "–"
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.{_digits(value / size)}f}{prefix}"
    return f"{value:.0f}"


def _factor(cost: Any) -> str:
    return f"{100 * cost.seconds:.0f} % ({format_span(f'{100 * cost.low:.0f}', f'{100 * cost.high:.0f}')})"


def _source_letter(spot: Hotspot) -> str:
    letters = dict.fromkeys(kind_of(cost.source)[:1] for cost in (spot.forward, spot.backward) if cost.seconds)
    return "".join(letters) or "a"
