"""One simulated step under a memory plan, for Perfetto or chrome://tracing.

    compute    every operation by its name, what is made again, and what is waited for
    d2h        copies to the host
    h2d        copies back
    counter    live bytes under the plan, as everything kept, and the budget

Times are microseconds with three decimals.

Source:
    Trace Event Format, Google, 2016, sections "Complete Events", "Counter Events", "Metadata Events".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trimaran.graph.trace.types import StepTrace
from trimaran.program.memory import MemoryPlan
from trimaran.program.types import Kind
from trimaran.report.files import write_whole
from trimaran.report.intervals import subtract, unite
from trimaran.simulator.memory import LiveBytes, MemoryRun

Event = dict[str, Any]

_COMPUTE, _TO_HOST, _TO_DEVICE = 1, 2, 3
_SHORTEST_WAIT_S = 1e-9  # less is rounding
_LANES = {_COMPUTE: "compute", _TO_HOST: "d2h", _TO_DEVICE: "h2d"}


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """One step under a memory plan, with what it was made from.

    Attributes:
        title: such as "vgg16, batch 256"
        trace: the step
        plan: what happens to its storages
        run: its simulation
        live: live bytes under the plan
        kept: live bytes with everything kept
        budget_bytes: that the plan holds [bytes]
    """

    title: str
    trace: StepTrace
    plan: MemoryPlan
    run: MemoryRun
    live: LiveBytes
    kept: LiveBytes
    budget_bytes: int


def memory_trace(step: PlannedStep) -> dict[str, Any]:
    """The trace as the object that its JSON file holds."""
    events = [_named(0, "process_name", step.title)]
    events += [_named(lane, "thread_name", name) for lane, name in _LANES.items()]
    return {
        "displayTimeUnit": "ms",
        "traceEvents": [*events, *_operations(step), *_waits(step), *_recomputes(step), *_copies(step), *_live(step)],
    }


def write_memory_trace(path: Path, step: PlannedStep) -> None:
    """Write the trace; the file is there whole or not at all.

    Raises:
        EnvironmentProblem: it cannot be written there
    """
    write_whole(path, msgspec.json.encode(memory_trace(step)))


def _operations(step: PlannedStep) -> Iterator[Event]:
    starts_s = step.run.starts_s
    for op in step.trace.ops:
        seconds = float(step.run.durations_s[op.moment])
        if seconds > 0:
            arguments = {"moment": op.moment, "module": op.module, "flops": op.flops, "bytes": op.nbytes}
            yield _span(_COMPUTE, op.name, float(starts_s[op.moment]), seconds, str(op.phase), arguments)


def _waits(step: PlannedStep) -> Iterator[Event]:
    """Operations wait where they neither run nor make something again."""
    run = step.run
    busy = [(start_s, end_s) for _, start_s, end_s in run.recomputes]
    busy += zip(run.starts_s.tolist(), (run.starts_s + run.durations_s).tolist(), strict=True)
    united = unite(busy)
    for start_s, end_s in subtract([(0.0, united[-1][1])], united) if united else ():
        if end_s - start_s > _SHORTEST_WAIT_S:
            yield _span(_COMPUTE, "wait for a copy", start_s, end_s - start_s, "wait", {})


def _recomputes(step: PlannedStep) -> Iterator[Event]:
    for what, start_s, end_s in step.run.recomputes:
        yield _span(_COMPUTE, f"again: {_made_by(step, what.storage)}", start_s, end_s - start_s, "recompute", {})


def _copies(step: PlannedStep) -> Iterator[Event]:
    for copy in step.run.copies:
        lane = _TO_HOST if copy.step.kind == Kind.OFFLOAD else _TO_DEVICE
        arguments = {"bytes": copy.nbytes, "step": copy.step.token}
        name = _made_by(step, copy.step.storage)
        yield _span(lane, name, copy.start_s, copy.end_s - copy.start_s, "copy", arguments)


def _live(step: PlannedStep) -> Iterator[Event]:
    last: tuple[int, int] | None = None
    for moment, (planned, kept) in enumerate(zip(step.live.at.tolist(), step.kept.at.tolist(), strict=True)):
        if (planned, kept) != last:
            yield {
                "ph": "C",
                "pid": 1,
                "tid": 0,
                "ts": _microseconds(float(step.run.starts_s[moment])),
                "name": "live bytes",
                "args": {"under the plan": planned, "everything kept": kept, "budget": step.budget_bytes},
            }
            last = planned, kept


def _made_by(step: PlannedStep, number: int) -> str:
    return f"{step.trace.storages[number].module or 'storage'} [{number}]"


def _span(lane: int, name: str, start_s: float, seconds: float, category: str, arguments: Event) -> Event:
    begin = _microseconds(start_s)
    return {
        "ph": "X",
        "pid": 1,
        "tid": lane,
        "ts": begin,
        "dur": round(_microseconds(start_s + seconds) - begin, 3),
        "name": name,
        "cat": category,
        "args": arguments,
    }


def _named(lane: int, what: str, name: str) -> Event:
    return {"ph": "M", "pid": 1, "tid": lane, "ts": 0, "name": what, "args": {"name": name}}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
