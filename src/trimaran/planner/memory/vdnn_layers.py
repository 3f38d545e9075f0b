"""The layers of a traced network, as the vDNN paper sees one: what each reads, what it makes, when it runs.

A layer is a run of operations of one module in the forward: a leaf module, or what a module does itself between its
children (a sum, a join of branches). Its X are the feature maps that it reads and did not make. Left out: layers of the
update; operations on parameters alone, which belong to the layer around them.

An unpack in the backward belongs to the layer that packed. An operation packs its inputs before it runs and its results
after, and a trace does not say which of the two a pack between two operations is. It is the earlier operation's if only
that one has the value, or if its kind saves its result; otherwise the later one's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from trimaran.graph.trace.types import Role, StepTrace, Tick, TraceOp
from trimaran.graph.types import Phase


class LayerKind(StrEnum):
    """What a layer is to the policies."""

    CONVOLUTION = "convolution"
    POOLING = "pooling"
    ACTIVATION = "activation"
    NORM = "norm"
    LINEAR = "linear"
    OTHER = "other"


_KINDS: tuple[tuple[LayerKind, tuple[str, ...]], ...] = (
    (LayerKind.CONVOLUTION, ("convolution", "conv1d", "conv2d", "conv3d")),
    (LayerKind.LINEAR, ("addmm", "linear")),
    (LayerKind.NORM, ("batch_norm", "layer_norm", "group_norm", "local_response_norm")),
    (LayerKind.POOLING, ("pool",)),
    (LayerKind.ACTIVATION, ("relu", "sigmoid", "tanh", "gelu", "silu", "elu", "hardtanh", "threshold")),
)
_SAVE_THEIR_RESULT = ("relu", "sigmoid", "tanh", "softmax", "exp", "sqrt", "elu_", "threshold_", "reciprocal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer of the forward.

    Attributes:
        number: place in the forward
        name: path of its module
        kind: what it is to the policies
        first: moment of its first event
        end: first moment behind it
        inputs: storages of the feature maps that it reads and did not make
        outputs: storages that it makes or changes and that another layer reads
        packs: indices of the packs that its backward undoes
        classifies: whether it belongs to the classification layers: those from the first dense layer behind the last
            convolution on. The paper leaves them as they are
    """

    number: int
    name: str
    kind: LayerKind
    first: int
    end: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    packs: tuple[int, ...]
    classifies: bool


def layers_of(trace: StepTrace) -> tuple[Layer, ...]:
    """The layers of a traced step, in the order in which they ran."""
    runs = _runs(trace)
    packs = _packs_by_run(trace, runs)
    maps = {storage.number for storage in trace.storages if storage.role in (Role.ACTIVATION, Role.INPUT)}
    read = [{storage for op in run for storage, _ in op.reads} & maps for run in runs]
    read_later = _read_behind(read)
    kinds = [_kind(run) for run in runs]
    first_dense = _first_classifying(kinds)
    layers = []
    for n, run in enumerate(runs):
        written = {storage for op in run for storage, _ in op.writes} & maps
        born = {storage for storage in written if trace.storages[storage].birth >= run[0].moment}
        moments = [run[0].moment, *(trace.packs[index].moment for index in packs[n])]
        layers.append(
            Layer(
                number=n,
                name=run[0].module,
                kind=kinds[n],
                first=min(moments),
                end=run[-1].moment + 1,
                inputs=tuple(sorted(read[n] - born)),
                outputs=tuple(sorted(written & read_later[n])),
                packs=tuple(packs[n]),
                classifies=n >= first_dense,
            )
        )
    return tuple(layers)


def _runs(trace: StepTrace) -> list[list[TraceOp]]:
    """Operations of the forward, one list for each run of one module."""
    runs: list[list[TraceOp]] = []
    for op in trace.ops:
        if op.phase != Phase.FORWARD:
            continue
        if runs and runs[-1][0].module == op.module:
            runs[-1].append(op)
        else:
            runs.append([op])
    return runs


def _kind(run: Iterable[TraceOp]) -> LayerKind:
    names = [op.name for op in run]
    for kind, words in _KINDS:
        if any(word in name for name in names for word in words):
            return kind
    return LayerKind.OTHER


def _read_behind(read: Sequence[set[int]]) -> list[set[int]]:
    """For each layer, what the layers behind it read."""
    behind: set[int] = set()
    found = []
    for storages in reversed(read):
        found.append(set(behind))
        behind |= storages
    return found[::-1]


def _first_classifying(kinds: Sequence[LayerKind]) -> int:
    convolutions = [n for n, kind in enumerate(kinds) if kind == LayerKind.CONVOLUTION]
    if not convolutions:
        return len(kinds)
    dense = [n for n, kind in enumerate(kinds) if kind == LayerKind.LINEAR and n > convolutions[-1]]
    return dense[0] if dense else len(kinds)


def _packs_by_run(trace: StepTrace, runs: Sequence[Sequence[TraceOp]]) -> list[list[int]]:
    """For each run, the indices of the packs that belong to it."""
    place = {op.moment: n for n, run in enumerate(runs) for op in run}
    packs: list[list[int]] = [[] for _ in runs]
    waiting: list[Tick] = []
    before: TraceOp | None = None
    for event in trace.events:
        if isinstance(event, Tick):
            if event.kind == "pack":
                waiting.append(event)
        elif event.moment in place:
            for tick, op in _owners(waiting, before, event):
                packs[place[op.moment]].append(tick.index)
            waiting, before = [], event
    for tick, op in _owners(waiting, before, None):
        packs[place[op.moment]].append(tick.index)
    return packs


def _owners(ticks: Sequence[Tick], before: TraceOp | None, after: TraceOp | None) -> list[tuple[Tick, TraceOp]]:
    """Which of the two operations around them packed each of these ticks."""
    owners = []
    results: set[tuple[int, int]] = set()
    for tick in ticks:
        value = (tick.storage, tick.version)
        if before is None or value not in before.writes:
            owner = after or before
        elif after is None or value not in after.reads:
            owner = before
        elif value not in results and any(word in before.name for word in _SAVE_THEIR_RESULT):
            owner = before
            results.add(value)
        else:
            owner = after
        if owner is not None:
            owners.append((tick, owner))
    return owners
