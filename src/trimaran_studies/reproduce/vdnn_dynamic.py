"""The dynamic policy of the vDNN paper: which maps to offload, and which algorithm for each convolution.

    1. all(m)      every X to the host, memory-optimal algorithms: if that does not fit, the network cannot be trained
    2. none(p)     nothing offloaded, the fastest algorithms
    3. conv(p)     the X of convolutions
    4. all(p)      every X
    5. conv(greedy), all(greedy): from the fastest on, each convolution that does not fit gets the memory-optimal one
    6. all(m)      step 1 has shown that it fits

The first that fits is taken. The paper profiles: each trial runs a step. Here each trial is a simulation. The paper
also tries the algorithms between the two, layer by layer; this model has only two.

A convolution has two algorithms, memory-optimal (m) and performance-optimal (p):

    (m)  implicit matrix product: no workspace
    (p)  the fastest: FFT where it applies, with a workspace that holds spectra; elsewhere the matrix product

FFT applies to convolutions of stride 1 where its products take fewer FLOP than the direct ones. With fewer than 16
input channels the transforms cost more than they save (assumed). Tiles are 32 × 32; the spectrum of a real tile is 32 ×
17 complex numbers of 8 bytes, and a product of two spectra takes 8 FLOP. If the padded map fits into one tile, the
workspace holds the spectra of inputs, outputs and weights. Larger maps are split into tiles that overlap by the window:
the workspace holds the spectra of inputs and weights, and outputs are transformed back tile by tile.

Evidence for this model:

- one tile: Oyama et al., "µ-cuDNN", 2018, give 213 MiB (recalled) for conv2 of the two-part AlexNet at a batch of 256
  (48 → 128 maps of 27 × 27, 5 × 5); this model gives 212.5;
- many tiles: assumed. With the spectra of the outputs VGG-16(256) would need 32 GB instead of the published 28; the
  model was chosen by that figure, so VGG-16(256)'s total is no test of it;
- speed: 1.25 times as long with (m) is assumed for every convolution where FFT applies, in both directions. Of the same
  order: before and after a better use of workspaces, chainer/chainer#1122 measures 1.23 (VGG-A), 1.28 (GoogLeNet),
  1.12 (AlexNet) and 1.02 (OverFeat) of whole steps, on a Titan X with cuDNN 4. The real choice depends on the layer.

Source:
    Rhu et al., MICRO 2016, section III-C.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from types import MappingProxyType

from trimaran.graph.trace.types import StepTrace, TraceOp, View
from trimaran.memory.vdnn import Layer, LayerKind, Offload, cannot_train

SLOWER = 1.25
"""Time of (m) over time of (p), where FFT applies."""

_TILE = 32
_SPECTRUM = _TILE * (_TILE // 2 + 1)
_SPECTRUM_BYTES = _SPECTRUM * 8
_FEWEST_CHANNELS = 16
_ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


class Algorithm(StrEnum):
    """How a convolution is computed."""

    MEMORY = "m"
    PERFORMANCE = "p"


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """Shape of a convolution.

    Attributes:
        batch: samples
        inputs: maps that come in
        outputs: maps that go out
        height: of a map that goes out
        width: of a map that goes out
        window: height and width of the weights, the larger of the two
        groups: parts that share no maps
        strided: whether it skips places
    """

    batch: int
    inputs: int
    outputs: int
    height: int
    width: int
    window: int
    groups: int = 1
    strided: bool = False

    @property
    def tiles(self) -> int:
        """Tiles of one map."""
        step = _TILE - self.window + 1
        return ceil(self.height / step) * ceil(self.width / step)

    @property
    def transforms(self) -> bool:
        """Whether FFT applies: fewer FLOP for each pair of maps.

        Example:
            >>> maps = dict(batch=1, inputs=512, outputs=512, window=3)
            >>> Convolution(height=28, width=28, **maps).transforms  # 1 × 32 × 17 × 8 < 28 × 28 × 9 × 2
            True
            >>> Convolution(height=14, width=14, **maps).transforms
            False
        """
        if self.strided or self.window >= _TILE or self.inputs // self.groups < _FEWEST_CHANNELS:
            return False
        return self.tiles * _SPECTRUM * 8 < self.height * self.width * self.window**2 * 2

    @property
    def workspace_bytes(self) -> int:
        """Workspace of the performance-optimal algorithm [bytes].

        Example:
            >>> conv2 = Convolution(batch=256, inputs=48, outputs=128, height=27, width=27, window=5)
            >>> round(conv2.workspace_bytes / 2**20, 1)
            212.5
        """
        if not self.transforms:
            return 0
        spectra = self.batch * self.inputs * self.tiles + self.inputs * self.outputs // self.groups
        if self.tiles == 1:
            spectra += self.batch * self.outputs
        return spectra * _SPECTRUM_BYTES

    def slowdown(self, algorithm: Algorithm) -> float:
        """Time by the time of the performance-optimal algorithm."""
        return SLOWER if algorithm == Algorithm.MEMORY and self.transforms else 1.0


def convolution_of(trace: StepTrace, layer: Layer) -> Convolution | None:
    """Shape of the convolution of a layer; None if it has none, more than one, or one that is not of images."""
    if layer.kind != LayerKind.CONVOLUTION:
        return None
    ticks = [trace.packs[index] for index in layer.packs]
    ops = [op for op in trace.ops if layer.first <= op.moment < layer.end and "conv" in op.name]
    images = [tick.view for tick in ticks if tick.storage in layer.inputs and len(tick.view.shape) == 4]
    weights = [tick.view for tick in ticks if tick.storage in trace.names and len(tick.view.shape) == 4]
    if len(ops) != 1 or len(images) != 1 or len(weights) != 1:
        return None
    return _shape(trace, ops[0], images[0], weights[0])


def _shape(trace: StepTrace, op: TraceOp, image: View, weight: View) -> Convolution | None:
    batch, inputs, height, width = image.shape
    outputs, inputs_of_group, *window = weight.shape
    made = trace.storages[op.writes[0][0]].nbytes if op.writes else 0
    places = made // max(1, batch * outputs * _ITEM_BYTES.get(image.dtype, 4))
    if not places:
        return None
    # Padding only adds places; fewer than without any padding means a stride.
    strided = places < (height - window[0] + 1) * (width - window[1] + 1)
    rows = round((places * height / width) ** 0.5)
    return Convolution(
        batch=batch,
        inputs=inputs,
        outputs=outputs,
        height=rows,
        width=ceil(places / rows),
        window=max(window),
        groups=max(1, inputs // inputs_of_group),
        strided=strided,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Memory of one trial.

    Attributes:
        peak_bytes: peak of the step [bytes]
        by_convolution: peak during each convolution, forward or backward [bytes], by number of the layer
    """

    peak_bytes: int
    by_convolution: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Result of the dynamic policy.

    Attributes:
        offload: whose X goes to the host
        algorithms: of each convolution, by number of the layer
        tried: names of the trials in order, the last one is the choice
    """

    offload: Offload
    algorithms: Mapping[int, Algorithm]
    tried: tuple[str, ...]


Evaluate = Callable[[Offload, Mapping[int, Algorithm]], Usage]


def choose_dynamically(evaluate: Evaluate, convolutions: tuple[int, ...], *, budget_bytes: int) -> Choice:
    """Walk through the trials of the dynamic policy.

    Args:
        evaluate: memory of a step with this offloading and these algorithms
        convolutions: numbers of the layers that are convolutions, in order
        budget_bytes: memory of the device [bytes]

    Returns:
        The first trial that fits.

    Raises:
        InfeasibleError: not even the first one fits
    """
    frugal = MappingProxyType(dict.fromkeys(convolutions, Algorithm.MEMORY))
    fastest = MappingProxyType(dict.fromkeys(convolutions, Algorithm.PERFORMANCE))
    tried = ["all(m)"]
    least = evaluate(Offload.ALL, frugal).peak_bytes
    if least > budget_bytes:
        raise cannot_train(least, budget_bytes)
    for name, offload in (("none(p)", Offload.NONE), ("conv(p)", Offload.CONV), ("all(p)", Offload.ALL)):
        tried.append(name)
        if evaluate(offload, fastest).peak_bytes <= budget_bytes:
            return Choice(offload=offload, algorithms=fastest, tried=tuple(tried))
    for name, offload in (("conv(greedy)", Offload.CONV), ("all(greedy)", Offload.ALL)):
        tried.append(name)
        algorithms = _downgraded(evaluate, offload, fastest, budget_bytes)
        if evaluate(offload, algorithms).peak_bytes <= budget_bytes:
            return Choice(offload=offload, algorithms=algorithms, tried=tuple(tried))
    return Choice(offload=Offload.ALL, algorithms=frugal, tried=(*tried, "all(m)"))


def _downgraded(
    evaluate: Evaluate, offload: Offload, fastest: Mapping[int, Algorithm], budget_bytes: int
) -> Mapping[int, Algorithm]:
    # A workspace is there during its own layer only, so one pass over the layers finds all that overflow.
    peaks = evaluate(offload, fastest).by_convolution
    return {
        number: Algorithm.MEMORY if peaks.get(number, 0) > budget_bytes else algorithm
        for number, algorithm in fastest.items()
    }
