"""The report of a loop under `virtual_memory`, as figures and as text of 80 columns."""

import textwrap
from dataclasses import dataclass

from trimaran.base.units import format_bytes, format_seconds
from trimaran.report.memory import StorageLine

_PHASES = {
    "record": "the next is recorded",
    "verify": "the next compares recipes",
    "run": "the next runs as planned",
    "keep": "all fits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """A loop under a memory budget, so far. What is not known yet is None.

    Peaks and the minimum memory are those of the step that needs most, and count all that it holds on the device.

    Attributes:
        phase: what the next step is for: "record", "verify", "run" or "keep"
        device: "cpu" or "cuda"
        budget_bytes: what a step may hold at once [bytes]
        keep_peak_bytes: peak without a plan [bytes]
        minimum_memory_bytes: least that any plan can reach [bytes]
        predicted_peak_bytes: of the plan [bytes]
        measured_peak_bytes: largest of the steps since plans were made last: allocated on a GPU, accounted on a CPU
            [bytes]
        steps: ended so far
        recorded_steps: of these, how many were recorded
        fallback_steps: of these, how many did not go as planned and moved storages on demand
        plans: plans in use; each look of a batch has one
        state_host_bytes: state of optimizers that lives on the host [bytes]
        step_time_s: median of the steps that ran as planned [s]
        keep_time_s: sum of the operations of a step, as measured while recording [s]
        planned_time_s: of the step under the plan, simulated [s]; None too where steps are faster than that allows
        lower_bound_s: no plan within the budget makes the step faster [s]; None too where steps are faster: operations
            ran slower while they were recorded
        ratio_to_lower_bound: planned time over lower bound
        stall_s: the host's waiting for copies in the last step [s]; None on a GPU, whose streams wait
        to_host_bytes: copied to the host in that step [bytes]
        to_device_bytes: copied back in that step [bytes]
        codec: by which copies may be coded; "": by none
        coding_ratio: how many times fewer bytes were copied of what was coded, in all steps; None: nothing was coded
        decisions: storages that are not kept, largest first
        notes: what a person should know
    """

    phase: str
    device: str
    budget_bytes: int | None = None
    keep_peak_bytes: int | None = None
    minimum_memory_bytes: int | None = None
    predicted_peak_bytes: int | None = None
    measured_peak_bytes: int | None = None
    steps: int = 0
    recorded_steps: int = 0
    fallback_steps: int = 0
    plans: int = 0
    state_host_bytes: int = 0
    step_time_s: float | None = None
    keep_time_s: float | None = None
    planned_time_s: float | None = None
    lower_bound_s: float | None = None
    ratio_to_lower_bound: float | None = None
    stall_s: float | None = 0.0
    to_host_bytes: int = 0
    to_device_bytes: int = 0
    codec: str = ""
    coding_ratio: float | None = None
    decisions: tuple[StorageLine, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool | None:
        """Whether the step fits without a plan; None before a step was recorded."""
        if self.keep_peak_bytes is None or self.budget_bytes is None:
            return None
        return self.keep_peak_bytes <= self.budget_bytes

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(report: MemoryReport) -> list[str]:
    lines = [f"virtual memory on {report.device}: {_state(report)}"]
    for name, size, note in (
        ("budget", report.budget_bytes, ""),
        ("peak without plan", report.keep_peak_bytes, ""),
        ("minimum memory", report.minimum_memory_bytes, "no plan needs less"),
        ("peak, predicted", report.predicted_peak_bytes, ""),
        ("peak, measured", report.measured_peak_bytes, _measured(report.device)),
    ):
        if size is not None:
            lines.append(f"  {name:<18} {format_bytes(size):>10}  {note}".rstrip())
    for name, seconds, note in (
        ("operations", report.keep_time_s, "of a step, while it was recorded"),
        ("step, lower bound", report.lower_bound_s, "no plan is faster in this budget"),
        ("step, planned", report.planned_time_s, _ratio(report.ratio_to_lower_bound)),
        ("step, measured", report.step_time_s, "median, with all that the loop does"),
        ("stalls", report.stall_s, "waiting for copies"),
    ):
        if seconds is not None:
            lines.append(f"  {name:<18} {format_seconds(seconds):>10}  {note}".rstrip())
        elif name == "stalls":
            lines.append(f"  {name:<18} {'–':>10}  the streams of the GPU wait, not the host")
    lines.append(f"  {'to the host':<18} {format_bytes(report.to_host_bytes):>10}  a step")
    lines.append(f"  {'back':<18} {format_bytes(report.to_device_bytes):>10}  a step")
    if report.codec:
        done = "nothing was coded" if report.coding_ratio is None else f"{report.coding_ratio:.2f} x fewer bytes"
        lines.append(f"  {'codec':<18} {report.codec:>10}  {done}")
    if report.state_host_bytes:
        lines.append(f"  {'optimizer state':<18} {format_bytes(report.state_host_bytes):>10}  on the host")
    lines.extend(_decisions(report))
    for note in report.notes:
        lines.extend(textwrap.wrap(note, width=80, initial_indent="  ", subsequent_indent="  "))
    return lines


def _state(report: MemoryReport) -> str:
    steps = f"{report.steps} step{'' if report.steps == 1 else 's'}"
    recorded = f", {report.recorded_steps} recorded" if report.recorded_steps else ""
    fallen = f", {report.fallback_steps} on demand" if report.fallback_steps else ""
    return f"{steps}{recorded}{fallen}; {_PHASES.get(report.phase, report.phase)}"


def _measured(device: str) -> str:
    return "allocated" if device == "cuda" else "accounted"


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3f} x lower bound"


def _decisions(report: MemoryReport, most: int = 8) -> list[str]:
    if not report.decisions:
        return ["  nothing moves: it fits"] if report.fits else []
    lines = ["", f"  {'decision':<9} {'size':>9}  {'module':<16} why"]
    for one in report.decisions[:most]:
        size = format_bytes(one.nbytes)
        module = one.module if len(one.module) <= 16 else "…" + one.module[-15:]
        line = f"  {one.decision:<9} {size:>9}  {module:<16} {one.reason}"
        lines.append(line if len(line) <= 80 else line[:79] + "…")
    rest = report.decisions[most:]
    if rest:
        lines.append(f"  … and {len(rest)} more, {format_bytes(sum(one.nbytes for one in rest))}")
    return lines
