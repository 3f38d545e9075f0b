"""Time of a recurrent layer: one product for all its inputs, then a small one for each step, one after another.

A step's product has few rows, so it is bound by reading its weights: libraries before 2018 read them several times
over, later ones keep to the bandwidth. The weight gradient needs no steps: its products are over all of them at once.
"""

import numpy

from trimaran.costs.operations.constants import Constants
from trimaran.costs.operations.kernels import Column, Kernels
from trimaran.costs.operations.products import Tiling, product_seconds
from trimaran.costs.operations.setting import Setting
from trimaran.costs.operations.units import each_units, sustained
from trimaran.graph.workload import Gradient

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
