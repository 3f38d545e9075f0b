"""Time of each kernel on a device, from curves fitted on measured kernels.

    time = (compute^q + memory^q)^(1/q) + start        q: how sharply the slower of the two hides the other
    compute = what the units need                      memory = bytes / (bandwidth × the share that this kind sustains)

What is no product of matrices has no compute to speak of. Left out: caches, which serve small tensors faster.
"""

import numpy

from trimaran.costs.operations.constants import Constants
from trimaran.costs.operations.convolutions import convolution_seconds
from trimaran.costs.operations.kernels import Column, Kernels
from trimaran.costs.operations.products import Tiling, product_seconds
from trimaran.costs.operations.recurrent import recurrent_seconds
from trimaran.costs.operations.setting import Setting
from trimaran.costs.operations.units import each_units, of_architecture, sustained, take
from trimaran.graph.workload import WorkKind


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
