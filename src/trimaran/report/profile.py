"""The profile of a job: its step by phase, its memory by class, and where its compute goes.

Every figure says where it comes from: measured at this batch size, interpolated between measured ones, analytic, or
assumed. Times of phases are those of a simulated step, whose parts sum to it; their intervals are the same parts with
all costs at the low and at the high end of theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from trimaran.program.files import to_plain
from trimaran.report.framing import frame_table
from trimaran.report.hotspots import Grouping, Overhead, Spot, kind_of
from trimaran.units import format_bytes, format_seconds


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
    """What the fullest rank holds at its peak.

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
        step_s: length of the step [s]
        interval_s: 90 % interval of it [s]
        phases: the parts, which sum to the step
        hidden_s: communication while rank 0 computes, no part of the step [s]
        memory: at the peak
    """

    strategy: str
    samples: int
    step_s: float
    interval_s: tuple[float, float]
    phases: tuple[PhaseFigure, ...]
    hidden_s: float
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
    spots: tuple[Spot, ...]
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
    hidden = f"\nhidden exchange {format_seconds(step.hidden_s)}, beside compute" if step.hidden_s else ""
    table = frame_table(f"{step.strategy}, {step.samples} samples a device", f"interval: 90 %{hidden}")
    table.add_column("phase")
    for title in ("time", "interval", "share"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("source")
    for phase in step.phases:
        if phase.seconds or phase.high:
            table.add_row(
                phase.name,
                format_seconds(phase.seconds),
                f"{format_seconds(phase.low)} – {format_seconds(phase.high)}",
                f"{100 * phase.share:.1f} %",
                phase.source,
            )
    low, high = step.interval_s
    table.add_section()
    table.add_row(
        "step", format_seconds(step.step_s), f"{format_seconds(low)} – {format_seconds(high)}", "", "simulated"
    )
    return table


def memory_table(steps: Sequence[StepProfile]) -> Table:
    """Memory at the peak by class, one column a strategy."""
    table = frame_table("Memory of a device at its peak", "not counted: the allocator's\nrounding and workspaces")
    table.add_column("class")
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
    unit, size = next((entry for entry in _TIMES if shown and shown[0].seconds >= 10 * entry[1]), _TIMES[-1])
    table = frame_table(
        f"Compute by {profile.by}, {profile.samples} samples [{unit}]",
        "share: of FP and BP   FLOP/s, B/s: reached   param: elements\n"
        "saved: bytes kept for the backward\n"
        "src: m measured, i interpolated, a assumed or analytic",
    )
    table.add_column(profile.by, overflow="fold")
    for title in ("FP", "BP", "share", "FLOP", "FLOP/s", "B/s", "param", "saved"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("src", no_wrap=True)
    for spot in shown:
        table.add_row(
            f"{spot.name} ({spot.operations})" if spot.operations > 1 else spot.name,
            *(f"{cost.seconds / size:.{_digits(cost.seconds / size)}f}" for cost in (spot.forward, spot.backward)),
            f"{100 * spot.seconds / total_s:.1f} %",
            *(_short(value) for value in (spot.flops, spot.flops_per_s, spot.bytes_per_s, spot.parameters)),
            _short(spot.saved_bytes),
            _source_letter(spot),
        )
    return table


def overhead_lines(overhead: Overhead) -> tuple[str, ...]:
    """What calling operations costs, in sentences."""
    parts = [f"{name} {_factor(cost)}" for name, cost in (("FP", overhead.forward), ("BP", overhead.backward))]
    lines = [f"The whole model takes, of the sum of its {overhead.operations} operations: {', '.join(parts)}."]
    if overhead.small is None or overhead.small_share is None or overhead.fixed_share is None:
        return (*lines, "Whether it is bound by small operations cannot be told from one batch size.")
    lines.append(f"{overhead.fixed_share:.0%} of FP and BP does not depend on the batch.".replace("%", " %", 1))
    verdict = "It is bound by" if overhead.is_bound_by_small_operations else "It is not bound by"
    share = f"{100 * overhead.small_share:.0f} %"
    lines.append(
        f"{verdict} many small operations: {overhead.small} of {overhead.operations} are small, with {share} of FP "
        "and BP."
    )
    return tuple(lines)


_TIMES = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


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
    return f"{100 * cost.seconds:.0f} % ({100 * cost.low:.0f} to {100 * cost.high:.0f})"


def _source_letter(spot: Spot) -> str:
    letters = dict.fromkeys(kind_of(cost.source)[:1] for cost in (spot.forward, spot.backward) if cost.seconds)
    return "".join(letters) or "a"
