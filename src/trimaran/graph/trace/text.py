"""A trace as a table of text, one line an event or a storage, and as a digest."""

import hashlib
from collections.abc import Iterator

from trimaran.graph.trace.liveness import live_dropped, live_kept, mean, peak, without_weights
from trimaran.graph.trace.types import StepTrace, Tick, TraceOp, TraceStorage, Value
from trimaran.units import format_bytes


def event_lines(trace: StepTrace) -> Iterator[str]:
    """The events, one a line: moment, phase, what, where, what it reads and makes, bytes that are there."""
    kept = live_kept(trace)
    for event in trace.events:
        live = f"{kept[event.moment] / 2**20:>10.2f} MiB"
        yield f"{event.moment:>6}  {_tick(event) if isinstance(event, Tick) else _op(event)}{live}"


def storage_lines(trace: StepTrace) -> Iterator[str]:
    """The storages, one a line: size, role, life in the three senses, packs and unpacks."""
    for storage in trace.storages:
        yield _storage(storage, trace.names.get(storage.number, storage.module))


def summary(trace: StepTrace) -> str:
    """The figures of a trace in a few lines."""
    kept, dropped = live_kept(trace), live_dropped(trace)
    activations = live_kept(trace, without_weights())
    return "\n".join(
        (
            f"{len(trace.ops)} operations, {len(trace.packs)} packs, {len(trace.unpacks)} unpacks on {trace.device}",
            f"{len(trace.storages)} storages, {len(trace.movable)} of them movable",
            f"peak {format_bytes(peak(kept))}, without weights {format_bytes(peak(activations))}, "
            f"floor {format_bytes(peak(dropped))}",
            f"mean {format_bytes(mean(kept))}, with everything dropped {format_bytes(mean(dropped))}",
        )
    )


def digest(trace: StepTrace) -> str:
    """A short text that is the same for traces with the same events and storages, whatever they took.

    Durations and the device are left out: the same step on meta tensors and on a device has the same digest, where the
    same kernels run.
    """
    parts: list[object] = [trace.storages]
    for event in trace.events:
        if isinstance(event, Tick):
            parts.append(event)
        else:
            parts.append((event.moment, event.name, event.phase.value, event.module, event.reads, event.writes))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _op(event: TraceOp) -> str:
    arrow = f"{_values(event.reads)} -> {_values(event.writes)}"
    return f"{event.phase}  {event.name.removeprefix('aten.'):<44.44} {event.module:<32.32} {arrow:<40.40}"


def _tick(event: Tick) -> str:
    shape = "×".join(map(str, event.view.shape)) or "scalar"
    what = f"{event.kind} {event.index}" if event.kind == "pack" else f"{event.kind} {event.index} of pack {event.pack}"
    return f"    {what:<44.44} {event.node:<32.32} {f's{event.storage}.{event.version} {shape}':<40.40}"


def _values(values: tuple[Value, ...]) -> str:
    return " ".join(f"s{number}.{version}" for number, version in values)


def _storage(storage: TraceStorage, name: str) -> str:
    life = f"[{storage.birth}, {storage.outside_end}) keep {storage.keep_end}"
    packs = f"packs {list(storage.packs)} unpacks {list(storage.unpacks)}" if storage.packs else ""
    size = format_bytes(storage.nbytes)
    return f"s{storage.number:<6} {size:>10}  {storage.role:<10} {life:<26} {name:<32} {packs}".rstrip()
