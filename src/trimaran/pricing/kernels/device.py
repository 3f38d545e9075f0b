"""The device of a step, as the figures that the curves need: units, memory and libraries.

A device computes on its vector units or, in types that they take, on its tensor cores. Its figures come from the
catalog; the share of its peak that its architecture sustains, from the fitted constants.

The fitted constants of the curves: a table of numbers with names, kept in `constants.toml`.

`benchmarks/fits/operations.py` writes that file. Names are dotted, from the table to the figure, such as
"product.vector.depth". Nothing in it belongs to one network, one device or one published figure: a constant is of a
unit, an architecture, a kind of kernel, a framework or a library.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import numpy
from numpy.typing import NDArray

from trimaran.base.files import packaged_toml
from trimaran.base.precision import product_dtype
from trimaran.graph.kernels.workload import WorkKind
from trimaran.machine.types import Device
from trimaran.pricing.kernels.columns import MATRIX_KINDS, Column, Flags, Kernels
from trimaran.pricing.kernels.products import Tiling
from trimaran.pricing.kernels.software import Software, libraries_year, library_name

_GRAPHICS_RATIO = 8
"""Tensor cores of an A100 compute 16 times as fast as its vector units, those of graphics chips 2 to 4 times."""

MATRIX_UNITS = {"cdna1": 2.0, "cdna2": 2.0}
"""By how much matrix units that take fp32 as it is exceed the vector units. Source: AMD, CDNA and CDNA 2 papers."""

PLAIN = frozenset({"kepler", "maxwell", "pascal", "vega", "cpu"})
"""Architectures without tensor cores: half precision halves their traffic, and their frameworks compute in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The units that compute each work of a step, one entry of each column a work.

    Attributes:
        architecture: of the device, "" where it is not known
        tensor: whether tensor cores compute it
        tf32: in fp32 rounded to TF32
        flops_per_s: peak of the units that compute it [FLOP/s]
        vector_flops_per_s: peak of the vector units in fp32 [FLOP/s]
        bytes_per_s: peak of the memory [bytes/s]
        multiprocessors: that share the work
        launch_s: between two kernels that do nothing [s]
        power_w: that the device may draw; 0 where it is not known [W]
        year: of the libraries
        library: whose kernels compute, "" for the device maker's
        channels_last: images are kept with channels last
    """

    architecture: NDArray[numpy.str_]
    tensor: Flags
    tf32: Flags
    flops_per_s: Column
    vector_flops_per_s: Column
    bytes_per_s: Column
    multiprocessors: Column
    launch_s: Column
    power_w: Column
    year: Column
    library: NDArray[numpy.str_]
    channels_last: Flags


def setting(kernels: Kernels, device: Device, software: Software, precision: str) -> Setting:
    """The units that compute each kernel of a step on a device under a software."""
    vector = device.compute["fp32"].flops_per_s
    tensor_types = (
        {}
        if device.architecture in PLAIN
        else {name: peak.flops_per_s for name, peak in device.compute.items() if name != "fp32"}
    )
    asked = numpy.where(kernels.dtype == "float32", "tf32" if precision == "tf32" else "fp32", kernels.dtype)
    for low in ("bf16", "fp16"):
        asked = numpy.where(kernels.dtype == product_dtype(low), low, asked)
    matrix = numpy.isin(kernels.kind, [kind.value for kind in (*MATRIX_KINDS, WorkKind.RECURRENT)])
    tensor = matrix & numpy.isin(asked, list(tensor_types))
    peak = numpy.where(matrix, vector * MATRIX_UNITS.get(device.architecture, 1.0), vector)
    for name, flops_per_s in tensor_types.items():
        peak = numpy.where(tensor & (asked == name), flops_per_s, peak)

    def same(value: float) -> Column:
        return numpy.full(len(kernels), float(value))

    return Setting(
        architecture=numpy.full(len(kernels), architecture_of(device)),
        tensor=tensor,
        tf32=tensor & (asked == "tf32"),
        flops_per_s=peak,
        vector_flops_per_s=same(vector),
        bytes_per_s=same(device.bandwidth.bytes_per_s),
        multiprocessors=same(device.multiprocessors or _multiprocessors(vector)),
        launch_s=same(device.launch.seconds),
        power_w=same(device.power_w),
        year=same(libraries_year(software)),
        library=numpy.full(len(kernels), library_name(software)),
        channels_last=numpy.full(len(kernels), software.channels_last or _is_made_channels_last(software)),
    )


def architecture_of(device: Device) -> str:
    """Name under which constants of a device are kept: Ampere's graphics chips are not its A100.

    Example:
        >>> from trimaran.machine.catalog import find_device
        >>> architecture_of(find_device("rtx-3090")), architecture_of(find_device("a100-80gb"))
        ('ga10x', 'ampere')
    """
    half = device.compute.get("fp16")
    graphics = half is not None and half.flops_per_s < _GRAPHICS_RATIO * device.compute["fp32"].flops_per_s
    if device.architecture.startswith("cdna"):
        return "cdna"
    return "ga10x" if device.architecture == "ampere" and graphics else device.architecture


def _is_made_channels_last(software: Software) -> bool:
    """TensorFlow's layout optimizer makes a whole graph channels last for tensor cores."""
    return software.framework == "tensorflow" and software.year >= 2019.3


def _multiprocessors(vector_flops_per_s: float) -> float:
    """Of 128 lanes at 1.6 GHz, the number that gives that peak."""
    return max(1.0, vector_flops_per_s // (2 * 128 * 1.6e9))


Constants = Mapping[str, float]
"""Fitted constants by dotted name."""


@functools.cache
def constants() -> Constants:
    """The constants that the package brings."""
    return MappingProxyType(dict(_flat(packaged_toml("trimaran.pricing.kernels", "constants.toml"), "")))


def _flat(table: Mapping[str, Any], above: str) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in table.items():
        path = f"{above}.{name}" if above else name
        if isinstance(value, Mapping):
            found.extend(_flat(value, path))
        elif isinstance(value, int | float):
            found.append((path, float(value)))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Sustained rate of the units of a device: vector units or tensor cores, under the device's power limit


Columns = TypeVar("Columns", Kernels, Setting)
UNITS = ((False, "vector"), (True, "tensor"))
"""Whether tensor cores compute, and the name under which constants are kept."""


def take(columns: Columns, chosen: Flags) -> Columns:
    """The chosen entries of all columns."""
    return type(columns)(**{name: getattr(columns, name)[chosen] for name in columns.__dataclass_fields__})


def of_architecture(setting: Setting, figure: str, constants: Constants) -> Column:
    """A constant of the architecture of each work's device; where it has none, that of others."""
    found = numpy.empty(len(setting.architecture))
    for name in numpy.unique(setting.architecture):
        value = constants.get(f"architecture.{name}.{figure}", constants[f"architecture.other.{figure}"])
        found[setting.architecture == name] = value
    return found


def sustained(setting: Setting, units: str, constants: Constants) -> Column:
    """Highest sustained rate of the units [FLOP/s]."""
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
    """Rate of a multiprocessor for a byte of an element, in units of 10^12 FLOP/s and 4 bytes."""
    return on.flops_per_s / on.multiprocessors / 1e12 * part.element_bytes / 4
