"""The policies of the vDNN paper as memory plans: every layer's X to the host, those of convolutions, or what fits.

    forward   conv1     | conv2      | pool        backward  pool      | conv2       | conv1
    d2h       X of conv1| X of conv2 | X of pool   h2d       X of conv2| X of conv1  |
                        ^            ^                                 ^             ^
              the layer's end waits for the copy, then its memory is released; in the backward it waits for the fetch

While a layer computes, its X goes to the host; a map that several layers read goes with the last of them. The end of
the layer waits for the copy (`DEL`). In the backward each layer starts to fetch the maps of one earlier layer
(`vdnn_window`), and its end waits for them: `MemoryPlan.waits`, where an ordinary plan would wait only when a map is
used. The classification layers keep what they have.

What PyTorch saves besides maps has no counterpart in the paper: its max pooling keeps indices, its dropout a mask. With
`vdnn_all` such a by-product leaves too, while the next layer computes, if it is large enough to be worth a copy.

Left out: the algorithm of each convolution, its workspace and its speed. The study of the paper has them.

A layer is a run of operations of one module in the forward: a leaf module, or what a module does itself between its
children (a sum, a join of branches). Its X are the feature maps that it reads and did not make. Left out: layers of the
update; operations on parameters alone, which belong to the layer around them.

An unpack in the backward belongs to the layer that packed. An operation packs its inputs before it runs and its results
after, and a trace does not say which of the two a pack between two operations is. It is the earlier operation's if only
that one has the value, or if its kind saves its result; otherwise the later one's.

Prefetch: each layer of the backward searches once for a layer whose maps it fetches.

    backward of layer     4 (conv)    3 (pool)    2 (relu)    1 (conv)
    search finds          3           1           nothing     ...
    fetched by the end    X of 3      X of 1

The search goes back from the layer and takes the nearest one whose maps are on the host and not asked for yet. It ends
at the next convolution, fetched or not, so that nothing is fetched much earlier than it is used. One search starts the
copies of one layer; the end of the layer in whose backward they run waits for them.

Source:
    Rhu et al., "vDNN: Virtualized Deep Neural Networks for Scalable, Memory-Efficient Neural Network Design", MICRO
    2016, arXiv:1602.08124, section III; section III-B and the figure with `findPrefetchLayer` for the prefetch.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum

from trimaran.base.errors import InfeasibleError
from trimaran.base.units import format_bytes
from trimaran.graph.trace.types import Role, StepTrace, Tick, TraceOp
from trimaran.graph.types import Phase
from trimaran.program.memory import KEEP_ALL, Decision, MemoryPlan, MemoryStep
from trimaran.program.types import Kind
from trimaran.simulator.memory import host_peak, live_bytes


class LayerKind(StrEnum):
    """Kind of a layer, as the policies see it."""

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
    """The operation, of the two around a tick, that packed it."""
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


def find_prefetch_layer(
    layer: int, *, offloaded: Set[int], prefetched: Set[int], convolutions: Sequence[bool]
) -> int | None:
    """The layer whose maps are to be fetched during the backward of a layer.

    Args:
        layer: whose backward begins
        offloaded: layers whose maps went to the host
        prefetched: those of them that were asked for already
        convolutions: by layer, whether it is a convolution

    Returns:
        Number of the layer, or None if the window holds none.

    Example:
        >>> layers = [True, False, True, False]  # conv, relu, conv, pool
        >>> find_prefetch_layer(3, offloaded={0, 2, 3}, prefetched={3}, convolutions=layers)
        2
        >>> find_prefetch_layer(3, offloaded={0, 2, 3}, prefetched={2, 3}, convolutions=layers) is None
        True
    """
    for earlier in range(layer - 1, -1, -1):
        if earlier in offloaded and earlier not in prefetched:
            return earlier
        if convolutions[earlier]:
            return None
    return None


def prefetch_order(
    backward: Sequence[int], *, offloaded: Set[int], convolutions: Sequence[bool]
) -> tuple[tuple[int, int], ...]:
    """The layers whose maps each layer of the backward fetches.

    Args:
        backward: layers in the order of the backward
        offloaded: layers whose maps went to the host
        convolutions: by layer, whether it is a convolution

    Returns:
        Pairs (layer of the backward, layer whose maps it fetches), in order. A layer whose own maps no one fetched by
        its beginning fetches them itself, first: (n, n).
    """
    prefetched: set[int] = set()
    order = []
    for layer in backward:
        if layer in offloaded and layer not in prefetched:
            prefetched.add(layer)
            order.append((layer, layer))
        found = find_prefetch_layer(layer, offloaded=offloaded, prefetched=prefetched, convolutions=convolutions)
        if found is not None:
            prefetched.add(found)
            order.append((layer, found))
    return tuple(order)


SMALLEST_BY_PRODUCT_BYTES = 256 * 1024


class Offload(StrEnum):
    """Whose X goes to the host."""

    NONE = "none"
    CONV = "vdnn_conv"
    ALL = "vdnn_all"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leave:
    """A storage that leaves with a layer: when its copy starts, and when its memory is released."""

    storage: int
    layer: int
    offload: int
    release: int


def vdnn_plan(trace: StepTrace, offload: Offload) -> MemoryPlan:
    """A static policy of the paper.

    Args:
        trace: of the step
        offload: whose X goes to the host

    Returns:
        A plan without budget: the policies offload whatever they may.
    """
    if offload == Offload.NONE:
        return KEEP_ALL
    layers = layers_of(trace)
    ticks = sorted(tick.moment for tick in (*trace.packs, *trace.unpacks))
    leaves = _leaves(trace, layers, ticks, offload)
    fetches, waits = _fetches(trace, layers, leaves)
    # What would be fetched before it has left stays; so does what someone else holds, such as the caller's batch.
    leaves = [
        leave
        for leave in leaves
        if fetches[leave.storage] > max(leave.release, trace.storages[leave.storage].outside_end)
    ]
    moved = {leave.storage for leave in leaves}
    steps = [
        MemoryStep(moment=moment, kind=kind, storage=leave.storage)
        for leave in leaves
        for moment, kind in ((leave.offload, Kind.OFFLOAD), (leave.release, Kind.RELEASE))
    ]
    steps += [
        MemoryStep(moment=moment, kind=Kind.PREFETCH, storage=storage)
        for storage, moment in fetches.items()
        if storage in moved
    ]
    return MemoryPlan(
        policy=offload.value,
        budget_bytes=None,
        decisions=dict.fromkeys(sorted(moved), Decision.OFFLOAD),
        steps=tuple(sorted(steps, key=lambda step: step.moment)),
        recipes={},
        reasons={leave.storage: f"leaves with {layers[leave.layer].name or 'the loss'}" for leave in leaves},
        waits={storage: moment for storage, moment in waits.items() if storage in moved},
    )


def vdnn_all(trace: StepTrace) -> MemoryPlan:
    """Every layer's X to the host."""
    return vdnn_plan(trace, Offload.ALL)


def vdnn_conv(trace: StepTrace) -> MemoryPlan:
    """The X of convolutions to the host."""
    return vdnn_plan(trace, Offload.CONV)


def vdnn_dyn(trace: StepTrace, *, budget_bytes: int, host_bytes: int | None = None) -> MemoryPlan:
    """The dynamic policy: the first of no offload, the X of convolutions and every X that fits.

    The paper also chooses the algorithm of each convolution. A trace counts no workspaces, so that only the offload is
    left to choose.

    Args:
        trace: of the step
        budget_bytes: peak of live bytes that there is room for [bytes]
        host_bytes: most that may lie on the host at once [bytes]; None: no limit

    Raises:
        InfeasibleError: not even offloading every X fits the device, or what fits it does not fit the host
    """
    peak_bytes = there_bytes = 0
    for offload in (Offload.NONE, Offload.CONV, Offload.ALL):
        plan = vdnn_plan(trace, offload)
        peak_bytes = live_bytes(trace, plan).peak
        there_bytes = host_peak(trace, plan)
        if peak_bytes <= budget_bytes and (host_bytes is None or there_bytes <= host_bytes):
            return replace(plan, policy="vdnn_dyn", budget_bytes=budget_bytes)
    if host_bytes is not None and peak_bytes <= budget_bytes:
        raise InfeasibleError(
            f"vDNN cannot train this network: its first trial, all(m), puts {format_bytes(there_bytes)} on the host, "
            f"which has room for {format_bytes(host_bytes)}. Take a smaller batch or a larger host.",
            code="memory-plan.vdnn-host-too-small",
            there_bytes=there_bytes,
            host_bytes=host_bytes,
        )
    raise cannot_train(peak_bytes, budget_bytes)


def cannot_train(peak_bytes: int, budget_bytes: int) -> InfeasibleError:
    """The error where not even offloading every X fits.

    Args:
        peak_bytes: with every X offloaded [bytes]
        budget_bytes: memory that there is [bytes]
    """
    return InfeasibleError(
        f"vDNN cannot train this network: its first trial, all(m), needs {format_bytes(peak_bytes)} and has "
        f"{format_bytes(budget_bytes)}. Take a smaller batch or a larger device.",
        code="memory-plan.vdnn-cannot-train",
        peak_bytes=peak_bytes,
        budget_bytes=budget_bytes,
    )


def last_readers(layers: Sequence[Layer]) -> dict[int, int]:
    """For each feature map, the last layer that reads it: it offloads the map (the paper's reference count)."""
    return {storage: layer.number for layer in layers for storage in layer.inputs}


def leaving(layers: Sequence[Layer], offload: Offload) -> dict[int, int]:
    """Feature maps that leave under a policy, with their layers.

    Returns:
        By storage, the number of the layer in whose forward it leaves.
    """
    convolved = {storage for layer in layers if layer.kind == LayerKind.CONVOLUTION for storage in layer.inputs}
    return {
        storage: last
        for storage, last in last_readers(layers).items()
        if not layers[last].classifies
        and (offload == Offload.ALL or (offload == Offload.CONV and storage in convolved))
    }


def _leaves(trace: StepTrace, layers: Sequence[Layer], ticks: Sequence[int], offload: Offload) -> list[_Leave]:
    movable = {storage.number for storage in trace.movable}
    leaving_with = {storage: layer for storage, layer in leaving(layers, offload).items() if storage in movable}
    by_products: dict[int, int] = {}
    if offload == Offload.ALL:
        by_products = _by_products(trace, layers, movable - leaving_with.keys())
        leaving_with |= by_products
    leaves = []
    for storage, number in sorted(leaving_with.items(), key=lambda pair: (pair[1], pair[0])):
        layer = layers[number]
        start = max(trace.storages[storage].packs[-1], layer.first)
        start = ticks[bisect_left(ticks, start)]
        behind = layers[min(number + 1, len(layers) - 1)] if storage in by_products else layer
        end = bisect_left(ticks, max(start, behind.end))
        if end < len(ticks):
            leaves.append(_Leave(storage=storage, layer=number, offload=start, release=ticks[end]))
    return leaves


def _by_products(trace: StepTrace, layers: Sequence[Layer], movable: set[int]) -> dict[int, int]:
    """Storages that a layer saves for its backward and no other layer reads."""
    found = {}
    for layer in layers:
        for index in layer.packs if not layer.classifies else ():
            storage = trace.storages[trace.packs[index].storage]
            own = storage.birth >= layer.first and storage.number not in layer.outputs
            if own and storage.number in movable and storage.nbytes >= SMALLEST_BY_PRODUCT_BYTES:
                found[storage.number] = layer.number
    return found


def _fetches(
    trace: StepTrace, layers: Sequence[Layer], leaves: Sequence[_Leave]
) -> tuple[dict[int, int], dict[int, int]]:
    """By storage, the tick at which its fetch starts, and the tick that waits for it."""
    of_layer: dict[int, list[int]] = {}
    for leave in leaves:
        of_layer.setdefault(leave.layer, []).append(leave.storage)
    order, starts = backward_order(trace, layers)
    following = dict(
        zip((starts[layer] for layer in order), _next_starts([starts[layer] for layer in order]), strict=True)
    )
    fetches: dict[int, int] = {}
    waits: dict[int, int] = {}
    convolutions = [layer.kind == LayerKind.CONVOLUTION for layer in layers]
    for layer, found in prefetch_order(order, offloaded=of_layer.keys(), convolutions=convolutions):
        for storage in of_layer[found]:
            first_use = trace.storages[storage].unpacks[0]
            fetches[storage] = min(starts[layer], first_use)
            wait = following[starts[layer]]
            if wait is not None and starts[layer] < wait < first_use:
                waits[storage] = wait
    for leave in leaves:
        # A layer whose backward never shows (nothing of it was packed) fetches nothing: on demand, then.
        fetches.setdefault(leave.storage, trace.storages[leave.storage].unpacks[0])
    return fetches, waits


def backward_order(trace: StepTrace, layers: Sequence[Layer]) -> tuple[list[int], Mapping[int, int]]:
    """Layers in the order of the backward, and the tick at which the backward of each begins.

    A layer that packed nothing leaves no tick. Its backward is taken to begin with that of the next layer that did.
    """
    owner = {index: layer.number for layer in layers for index in layer.packs}
    starts: dict[int, int] = {}
    silent = [layer.number for layer in reversed(layers) if not layer.packs]
    order: list[int] = []
    for tick in trace.unpacks:
        layer = owner.get(tick.pack)
        if layer is None or layer in starts:
            continue
        while silent and silent[0] > layer:
            starts[silent[0]] = tick.moment
            order.append(silent.pop(0))
        starts[layer] = tick.moment
        order.append(layer)
    return order, starts


def _next_starts(moments: Sequence[int]) -> list[int | None]:
    """For each moment of an ascending list, the next one that is greater."""
    following: list[int | None] = []
    later: int | None = None
    for place in range(len(moments) - 1, -1, -1):
        if place + 1 < len(moments) and moments[place + 1] > moments[place]:
            later = moments[place + 1]
        following.append(later)
    return following[::-1]
