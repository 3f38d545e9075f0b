"""A traced network as the vDNN paper's list of layers: which maps each reads and makes, and when a map is needed.

Steps are numbered through: layer n of `count` computes forward in step n and backward in step `2 * count - 1 - n`.
A map is needed in the backward of convolutions, dense layers, norms and poolings that read it, and of activations and
poolings that made it: what cuDNN's functions ask for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy

from trimaran.graph.trace.types import Role, StepTrace
from trimaran.graph.types import Phase
from trimaran.planner.memory.vdnn import backward_order
from trimaran.planner.memory.vdnn_convolution import Convolution, convolution_of
from trimaran.planner.memory.vdnn_layers import Layer, LayerKind, layers_of

_READ_X = frozenset({LayerKind.CONVOLUTION, LayerKind.LINEAR, LayerKind.NORM, LayerKind.POOLING})
_READ_Y = frozenset({LayerKind.ACTIVATION, LayerKind.POOLING})


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperLayer:
    """One layer.

    Attributes:
        name: of the layer
        kind: what it is
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
    begins = {starts[layer]: layer for layer in order}  # of silent layers and the one behind them, the latter
    seconds: dict[int, float] = {}
    layer = order[0] if order else None
    for moment, event in enumerate(trace.events):
        layer = begins.get(moment, layer)
        if layer is not None and getattr(event, "phase", None) == Phase.BACKWARD:
            seconds[layer] = seconds.get(layer, 0.0) + float(durations_s[moment])
    return seconds
