"""What the units of a device sustain: vector units or tensor cores, under the power that the device may draw."""

from collections.abc import Callable
from typing import TypeVar

import numpy

from trimaran.costs.operations.constants import Constants
from trimaran.costs.operations.kernels import Column, Flags, Kernels
from trimaran.costs.operations.products import Tiling
from trimaran.costs.operations.setting import Setting

Columns = TypeVar("Columns", Kernels, Setting)
UNITS = ((False, "vector"), (True, "tensor"))
"""Whether tensor cores compute, and the name under which constants are kept."""


def take(columns: Columns, chosen: Flags) -> Columns:
    """The chosen entries of all columns."""
    return type(columns)(**{name: getattr(columns, name)[chosen] for name in columns.__dataclass_fields__})


def of_architecture(setting: Setting, figure: str, constants: Constants) -> Column:
    """A constant of the architecture of each work's device; where it has none of its own, that of others."""
    found = numpy.empty(len(setting.architecture))
    for name in numpy.unique(setting.architecture):
        value = constants.get(f"architecture.{name}.{figure}", constants[f"architecture.other.{figure}"])
        found[setting.architecture == name] = value
    return found


def sustained(setting: Setting, units: str, constants: Constants) -> Column:
    """What the units sustain at best [FLOP/s]."""
    best = setting.flops_per_s * of_architecture(setting, units, constants)
    if units == "tensor":
        best = numpy.where(setting.tf32, best * constants["tf32"], best)
    power_w = numpy.where(setting.power_w > 0, setting.power_w, numpy.inf)
    limit = power_w * of_architecture(setting, f"{units}_per_j", constants)
    if units == "tensor":
        limit = numpy.where(setting.tf32, limit / 2, limit)  # half as many operations a cycle for the same power
    return best / (1 + (best / limit) ** 4) ** 0.25


def each_units(
    kernels: Kernels,
    setting: Setting,
    constants: Constants,
    kind: str,
    seconds: Callable[[Kernels, Setting, str, Tiling], Column],
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
            tiling = Tiling(
                bytes_per_s=on.bytes_per_s,
                multiprocessors=on.multiprocessors,
                intensity=constants[f"{kind}.{units}.intensity"] * _balance(part, on),
                fill_s=constants[f"{kind}.{units}.fill_s"],
                depth=constants[f"{kind}.{units}.depth"],
                rounding=constants[f"{kind}.{units}.rounding"],
            )
            found[chosen] = seconds(part, on, units, tiling)
    return found


def _balance(part: Kernels, on: Setting) -> Column:
    """What a multiprocessor computes for a byte of an element, in units of 10^12 FLOP/s and 4 bytes."""
    return on.flops_per_s / on.multiprocessors / 1e12 * part.element_bytes / 4
