"""What a pipeline stage needs, so that stages can be cut for the memory of their devices.

A stage holds its state all the time and, of each microbatch that is in flight there, what autograd keeps, what it
received, and what it sends. Early stages of 1F1B have more microbatches in flight than late ones, so they must be
shorter than their time alone would say.

    need(k, i, j) = state of operations i+1..j + (in flight(k) - 1) · kept + what the fullest forward or backward takes

Where a row has several segments, each may have an equal part of its device. What is left out, the simulator sees: a cut
that it finds too large is rejected after all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trimaran.graph import Graph, TensorSpec
from trimaran.program import Kind
from trimaran.program.orders import Order

_ENDS = frozenset({Kind.BACKWARD, Kind.BACKWARD_WEIGHT})


def in_flight(order: Order) -> tuple[int, ...]:
    """For each segment, the most microbatches that are between their forward and the end of their backward.

    Args:
        order: what each row computes

    Example:
        >>> from trimaran.program.schedules import gpipe, one_forward_one_backward
        >>> in_flight(gpipe(2, 4)), in_flight(one_forward_one_backward(2, 4))
        ((4, 4), (2, 1))
    """
    most: dict[int, int] = {}
    for row in order:
        now: dict[int, int] = {}
        for step in row:
            if step.kind == Kind.FORWARD:
                now[step.segment] = now.get(step.segment, 0) + 1
                most[step.segment] = max(most.get(step.segment, 0), now[step.segment])
            elif step.kind in _ENDS:
                now[step.segment] -= 1
    return tuple(most[segment] for segment in sorted(most))


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Something that is kept or crosses: who makes it (-1: the batch), who uses it, its size.

    Attributes:
        maker: number of the operation that makes it; -1 for an input
        uses: numbers of the operations that read it, or keep it for their backward, ascending
        nbytes: of a microbatch [bytes]
        returns: a gradient comes back along it
    """

    maker: int
    uses: tuple[int, ...]
    nbytes: float
    returns: bool = False

    def is_used(self, first: int, last: int) -> bool:
        """Whether operations [first, last) use it."""
        return any(first <= use < last for use in self.uses)


@dataclass(slots=True)
class StageMemory:
    """What runs of operations need as a segment; each run is looked at once.

    Attributes:
        graph: the job's
        microbatch: samples of one
        state_bytes_per_byte: what the optimizer keeps of a byte of parameter [bytes/byte]
        in_flight: for each segment, its microbatches in flight
        limits: for each segment, what it may need [bytes]
    """

    graph: Graph
    microbatch: int
    state_bytes_per_byte: float
    in_flight: Sequence[int]
    limits: Sequence[float]
    _known: dict[tuple[int, int], tuple[float, float, float]] = field(default_factory=dict)
    _saved: list[_Tensor] = field(default_factory=list)
    _flowing: list[_Tensor] = field(default_factory=list)
    _state: list[_Tensor] = field(default_factory=list)
    _passing: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        ops, size = self.graph.ops, self.microbatch
        made = {spec.name: (number, spec) for number, op in enumerate(ops) for spec in op.outputs}
        place = {op.id: number for number, op in enumerate(ops)}
        savers: dict[str, list[int]] = {}
        readers: dict[str, list[int]] = {}
        owners: dict[str, list[int]] = {}
        for number, op in enumerate(ops):
            for names, users in ((op.saved, savers), (op.inputs, readers), ((*op.parameters, *op.buffers), owners)):
                for name in dict.fromkeys(names):
                    users.setdefault(name, []).append(number)
        self._saved = [
            _Tensor(_maker(name, made, place), tuple(users), self.graph.storages[name].at(size))
            for name, users in savers.items()
        ]
        self._flowing = [
            _Tensor(number, tuple(readers.get(name, ())), spec.nbytes.at(size), spec.requires_grad)
            for name, (number, spec) in made.items()
        ]
        each = {one.name: (2.0 + self.state_bytes_per_byte if one.trainable else 1.0) for one in self.graph.parameters}
        held = {one.name: one.nbytes * each[one.name] for one in self.graph.parameters} | dict(self.graph.buffers)
        self._state = [_Tensor(-1, tuple(users), held.get(name, 0.0)) for name, users in owners.items()]
        for op in ops:
            outputs = sum(spec.nbytes.at(size) for spec in op.outputs if spec.name not in savers)
            gradients = sum(spec.nbytes.at(size) for spec in op.outputs if spec.requires_grad)
            gradients += sum(made[name][1].nbytes.at(size) for name in op.inputs if name in made)
            self._passing.append((outputs, gradients))

    def admits(self, segment: int, first: int, last: int) -> bool:
        """Whether operations [first, last) fit as a segment."""
        return self.need(segment, first, last) <= self.limits[segment]

    def need(self, segment: int, first: int, last: int) -> float:
        """What operations [first, last) need as a segment [bytes]."""
        if (first, last) not in self._known:
            self._known[first, last] = self._look(first, last)
        state, kept, fullest = self._known[first, last]
        return state + (self.in_flight[segment] - 1) * kept + fullest

    def _look(self, first: int, last: int) -> tuple[float, float, float]:
        """State, what a microbatch keeps, and what it takes at its fullest [bytes]."""
        state = sum(one.nbytes for one in self._state if one.is_used(first, last))
        kept = sum(
            one.nbytes for one in self._saved if (one.maker < 0 or one.maker >= first) and one.is_used(first, last)
        )
        crossing = 0.0
        for one in self._flowing:
            leaves = first <= one.maker < last and bool(one.uses) and one.uses[-1] >= last
            if leaves or (one.maker < first and one.is_used(first, last)):
                kept += one.nbytes
                crossing += one.nbytes if one.returns else 0.0
        forward = max((outputs for outputs, _ in self._passing[first:last]), default=0.0)
        backward = max((gradients for _, gradients in self._passing[first:last]), default=0.0)
        return state, kept, kept + max(forward, backward + crossing)


def _maker(name: str, made: Mapping[str, tuple[int, TensorSpec]], place: Mapping[str, int]) -> int:
    """Number of the operation that makes a storage: of its tensor, or `<operation>/<number>`; -1 for an input."""
    if name in made:
        return made[name][0]
    return place.get(name.rpartition("/")[0], -1)
