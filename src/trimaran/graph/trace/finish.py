"""From the tape of a step to its trace: plain data, every life closed."""

from trimaran.graph.trace.calls import Recording
from trimaran.graph.trace.geometry import covered_bytes
from trimaran.graph.trace.storages import Record
from trimaran.graph.trace.tape import OpDraft, Tape, TickDraft
from trimaran.graph.trace.types import Role, StepTrace, Tick, TraceOp, TraceStorage, View


def finished(tape: Tape) -> Recording:
    """The recording of a tape that has stopped."""
    length = len(tape.events)
    for record in tape.book.records:
        _settle(record)
    ticks: list[list[tuple[int, TickDraft]]] = [[] for _ in tape.book.records]
    for moment, event in enumerate(tape.events):
        if isinstance(event, TickDraft):
            ticks[event.storage].append((moment, event))
    storages = tuple(
        _storage(number, record, ticks[number], length, on_device=_is_on_device(tape, record))
        for number, record in enumerate(tape.book.records)
    )
    events = tuple(
        _op(moment, event, _duration_s(tape, event)) if isinstance(event, OpDraft) else _tick(moment, event, length)
        for moment, event in enumerate(tape.events)
    )
    calls = {
        moment: event.call
        for moment, event in enumerate(tape.events)
        if isinstance(event, OpDraft) and event.call is not None
    }
    externals = {
        number: record.reference
        for number, record in enumerate(tape.book.records)
        if record.role in (Role.PARAMETER, Role.BUFFER) and record.reference() is not None
    }
    trace = StepTrace(
        events=events,
        storages=storages,
        names=dict(tape.book.names),
        device=tape.device,
        gradients=dict(tape.gradients),
    )
    return Recording(trace=trace, calls=calls, externals=externals)


def _settle(record: Record) -> None:
    """What no operation made, and what stays, was there before the step: a bucket of gradients, met as it is filled."""
    if record.unseen and record.end is None and record.role is Role.ACTIVATION:
        record.role, record.birth = Role.GRADIENT, -1


def _storage(
    number: int, record: Record, ticks: list[tuple[int, TickDraft]], length: int, *, on_device: bool
) -> TraceStorage:
    """The storage of a record. What is on another device takes no memory of this one, and no plan can move it."""
    outside_end = length if record.end is None else min(record.end, length)
    ends = [length if tick.end is None else min(tick.end, length) for _, tick in ticks]
    packs = [(moment, tick) for moment, tick in ticks if tick.kind == "pack"]
    views: list[View] = [tick.view for _, tick in packs]
    single = len(record.packed_at) == 1 and not record.changed
    return TraceStorage(
        number=number,
        nbytes=record.nbytes if on_device else 0,
        role=record.role,
        birth=record.birth,
        outside_end=outside_end,
        keep_end=max(outside_end, *ends) if ends else outside_end,
        copy_bytes=covered_bytes(views) if on_device else 0,
        packs=tuple(moment for moment, _ in packs),
        unpacks=tuple(moment for moment, tick in ticks if tick.kind == "unpack"),
        version=next(iter(record.packed_at)) if single else None,
        module=record.module,
    )


def _is_on_device(tape: Tape, record: Record) -> bool:
    return not record.elsewhere and tape.place in (None, record.device)


def _duration_s(tape: Tape, draft: OpDraft) -> float | None:
    """How long an operation took; none of the device's time where all that it touches is on the host [s]."""
    if tape.device == "meta":
        return None
    numbers = {number for number, _ in (*draft.reads, *draft.writes)}
    if tape.device != "cpu" and numbers and all(tape.book.records[n].device.type == "cpu" for n in numbers):
        return 0.0
    if draft.interval is None:
        return draft.duration_s
    start, end = draft.interval
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000.0  # milliseconds


def _op(moment: int, draft: OpDraft, duration_s: float | None) -> TraceOp:
    return TraceOp(
        moment=moment,
        name=draft.name,
        phase=draft.phase,
        module=draft.module,
        reads=draft.reads,
        writes=draft.writes,
        flops=draft.flops,
        nbytes=draft.nbytes,
        dtype=draft.dtype,
        repeatable=draft.call is not None,
        duration_s=duration_s,
        scratch_bytes=draft.scratch_bytes,
        operands=tuple((number, tuple(shape)) for number, shape in draft.operands),
        results=tuple(None if shape is None else tuple(shape) for shape in draft.results),
    )


def _tick(moment: int, draft: TickDraft, length: int) -> Tick:
    return Tick(
        moment=moment,
        kind=draft.kind,
        index=draft.index,
        pack=draft.pack,
        storage=draft.storage,
        version=draft.version,
        view=draft.view,
        node=draft.node,
        end=length if draft.end is None else min(draft.end, length),
    )
