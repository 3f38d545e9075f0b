"""Time of each kernel on a device, from curves fitted on measured kernels.

    time = (compute^q + memory^q)^(1/q) + start        q: how far the two overlap
    compute = time of the units                        memory = bytes / (bandwidth × the share that this kind sustains)

Works other than products of matrices have negligible compute. Left out: caches, which serve small tensors faster.

Time of a convolution: the fastest of the algorithms that the libraries of its time have.

    direct      one product of matrices                                              always
    Winograd    squares of outputs from products of transformed inputs and weights   windows of 3 and 5, stride 1
    FFT         products of frequencies                                              stride 1

FLOP are counted as of the direct one, so the others may seem to exceed a device's peak. Libraries grew: convolutions
on tensor cores ran at a third of their later speed at first, most of all the weight gradient. Kernels of other makers
(`libraries`) have the same algorithms with a factor each; those that unfold the input into a matrix write and read
that matrix besides. Left out: the loss by a library's heuristics against its best kernel, which is in the efficiencies.

Source: Lavin, Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016; Vasilache and others, "Fast
Convolutional Nets With fbfft", ICLR 2015; Chetlur and others, "cuDNN", arXiv:1410.0759.

Time of a recurrent layer: one product for all its inputs, then a small one for each step, one after another.

A step's product has few rows, so it is bound by reading its weights: libraries before 2018 read them several times
over, later ones keep to the bandwidth. The weight gradient needs no steps: its products are over all of them at once.

Time of a product of matrices on units that compute it tile by tile.

A product `m × n × k` is split into tiles of its result, and each tile is one multiprocessor's work:

    tiles = ceil(m / tile rows) × ceil(n / tile columns)             partial tiles are computed in full
    waves = tiles / multiprocessors, at least 1                      and partly rounded up
    time  = waves × (tile's FLOP over depth k + overhead / rate + fill)
    rate  = peak / multiprocessors × I / (I + I0)                    I: operations for each element the tile reads

Overhead and fill are the cost of filling and draining a tile's pipeline, in work and in waiting. The bytes that a
multiprocessor reads in a cycle have stayed the same over generations, its operations have grown, so `I0` is in
proportion to its peak and to the size of an element.

Small tiles fill a device that large ones leave idle, but read more for each operation. Where the result has few tiles
and the depth is large, as in weight gradients, the depth is split and the parts are added in memory. A library tries
the tiles that it has; we take the fastest. Left out: choices of a library that are not the best, which are in the
efficiency, and swizzles that keep tiles in a cache.

Since Ampere libraries have kernels too whose tiles follow one another without a gap. They lose half a wave and a start
in all, and are priced as the products of transformers are (`analytical.step_time`).

The device of a step, as the figures that the curves need: units, memory and libraries.

A device computes on its vector units or, in types that they take, on its tensor cores. Its figures come from the
catalog; the share of its peak that its architecture sustains, from the fitted constants.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy
from numpy.typing import NDArray

from trimaran.base.precision import product_dtype
from trimaran.graph.kernels.workload import Gradient, WorkKind
from trimaran.machine.types import Device
from trimaran.pricing.analytical.layers import tiled_flops
from trimaran.pricing.analytical.step_time import step_constants
from trimaran.pricing.kernels.columns import MATRIX_KINDS, Column, Flags, Kernels
from trimaran.pricing.kernels.constants import Constants, architecture_of
from trimaran.pricing.kernels.software import CUDNN_YEARS, UNFOLDING, Software, libraries_year, library_name

# ---------------------------------------------------------------------------------------------------------------------
# Products of matrices, tile by tile


TILES = ((256, 128), (128, 128), (128, 64), (64, 64), (64, 32), (32, 32))
"""Tiles of a result, in elements. Source: those of cuBLAS and CUTLASS kernels, by the names in their profiles."""

SPLITS = (1, 2, 4, 8, 16, 32, 64)
"""In how many parts a library splits the depth."""

PARTIAL_BYTES = 8.0
"""A partial result in float32, written and read once [bytes]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """The device and the constants of its tiles.

    Attributes:
        bytes_per_s: of the device's memory, for partial results [bytes/s]
        multiprocessors: of the device
        intensity: `I0`, the operations for an element at which a tile runs at half the rate
        depth: work of filling and draining, as a depth
        fill_s: wait for filling and draining [s]
        rounding: how much of the last wave's idle time is lost [0..1]
    """

    bytes_per_s: Column
    multiprocessors: Column
    intensity: Column
    depth: float
    fill_s: float
    rounding: float


def product_seconds(m: Column, n: Column, k: Column, count: Column, flops_per_s: Column, tiling: Tiling) -> Column:
    """Time that the units need for products, were their operands at hand.

    Args:
        m: rows
        n: columns
        k: depth
        count: products of that shape, at once
        flops_per_s: highest sustained rate of the units [FLOP/s]
        tiling: of the device

    Returns:
        Time of each [s].
    """
    best = numpy.full(numpy.broadcast(m, n, k, flops_per_s).shape, numpy.inf)
    processors = tiling.multiprocessors
    for rows, columns in TILES:
        reads = rows * columns / (rows + columns)
        rate = flops_per_s / processors * reads / (reads + tiling.intensity)
        upright = numpy.ceil(m / rows) * numpy.ceil(n / columns)
        lying = numpy.ceil(m / columns) * numpy.ceil(n / rows)
        tiles = numpy.minimum(upright, lying) * count
        for splits in SPLITS:
            load = tiles * splits / processors
            waves = numpy.maximum(1.0, load + tiling.rounding * (numpy.ceil(load) - load))
            tile_s = 2.0 * rows * columns * (numpy.ceil(k / splits) + tiling.depth) / rate + tiling.fill_s
            seconds = waves * tile_s
            if splits > 1:
                seconds = seconds + PARTIAL_BYTES * m * n * count * splits / tiling.bytes_per_s
            best = numpy.minimum(best, seconds)
    return best


# ---------------------------------------------------------------------------------------------------------------------
# The device and the fitted constants


_CUDNN_8 = CUDNN_YEARS["8"]

_GAPLESS = frozenset({"ampere", "ada", "hopper", "blackwell"})
"""Generations whose large products in 16 bits were measured one by one. Source: `benchmarks/fits/products.py`."""

_ALL_PRODUCTS = {"pytorch": (2020.8, 2022.45), "tensorflow": (2020.95, math.inf)}
"""Releases of a framework that round all products to TF32: from the first to before the last."""

MATRIX_UNITS = {"cdna1": 2.0, "cdna2": 2.0}
"""By how much matrix units that take fp32 as it is exceed the vector units. Source: AMD, CDNA and CDNA 2 papers."""

PLAIN = frozenset({"kepler", "maxwell", "pascal", "vega", "cpu"})
"""Architectures without tensor cores: half precision halves their traffic, and their frameworks compute in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSetting:
    """The units that compute each work of a step, one entry of each column a work.

    Attributes:
        architecture: of the device, "" where it is not known
        tensor: whether tensor cores compute it
        tf32: in fp32 rounded to TF32
        flops_per_s: peak of the units that compute it [FLOP/s]
        bytes_per_s: peak of the memory [bytes/s]
        multiprocessors: that share the work; 0 where it is not known
        launch_s: between two kernels that do nothing [s]
        power_w: that the device may draw; 0 where it is not known [W]
        year: of the libraries
        library: whose kernels compute, "" for the device maker's
        channels_last: images are kept with channels last
        large_flops_per_s: of large products in 16 bits, where they are known; 0 elsewhere [FLOP/s]
    """

    architecture: NDArray[numpy.str_]
    tensor: Flags
    tf32: Flags
    flops_per_s: Column
    bytes_per_s: Column
    multiprocessors: Column
    launch_s: Column
    power_w: Column
    year: Column
    library: NDArray[numpy.str_]
    channels_last: Flags
    large_flops_per_s: Column


def setting(
    kernels: Kernels, device: Device, software: Software, precision: str, *, gapless: bool = False
) -> KernelSetting:
    """The units that compute each kernel of a step on a device under a software.

    Args:
        kernels: of the step
        device: of the catalog
        software: framework and libraries
        precision: as of `rounded_kinds`
        gapless: large products are priced as those of transformers; the curves of whole steps were fitted without
    """
    vector = device.compute["fp32"].flops_per_s
    tensor_types = (
        {}
        if device.architecture in PLAIN
        else {name: peak.flops_per_s for name, peak in device.compute.items() if name != "fp32"}
    )
    kinds = rounded_kinds(device, software, precision)
    rounds = (kernels.dtype == "float32") & numpy.isin(kernels.kind, [kind.value for kind in kinds])
    asked = numpy.where(rounds, "tf32", kernels.dtype)
    for low in ("bf16", "fp16"):
        asked = numpy.where(kernels.dtype == product_dtype(low), low, asked)
    matrix = numpy.isin(kernels.kind, [kind.value for kind in (*MATRIX_KINDS, WorkKind.RECURRENT)])
    tensor = matrix & numpy.isin(asked, list(tensor_types))
    peak = numpy.where(matrix, vector * MATRIX_UNITS.get(device.architecture, 1.0), vector)
    for name, flops_per_s in tensor_types.items():
        peak = numpy.where(tensor & (asked == name), flops_per_s, peak)

    def same(value: float) -> Column:
        return numpy.full(len(kernels), float(value))

    large = step_constants().product_rate("bf16", device, libraries_year(software), tuned=False)
    is_large = tensor & numpy.isin(asked, ["bf16", "fp16"]) & (gapless and device.generation in _GAPLESS)

    return KernelSetting(
        architecture=numpy.full(len(kernels), architecture_of(device)),
        tensor=tensor,
        tf32=tensor & (asked == "tf32"),
        flops_per_s=peak,
        bytes_per_s=same(device.bandwidth.bytes_per_s),
        multiprocessors=same(device.multiprocessors),
        launch_s=same(device.launch.seconds),
        power_w=same(device.power_w),
        year=same(libraries_year(software)),
        library=numpy.full(len(kernels), library_name(software)),
        channels_last=numpy.full(len(kernels), software.channels_last or _is_made_channels_last(software)),
        large_flops_per_s=numpy.where(is_large, large, 0.0),
    )


def rounded_kinds(device: Device, software: Software, precision: str) -> frozenset[WorkKind]:
    """Kinds whose products of fp32 are rounded to TF32 on a device that has it.

    In "tf32" all of them, in "ieee" none, in "fp32" those that the framework rounds unless it is told otherwise: cuDNN
    since its version 8 convolutions and recurrent layers, PyTorch 1.7 to 1.11 and TensorFlow since 2.4 all products.
    Libraries of AMD round none.

    Source: NVIDIA, cuDNN, `cudnnMathType_t`; PyTorch, notes/cuda, "TensorFloat-32"; TensorFlow,
    `tf.config.experimental.enable_tensor_float_32_execution`.

    Example:
        >>> from trimaran.machine.catalog import find_device
        >>> sorted(rounded_kinds(find_device("a100-80gb"), Software(), "fp32"))
        [<WorkKind.CONVOLUTION: 'convolution'>, <WorkKind.RECURRENT: 'recurrent'>]
        >>> len(rounded_kinds(find_device("a100-80gb"), Software(year=2021.0), "fp32"))
        4
    """
    layers = frozenset({WorkKind.CONVOLUTION, WorkKind.RECURRENT})
    if precision == "tf32":
        return MATRIX_KINDS | layers
    if precision == "ieee" or device.architecture.startswith("cdna") or libraries_year(software) < _CUDNN_8:
        return frozenset()
    first, last = _ALL_PRODUCTS.get(software.framework, (math.inf, math.inf))
    return MATRIX_KINDS | layers if first <= software.year < last else layers


def _is_made_channels_last(software: Software) -> bool:
    """TensorFlow's layout optimizer makes a whole graph channels last for tensor cores."""
    return software.framework == "tensorflow" and software.year >= 2019.3


# ---------------------------------------------------------------------------------------------------------------------
# Sustained rate of the units of a device: vector units or tensor cores, under the device's power limit


Columns = TypeVar("Columns", Kernels, KernelSetting)
_PROCESSOR_FLOPS_PER_S = {"vector": 2 * 128 * 1.6e9, "tensor": 2 * 1024 * 1.6e9}
"""Of a multiprocessor whose number is not said: 128 lanes at 1.6 GHz, or the products of tensor cores of Ampere."""

UNITS = ((False, "vector"), (True, "tensor"))
"""Whether tensor cores compute, and the name under which constants are kept."""


def take(columns: Columns, chosen: Flags) -> Columns:
    """The chosen entries of all columns."""
    return type(columns)(**{name: getattr(columns, name)[chosen] for name in columns.__dataclass_fields__})


def of_architecture(setting: KernelSetting, figure: str, constants: Constants) -> Column:
    """A constant of the architecture of each work's device; where it has none, that of others."""
    found = numpy.empty(len(setting.architecture))
    for name in numpy.unique(setting.architecture):
        value = constants.get(f"architecture.{name}.{figure}", constants[f"architecture.other.{figure}"])
        found[setting.architecture == name] = value
    return found


def sustained(setting: KernelSetting, units: str, constants: Constants) -> Column:
    """Highest sustained rate of the units [FLOP/s]."""
    return _unlimited(setting, units, constants) * _clock(setting, units, constants)


def _unlimited(setting: KernelSetting, units: str, constants: Constants) -> Column:
    """The same without a limit of power [FLOP/s]."""
    best = setting.flops_per_s * of_architecture(setting, units, constants)
    return numpy.where(setting.tf32, best * constants["tf32"], best) if units == "tensor" else best


def _clock(setting: KernelSetting, units: str, constants: Constants) -> Column:
    """Share of its clock that the device's power lets it keep."""
    power_w = numpy.where(setting.power_w > 0, setting.power_w, numpy.inf)
    limit = power_w * of_architecture(setting, f"{units}_per_j", constants)
    if units == "tensor":
        limit = numpy.where(setting.tf32, limit / 2, limit)  # half as many operations a cycle for the same power
    return 1 / (1 + (_unlimited(setting, units, constants) / limit) ** 4) ** 0.25


def each_units(
    kernels: Kernels,
    setting: KernelSetting,
    constants: Constants,
    kind: str,
    seconds: Callable[[Kernels, KernelSetting, str, Tiling], Column],
) -> Column:
    """Times of kernels, those of vector units and of tensor cores each by themselves [s].

    Args:
        kernels: all of one kind
        setting: of each
        constants: fitted
        kind: under which the constants of the tiles are kept
        seconds: of some kernels, their setting, the name of their units and the constants of the tiles
    """
    found = numpy.zeros(len(kernels))
    for tensor, units in UNITS:
        chosen = setting.tensor == tensor
        if chosen.any():
            part, on = take(kernels, chosen), take(setting, chosen)
            assumed = numpy.maximum(1.0, sustained(on, units, constants) / _PROCESSOR_FLOPS_PER_S[units])
            on = replace(on, multiprocessors=numpy.where(on.multiprocessors > 0, on.multiprocessors, assumed))
            tiling = Tiling(
                bytes_per_s=on.bytes_per_s,
                multiprocessors=on.multiprocessors,
                intensity=constants[f"{kind}.{units}.intensity"] * _balance(part, on) * _clock(on, units, constants),
                fill_s=constants[f"{kind}.{units}.fill_s"],
                depth=constants[f"{kind}.{units}.depth"],
                rounding=constants[f"{kind}.{units}.rounding"],
            )
            found[chosen] = seconds(part, on, units, tiling)
    return found


def _balance(part: Kernels, on: KernelSetting) -> Column:
    """Rate of a multiprocessor for a byte of an element, in units of 10^12 FLOP/s and 4 bytes."""
    return on.flops_per_s / on.multiprocessors / 1e12 * part.element_bytes / 4


# ---------------------------------------------------------------------------------------------------------------------
# Kernels of each kind


PASSES = ((Gradient.NONE, "forward"), (Gradient.INPUT, "input"), (Gradient.WEIGHT, "weight"))
WINOGRAD = ((3, 2, "small"), (3, 4, "large"), (5, 2, "wide"))
"""Window, outputs of a tile's edge, and name of each form."""

_PACKED_CHANNELS = 32
"""Channels that a tile is wide, at the least."""

_FEW_GROUPS = 4
"""Groups that are computed one after another, each as one convolution."""

_FFT_EDGE = 32
"""Larger images are split into tiles of this edge."""


def convolution_seconds(kernels: Kernels, setting: KernelSetting, constants: Constants) -> Column:
    """Time that the units need for each convolution [s]."""

    def on_units(part: Kernels, on: KernelSetting, units: str, tiling: Tiling) -> Column:
        rate = sustained(on, units, constants) * of_architecture(on, "convolution", constants)
        rate = rate * _efficiency(part, on, constants, units)
        strided = (part.gradient == Gradient.INPUT.value) & (part.stride > 1)
        direct_rate = numpy.where(strided, rate * part.stride ** -constants["convolution.strided"], rate)
        best = product_seconds(part.m, part.n, part.k, part.count, direct_rate, tiling)
        if (part.count > 1).any():
            best = numpy.minimum(best, _packed(part, direct_rate, tiling))
        best = best + _layout(part, on, constants)
        unfolding = numpy.isin(on.library, UNFOLDING)
        if unfolding.any():
            best = numpy.where(unfolding, _unfolded(part, on, constants, direct_rate, tiling), best)
        able = (part.stride == 1) & (part.count <= _FEW_GROUPS) & ~unfolding
        for window, size, form in WINOGRAD:
            here = able & (part.window == window * window) & _has_winograd(part, on, constants, form)
            if here.any():
                seconds = _winograd(part, on, constants, units, (window, size, form), rate, tiling)
                best = numpy.where(here, numpy.minimum(best, seconds), best)
        here = able & (part.window > 1) & ((on.year >= constants["fft.year"]) | (on.library == "fbfft")) & ~on.tensor
        if here.any():
            seconds = _fft(part, on, constants, rate, tiling)
            best = numpy.where(here, numpy.minimum(best, seconds), best)
        return best * _library(part, on, constants)

    return each_units(kernels, setting, constants, "convolution", on_units)


def _efficiency(part: Kernels, on: KernelSetting, constants: Constants, units: str) -> Column:
    """Of a pass, as far as the libraries of that year had come."""
    found = numpy.ones(len(part))
    span = constants[f"growth.{units}.span"]
    grown = 1 / (1 + numpy.exp(-(on.year - constants[f"growth.{units}.year"]) / span))
    for gradient, name in PASSES:
        chosen = part.gradient == gradient.value
        first = constants[f"growth.{units}.{name}"]
        found[chosen] = constants[f"convolution.{units}.{name}"] * (first + (1 - first) * grown[chosen])
    return found


def _packed(part: Kernels, rate: Column, tiling: Tiling) -> Column:
    """Narrow groups computed several at a time, as one group with zeros between them."""
    narrow = numpy.minimum(part.channels_in, part.channels_out)
    packs = numpy.clip(numpy.ceil(_PACKED_CHANNELS / numpy.maximum(narrow, 1)), 1, part.count)
    weight = part.gradient == Gradient.WEIGHT.value
    m = numpy.where(weight, part.m * packs, part.m)
    k = numpy.where(weight, part.k, part.k * packs)
    return product_seconds(m, part.n * packs, k, numpy.ceil(part.count / packs), rate, tiling)


def _layout(part: Kernels, on: KernelSetting, constants: Constants) -> Column:
    """Tensor cores take channels last: tensors in another layout are transposed before and after."""
    turned = on.tensor & ~on.channels_last
    return numpy.where(turned, constants["layout"] * part.nbytes / on.bytes_per_s, 0.0)


def _unfolded(part: Kernels, on: KernelSetting, constants: Constants, rate: Column, tiling: Tiling) -> Column:
    """One sample after another: write the input unfolded into a matrix, a column for each output, and read it."""
    samples = numpy.maximum(part.pixels[:, 0], 1.0)
    weight = part.gradient == Gradient.WEIGHT.value
    m, k = numpy.where(weight, part.m, part.m / samples), numpy.where(weight, part.k / samples, part.k)
    product = product_seconds(m, part.n, k, part.count, rate, tiling)
    outputs = part.pixels[:, 1] * part.pixels[:, 2] / numpy.where(part.gradient == "input", part.stride, 1.0)
    nbytes = 2 * part.element_bytes * outputs * part.channels_in * part.window * part.count
    unfold = nbytes / (on.bytes_per_s * constants["memory.elementwise"])
    return samples * (product + unfold + 2 * on.launch_s * constants["launch"])


def _library(part: Kernels, on: KernelSetting, constants: Constants) -> Column:
    """How much longer kernels of other makers take than those of the device's."""
    found = numpy.ones(len(part))
    for library in numpy.unique(on.library):
        for gradient, name in PASSES:
            factor = constants.get(f"library.{library}.{name}")
            if factor is not None:
                found[(on.library == library) & (part.gradient == gradient.value)] = factor
    return found


def _has_winograd(part: Kernels, on: KernelSetting, constants: Constants, form: str) -> Flags:
    """Not on Kepler; the small form, which keeps transformed tiles on the chip, computes no weight gradients."""
    late: Flags = (on.year >= constants[f"winograd.{form}_year"]) & (on.architecture != "kepler")
    unfit: Flags = part.gradient == Gradient.WEIGHT.value
    return late & ~unfit if form == "small" else late


def _winograd(
    part: Kernels,
    on: KernelSetting,
    constants: Constants,
    units: str,
    shape: tuple[int, int, str],
    rate: Column,
    tiling: Tiling,
) -> Column:
    window, size, form = shape
    tiles = part.pixels[:, 0] * numpy.ceil(part.pixels[:, 1] / size) * numpy.ceil(part.pixels[:, 2] / size)
    count = numpy.full(len(tiles), float((size + window - 1) ** 2))
    m, n, k = _transformed(part, tiles)
    seconds = product_seconds(m, n, k, count * part.count, rate * constants[f"winograd.{units}.{form}"], tiling)
    if form == "small":
        return seconds
    moved = 2 * part.element_bytes * count * part.count * tiles * (part.channels_in + part.channels_out)
    moving: Column = moved / (on.bytes_per_s * constants["memory.elementwise"])
    return seconds + moving


def _fft(part: Kernels, on: KernelSetting, constants: Constants, rate: Column, tiling: Tiling) -> Column:
    window = numpy.sqrt(part.window)
    needed = numpy.maximum(part.pixels[:, 1], part.pixels[:, 2]) + window - 1
    edge = numpy.minimum(2 ** numpy.ceil(numpy.log2(needed)), _FFT_EDGE)
    step = numpy.maximum(edge - window + 1, 1)
    tiles = numpy.where(
        needed <= _FFT_EDGE, 1.0, numpy.ceil(part.pixels[:, 1] / step) * numpy.ceil(part.pixels[:, 2] / step)
    )
    m, n, k = _transformed(part, part.pixels[:, 0] * tiles)
    # Half of the frequencies are enough for real numbers; a complex product is four real ones.
    seconds = product_seconds(m, n, k, edge * edge / 2 * 4 * part.count, rate * constants["fft.efficiency"], tiling)
    images = part.pixels[:, 0] * tiles * (part.channels_in + part.channels_out)
    moved = 2 * part.element_bytes * edge * edge * part.count * (images + part.channels_in * part.channels_out)
    moving: Column = moved / (on.bytes_per_s * constants["memory.elementwise"])
    return seconds + moving


def _transformed(part: Kernels, tiles: Column) -> tuple[Column, Column, Column]:
    """`(m, n, k)` of the products between transforms, for this number of tiles in all."""
    forward, weight = part.gradient == Gradient.NONE.value, part.gradient == Gradient.WEIGHT.value
    m = numpy.where(weight, part.channels_out, tiles)
    n = numpy.where(forward, part.channels_out, part.channels_in)
    k = numpy.where(weight, tiles, numpy.where(forward, part.channels_in, part.channels_out))
    return m, n, k


_CHANGE_YEARS = 0.1
"""How quickly a new generation of libraries takes over [years]."""


def recurrent_seconds(kernels: Kernels, setting: KernelSetting, constants: Constants) -> Column:
    """Time that the units need for each layer [s]."""

    def on_units(part: Kernels, on: KernelSetting, units: str, tiling: Tiling) -> Column:
        rate = sustained(on, units, constants) * constants[f"recurrent.{units}"]
        rows = part.m * part.steps
        inputs = product_seconds(rows, part.n, numpy.maximum(part.channels_in, 1.0), part.count, rate, tiling)
        inputs = numpy.where(part.channels_in > 0, inputs, 0.0)
        step = product_seconds(part.m, part.n, part.k, part.count, rate, tiling)
        weight_bytes = part.n * part.k * part.element_bytes * part.count
        weights = weight_bytes / (on.bytes_per_s * constants["recurrent.weights"])
        early = 1 / (1 + numpy.exp((on.year - constants["recurrent.year"]) / _CHANGE_YEARS))
        slow = 1 + (constants["recurrent.slow"] - 1) * early
        stepped = part.steps * (numpy.maximum(step, weights) * slow + constants["recurrent.step_s"])
        both = product_seconds(part.n, part.k + part.channels_in, rows, part.count, rate, tiling)
        return numpy.where(part.gradient == Gradient.WEIGHT.value, both, inputs + stepped)

    return each_units(kernels, setting, constants, "product", on_units)


def durations(kernels: Kernels, setting: KernelSetting, constants: Constants) -> Column:
    """Time of each kernel, its start included [s]."""
    compute = numpy.zeros(len(kernels))
    for kind, seconds in (
        (WorkKind.PRODUCT, _products),
        (WorkKind.ATTENTION, _products),
        (WorkKind.CONVOLUTION, convolution_seconds),
        (WorkKind.RECURRENT, recurrent_seconds),
    ):
        chosen = kernels.kind == kind.value
        if chosen.any():
            compute[chosen] = seconds(take(kernels, chosen), take(setting, chosen), constants)
    share = numpy.ones(len(kernels))
    for kind in WorkKind:
        share[kernels.kind == kind.value] = constants[f"memory.{kind.value}"]
    memory = kernels.nbytes / (setting.bytes_per_s * share * of_architecture(setting, "memory", constants))
    sharpness = constants["sharpness"]
    largest = numpy.maximum(numpy.maximum(compute, memory), 1e-12)
    both = largest * ((compute / largest) ** sharpness + (memory / largest) ** sharpness) ** (1 / sharpness)
    start = setting.launch_s * constants["launch"] * numpy.maximum(kernels.launches, kernels.steps)
    return numpy.where((kernels.flops > 0) | (kernels.nbytes > 0), both + start, 0.0)


def _products(kernels: Kernels, setting: KernelSetting, constants: Constants) -> Column:
    def on_units(part: Kernels, on: KernelSetting, units: str, tiling: Tiling) -> Column:
        tiled = product_seconds(part.m, part.n, part.k, part.count, sustained(on, units, constants), tiling)
        table, is_large = step_constants(), (on.large_flops_per_s > 0) & (part.kind == WorkKind.PRODUCT.value)
        if not is_large.any():
            return tiled
        work = tiled_flops(part.m * part.n * part.count, part.k, table.tile * on.multiprocessors, table.start)
        return numpy.where(is_large, numpy.minimum(tiled, work / numpy.maximum(on.large_flops_per_s, 1.0)), tiled)

    return each_units(kernels, setting, constants, "product", on_units)
