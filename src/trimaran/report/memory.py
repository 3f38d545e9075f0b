"""Memory of a step without a plan, at its minimum, and under plans: the figures, before any run.

Every size is of live bytes: what tensors hold, not what an allocator has set aside around them. Peak and mean are given
with and without weights (parameters, buffers, gradients and the optimizer's state), as figures of others leave those
out. A mean is over the operations of forward and backward, each counted once, as the vDNN paper counts layers; there is
also the mean over time. The slowdown of a plan is against the same step with unlimited memory. Where the plan runs
modules in parts of the batch, it is against the whole step, and only plan, minimum memory and lower bound are of the
step in parts.

Times are modelled; what a figure rests on is in `source`.

Live bytes over a step as text, readable at 80 columns and without colour.

    19.1 GiB ┤                  ··
             │              ····  ····
    11.6 GiB ┤──────────███████████████──────────
             │     ██████████████████████
             │██████████████████████████████████
         0 B ┼────────────────────────────────────
              forward       │ backward       │ update

A column stands for a share of the time of the step and shows the most that lives within it, so no peak is lost. Filled:
under the plan. Dots: what autograd alone would hold above that. The budget has a separate line.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import ClassVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from trimaran.base.decoding import Count, Positive, Real
from trimaran.base.html import DataTable
from trimaran.base.precision import AS_ASKED, precision_words
from trimaran.base.remedies import MemoryHelp
from trimaran.base.units import format_bytes, format_seconds
from trimaran.graph.trace.types import StepTrace, TraceStorage
from trimaran.machine.catalog import catalog
from trimaran.program.memory import EXACTNESS, MemoryPlan
from trimaran.report.page.charts import (
    SERIES_COLOURS,
    Bar,
    ChartAxis,
    LimitLine,
    Series,
    bar_chart,
    curve_chart,
    time_unit,
)
from trimaran.report.page.layout import Absent, Chart, Page, Section, Words, those_known
from trimaran.report.page.terminal import section_view
from trimaran.report.rehearsal import helps_section
from trimaran.report.tables import add_figures, add_words, frame_table

# ---------------------------------------------------------------------------------------------------------------------
# The figures of a step some of whose modules run on a part of the batch at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFigures:
    """Modules that run on a part of the batch at a time, and the split step without offload or recompute.

    Attributes:
        name: which modules in how many parts, for people
        written: the same as the command takes it
        whole_minimum_bytes: minimum memory of the step that is not split [bytes]
        kept_s: the split step with unlimited memory [s]
        keep_peak_bytes: peak of the split step as autograd alone runs it [bytes]
    """

    name: str
    written: str
    whole_minimum_bytes: Count
    kept_s: Positive
    keep_peak_bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Memory over a step.

    Attributes:
        peak_bytes: most at once [bytes]
        mean_bytes: mean over the operations of forward and backward [bytes]
        time_mean_bytes: mean over the time of the step [bytes]
        bare_peak_bytes: most at once, weights left out [bytes]
        bare_mean_bytes: mean, weights left out [bytes]
    """

    peak_bytes: Count
    mean_bytes: Count
    time_mean_bytes: Count
    bare_peak_bytes: Count
    bare_mean_bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A part of the minimum memory.

    Attributes:
        name: of a module or a weight; "" where unknown
        role: what it is to the step
        nbytes: of it [bytes]
        count: storages that were taken together
    """

    name: str
    role: str
    nbytes: Count
    count: Count = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastMemory:
    """The operation that needs the minimum memory.

    Attributes:
        at: where it is
        held_by: what it holds, largest first
    """

    at: str
    held_by: tuple[Holder, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFigures(Usage):
    """A policy's plan, its memory over the step, and what it costs.

    Attributes:
        fits: whether its peak is within the budget, and what it offloads within the room on the host
        step_time_s: of the step under the plan [s]
        slowdown: against the whole step with unlimited memory; 0.02 is 2 % slower
        to_host_bytes: offloaded [bytes]
        to_device_bytes: brought back [bytes]
        host_peak_bytes: most that lies on the host at once [bytes]
        coded_bytes: of what is offloaded, what is coded for its copies [bytes]
        recomputed_bytes: recomputed [bytes]
        recompute_s: time of recomputing them [s]
        stall_s: time for which operations wait for copies [s]
        note: what else there is to say; "" for nothing
    """

    fits: bool
    step_time_s: Positive
    slowdown: Real
    to_host_bytes: Count
    to_device_bytes: Count
    host_peak_bytes: Count
    recomputed_bytes: Count
    recompute_s: Positive
    stall_s: Positive
    note: str = ""
    coded_bytes: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageLine:
    """The decision on one storage, and its reason.

    Attributes:
        number: in the trace
        module: that made it
        nbytes: of it [bytes]
        role: what it is to the step
        decision: "keep", "offload" or "recompute"
        reason: in a few words
    """

    number: int
    module: str
    nbytes: int
    role: str
    decision: str
    reason: str


def storage_lines(trace: StepTrace, plan: MemoryPlan) -> tuple[StorageLine, ...]:
    """The decision on each storage that a plan may move, largest first."""
    ordered = sorted(trace.movable, key=lambda storage: (-storage.nbytes, storage.number))
    return tuple(
        StorageLine(
            number=storage.number,
            module=storage.module,
            nbytes=storage.nbytes,
            role=str(storage.role),
            decision=str(plan.of(storage.number)),
            reason=_reason(plan, storage),
        )
        for storage in ordered
    )


def _reason(plan: MemoryPlan, storage: TraceStorage) -> str:
    """Why, without the size, which is in another column."""
    given = plan.reasons.get(storage.number, "" if storage.number in plan.decisions else "it fits")
    return given.removeprefix(f"{format_bytes(storage.nbytes)}: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestBatch:
    """The most samples that fit; None: it was not looked for.

    Attributes:
        largest_batch: with a plan that costs at most `largest_batch_slowdown_limit`; 0: not even one
        largest_batch_without_plan: as autograd alone runs it; 0: not even one
        largest_batch_ignoring_slowdown: with a plan, whatever it costs
        largest_batch_slowdown_limit: most that the plan may cost
        largest_batch_slowdown: what it costs
    """

    largest_batch: Count | None = None
    largest_batch_without_plan: Count | None = None
    largest_batch_ignoring_slowdown: Count | None = None
    largest_batch_slowdown_limit: Positive | None = None
    largest_batch_slowdown: Real | None = None


@dataclass(frozen=True, kw_only=True)
class LiveCurve:
    """Live bytes over the step, from one change to the next.

    Both curves share one axis, the time of the operations without any waiting.

    Attributes:
        seconds: duration of each [s]
        phases: phase of each, "FP", "BP" or "WU"
        kept_bytes: as autograd alone runs it [bytes]
        plan_bytes: under the plan [bytes]; empty where there is none
    """

    derived: ClassVar = ("time_s",)
    seconds: tuple[Positive, ...]
    phases: tuple[str, ...]
    kept_bytes: tuple[Count, ...]
    plan_bytes: tuple[Count, ...]

    @property
    def time_s(self) -> list[float]:
        """When each begins [s]."""
        return [0.0, *accumulate(self.seconds)][:-1]


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate(LargestBatch):
    """Memory of a job's step on a device, and its memory plan.

    Attributes:
        job: its name
        local_batch_size: samples of the step
        device: as its vendor calls it
        precision: how products are computed
        precision_source: who chose that
        source: what the times rest on
        card_bytes: memory of the card that the budget stands for [bytes]; None: the budget is a share of the keep-peak
        context_bytes: what comes off that for the context [bytes]
        workspace_bytes: of the library of products; a card's budget is without it, and so are all figures [bytes]
        host_bytes: room on the host for what is offloaded [bytes]; None: no limit is known
        host_source: where that comes from
        codec: by which copies may be coded; "": by none
        codec_ratio: how many times fewer bytes it is taken to leave; None: there is none
        budget_bytes: what the step may use [bytes]
        weight_bytes: parameters and buffers [bytes]
        optimizer_bytes: state of the optimizer [bytes]
        gradient_bytes: gradients of the parameters [bytes]
        parts_bytes: what lives at the peak of the whole step without a plan, by what it is [bytes]
        kept_s: the whole step with unlimited memory [s]
        keep: memory of that step
        minimum_memory_bytes: no plan of whole operations needs less [bytes]
        minimum_memory: what needs it
        lower_bound_s: no plan within the budget makes the step faster [s]
        offload_lower_bound_s: the same for plans that only offload [s]
        bottleneck: of the plan, in a sentence
        policy: which of `policies` is the plan
        policies: the paper's ("none", "all", "conv", "dyn") and "ours", in the order in which they are shown
        kept_bytes: of what a plan may move, what this one keeps [bytes]
        storages: what becomes of each, largest first
        live_bytes: over the step; None: a document that was not asked for it
        split: modules that run in parts under the plan; plan, minimum memory, bounds, storages and curve are then of
            the step in parts; None: none do
        trace_s: time that tracing took here [s]
        planning_s: time that planning took here [s]
        notes: what was assumed
        remedies: changes of the job that save memory without a plan
    """

    derived: ClassVar = (
        *("fits", "fits_without_plan", "keep_peak_bytes", "keep_mean_bytes"),
        *("plan", "ratio_to_lower_bound"),
    )
    job: str
    local_batch_size: Count
    device: str
    precision: str
    precision_source: str = AS_ASKED
    source: str
    budget_bytes: Count
    weight_bytes: Count
    optimizer_bytes: Count
    gradient_bytes: Count
    parts_bytes: Mapping[str, Count] = field(default_factory=dict)
    kept_s: Positive
    keep: Usage
    minimum_memory_bytes: Count
    minimum_memory: LeastMemory
    lower_bound_s: Positive
    offload_lower_bound_s: Positive
    bottleneck: str
    policy: str = "ours"
    policies: Mapping[str, PolicyFigures]
    kept_bytes: Count = 0
    storages: tuple[StorageLine, ...] = ()
    live_bytes: LiveCurve | None = None
    card_bytes: Count | None = None
    context_bytes: Count = 0
    workspace_bytes: Count = 0
    host_bytes: Count | None = None
    host_source: str = ""
    codec: str = ""
    codec_ratio: Positive | None = None
    split: SplitFigures | None = None
    trace_s: Positive = 0.0
    planning_s: Positive = 0.0
    notes: tuple[str, ...] = ()
    remedies: tuple[MemoryHelp, ...] = ()

    def __post_init__(self) -> None:
        if self.policy not in self.policies:
            raise ValueError(f"policies have no {self.policy!r}")

    @property
    def fits(self) -> bool:
        """Whether the step fits with the plan."""
        return self.plan.fits

    @property
    def keep_peak_bytes(self) -> int:
        """Most at once without a plan [bytes]."""
        return self.keep.peak_bytes

    @property
    def keep_mean_bytes(self) -> int:
        """Mean over the operations without a plan [bytes]."""
        return self.keep.mean_bytes

    @property
    def fits_without_plan(self) -> bool:
        """Whether the step fits without offload or recompute."""
        return self.keep.peak_bytes <= self.budget_bytes

    @property
    def plan(self) -> PolicyFigures:
        """Figures of the plan."""
        return self.policies[self.policy]

    @property
    def ratio_to_lower_bound(self) -> float:
        """Time of the step under the plan by its lower bound; at least 1."""
        return self.plan.step_time_s / self.lower_bound_s if self.lower_bound_s else math.inf


# ---------------------------------------------------------------------------------------------------------------------
# Live bytes over a step as text


_EIGHTHS = " ▁▂▃▄▅▆▇█"
_PHASE_NAMES = {"FP": "forward", "BP": "backward", "WU": "update"}
_LABEL = 10  # columns for a size such as "1023.9 GiB"


def memory_chart(curve: LiveCurve, *, budget_bytes: int, width: int = 80, height: int = 12) -> str:
    """The curve as lines of text, none longer than `width`.

    Args:
        curve: live bytes over the step
        budget_bytes: where the line goes [bytes]
        width: of the whole chart [columns]
        height: of the plot [lines]

    Example:
        >>> curve = LiveCurve(seconds=(1.0, 1.0), phases=("FP", "BP"), kept_bytes=(4, 8), plan_bytes=(4, 4))
        >>> print(memory_chart(curve, budget_bytes=6, width=20, height=4))
               8 B ┤    ····
               6 B ┤────····
                   │████████
                   │████████
               0 B ┼────────
                    forw│bac
    """
    columns = max(2, width - _LABEL - 2)
    kept = _columns(curve.kept_bytes, curve.seconds, columns)
    plan = _columns(curve.plan_bytes or curve.kept_bytes, curve.seconds, columns)
    top = max(*kept, *plan, budget_bytes, 1)
    # Rows are such that the budget ends one: what is within it never reaches above its line.
    line = max(1, int(budget_bytes / top * height))
    size = max(budget_bytes / line, top / height)
    rows = [_row(kept, plan, size=size, level=level, line=level == line) for level in range(height, 0, -1)]
    labels = {height: format_bytes(size * height), line: format_bytes(budget_bytes)}
    text = []
    for level, row in zip(range(height, 0, -1), rows, strict=True):
        text.append(f"{labels.get(level, ''):>{_LABEL}} {'┤' if level in labels else '│'}{row}")
    text.append(f"{format_bytes(0):>{_LABEL}} ┼{'─' * columns}")
    text.append(" " * (_LABEL + 2) + _phases(curve, columns))
    return "\n".join(row.rstrip() for row in text)


def chart_legend(curve: LiveCurve, *, split: bool = False) -> str:
    """The legend of the chart.

    Args:
        curve: that is drawn
        split: whether it is of a step with modules in parts
    """
    if not curve.plan_bytes:
        return "█ live bytes   ─ budget"
    return f"█ under the plan   · without a plan{', in parts' if split else ''}   ─ budget"


def _row(kept: Sequence[float], plan: Sequence[float], *, size: float, level: int, line: bool) -> str:
    """One line of the plot; it stands for what lies between `level - 1` and `level` times its size."""
    signs = []
    for before, now in zip(kept, plan, strict=True):
        share = now / size - (level - 1)
        filled = _EIGHTHS[min(8, max(0, round(share * 8)))]
        above = before / size - (level - 1) > 0.5
        signs.append(filled if filled != " " else "·" if above else "─" if line else " ")
    return "".join(signs)


def _columns(values: Sequence[int], seconds: Sequence[float], columns: int) -> list[float]:
    """The largest value within each column of time; moments without a duration count where they happen."""
    total = sum(seconds) or float(len(seconds)) or 1.0
    even = not sum(seconds)
    largest = [0.0] * columns
    clock = 0.0
    for value, duration in zip(values, seconds, strict=True):
        first = min(columns - 1, int(clock / total * columns + 1e-9))
        clock += 1.0 if even else duration
        last = min(columns - 1, max(first, int(clock / total * columns - 1e-9)))
        for column in range(first, last + 1):
            largest[column] = max(largest[column], value)
    return largest


def _phases(curve: LiveCurve, columns: int) -> str:
    """Names of the phases below the plot, cut off where there is no room."""
    total = sum(curve.seconds)
    text, clock, start = "", 0.0, 0
    ends: list[tuple[str, int]] = []
    for place, (phase, duration) in enumerate(zip(curve.phases, curve.seconds, strict=True)):
        clock += duration
        if place + 1 == len(curve.phases) or curve.phases[place + 1] != phase:
            ends.append((phase, round(clock / total * columns) if total else columns))
    for number, (phase, end) in enumerate(ends):
        mark = "│" if number else ""
        room = end - start
        text += f"{mark}{_PHASE_NAMES.get(phase, phase)}"[:room].ljust(room)
        start = max(start, end)
    return text


# ---------------------------------------------------------------------------------------------------------------------
# A memory estimate for people: lines and tables, readable at 80 columns and without colour


POLICY_NAMES = {"ours": "trimaran", "none": "none", "all": "vDNN all", "conv": "vDNN conv", "dyn": "vDNN dyn"}


def budget_line(estimate: MemoryEstimate) -> str:
    """Where the budget comes from."""
    budget = format_bytes(estimate.budget_bytes)
    workspace = f"{format_bytes(estimate.workspace_bytes)} of workspace for matrix products"
    if estimate.card_bytes is None:
        peak_bytes = estimate.keep.peak_bytes
        share = estimate.budget_bytes / peak_bytes if peak_bytes else 0.0
        besides = f"; besides, {workspace}" if estimate.workspace_bytes else ""
        return f"budget {budget}, {100 * share:.0f} % of what autograd alone needs{besides}"
    context = format_bytes(estimate.context_bytes)
    less = f" and {workspace}" if estimate.workspace_bytes else ""
    return f"budget {budget}: a card of {format_bytes(estimate.card_bytes)} less {context} for its context{less}"


def host_line(estimate: MemoryEstimate) -> str:
    """Room on the host, where it comes from, and where it is why more is recomputed or a policy does not fit."""
    if estimate.host_bytes is None:
        return "host: no limit is known on what may be offloaded"
    return f"host {format_bytes(estimate.host_bytes)} for what is offloaded: {estimate.host_source}"


def verdict_line(estimate: MemoryEstimate) -> str:
    """Whether the step fits, and how."""
    plan, peak = estimate.plan, format_bytes(estimate.keep.peak_bytes)
    what = f"{estimate.job} with batch {estimate.local_batch_size:,}"
    budget = f"the {format_bytes(estimate.budget_bytes)} of {estimate.device}"
    if estimate.fits_without_plan:
        return f"{what} fits {budget}: it needs {peak}."
    if plan.fits:
        return (
            f"{what} fits {budget} only {_means(estimate)}, {slower(plan.slowdown)} a step: without a plan it needs "
            f"{peak}."
        )
    return f"{what} does not fit {budget} by the plan shown: without one it needs {peak}."


def _means(estimate: MemoryEstimate) -> str:
    """What the plan does to fit."""
    if estimate.split is None:
        return "with offload and recompute"
    return f"with {estimate.split.name}, offload and recompute"


def summary_table(estimate: MemoryEstimate) -> Table:
    """Peak, mean and time: without a plan, under the plan, the lower bound of its time, the minimum memory."""
    table = frame_table(
        "",
        "mean: over the step; slower: than without a plan; lower bound: of the step time of any plan in this memory\n"
        "minimum memory: of any plan, however slow",
    )
    split = estimate.split
    table.add_column("", no_wrap=split is None)
    add_figures(table, "peak", "mean", "step", "slower")
    add_words(table, "", no_wrap=True)
    plan = estimate.plan
    keep = "fits as it is" if estimate.fits_without_plan else "does not fit"
    table.add_row("without a plan", *_sizes(estimate.keep), format_seconds(estimate.kept_s), "", keep)
    for one in estimate.remedies:
        step_s = one.step_time_s or estimate.kept_s
        share, fits = step_s / estimate.kept_s - 1 if estimate.kept_s else 0.0, "fits" if one.fits else "does not fit"
        table.add_row(
            one.name,
            format_bytes(one.reserved_bytes),
            "",
            format_seconds(step_s),
            slower(share),
            f"{fits} without a plan",
        )
    fits = f"{estimate.ratio_to_lower_bound:.3f} × lower bound" if plan.fits else "does not fit"
    name = Text("the plan" if split is None else f"the plan, {split.name}")
    table.add_row(name, *_sizes(plan), format_seconds(plan.step_time_s), slower(plan.slowdown), fits)
    bound_s = estimate.lower_bound_s
    share = max(0.0, bound_s / estimate.kept_s - 1) if estimate.kept_s else 0.0
    parts = "" if split is None else ", in parts"
    table.add_row(f"lower bound{parts}", "", "", format_seconds(bound_s), slower(share), "no plan is faster")
    minimum = format_bytes(estimate.minimum_memory_bytes)
    table.add_row(f"minimum memory{parts}", minimum, "", "", "", "no plan needs less")
    if split is not None:
        whole = format_bytes(split.whole_minimum_bytes)
        table.add_row("minimum memory, whole", whole, "", "", "", "without the split")
    return table


def explanation_lines(estimate: MemoryEstimate) -> list[str]:
    """Sentences on the minimum memory, the plan, its bottleneck, and the batches that fit."""
    plan = estimate.plan
    held = ", ".join(
        f"{format_bytes(one.nbytes)} {f'{one.count} × ' if one.count > 1 else ''}{one.name or one.role}"
        for one in estimate.minimum_memory.held_by[:4]
    )
    lines = [
        "" if estimate.split is None else split_line(estimate.split),
        f"The minimum memory is that of {estimate.minimum_memory.at}: {held}." if held else "",
        f"The plan keeps {format_bytes(estimate.kept_bytes)} of what it could move, offloads "
        f"{format_bytes(plan.to_host_bytes)}{_on_host(plan)} and recomputes {format_bytes(plan.recomputed_bytes)} "
        f"({format_seconds(plan.recompute_s)}); {_waiting(plan.stall_s)}.",
        codec_line(estimate),
        f"Bottleneck: {estimate.bottleneck}" if estimate.bottleneck else "",
        "" if estimate.largest_batch is None else batch_line(estimate),
        *(f"{one.name.capitalize()}: {one.action[0].lower()}{one.action[1:]} {one.basis}" for one in estimate.remedies),
    ]
    return [line for line in lines if line]


def codec_line(estimate: MemoryEstimate) -> str:
    """What the codec does that was asked for; empty where none was."""
    if not estimate.codec:
        return ""
    how = f"taken to leave {1 / (estimate.codec_ratio or 1.0):.0%} of the bytes"
    coded = estimate.plan.coded_bytes
    done = (
        f"codes {format_bytes(coded)} of what is offloaded" if coded else "codes nothing: plain copies are not slower"
    )
    return f"Codec {estimate.codec} ({EXACTNESS[estimate.codec]}; {how}) {done}."


def _on_host(plan: PolicyFigures) -> str:
    """How much of it lies on the host at once, where that is not all of it."""
    most = format_bytes(plan.host_peak_bytes)
    return f" (at most {most} at once)" if most != format_bytes(plan.to_host_bytes) else ""


def split_line(split: SplitFigures) -> str:
    """A sentence on a split, and on the figures that are of it."""
    return (
        f"Split: {split.name}; the plan, its minimum memory and its lower bound are of the step in parts, all else is "
        f"of the whole step. In parts without a plan it would need {format_bytes(split.keep_peak_bytes)} and "
        f"{format_seconds(split.kept_s)}."
    )


def _waiting(seconds: float) -> str:
    return f"operations wait {format_seconds(seconds)} for copies" if seconds else "operations never wait for copies"


def batch_line(found: LargestBatch) -> str:
    """The most samples that fit."""
    text = f"Largest batch: {found.largest_batch_without_plan} without a plan, {found.largest_batch} with a plan"
    if found.largest_batch and found.largest_batch_slowdown_limit is not None:
        by_plan = slower(found.largest_batch_slowdown or 0.0)
        text += f" at most {100 * found.largest_batch_slowdown_limit:g} % slower ({by_plan} by plan)"
    return f"{text}, {found.largest_batch_ignoring_slowdown} ignoring slowdown."


def slower(share: float) -> str:
    """A slowdown as people read it.

    Example:
        >>> slower(0.0071), slower(0.19), slower(0.0)
        ('+0.7 %', '+19 %', '+0.0 %')
    """
    return f"{100 * share:+z.{1 if abs(share) < 0.0995 else 0}f} %"


def _sizes(usage: Usage) -> tuple[str, str]:
    return format_bytes(usage.peak_bytes), format_bytes(usage.mean_bytes)


def memory_page(found: MemoryEstimate, _: Sequence[object] = (), asked: str = "") -> Page:
    """Memory over time, the policies, what would help, and what the memory is needed for.

    Args:
        found: the answer
        asked: command that asked; "": not known
    """
    live = _live_section(found)
    device = next((name for name, one in catalog().items() if one.title == found.device), "NAME")
    command = f"trimaran memory {shlex.quote(found.job)} --device {device} --local-batch {found.local_batch_size}"
    command = asked or command + ("" if live is None else " --chart")
    return Page(
        kind="Memory of a step",
        title=f"{found.job} on {found.device}",
        verdict=verdict_line(found),
        facts=[
            ("budget", format_bytes(found.budget_bytes)),
            ("minimum memory", format_bytes(found.minimum_memory_bytes)),
            ("without a plan", format_bytes(found.keep_peak_bytes)),
        ]
        + ([("largest batch with a plan", f"{found.largest_batch:,}")] if found.largest_batch is not None else []),
        sections=those_known(
            live,
            _policies_section(found),
            helps_section(found.remedies),
            _purposes_section(found),
            _storages_section(found.storages),
        ),
        absent=[]
        if live is not None
        else [Absent(title="Memory over time", how=f"{command} --chart --json writes it, too")],
        command=f"{command} --json",
        environment={"times": found.source, "precision": found.precision, "bottleneck": found.bottleneck},
    )


def _live_section(found: MemoryEstimate) -> Section | None:
    live = found.live_bytes
    if live is None or not live.seconds or len({len(live.seconds), len(live.kept_bytes)}) > 1:
        return None
    times, planned = live.time_s, live.plan_bytes if len(live.plan_bytes) == len(live.seconds) else live.kept_bytes
    unit, size = time_unit(times[-1])
    series = [
        Series(
            name=name,
            points=[(at / size, count / 2**30) for at, count in zip(times, counts, strict=True)],
            colour=colour,
            dots=False,
            steps=True,
            dashed=dashed,
        )
        for name, counts, colour, dashed in (
            ("nothing offloaded or recomputed", live.kept_bytes, SERIES_COLOURS[5], True),
            ("under the plan", planned, SERIES_COLOURS[0], False),
        )
    ]
    svg = curve_chart(
        "Memory over a step",
        series,
        ChartAxis(title=f"time in the step, waits left out [{unit}]", zero=True),
        ChartAxis(title="live memory [GiB]", zero=True),
        limits=[LimitLine(name=f"budget {format_bytes(found.budget_bytes)}", at=found.budget_bytes / 2**30)],
    )
    every = max(1, len(times) // 200)
    table = DataTable(
        columns=("time", "without a plan", "under the plan"),
        rows=[
            (format_seconds(at), format_bytes(kept), format_bytes(under))
            for at, kept, under in list(zip(times, live.kept_bytes, planned, strict=True))[::every]
        ],
        words=frozenset(),
        left_out="" if every == 1 else f"One of {every} moments.",
    )
    return Section(id="memory", title="Memory over time", content=[Chart(svg=svg, table=table)])


def _policies_section(found: MemoryEstimate) -> Section:
    known = list(found.policies.items())
    places = {
        True: ("fits", SERIES_COLOURS[0], False),
        False: ("does not fit", SERIES_COLOURS[1], True),
    }
    series = [
        Series(
            name=name,
            points=[(one.step_time_s, one.peak_bytes / 2**30) for _, one in known if one.fits == fits],
            says=[POLICY_NAMES.get(key, key) for key, one in known if one.fits == fits],
            labels=[POLICY_NAMES.get(key, key) for key, one in known if one.fits == fits],
            colour=colour,
            hollow=hollow,
            line=False,
            size=6.0,
        )
        for fits, (name, colour, hollow) in places.items()
    ]
    svg = curve_chart(
        "Policies by step time and memory",
        series,
        ChartAxis(title="time of a step [s]"),
        ChartAxis(title="memory at the peak [GiB]", zero=True),
        limits=[
            LimitLine(name=f"budget {format_bytes(found.budget_bytes)}", at=found.budget_bytes / 2**30),
            LimitLine(
                name=f"minimum {format_bytes(found.minimum_memory_bytes)}",
                at=found.minimum_memory_bytes / 2**30,
                colour="var(--soft)",
            ),
        ],
    )
    sizes = ((key, one, format_bytes(one.to_host_bytes), format_bytes(one.recomputed_bytes)) for key, one in known)
    table = DataTable(
        columns=("", "policy", "peak", "mean", "mean w/o", "slower", "to host", "recomp.", "fits"),
        rows=[
            (
                "*" if key == found.policy else "",
                POLICY_NAMES.get(key, key),
                *_sizes(one),
                format_bytes(one.bare_mean_bytes),
                slower(one.slowdown),
                to_host if one.to_host_bytes else "–",
                again if one.recomputed_bytes else "–",
                "yes" if one.fits else "no",
            )
            for key, one, to_host, again in sizes
        ],
        words=frozenset({0, 1, 8}),
    )
    caption = (
        "mean w/o: without weights, gradients and optimizer state; slower: than without a plan; "
        "to host: offloaded; recomp.: recomputed; vDNN: of the study of 2016; *: the plan"
    )
    notes = [f"{POLICY_NAMES.get(key, key)}: {one.note}" for key, one in known if one.note]
    content: list[Chart | Words] = [Chart(svg=svg, table=table, caption=caption, is_open=True)]
    if notes:
        content.append(Words(lines=notes))
    return Section(id="policies", title="Policies", content=content)


def _purposes_section(found: MemoryEstimate) -> Section:
    whole = found.keep_peak_bytes
    parts = [(*one, SERIES_COLOURS[n % len(SERIES_COLOURS)]) for n, one in enumerate(found.parts_bytes.items())]
    svg = bar_chart(
        "Memory at the peak by purpose",
        [Bar(name="without a plan", parts=[count / 2**30 for _, count, _ in parts], note=f"{whole / 2**30:.3g}")],
        [(name, colour) for name, _, colour in parts],
        ChartAxis(title="memory at the peak [GiB]"),
        limit=LimitLine(name=f"budget {format_bytes(found.budget_bytes)}", at=found.budget_bytes / 2**30),
    )
    rows = [(name, format_bytes(count), f"{100 * count / (whole or 1):.0f} %") for name, count, _ in parts]
    table = DataTable(columns=("what", "size", "share"), rows=[*rows, ("peak", format_bytes(whole), "100 %")], sums=1)
    caption = "temporary: gradients under way, and what the running operation needs"
    title = "What needs the memory at the peak, without a plan"
    return Section(id="purposes", title=title, content=[Chart(svg=svg, table=table, caption=caption)])


def _storages_section(lines: Sequence[StorageLine]) -> Section | None:
    """The decision on each storage, and its reason."""
    if not lines:
        return None
    table = DataTable(
        columns=("", "made by", "size", "becomes", "why"),
        rows=[
            (str(one.number), one.module or one.role, format_bytes(one.nbytes), one.decision, one.reason)
            for one in lines
        ],
        words=frozenset({1, 3, 4}),
        caption="made by: module, or what it is; becomes: kept, offloaded or recomputed",
    )
    return Section(id="storages", title="Storages", content=[table], is_wide=True)


# ---------------------------------------------------------------------------------------------------------------------
# How a memory estimate looks in a terminal


_WIDEST = 120  # columns: a wider chart is no clearer


def print_estimate(out: Console, found: MemoryEstimate, *, chart: bool = False, storages: bool = False) -> None:
    """Print the verdict, the tables, with the chart and the storages where these were asked for, and what is next."""
    out.print(f"[bold]{escape(verdict_line(found))}[/]\n")
    out.print(*section_view(_purposes_section(found)), "")
    out.print(
        f"[bold]{escape(found.job)}[/], batch {found.local_batch_size:,}, on {escape(found.device)}, "
        f"{precision_words(found.precision, found.precision_source)}\n"
        f"{escape(budget_line(found))}\n"
        f"{escape(host_line(found))}\n"
    )
    out.print(summary_table(found), "")
    for line in explanation_lines(found):
        out.print(escape(line))
    if chart and found.live_bytes is not None:
        legend = chart_legend(found.live_bytes, split=found.split is not None)
        out.print("\n[bold]Live bytes over the step[/]", f"[dim]{legend}[/]", sep="\n" if found.split else "   ")
        width = min(out.width, _WIDEST)
        out.print(escape(memory_chart(found.live_bytes, budget_bytes=found.budget_bytes, width=width)), soft_wrap=True)
    out.print("", *section_view(_policies_section(found)))
    for section in those_known(_storages_section(found.storages)) if storages else ():
        out.print("", *section_view(section))
    for note in found.notes:
        out.print(f"[yellow]note:[/] {escape(note)}")
    out.print(
        f"\n[dim]Times are {escape(found.source)}. Traced in {format_seconds(found.trace_s)}, "
        f"planned in {format_seconds(found.planning_s)}.[/]"
    )
