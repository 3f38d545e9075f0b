"""The static policies of the vDNN paper as memory plans: every layer's X to the host, or only those of convolutions.

    forward   conv1     | conv2      | pool        backward  pool      | conv2       | conv1
    d2h       X of conv1| X of conv2 | X of pool   h2d       X of conv2| X of conv1  |
                        ^            ^                                 ^             ^
              the layer's end waits for the copy, then its memory is let go; in the backward it waits for the fetch

While a layer computes, its X goes to the host; a map that several layers read goes with the last of them. The end of
the layer waits for the copy (`DEL`). In the backward each layer starts to fetch the maps of one earlier layer
(`vdnn_window`), and its end waits for them: `MemoryPlan.waits`, where an ordinary plan would wait only when a map is
used. The classification layers keep what they have.

What PyTorch saves besides maps has no counterpart in the paper: its max pooling keeps indices, its dropout a mask. With
`vdnn_all` such a by-product leaves too, while the next layer computes, if it is large enough to be worth a copy.

Left out here: the algorithm of each convolution, so its workspace and speed (`vdnn_convolution`, `vdnn_dynamic`).

Source:
    Rhu et al., "vDNN: Virtualized Deep Neural Networks for Scalable, Memory-Efficient Neural Network Design", MICRO
    2016, arXiv:1602.08124, section III.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from trimaran.graph.trace.types import StepTrace
from trimaran.planner.memory.vdnn_layers import Layer, LayerKind, layers_of
from trimaran.planner.memory.vdnn_window import prefetch_order
from trimaran.program.memory import KEEP_ALL, Decision, MemoryPlan, MemoryStep
from trimaran.program.types import Kind

SMALLEST_BY_PRODUCT_BYTES = 256 * 1024


class Offload(StrEnum):
    """Whose X goes to the host."""

    NONE = "none"
    CONV = "vdnn_conv"
    ALL = "vdnn_all"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leave:
    """A storage that leaves with a layer: when its copy starts, and when its memory is let go."""

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


def last_readers(layers: Sequence[Layer]) -> dict[int, int]:
    """For each feature map, the last layer that reads it: it offloads the map (the paper's reference count)."""
    return {storage: layer.number for layer in layers for storage in layer.inputs}


def leaving(layers: Sequence[Layer], offload: Offload) -> dict[int, int]:
    """Which feature maps leave under a policy, and with which layer.

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
    """What layers save for their own backward and no other layer reads, by storage."""
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
