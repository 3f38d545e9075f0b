"""Memory and time of a step in the vDNN paper's accounting: the buffers of Torch and cuDNN in 2016.

The buffers are:

- **feature maps**: the Y of each layer, and the batch of samples. ReLU works in place, so it adds no map. Pooling keeps
  no indices: its backward reads its X and Y;
- **gradient maps**: one for each feature map, of the same size, except for the samples; allocated from the backward of
  the last layer that read the map to the backward of the layer that made it;
- **workspace** of a convolution, while it computes; **weights and their gradients**, all the time.

The baseline allocates once for the whole network: every feature map, two gradient maps of the largest size, which
layers use alternately, and the largest workspace. So its mean is its peak. The policies allocate layer by layer:

    step        F1      F2      F3      B3      B2      B1
    X of 2      |---made, read--|                               on the device
                        |=copy=|        |=fetch=|               copies, each overlapped with a layer
                                        |-------read----|       on the device again

A layer of the forward lasts as long as its operations, or as the copy of its X if that is longer; a layer of the
backward as long as its operations, or as the overlapped fetch if that is longer. Means are over time.

Source:
    Rhu et al., MICRO 2016, sections II and III; reuse of gradient maps and ReLU in place as in Torch.

`network_of` converts a traced network to the paper's list of layers: the maps that each reads and makes, and when a map
is needed. Steps are numbered from 0: layer n of `count` computes forward in step n and backward in step `2 * count - 1
- n`. A map is needed in the backward of convolutions, dense layers, norms and poolings that read it, and of activations
and poolings that made it: the arguments of cuDNN's functions.

`offload_on_demand` offloads every storage except while it is used: the minimum memory with offloading alone. Each
storage leaves at its last pack and returns at its first unpack, so every copy is exposed. It is not a practical policy;
the mean of an offload-all policy is compared with its memory.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy

from trimaran.graph.trace.types import Role, StepTrace
from trimaran.graph.types import Phase
from trimaran.memory.vdnn import Layer, LayerKind, Offload, backward_order, layers_of, prefetch_order
from trimaran.program.memory import Decision, MemoryPlan, MemoryStep
from trimaran.program.types import Kind
from trimaran_studies.reproduce.vdnn_dynamic import Algorithm, Convolution, convolution_of

_READ_X = frozenset({LayerKind.CONVOLUTION, LayerKind.LINEAR, LayerKind.NORM, LayerKind.POOLING})
_READ_Y = frozenset({LayerKind.ACTIVATION, LayerKind.POOLING})


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperLayer:
    """One layer.

    Attributes:
        name: of the layer
        kind: of the layer
        inputs: feature maps that it reads
        output: feature map that it makes, or changes in place; None where no layer reads it
        forward_s: time of its forward, convolutions performance-optimal [s]
        backward_s: time of its backward, likewise [s]
        convolution: its shape, if it is one
        classifies: whether it belongs to the classification layers
    """

    name: str
    kind: LayerKind
    inputs: tuple[int, ...]
    output: int | None
    forward_s: float = 0.0
    backward_s: float = 0.0
    convolution: Convolution | None = None
    classifies: bool = False

    @property
    def maps(self) -> frozenset[int]:
        """Feature maps that it reads or makes."""
        return frozenset(self.inputs if self.output is None else (*self.inputs, self.output))

    def needs(self, number: int) -> bool:
        """Whether its backward reads a feature map."""
        return (number in self.inputs and self.kind in _READ_X) or (number == self.output and self.kind in _READ_Y)


@dataclass(frozen=True, kw_only=True)
class PaperNetwork:
    """A network as a list of layers.

    Attributes:
        layers: in order
        map_bytes: size of each feature map [bytes]
        weight_bytes: all weights [bytes]
    """

    layers: tuple[PaperLayer, ...]
    map_bytes: Mapping[int, int]
    weight_bytes: int

    @cached_property
    def lives(self) -> Mapping[int, tuple[int, int]]:
        """By feature map: the step that makes it, and the last step that uses it."""
        end = 2 * len(self.layers) - 1
        lives: dict[int, tuple[int, int]] = {}
        for n, layer in enumerate(self.layers):
            for number in layer.maps:
                born, last = lives.get(number, (n, n))
                lives[number] = (born, max(last, end - n if layer.needs(number) else n))
        return lives

    @cached_property
    def gradients(self) -> Mapping[int, tuple[int, int]]:
        """By feature map that a layer makes: the first and the last step of the backward that use its gradient."""
        end = 2 * len(self.layers) - 1
        made: dict[int, int] = {}
        read: dict[int, int] = {}
        for n, layer in enumerate(self.layers):
            if layer.output is not None and (layer.output not in read or layer.output in made):
                made.setdefault(layer.output, n)
            read |= dict.fromkeys(layer.inputs, n)
        return {number: (end - read.get(number, n), end - n) for number, n in made.items()}


def network_of(trace: StepTrace, durations_s: numpy.ndarray) -> PaperNetwork:
    """The network of a traced step.

    Args:
        trace: of the step
        durations_s: of its events, by moment [s]
    """
    layers = layers_of(trace)
    backward_s = _backward_seconds(trace, layers, durations_s)
    forward_s = numpy.concatenate(([0.0], numpy.cumsum(durations_s)))
    paper = tuple(
        PaperLayer(
            name=layer.name,
            kind=layer.kind,
            inputs=layer.inputs,
            output=max(layer.outputs, key=lambda number: trace.storages[number].nbytes, default=None),
            forward_s=float(forward_s[layer.end] - forward_s[layer.first]),
            backward_s=backward_s.get(layer.number, 0.0),
            convolution=convolution_of(trace, layer),
            classifies=layer.classifies,
        )
        for layer in layers
    )
    maps = frozenset[int]().union(*(layer.maps for layer in paper))
    return PaperNetwork(
        layers=paper,
        map_bytes={number: trace.storages[number].nbytes for number in sorted(maps)},
        weight_bytes=sum(storage.nbytes for storage in trace.storages if storage.role == Role.PARAMETER),
    )


def _backward_seconds(trace: StepTrace, layers: tuple[Layer, ...], durations_s: numpy.ndarray) -> dict[int, float]:
    """By layer, time of the operations from its first unpack to the first of the next layer [s]."""
    order, starts = backward_order(trace, layers)
    begins = {starts[layer]: layer for layer in order}  # of layers without unpacks and the one after them, the latter
    seconds: dict[int, float] = {}
    layer = order[0] if order else None
    for moment, event in enumerate(trace.events):
        layer = begins.get(moment, layer)
        if layer is not None and getattr(event, "phase", None) == Phase.BACKWARD:
            seconds[layer] = seconds.get(layer, 0.0) + float(durations_s[moment])
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Memory and time of a step in the paper's accounting.

    Attributes:
        steps_bytes: by layer of the forward, then by layer of the backward in reverse: memory without weights [bytes]
        seconds: time of each of them [s]
        weight_bytes: weights and their gradients [bytes]
    """

    steps_bytes: numpy.ndarray
    seconds: numpy.ndarray
    weight_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Peak, with weights and their gradients [bytes]."""
        return int(self.steps_bytes.max()) + self.weight_bytes

    @property
    def mean_bytes(self) -> float:
        """Mean over time, with weights and their gradients [bytes]."""
        return self.mean_without_weights_bytes + self.weight_bytes

    @property
    def mean_without_weights_bytes(self) -> float:
        """Mean over time, without weights and their gradients [bytes]."""
        return float((self.steps_bytes * self.seconds).sum() / self.seconds.sum())

    @property
    def step_time_s(self) -> float:
        """Forward and backward [s]."""
        return float(self.seconds.sum())


def baseline(network: PaperNetwork, algorithms: Mapping[int, Algorithm] | None = None) -> Buffers:
    """The whole network allocated at once, nothing offloaded.

    Args:
        network: the layers
        algorithms: of each convolution, by number of the layer; missing ones are performance-optimal
    """
    algorithms = algorithms or {}
    largest = 2 * max((network.map_bytes[number] for number in network.gradients), default=0)
    workspace = max((_workspace(layer, algorithms.get(n)) for n, layer in enumerate(network.layers)), default=0)
    total = sum(network.map_bytes.values()) + largest + workspace
    seconds = _compute_seconds(network, algorithms)
    return Buffers(
        steps_bytes=numpy.full(len(seconds), total, dtype=numpy.int64),
        seconds=seconds,
        weight_bytes=2 * network.weight_bytes,
    )


def virtualized(
    network: PaperNetwork,
    offload: Offload,
    algorithms: Mapping[int, Algorithm] | None = None,
    *,
    to_host_bytes_per_s: float,
    to_device_bytes_per_s: float,
) -> Buffers:
    """A policy of the paper, which allocates layer by layer.

    Args:
        network: the layers
        offload: whose X goes to the host
        algorithms: of each convolution, by number of the layer; missing ones are performance-optimal
        to_host_bytes_per_s: rate of copies to the host [bytes/s]
        to_device_bytes_per_s: rate of copies back [bytes/s]
    """
    algorithms = algorithms or {}
    count = len(network.layers)
    leaves = _leaving(network, offload)
    fetched_at, seconds = _timed(
        network, leaves, _compute_seconds(network, algorithms), to_host_bytes_per_s, to_device_bytes_per_s
    )
    used = numpy.zeros(2 * count, dtype=numpy.int64)
    for number, (born, last_use) in network.lives.items():
        nbytes = network.map_bytes[number]
        if number in leaves:
            used[born : leaves[number] + 1] += nbytes
            used[fetched_at[number] : last_use + 1] += nbytes
        else:
            used[born : last_use + 1] += nbytes
    for number, (first, last) in network.gradients.items():
        used[first : last + 1] += network.map_bytes[number]
    for n, layer in enumerate(network.layers):
        workspace = _workspace(layer, algorithms.get(n))
        used[n] += workspace
        used[2 * count - 1 - n] += workspace
    return Buffers(steps_bytes=used, seconds=seconds, weight_bytes=2 * network.weight_bytes)


def _workspace(layer: PaperLayer, algorithm: Algorithm | None) -> int:
    if layer.convolution is None or algorithm == Algorithm.MEMORY:
        return 0
    return layer.convolution.workspace_bytes


def _compute_seconds(network: PaperNetwork, algorithms: Mapping[int, Algorithm]) -> numpy.ndarray:
    factors = [
        layer.convolution.slowdown(algorithms.get(n, Algorithm.PERFORMANCE)) if layer.convolution else 1.0
        for n, layer in enumerate(network.layers)
    ]
    forward = [layer.forward_s * factor for layer, factor in zip(network.layers, factors, strict=True)]
    backward = [layer.backward_s * factor for layer, factor in zip(network.layers, factors, strict=True)]
    return numpy.array(forward + backward[::-1])


def _leaving(network: PaperNetwork, offload: Offload) -> dict[int, int]:
    """By map that leaves, the layer that offloads it: the last one that reads it."""
    last = {number: n for n, layer in enumerate(network.layers) for number in layer.inputs}
    convolved = {number for layer in network.layers if layer.kind == LayerKind.CONVOLUTION for number in layer.inputs}
    return {
        number: n
        for number, n in last.items()
        if not network.layers[n].classifies
        and network.lives[number][1] >= len(network.layers)  # the backward reads it
        and (offload == Offload.ALL or (offload == Offload.CONV and number in convolved))
    }


def _timed(
    network: PaperNetwork,
    leaves: Mapping[int, int],
    compute_s: numpy.ndarray,
    to_host_bytes_per_s: float,
    to_device_bytes_per_s: float,
) -> tuple[dict[int, int], numpy.ndarray]:
    """By map, the step during which it returns; and the time of each step."""
    count = len(network.layers)
    by_layer: dict[int, list[int]] = {}
    for number, n in leaves.items():
        by_layer.setdefault(n, []).append(number)
    seconds, own_s = compute_s.copy(), numpy.zeros(len(compute_s))
    for n, numbers in by_layer.items():
        seconds[n] = max(seconds[n], _total(network, numbers) / to_host_bytes_per_s)
    convolutions = [layer.kind == LayerKind.CONVOLUTION for layer in network.layers]
    fetched_at: dict[int, int] = {}
    order = prefetch_order(range(count - 1, -1, -1), offloaded=by_layer.keys(), convolutions=convolutions)
    for n, found in order:
        step = 2 * count - 1 - n
        fetch_s = _total(network, by_layer[found]) / to_device_bytes_per_s
        if found == n:
            own_s[step] = fetch_s
        else:
            seconds[step] = max(seconds[step], fetch_s)
        fetched_at |= dict.fromkeys(by_layer[found], step)
    # A layer's fetch for itself comes before its operations and before its fetches for others.
    return fetched_at, seconds + own_s


def _total(network: PaperNetwork, numbers: Sequence[int]) -> int:
    return sum(network.map_bytes[number] for number in numbers)


def offload_on_demand(trace: StepTrace) -> MemoryPlan:
    """Offload every storage that is not used for at least one operation."""
    ticks = sorted(tick.moment for tick in (*trace.packs, *trace.unpacks))
    steps: list[MemoryStep] = []
    for storage in trace.movable:
        leave = ticks[bisect_right(ticks, storage.packs[-1])]
        back = storage.unpacks[0]
        if max(leave, storage.outside_end) < back:
            keys = ((storage.packs[-1], Kind.OFFLOAD), (leave, Kind.RELEASE), (back, Kind.PREFETCH))
            steps += [MemoryStep(moment=moment, kind=kind, storage=storage.number) for moment, kind in keys]
    return MemoryPlan(
        policy="on_demand",
        budget_bytes=None,
        decisions={step.storage: Decision.OFFLOAD for step in steps},
        steps=tuple(sorted(steps, key=lambda step: step.moment)),
        recipes={},
        reasons={},
    )
