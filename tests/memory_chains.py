"""Small traces made by hand: chains of operations with skips, as a recorder would have written them down.

Unit i reads what unit i - 1 made, and perhaps what an earlier one made; autograd keeps its input, its output or both.
The backward goes through the units in reverse. Everything that a memory plan looks at is there: roles, lives, ticks,
windows of unpacks, operations that can be repeated. Moments of a chain of two units that each keep their input:

    0 f0   1 pack a   2 f1   3 pack x0   4 loss   5 unpack x0   6 b1   7 unpack a   8 b0   9 update
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tests import builders

from trimaran.graph.trace.types import Role, StepTrace, Tick, TraceOp
from trimaran.graph.types import Phase

KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One operation of a chain.

    Attributes:
        nbytes: of what it makes
        forward_s: duration [s]
        backward_s: duration [s]
        keeps: what autograd packs of it: "input", "output", "both" or "none"
        skip: an earlier unit whose output it reads too; None: only that of the one before
        repeatable: whether it may be run again
        weight_bytes: of its parameter; 0: it has none
    """

    nbytes: int
    forward_s: float
    backward_s: float
    keeps: str = "input"
    skip: int | None = None
    repeatable: bool = True
    weight_bytes: int = 0


@dataclass(slots=True)
class _Life:
    nbytes: int
    role: Role
    birth: int
    outside_end: int
    version: int | None = None
    packs: list[int] = field(default_factory=list)
    unpacks: list[int] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)


def chain_trace(units: Sequence[Unit], *, batch_bytes: int = 4 * KIB) -> StepTrace:
    """The trace of one step of a chain.

    Args:
        units: in the order of the forward
        batch_bytes: of the input
    """
    return _Chain(units, batch_bytes).build()


class _Chain:
    def __init__(self, units: Sequence[Unit], batch_bytes: int) -> None:
        self._units = units
        self._events: list[TraceOp | Tick] = []
        self._lives: list[_Life] = []
        self._packs: list[tuple[int, int]] = []  # (unit, storage) by index of the pack
        self._batch = self._new(batch_bytes, Role.INPUT, birth=-1)
        self._weights = [
            self._new(unit.weight_bytes, Role.PARAMETER, birth=-1) if unit.weight_bytes else None for unit in units
        ]
        self._outputs: list[int] = []
        self._unpack_index = 0

    def build(self) -> StepTrace:
        for number, unit in enumerate(self._units):
            self._forward(number, unit)
        loss = self._new(4, Role.ACTIVATION, birth=len(self._events))
        self._op("loss", Phase.FORWARD, [self._outputs[-1]], [loss], 1e-5)
        gradients: dict[int, int] = {}
        for number in reversed(range(len(self._units))):
            self._backward(number, self._units[number], gradients)
        kept = [number for number, life in enumerate(self._lives) if life.role == Role.GRADIENT]
        self._op("update", Phase.UPDATE, kept, [], 1e-5)
        return self._trace(loss)

    def _inputs(self, number: int) -> list[int]:
        unit = self._units[number]
        inputs = [self._outputs[number - 1] if number else self._batch]
        return inputs if unit.skip is None else [*inputs, self._outputs[unit.skip]]

    def _forward(self, number: int, unit: Unit) -> None:
        inputs, weight = self._inputs(number), self._weights[number]
        output = self._new(unit.nbytes, Role.ACTIVATION, birth=len(self._events))
        self._op(
            f"f{number}", Phase.FORWARD, [*inputs, *([weight] if weight is not None else [])], [output], unit.forward_s,
            repeatable=unit.repeatable,
        )  # fmt: skip
        self._outputs.append(output)
        if unit.keeps in ("input", "both"):
            for storage in inputs:
                self._pack(number, storage)
        if unit.keeps in ("output", "both"):
            self._pack(number, output)

    def _pack(self, number: int, storage: int) -> None:
        moment, index = len(self._events), len(self._packs)
        self._packs.append((number, storage))
        self._lives[storage].packs.append(moment)
        self._lives[storage].version = 0
        self._tick("pack", index, index, storage)

    def _backward(self, number: int, unit: Unit, gradients: dict[int, int]) -> None:
        output, inputs, weight = self._outputs[number], self._inputs(number), self._weights[number]
        indices = [index for index, (owner, _) in enumerate(self._packs) if owner == number]
        operation = len(self._events) + len(indices)
        saved = [self._packs[index][1] for index in indices]
        for index, storage in zip(indices, saved, strict=True):
            self._lives[storage].unpacks.append(len(self._events))
            self._lives[storage].windows.append(operation + 1)
            self._tick("unpack", self._unpack_index, index, storage, end=operation + 1)
            self._unpack_index += 1
        reads = [*saved, *([gradients[output]] if output in gradients else [])]
        writes = []
        for storage in inputs:
            if storage == self._batch:
                continue
            if storage in gradients:
                reads.append(gradients[storage])  # a second gradient is added to the first, in place
            else:
                gradients[storage] = self._new(self._lives[storage].nbytes, Role.ACTIVATION, birth=operation)
                writes.append(gradients[storage])
        if weight is not None:
            writes.append(self._new(unit.weight_bytes, Role.GRADIENT, birth=operation))
        self._op(f"b{number}", Phase.BACKWARD, reads, writes, unit.backward_s)

    def _new(self, nbytes: int, role: Role, *, birth: int) -> int:
        self._lives.append(_Life(nbytes, role, birth, birth + 1))
        return len(self._lives) - 1

    def _op(
        self,
        name: str,
        phase: Phase,
        reads: list[int],
        writes: list[int],
        duration_s: float,
        *,
        repeatable: bool = True,
    ) -> None:
        moment = len(self._events)
        for storage in reads:
            self._lives[storage].outside_end = max(self._lives[storage].outside_end, moment + 1)
        self._events.append(
            builders.trace_op(
                moment=moment,
                name=name,
                phase=phase,
                module=name,
                reads=tuple((storage, 0) for storage in reads),
                writes=tuple((storage, 0) for storage in writes),
                nbytes=sum(self._lives[storage].nbytes for storage in (*reads, *writes)),
                repeatable=repeatable,
                duration_s=duration_s,
            )
        )

    def _tick(self, kind: str, index: int, pack: int, storage: int, end: int = 0) -> None:
        view = builders.view(shape=(self._lives[storage].nbytes // 4,))
        self._events.append(
            builders.tick(
                moment=len(self._events),
                kind=kind,  # type: ignore[arg-type]
                index=index,
                pack=pack,
                storage=storage,
                view=view,
                end=end,
            )
        )

    def _trace(self, loss: int) -> StepTrace:
        length = len(self._events)
        forward_reads: dict[int, int] = defaultdict(int)
        for event in self._events:
            if isinstance(event, TraceOp) and event.phase == Phase.FORWARD:
                for storage, _ in (*event.reads, *event.writes):
                    forward_reads[storage] = event.moment + 1
        storages = []
        for number, life in enumerate(self._lives):
            outside_end = life.outside_end
            if life.packs:
                # The backward reads what was unpacked, not what is outside.
                outside_end = max(forward_reads[number], life.packs[-1] + 1)
            if life.role in (Role.PARAMETER, Role.GRADIENT, Role.INPUT) or number == loss:
                outside_end = length
            storages.append(
                builders.trace_storage(
                    number=number,
                    nbytes=life.nbytes,
                    role=life.role,
                    birth=life.birth,
                    outside_end=outside_end,
                    keep_end=max([outside_end, *life.windows]),
                    copy_bytes=life.nbytes if life.packs else 0,
                    packs=tuple(life.packs),
                    unpacks=tuple(life.unpacks),
                    version=life.version,
                )
            )
        ends = {
            (event.index): event.end for event in self._events if isinstance(event, Tick) and event.kind == "unpack"
        }
        handle_ends = {
            event.pack: ends[event.index]
            for event in self._events
            if isinstance(event, Tick) and event.kind == "unpack"
        }
        events = tuple(
            replace(event, end=handle_ends.get(event.index, length))
            if isinstance(event, Tick) and event.kind == "pack"
            else event
            for event in self._events
        )
        return builders.step_trace(events=events, storages=tuple(storages))
