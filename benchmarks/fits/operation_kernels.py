"""Single kernels that were measured, and columns that are timed again only as far as one constant reaches."""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy
from numpy.typing import NDArray

from trimaran.graph.kernels.workload import Gradient, Work, WorkKind
from trimaran.graph.types import Phase
from trimaran.machine.catalog import find_device
from trimaran.pricing.kernels.columns import Kernels, kernels
from trimaran.pricing.kernels.durations import KernelSetting, durations, setting, take
from trimaran.pricing.kernels.software import Software

POINTS = Path(__file__).parent / "data/kernels.csv"
LAUNCH_S = {"neusight": 35e-6, "deepbench": 8e-6}
"""What the sources' clocks add to a kernel: an eager call, a launch."""

Table = Mapping[str, float]
Floats = NDArray[numpy.float64]


class Timed:
    """Columns of kernels that are timed again only as far as a constant reaches."""

    def __init__(self, columns: Kernels, on: KernelSetting) -> None:
        self.columns, self.on = columns, on
        self._parts: dict[str, tuple[NDArray[numpy.bool_], Kernels, KernelSetting]] = {}
        self._last: Floats = numpy.zeros(len(columns))

    def all(self, table: Table) -> Floats:
        """Times of all kernels, kept for `changed` [s]."""
        self._last = durations(self.columns, self.on, table)
        return self._last

    def changed(self, name: str, table: Table) -> Floats:
        """Times with one constant changed since `all` [s]."""
        if name not in self._parts:
            chosen = self._touched(name)
            self._parts[name] = (chosen, take(self.columns, chosen), take(self.on, chosen))
        chosen, columns, on = self._parts[name]
        found = self._last.copy()
        if chosen.any():
            found[chosen] = durations(columns, on, table)
        return found

    def _touched(self, name: str) -> NDArray[numpy.bool_]:
        kind, on = self.columns.kind, self.on
        convolutions = kind == "convolution"
        products = numpy.isin(kind, ["product", "attention", "recurrent"])
        first, *rest = name.split(".")
        if first in ("host", "traffic", "composite", "overlap"):
            return numpy.zeros(len(kind), dtype=bool)
        if first == "architecture":
            chosen = on.architecture == rest[0]
            units = {"vector": ~on.tensor, "tensor": on.tensor}.get(rest[1].split("_")[0])
            if units is not None:
                return chosen & units & (convolutions | products)
            return chosen & convolutions if rest[1] == "convolution" else chosen
        if first == "memory":
            return (kind == rest[0]) | (convolutions if rest[0] == "elementwise" else False)
        by_units = on.tensor == (rest[:1] == ["tensor"])
        known = {
            "tf32": on.tf32,
            "fft": convolutions & ~on.tensor,
            "layout": convolutions & on.tensor,
            "recurrent": kind == "recurrent",
            "product": products & by_units,
            "library": convolutions & (on.library == rest[0] if rest else False),
        }
        if first in known:
            return known[first]
        if first in ("convolution", "growth", "winograd"):
            return convolutions & by_units if rest[0] in ("vector", "tensor") else convolutions
        return numpy.ones(len(kind), dtype=bool)


class Points:
    """Measured kernels. A group is a kind of kernel on a device in a source; groups count by the root of their size."""

    def __init__(self, path: Path = POINTS) -> None:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        columns, settings = [], []
        for row in rows:
            one = kernels([_kernel(row)])
            columns.append(one)
            software = Software(year=float(row["year"]), channels_last=True, source=row["source"])
            settings.append(setting(one, find_device(row["device"]), software, "fp32"))
        self.timed = Timed(join(columns), join(settings))
        self.measured_s = numpy.array([float(row["microseconds"]) * 1e-6 for row in rows])
        self.launch_s = numpy.array([LAUNCH_S.get(row["source"], 0.0) for row in rows])
        groups = [(row["source"], row["device"], row["dtype"], row["kind"], row["gradient"]) for row in rows]
        size = Counter(groups)
        small = numpy.where(self.timed.columns.flops > 2e8, 1.0, 0.4)
        odd = [0.25 if row["source"] == "neusight" and row["kind"] == "convolution" else 1.0 for row in rows]
        self.weight = small * numpy.array(odd) * numpy.array([size[group] ** -0.5 for group in groups])

    def errors(self, seconds: Floats) -> Floats:
        """Weighted logarithms of modelled over measured."""
        return self.weight * numpy.log((seconds + self.launch_s) / self.measured_s)


def join(parts: Sequence):  # type: ignore[no-untyped-def,type-arg]
    """Several columns after one another."""
    names = parts[0].__dataclass_fields__
    return type(parts[0])(**{name: numpy.concatenate([getattr(part, name) for part in parts]) for name in names})


def _kernel(row: Mapping[str, str]) -> Work:
    kind, gradient = WorkKind(row["kind"]), Gradient(row["gradient"])
    dims = tuple(int(size) for size in row["dims"].split())
    item = 4 if row["dtype"] == "float32" else 2
    flops, launches = 0.0, 1
    nbytes = dims[0]
    if kind is WorkKind.CONVOLUTION:
        n, c, h, w, k, r, s, p, q, _ = dims
        flops, nbytes = 2.0 * n * p * q * k * c * r * s, item * (n * c * h * w + n * k * p * q + k * c * r * s)
    elif kind is WorkKind.PRODUCT:
        _, m, n, k = dims
        flops, nbytes = 2.0 * m * n * k, item * (m * n + m * k + n * k)
    elif kind is WorkKind.RECURRENT:
        steps, batch, _, hidden, gates, _ = dims
        flops = 2.0 * steps * batch * hidden * hidden * gates
        nbytes = item * (steps * batch * hidden * (2 + 2 * gates) + 2 * hidden * hidden * gates)
        launches = 2 if gradient is Gradient.WEIGHT else 1 + 2 * steps
    return Work(
        kind=kind,
        phase=Phase.BACKWARD if gradient else Phase.FORWARD,
        gradient=gradient,
        module="",
        name=row["source"],
        dtype=row["dtype"],
        flops=flops,
        nbytes=nbytes,
        dims=dims,
        launches=launches,
    )
