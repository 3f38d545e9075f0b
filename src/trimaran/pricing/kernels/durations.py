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
"""

import numpy

from trimaran.graph.kernels.workload import Gradient, WorkKind
from trimaran.pricing.kernels.columns import Column, Flags, Kernels
from trimaran.pricing.kernels.device import Constants, Setting, each_units, of_architecture, sustained, take
from trimaran.pricing.kernels.products import Tiling, product_seconds
from trimaran.pricing.kernels.software import UNFOLDING

PASSES = ((Gradient.NONE, "forward"), (Gradient.INPUT, "input"), (Gradient.WEIGHT, "weight"))
WINOGRAD = ((3, 2, "small"), (3, 4, "large"), (5, 2, "wide"))
"""Window, outputs of a tile's edge, and name of each form."""

_PACKED_CHANNELS = 32
"""Channels that a tile is wide, at the least."""

_FEW_GROUPS = 4
"""Groups that are computed one after another, each as one convolution."""

_FFT_EDGE = 32
"""Larger images are split into tiles of this edge."""


def convolution_seconds(kernels: Kernels, setting: Setting, constants: Constants) -> Column:
    """Time that the units need for each convolution [s]."""

    def on_units(part: Kernels, on: Setting, units: str, tiling: Tiling) -> Column:
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


def _efficiency(part: Kernels, on: Setting, constants: Constants, units: str) -> Column:
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


def _layout(part: Kernels, on: Setting, constants: Constants) -> Column:
    """Tensor cores take channels last: tensors in another layout are transposed before and after."""
    turned = on.tensor & ~on.channels_last
    return numpy.where(turned, constants["layout"] * part.nbytes / on.bytes_per_s, 0.0)


def _unfolded(part: Kernels, on: Setting, constants: Constants, rate: Column, tiling: Tiling) -> Column:
    """One sample after another: write the input unfolded into a matrix, a column for each output, and read it."""
    samples = numpy.maximum(part.pixels[:, 0], 1.0)
    weight = part.gradient == Gradient.WEIGHT.value
    m, k = numpy.where(weight, part.m, part.m / samples), numpy.where(weight, part.k / samples, part.k)
    product = product_seconds(m, part.n, k, part.count, rate, tiling)
    outputs = part.pixels[:, 1] * part.pixels[:, 2] / numpy.where(part.gradient == "input", part.stride, 1.0)
    nbytes = 2 * part.element_bytes * outputs * part.channels_in * part.window * part.count
    unfold = nbytes / (on.bytes_per_s * constants["memory.elementwise"])
    return samples * (product + unfold + 2 * on.launch_s * constants["launch"])


def _library(part: Kernels, on: Setting, constants: Constants) -> Column:
    """How much longer kernels of other makers take than those of the device's."""
    found = numpy.ones(len(part))
    for library in numpy.unique(on.library):
        for gradient, name in PASSES:
            factor = constants.get(f"library.{library}.{name}")
            if factor is not None:
                found[(on.library == library) & (part.gradient == gradient.value)] = factor
    return found


def _has_winograd(part: Kernels, on: Setting, constants: Constants, form: str) -> Flags:
    """Not on Kepler; the small form, which keeps transformed tiles on the chip, computes no weight gradients."""
    late: Flags = (on.year >= constants[f"winograd.{form}_year"]) & (on.architecture != "kepler")
    unfit: Flags = part.gradient == Gradient.WEIGHT.value
    return late & ~unfit if form == "small" else late


def _winograd(
    part: Kernels,
    on: Setting,
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


def _fft(part: Kernels, on: Setting, constants: Constants, rate: Column, tiling: Tiling) -> Column:
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


def recurrent_seconds(kernels: Kernels, setting: Setting, constants: Constants) -> Column:
    """Time that the units need for each layer [s]."""

    def on_units(part: Kernels, on: Setting, units: str, tiling: Tiling) -> Column:
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


def durations(kernels: Kernels, setting: Setting, constants: Constants) -> Column:
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


def _products(kernels: Kernels, setting: Setting, constants: Constants) -> Column:
    def on_units(part: Kernels, on: Setting, units: str, tiling: Tiling) -> Column:
        return product_seconds(part.m, part.n, part.k, part.count, sustained(on, units, constants), tiling)

    return each_units(kernels, setting, constants, "product", on_units)
