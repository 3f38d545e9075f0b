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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from trimaran.base.precision import AS_ASKED, precision_words
from trimaran.base.remedies import MemoryHelp
from trimaran.base.units import format_bytes, format_seconds
from trimaran.graph.trace.types import StepTrace, TraceStorage
from trimaran.program.json_files import to_plain
from trimaran.program.memory import EXACTNESS, MemoryPlan
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
    whole_minimum_bytes: int
    kept_s: float
    keep_peak_bytes: int


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

    peak_bytes: int
    mean_bytes: int
    time_mean_bytes: int
    bare_peak_bytes: int
    bare_mean_bytes: int


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
    nbytes: int
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFigures:
    """A policy's plan and what it costs.

    Attributes:
        name: "none", "all", "conv", "dyn", "ours"
        fits: whether its peak is within the budget, and what it offloads within the room on the host
        usage: memory over the step
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

    name: str
    fits: bool
    usage: Usage
    step_time_s: float
    slowdown: float
    to_host_bytes: int
    to_device_bytes: int
    host_peak_bytes: int
    recomputed_bytes: int
    recompute_s: float
    stall_s: float
    note: str = ""
    coded_bytes: int = 0


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
    """The most samples that fit.

    Attributes:
        without_plan: as autograd alone runs it; 0: not even one
        with_plan: with a plan that costs at most `slowdown_limit`; 0: not even one
        ignoring_slowdown: with a plan, whatever it costs
        slowdown_limit: most that the plan may cost
        slowdown: what it costs at `with_plan`
    """

    without_plan: int
    with_plan: int
    ignoring_slowdown: int
    slowdown_limit: float
    slowdown: float


@dataclass(frozen=True, kw_only=True)
class LiveCurve:
    """Live bytes over the step, at each moment.

    Both curves share one axis, the time of the operations without any waiting.

    Attributes:
        seconds: duration of each moment [s]
        phases: phase of each moment, "FP", "BP" or "WU"
        kept_bytes: as autograd alone runs it [bytes]
        plan_bytes: under the plan [bytes]; empty where there is none
    """

    seconds: tuple[float, ...]
    phases: tuple[str, ...]
    kept_bytes: tuple[int, ...]
    plan_bytes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Memory of a job's step on a device, and its memory plan.

    Attributes:
        job: its name
        batch: samples of the step
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
        minimum_at: operation that needs it
        minimum_held_by: what it holds, largest first
        lower_bound_s: no plan within the budget makes the step faster [s]
        offload_lower_bound_s: the same for plans that only offload [s]
        bottleneck: of the plan, in a sentence
        policy: which of `policies` is the plan
        policies: the paper's and ours, in the order in which they are shown
        storages: what becomes of each, largest first
        curve: live bytes over the step
        largest_batch: None: it was not looked for
        split: modules that run in parts under the plan; plan, minimum memory, bounds, storages and curve are then of
            the step in parts; None: none do
        trace_s: time that tracing took here [s]
        planning_s: time that planning took here [s]
        notes: what was assumed
        remedies: changes of the job that save memory without a plan
    """

    job: str
    batch: int
    device: str
    precision: str
    precision_source: str = AS_ASKED
    source: str
    budget_bytes: int
    weight_bytes: int
    optimizer_bytes: int
    gradient_bytes: int
    parts_bytes: Mapping[str, int] = field(default_factory=dict)
    kept_s: float
    keep: Usage
    minimum_memory_bytes: int
    minimum_at: str
    minimum_held_by: tuple[Holder, ...]
    lower_bound_s: float
    offload_lower_bound_s: float
    bottleneck: str
    policy: str
    policies: tuple[PolicyFigures, ...]
    storages: tuple[StorageLine, ...]
    curve: LiveCurve
    card_bytes: int | None = None
    context_bytes: int = 0
    workspace_bytes: int = 0
    host_bytes: int | None = None
    host_source: str = ""
    codec: str = ""
    codec_ratio: float | None = None
    largest_batch: LargestBatch | None = None
    split: SplitFigures | None = None
    trace_s: float = 0.0
    planning_s: float = 0.0
    notes: tuple[str, ...] = ()
    remedies: tuple[MemoryHelp, ...] = ()

    @property
    def fits_without_plan(self) -> bool:
        """Whether the step fits without offload or recompute."""
        return self.keep.peak_bytes <= self.budget_bytes

    @property
    def plan(self) -> PolicyFigures:
        """Figures of the plan."""
        return next(line for line in self.policies if line.name == self.policy)

    @property
    def ratio_to_lower_bound(self) -> float:
        """Time of the step under the plan by its lower bound; at least 1."""
        return self.plan.step_time_s / self.lower_bound_s if self.lower_bound_s else math.inf

    @property
    def kept_bytes(self) -> int:
        """Of what a plan may move, what this one keeps [bytes]."""
        return sum(line.nbytes for line in self.storages if line.decision == "keep")


# ---------------------------------------------------------------------------------------------------------------------
# A memory estimate for programs: plain data, sizes in bytes and times in seconds


def memory_document(estimate: MemoryEstimate) -> dict[str, Any]:
    """The figures for programs; storages and curve are left to `storage_documents` and the trace file."""
    plan, batches = estimate.plan, estimate.largest_batch
    apart = {
        "batch",
        "minimum_at",
        "minimum_held_by",
        "policy",
        "policies",
        "storages",
        "curve",
        "largest_batch",
    }
    figures = {name: value for name, value in to_plain(estimate).items() if name not in apart}
    return figures | {
        "local_batch_size": estimate.batch,
        "fits": plan.fits,
        "fits_without_plan": estimate.fits_without_plan,
        "keep_peak_bytes": estimate.keep.peak_bytes,
        "keep_mean_bytes": estimate.keep.mean_bytes,
        "minimum_memory": {"at": estimate.minimum_at, "held_by": to_plain(estimate.minimum_held_by)},
        "plan": {"policy": estimate.policy, "kept_bytes": estimate.kept_bytes} | _policy_document(plan),
        "ratio_to_lower_bound": estimate.ratio_to_lower_bound,
        "policies": {line.name: _policy_document(line) for line in estimate.policies},
        "largest_batch": None if batches is None else batches.with_plan,
        "largest_batch_without_plan": None if batches is None else batches.without_plan,
        "largest_batch_ignoring_slowdown": None if batches is None else batches.ignoring_slowdown,
        "largest_batch_slowdown_limit": None if batches is None else batches.slowdown_limit,
        "largest_batch_slowdown": None if batches is None else batches.slowdown,
    }


def storage_documents(estimate: MemoryEstimate) -> list[dict[str, Any]]:
    """The decision on each storage, for programs."""
    return [to_plain(line) for line in estimate.storages]


def live_document(curve: LiveCurve) -> dict[str, Any]:
    """Live bytes over the step for programs: from `time_s` on, until the next change.

    Args:
        curve: over a step; its times are those of the operations without any waiting

    Returns:
        `time_s` [s], `kept_bytes` without and `plan_bytes` with the plan [bytes], one entry a change.
    """
    times: list[float] = []
    kept: list[int] = []
    planned: list[int] = []
    at = 0.0
    plan_bytes = curve.plan_bytes or curve.kept_bytes
    for seconds, before, under in zip(curve.seconds, curve.kept_bytes, plan_bytes, strict=True):
        if not times or (before, under) != (kept[-1], planned[-1]):
            times.append(at)
            kept.append(before)
            planned.append(under)
        at += seconds
    return {"time_s": times, "kept_bytes": kept, "plan_bytes": planned}


def _policy_document(line: PolicyFigures) -> dict[str, Any]:
    plain: dict[str, Any] = to_plain(line)
    usage: dict[str, Any] = plain.pop("usage")
    return usage | {name: value for name, value in plain.items() if name != "name"}


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


_POLICY_NAMES = {"ours": "trimaran", "none": "none", "all": "vDNN all", "conv": "vDNN conv", "dyn": "vDNN dyn"}


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
    what = f"{estimate.job} with batch {estimate.batch}"
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


def parts_table(estimate: MemoryEstimate) -> Table:
    """What the memory is needed for at the peak of the step."""
    table = frame_table(
        "What needs the memory at the peak, without a plan",
        "temporary: gradients under way, and what the running operation needs",
    )
    add_words(table, "what")
    add_figures(table, "size", "share")
    whole = sum(estimate.parts_bytes.values()) or 1
    for name, nbytes in estimate.parts_bytes.items():
        table.add_row(name, format_bytes(nbytes), f"{100 * nbytes / whole:.0f} %")
    table.add_section()
    table.add_row("peak", format_bytes(estimate.keep.peak_bytes), "100 %")
    return table


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
    table.add_row(name, *_sizes(plan.usage), format_seconds(plan.step_time_s), slower(plan.slowdown), fits)
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
        for one in estimate.minimum_held_by[:4]
    )
    lines = [
        "" if estimate.split is None else split_line(estimate.split),
        f"The minimum memory is that of {estimate.minimum_at}: {held}." if held else "",
        f"The plan keeps {format_bytes(estimate.kept_bytes)} of what it could move, offloads "
        f"{format_bytes(plan.to_host_bytes)}{_on_host(plan)} and recomputes {format_bytes(plan.recomputed_bytes)} "
        f"({format_seconds(plan.recompute_s)}); {_waiting(plan.stall_s)}.",
        codec_line(estimate),
        f"Bottleneck: {estimate.bottleneck}" if estimate.bottleneck else "",
        "" if estimate.largest_batch is None else batch_line(estimate.largest_batch),
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


def batch_line(batches: LargestBatch) -> str:
    """The most samples that fit."""
    text = f"Largest batch: {batches.without_plan} without a plan, {batches.with_plan} with a plan"
    if batches.with_plan:
        text += f" at most {100 * batches.slowdown_limit:g} % slower ({slower(batches.slowdown)} by plan)"
    return f"{text}, {batches.ignoring_slowdown} ignoring slowdown."


def policy_table(estimate: MemoryEstimate) -> Table:
    """The paper's policies and ours, one line each."""
    table = frame_table(
        "Policies",
        "mean w/o: without weights, gradients and optimizer state; slower: than without a plan\n"
        "to host: offloaded; recomp.: recomputed; vDNN: of the study of 2016; *: the plan",
    )
    add_words(table, "", "policy", no_wrap=True)
    add_figures(table, "peak", "mean", "mean w/o", "slower", "to host", "recomp.")
    add_words(table, "fits", no_wrap=True)
    for line in estimate.policies:
        table.add_row(
            "*" if line.name == estimate.policy else "",
            _POLICY_NAMES.get(line.name, line.name),
            *_sizes(line.usage),
            format_bytes(line.usage.bare_mean_bytes),
            slower(line.slowdown),
            format_bytes(line.to_host_bytes) if line.to_host_bytes else "–",
            format_bytes(line.recomputed_bytes) if line.recomputed_bytes else "–",
            "yes" if line.fits else "no",
            style="bold" if line.name == estimate.policy else None,
        )
    return table


def policy_notes(policies: Sequence[PolicyFigures]) -> list[str]:
    """Notes on policies."""
    return [f"{_POLICY_NAMES.get(line.name, line.name)}: {line.note}" for line in policies if line.note]


def storage_table(lines: Sequence[StorageLine]) -> Table:
    """The decision on each storage, and its reason."""
    table = frame_table("Storages", "made by: module, or what it is; becomes: kept, offloaded or recomputed")
    add_figures(table, "")
    table.add_column("made by", max_width=26)
    add_figures(table, "size")
    add_words(table, "becomes", no_wrap=True)
    add_words(table, "why")
    for line in lines:
        table.add_row(str(line.number), line.module or line.role, format_bytes(line.nbytes), line.decision, line.reason)
    return table


def slower(share: float) -> str:
    """A slowdown as people read it.

    Example:
        >>> slower(0.0071), slower(0.19), slower(0.0)
        ('+0.7 %', '+19 %', '+0.0 %')
    """
    return f"{100 * share:+z.{1 if abs(share) < 0.0995 else 0}f} %"


def _sizes(usage: Usage) -> tuple[str, str]:
    return format_bytes(usage.peak_bytes), format_bytes(usage.mean_bytes)


# ---------------------------------------------------------------------------------------------------------------------
# How a memory estimate looks for people


_WIDEST = 120  # columns: a wider chart is no clearer


def print_estimate(out: Console, found: MemoryEstimate, *, chart: bool = False, storages: bool = False) -> None:
    """Print the verdict, the tables, with the chart and the storages where these were asked for, and what is next."""
    out.print(f"[bold]{escape(verdict_line(found))}[/]\n")
    out.print(parts_table(found), "")
    out.print(
        f"[bold]{escape(found.job)}[/], batch {found.batch}, on {escape(found.device)}, "
        f"{precision_words(found.precision, found.precision_source)}\n"
        f"{escape(budget_line(found))}\n"
        f"{escape(host_line(found))}\n"
    )
    out.print(summary_table(found), "")
    for line in explanation_lines(found):
        out.print(escape(line))
    if chart:
        legend = chart_legend(found.curve, split=found.split is not None)
        out.print("\n[bold]Live bytes over the step[/]", f"[dim]{legend}[/]", sep="\n" if found.split else "   ")
        width = min(out.width, _WIDEST)
        out.print(escape(memory_chart(found.curve, budget_bytes=found.budget_bytes, width=width)), soft_wrap=True)
    out.print("", policy_table(found))
    for note in policy_notes(found.policies):
        out.print(f"[dim]{escape(note)}[/]")
    if storages:
        out.print("", storage_table(found.storages))
    for note in found.notes:
        out.print(f"[yellow]note:[/] {escape(note)}")
    out.print(
        f"\n[dim]Times are {escape(found.source)}. Traced in {format_seconds(found.trace_s)}, "
        f"planned in {format_seconds(found.planning_s)}.[/]"
    )
