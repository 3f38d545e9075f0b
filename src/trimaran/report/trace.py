"""A trace for Perfetto or chrome://tracing, with the prediction and the measurement one above the other.

The format is Chrome's Trace Event Format, as a JSON object with `traceEvents`:

    M  metadata   names and order of processes and threads; a process is a rank in one source, a thread a stream
    X  complete   one span, `ts` and `dur` in microseconds, with what is known of the instruction in `args`
    s, f  flow    an arrow from a send to its receive; `bp: "e"` binds it to the span that encloses its time
    C  counter    live bytes of a rank

Times are microseconds with three decimals, so that nothing above a nanosecond is lost. The predicted step starts where
the first measured step that is drawn and was compared starts.

Spans of one thread must nest, and transfers on different channels overlap: a stream gets as many threads as it has
spans side by side.

Source:
    Trace Event Format, Google, 2016, sections "Complete Events", "Flow Events", "Counter Events", "Metadata Events".

One simulated step under a memory plan, for Perfetto or chrome://tracing.

    compute    every operation by its name, recomputation, and waits
    d2h        copies to the host
    h2d        copies back
    counter    live bytes under the plan, without a plan, and the budget

Times are microseconds with three decimals.

Source:
    Trace Event Format, Google, 2016, sections "Complete Events", "Counter Events", "Metadata Events".
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trimaran.base.files import write_whole
from trimaran.base.timeline import COMMUNICATION, COMPUTE, COPY, HOST, WAIT, Span, Timeline
from trimaran.graph.trace.types import StepTrace
from trimaran.program.memory import MemoryPlan
from trimaran.program.rules.deadlock import match_messages
from trimaran.program.types import Kind, Program
from trimaran.report.breakdown import subtract, unite
from trimaran.report.comparison import Comparison
from trimaran.simulator.memory import LiveBytes, MemoryRun

Event = dict[str, Any]

_STREAMS = (HOST, COMPUTE, WAIT, COPY, COMMUNICATION)


def trace_document(
    program: Program,
    predicted: Timeline | None = None,
    measured: Timeline | None = None,
    *,
    comparison: Comparison | None = None,
    steps: Sequence[int] | None = None,
) -> dict[str, Any]:
    """The trace as the object that its JSON file holds.

    Args:
        program: what ran
        predicted: one step, as simulated
        measured: steps as they were
        comparison: gives each span both durations and the error
        steps: measured steps to draw; None: all. A viewer is slow with a million spans

    Returns:
        An object with `traceEvents` and `displayTimeUnit`.
    """
    events: list[Event] = []
    offset_s = 0.0
    if measured is not None:
        drawn = [step for step in measured.steps if steps is None or step in steps]
        offset_s = _anchor(measured, drawn, comparison.warmup if comparison else 0)
        wanted = set(drawn)
        measured = Timeline((span for span in measured if span.step in wanted), measured.memory)
    for number, (source, timeline, shift_s) in enumerate(
        (("predicted", predicted, offset_s), ("measured", measured, 0.0))
    ):
        if timeline is not None:
            events += _source_events(program, timeline, comparison, source=source, number=number, shift_s=shift_s)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def write_trace(
    path: Path,
    program: Program,
    predicted: Timeline | None = None,
    measured: Timeline | None = None,
    *,
    comparison: Comparison | None = None,
    steps: Sequence[int] | None = None,
) -> None:
    """Write the trace to a file that Perfetto opens; it is there whole or not at all.

    Args:
        path: of the file, usually `trace.json`; the others as for `trace_document`
        program: what ran
        predicted: one step, as simulated
        measured: steps as they were
        comparison: of the two
        steps: measured steps to draw; None: all

    Raises:
        EnvironmentProblem: it cannot be written there
    """
    document = trace_document(program, predicted, measured, comparison=comparison, steps=steps)
    write_whole(path, msgspec.json.encode(document))


def _anchor(measured: Timeline, drawn: Sequence[int], warmup: int) -> float:
    """Start of the first drawn step after the warm-up, or of the first drawn one [s]."""
    compared = set(measured.steps[warmup:])
    first = next((step for step in drawn if step in compared), next(iter(drawn), None))
    columns = measured.columns
    return min(
        (start_s for start_s, step in zip(columns.start_s, columns.step, strict=True) if step == first), default=0.0
    )


def _source_events(
    program: Program, timeline: Timeline, comparison: Comparison | None, *, source: str, number: int, shift_s: float
) -> Iterator[Event]:
    spans: dict[int, list[Span]] = {}
    for span in timeline:
        spans.setdefault(span.rank, []).append(span)
    places: dict[tuple[int, str], tuple[int, int, Span]] = {}
    for rank in sorted(spans):
        # The ranks of both sources alternate, so that the two of a rank lie one above the other.
        process = 2 * rank + number + 1
        yield _metadata(process, 0, "process_name", name=f"rank {rank} {source}")
        yield _metadata(process, 0, "process_sort_index", sort_index=process)
        threads = threads_of(spans[rank])
        for thread, (name, members) in enumerate(threads, start=1):
            yield _metadata(process, thread, "thread_name", name=name)
            yield _metadata(process, thread, "thread_sort_index", sort_index=thread)
            for span in members:
                if span.stream != WAIT:
                    places[span.step, span.instruction] = (process, thread, span)
                yield _compared(process, thread, span, comparison, shift_s)
        for time_s, nbytes in timeline.memory[rank] if rank < len(timeline.memory) else ():
            yield _live_bytes(process, time_s + shift_s, bytes=nbytes)
    yield from _arrows(program, timeline.steps, places, source=source, shift_s=shift_s)


def threads_of(spans: Iterable[Span]) -> list[tuple[str, list[Span]]]:
    """The spans of a rank by stream, in threads within which none overlaps another."""
    threads: dict[str, list[list[Span]]] = {}
    for span in sorted(spans, key=lambda span: (span.start_s, span.end_s)):
        rows = threads.setdefault(span.stream, [])
        row = next((row for row in rows if row[-1].end_s <= span.start_s), None)
        if row is None:
            rows.append([span])
        else:
            row.append(span)
    order = {stream: place for place, stream in enumerate(_STREAMS)}
    return [
        (stream if place == 0 else f"{stream} {place + 1}", row)
        for stream in sorted(threads, key=lambda stream: (order.get(stream, len(order)), stream))
        for place, row in enumerate(threads[stream])
    ]


def _compared(process: int, thread: int, span: Span, comparison: Comparison | None, shift_s: float) -> Event:
    arguments: dict[str, Any] = {"instruction": span.instruction, "step": span.step, "bytes": span.nbytes}
    figure = comparison.instructions.get(span.instruction) if comparison else None
    if figure is not None:
        arguments |= {"predicted_s": figure.predicted_s, "measured_s": figure.measured_s, "error": figure.error}
    token = span.instruction.partition("/")[2]
    name = f"wait for {token}" if span.stream == WAIT else token
    ends_s = span.start_s + shift_s, span.end_s + shift_s
    return _complete(process, thread, name, ends_s, span.stream, arguments)


def _arrows(
    program: Program,
    steps: Sequence[int],
    places: Mapping[tuple[int, str], tuple[int, int, Span]],
    *,
    source: str,
    shift_s: float,
) -> Iterator[Event]:
    """One arrow a message and step, from the start of the send to within the receive."""
    messages = [
        [program.ranks[spot.rank][spot.position].id for spot in meeting]
        for queue in match_messages(program)
        for meeting in queue
    ]
    for step in steps:
        for sent, received in messages:
            if (step, sent) not in places or (step, received) not in places:
                continue
            tail, head = places[step, sent], places[step, received]
            # An arrow ends after it starts, and within its span: a receive may have been posted before the send.
            begin_s = tail[2].start_s
            end_s = min(max(begin_s, (head[2].start_s + head[2].end_s) / 2), head[2].end_s)
            name = sent.partition("/")[2]
            common = {"cat": "message", "name": name, "id": f"{source} {step} {sent}"}
            yield _flow("s", tail, begin_s + shift_s, common)
            yield _flow("f", head, end_s + shift_s, common) | {"bp": "e"}


def _flow(phase: str, place: tuple[int, int, Span], time_s: float, common: Event) -> Event:
    return {"ph": phase, "pid": place[0], "tid": place[1], "ts": _microseconds(time_s), **common}


def _metadata(process: int, thread: int, what: str, **arguments: object) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "ts": 0, "name": what, "args": arguments}


def _complete(
    process: int, thread: int, name: str, ends_s: tuple[float, float], category: str, arguments: Event
) -> Event:
    begin, end = map(_microseconds, ends_s)
    return {
        "ph": "X",
        "pid": process,
        "tid": thread,
        "ts": begin,
        "dur": round(end - begin, 3),
        "name": name,
        "cat": category,
        "args": arguments,
    }


def _live_bytes(process: int, time_s: float, **nbytes: int) -> Event:
    figures = {name.replace("_", " "): value for name, value in nbytes.items()}
    return {"ph": "C", "pid": process, "tid": 0, "ts": _microseconds(time_s), "name": "live bytes", "args": figures}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


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
        kept: live bytes without a plan
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
    events = [_metadata(1, 0, "process_name", name=step.title)]
    events += [_metadata(1, lane, "thread_name", name=name) for lane, name in _LANES.items()]
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
            start_s = float(starts_s[op.moment])
            yield _complete(1, _COMPUTE, op.name, (start_s, start_s + seconds), str(op.phase), arguments)


def _waits(step: PlannedStep) -> Iterator[Event]:
    """Operations wait where they neither run nor recompute."""
    run = step.run
    busy = [(start_s, end_s) for _, start_s, end_s in run.recomputes]
    busy += zip(run.starts_s.tolist(), (run.starts_s + run.durations_s).tolist(), strict=True)
    united = unite(busy)
    for start_s, end_s in subtract([(0.0, united[-1][1])], united) if united else ():
        if end_s - start_s > _SHORTEST_WAIT_S:
            yield _complete(1, _COMPUTE, "wait for a copy", (start_s, end_s), "wait", {})


def _recomputes(step: PlannedStep) -> Iterator[Event]:
    for what, start_s, end_s in step.run.recomputes:
        name = f"recompute: {_made_by(step, what.storage)}"
        yield _complete(1, _COMPUTE, name, (start_s, end_s), "recompute", {})


def _copies(step: PlannedStep) -> Iterator[Event]:
    for copy in step.run.copies:
        lane = _TO_HOST if copy.step.kind == Kind.OFFLOAD else _TO_DEVICE
        arguments = {"bytes": copy.nbytes, "step": copy.step.token}
        name = _made_by(step, copy.step.storage)
        yield _complete(1, lane, name, (copy.start_s, copy.end_s), "copy", arguments)


def _live(step: PlannedStep) -> Iterator[Event]:
    last: tuple[int, int] | None = None
    for moment, (planned, kept) in enumerate(zip(step.live.at.tolist(), step.kept.at.tolist(), strict=True)):
        if (planned, kept) != last:
            time_s, budget = float(step.run.starts_s[moment]), step.budget_bytes
            yield _live_bytes(1, time_s, under_the_plan=planned, without_a_plan=kept, budget=budget)
            last = planned, kept


def _made_by(step: PlannedStep, number: int) -> str:
    return f"{step.trace.storages[number].module or 'storage'} [{number}]"
