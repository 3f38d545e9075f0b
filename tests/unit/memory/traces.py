"""Small traces made by hand: a chain of operations whose outputs autograd packs, forward and backward."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests import builders

from trimaran.graph.trace.types import Role, StepTrace, Tick, TraceOp
from trimaran.graph.types import Phase


@dataclass
class TraceMaker:
    """Makes a trace event by event; lives follow from what is made, packed, unpacked and dropped."""

    events: list[TraceOp | Tick] = field(default_factory=list)
    storages: list[dict[str, object]] = field(default_factory=list)
    packed: dict[int, int] = field(default_factory=dict)

    def make(self, nbytes: int, role: Role = Role.ACTIVATION, *, before: bool = False) -> int:
        """A new storage, born at the next event (or before the step)."""
        number = len(self.storages)
        birth = -1 if before else len(self.events)
        self.storages.append({"number": number, "nbytes": nbytes, "role": role, "birth": birth, "outside_end": None})
        if before:
            self.storages[number]["version"] = 0
        return number

    def op(
        self,
        reads: Sequence[int],
        writes: Sequence[int],
        seconds: float,
        *,
        phase: Phase = Phase.FORWARD,
        name: str = "aten.op.default",
        module: str = "",
        repeatable: bool = True,
        scratch_bytes: int = 0,
    ) -> int:
        """An operation that makes new storages or changes old ones."""
        moment = len(self.events)
        version = {number: self.storages[number].get("version", 0) for number in reads}
        made = []
        for number in writes:
            storage = self.storages[number]
            storage["version"] = storage["version"] + 1 if "version" in storage else 0
            made.append((number, storage["version"]))
        self.events.append(
            builders.trace_op(
                moment=moment,
                name=name,
                phase=phase,
                module=module,
                reads=tuple((number, version[number]) for number in reads),
                writes=tuple(made),
                flops=1.0,
                nbytes=1,
                repeatable=repeatable,
                duration_s=seconds,
                scratch_bytes=scratch_bytes,
            )
        )
        return moment

    def pack(self, number: int) -> int:
        """Autograd packs a storage. Returns the number of the pack."""
        index = sum(isinstance(event, Tick) and event.kind == "pack" for event in self.events)
        self._tick("pack", index, index, number)
        return index

    def unpack(self, pack: int) -> None:
        """Autograd unpacks; the window ends after the next operation."""
        index = sum(isinstance(event, Tick) and event.kind == "unpack" for event in self.events)
        number = next(e.storage for e in self.events if isinstance(e, Tick) and e.kind == "pack" and e.index == pack)
        self._tick("unpack", index, pack, number)

    def _tick(self, kind: str, index: int, pack: int, number: int) -> None:
        storage = self.storages[number]
        size = int(storage["nbytes"])
        self.events.append(
            builders.tick(
                moment=len(self.events),
                kind=kind,
                index=index,
                pack=pack,
                storage=number,
                version=int(storage.get("version", 0)),
                view=builders.view(shape=(size,), dtype="uint8"),
                node="Node",
                end=-1,
            )
        )

    def drop(self, number: int) -> None:
        """Nothing outside of autograd holds it from the next event on."""
        self.storages[number]["outside_end"] = len(self.events)

    def trace(self) -> StepTrace:
        """The finished trace."""
        length = len(self.events)
        events = [self._closed(event, length) for event in self.events]
        storages = []
        for facts in self.storages:
            number = facts["number"]
            ticks = [event for event in events if isinstance(event, Tick) and event.storage == number]
            packs = [tick for tick in ticks if tick.kind == "pack"]
            unpacks = [tick for tick in ticks if tick.kind == "unpack"]
            versions = {tick.version for tick in packs}
            outside = length if facts["outside_end"] is None else facts["outside_end"]
            storages.append(
                builders.trace_storage(
                    number=number,
                    nbytes=facts["nbytes"],
                    role=facts["role"],
                    birth=facts["birth"],
                    outside_end=outside,
                    keep_end=max([outside, *(tick.end for tick in ticks)]),
                    copy_bytes=facts["nbytes"] if packs else 0,
                    packs=tuple(tick.moment for tick in packs),
                    unpacks=tuple(tick.moment for tick in unpacks),
                    version=versions.pop() if len(versions) == 1 else None,
                )
            )
        return builders.step_trace(events=tuple(events), storages=tuple(storages))

    def _closed(self, event: TraceOp | Tick, length: int) -> TraceOp | Tick:
        if isinstance(event, TraceOp):
            return event
        if event.kind == "unpack":
            return dataclasses.replace(event, end=self._after_next_op(event.moment))
        users = [one.moment for one in self.events if isinstance(one, Tick) and one.pack == event.index]
        return dataclasses.replace(event, end=self._after_next_op(max(users)))

    def _after_next_op(self, moment: int) -> int:
        ops = (event.moment for event in self.events[moment:] if isinstance(event, TraceOp))
        return next(ops, len(self.events) - 1) + 1


def chain(
    sizes: Sequence[int], seconds: Sequence[float], *, back: float = 2.0, repeatable: Sequence[bool] | None = None
) -> StepTrace:
    """A chain: layer k reads storage k, makes storage k + 1, and packs what it reads.

    Args:
        sizes: of the input and of each layer's output [bytes]
        seconds: of each layer's forward [s]
        back: the backward takes so many times as long
        repeatable: of each layer's forward
    """
    maker = TraceMaker()
    here = maker.make(sizes[0], Role.INPUT, before=True)
    packs = []
    for layer, duration in enumerate(seconds):
        after = maker.make(sizes[layer + 1])
        again = repeatable is None or repeatable[layer]
        maker.op([here], [after], duration, repeatable=again, module=f"layer{layer}")
        packs.append(maker.pack(here))
        if layer:
            maker.drop(here)
        here = after
    gradient = maker.make(sizes[-1])
    maker.op([here], [gradient], 0.0, phase=Phase.BACKWARD, name="loss")
    maker.drop(here)
    for layer in reversed(range(len(seconds))):
        maker.unpack(packs[layer])
        after = maker.make(sizes[layer])
        source = maker.events[-1].storage
        maker.op([gradient, source], [after], back * seconds[layer], phase=Phase.BACKWARD, module=f"layer{layer}")
        maker.drop(gradient)
        gradient = after
    maker.drop(gradient)
    return maker.trace()


def residual(
    sizes: Sequence[int], seconds: Sequence[float], skips: Sequence[tuple[int, int]], *, in_place: Sequence[bool] = ()
) -> StepTrace:
    """A chain with additions: after layer k its output is added to that of an earlier layer, and may change in place.

    Each layer packs what it reads; a change in place (as of a rectifier) packs what it makes. Additions pack nothing.

    Args:
        sizes: of the input and of each layer's output [bytes]
        seconds: of each layer's forward [s]
        skips: (from, to): the output of layer `to` is added to the input of layer `from`
        in_place: for each layer, whether its output is changed in place
    """
    maker = TraceMaker()
    here = maker.make(sizes[0], Role.INPUT, before=True)
    outputs, packs = [here], []
    for layer, duration in enumerate(seconds):
        packs.append((maker.pack(here), duration))
        after = maker.make(sizes[layer + 1])
        maker.op([here], [after], duration)
        for start, end in skips:
            if end == layer:
                total = maker.make(sizes[layer + 1])
                maker.op([after, outputs[start]], [total], duration / 10)
                maker.drop(after)
                after = total
        if layer < len(in_place) and in_place[layer]:
            maker.op([after], [after], duration / 10)
            packs.append((maker.pack(after), duration / 10))
        outputs.append(after)
        here = after
    for number in outputs[1:]:
        maker.drop(number)
    gradient = maker.make(sizes[-1])
    maker.op([here], [gradient], 0.0, phase=Phase.BACKWARD, name="loss")
    for pack, duration in reversed(packs):
        maker.unpack(pack)
        source = maker.events[-1].storage
        after = maker.make(maker.storages[source]["nbytes"])
        maker.op([gradient, source], [after], 2 * duration, phase=Phase.BACKWARD)
        maker.drop(gradient)
        gradient = after
    maker.drop(gradient)
    return maker.trace()
