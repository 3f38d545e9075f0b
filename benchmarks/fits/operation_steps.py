"""Published steps of one device, as columns of all their kernels."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy
from operation_kernels import Floats, Table, Timed, join

from trimaran.base.errors import TrimaranError
from trimaran.graph.kernels.workload import Gradient, Work, Workload
from trimaran.graph.types import Phase
from trimaran.pricing.kernels.columns import kernels
from trimaran.pricing.kernels.durations import setting
from trimaran.pricing.kernels.estimate import (
    framework_constant,
    host_durations,
    traffic,
    with_local_norms,
    with_optimizer,
)
from trimaran_studies.facts.sizes import SIZED
from trimaran_studies.published.rows import published_rows
from trimaran_studies.validation.measurement import Row, Setup, step_of
from trimaran_studies.validation.setups import recipe_of, understand
from trimaran_studies.validation.steps import row_workload

DOUBTFUL = {
    ("stanford-futuredata/gavel", "resnet18-cifar"): 0.2,
    ("stanford-futuredata/gavel", "transformer:base"): 0.2,
}
"""Rows whose step is more than its kernels count less: their scripts load and report between steps."""

PARTS = {
    "time_forward": (1, 0, 0, 0), "time_fp_updateoutput": (1, 0, 0, 0), "fw_latency": (1, 0, 0, 0),
    "time_backward": (0, 1, 1, 0), "bwall_latency": (0, 1, 1, 0), "time_bp_updategradinput": (0, 1, 0, 0),
    "time_wgrad_accgradparameters": (0, 0, 1, 0), "time_fwd+bwd": (1, 1, 1, 0), "e2e_latency": (1, 1, 1, 0),
}  # fmt: skip
"""Forward, input gradients, weight gradients and update that a metric counts."""

_OF_FRAMEWORKS = ("host.", "traffic.", "composite.", "overlap.")


class Steps:
    """Published steps of one device. Rows of one source, network, device and precision count as their root."""

    def __init__(self, rows: Sequence[Row] | None = None) -> None:
        self.setups: list[Setup] = []
        self.rows: list[Row] = []
        columns, settings, self._software = [], [], []
        units: dict[object, int] = {}
        owner, phase, unit, parts, measured = [], [], [], [], []
        for row in single_rows() if rows is None else rows:
            found = _step(row)
            if found is None:
                continue
            setup, asked, part, seconds = found
            key = (setup.network, tuple(sorted(setup.options.items())), setup.local_batch, setup.precision,
                   setup.device, dataclasses.replace(setup.software, source=""))  # fmt: skip
            if key not in units:
                units[key] = len(units)
                one = with_optimizer(kernels(with_local_norms(asked.works, setup.software)), setup.software)
                columns.append(one)
                settings.append(setting(one, setup.machine.node.device, setup.software, setup.precision))
                owner.append(numpy.full(len(one), units[key]))
                phase.append(numpy.array([_phase(work) for work in asked.works]))
                self._software.append(setup.software)
            self.rows.append(row)
            self.setups.append(setup)
            unit.append(units[key])
            parts.append(part)
            measured.append(seconds)
        self.timed = Timed(join(columns), join(settings))
        self._columns = columns
        self._known: dict[tuple[float, ...], tuple[Floats, Floats, Floats]] = {}
        self._place = numpy.concatenate(owner) * 4 + numpy.concatenate(phase)
        self._unit, self._parts = numpy.array(unit), numpy.array(parts, dtype=float)
        self.measured_s = numpy.array(measured)
        groups = [
            (row.fields.get("source_repo"), s.network, s.device, s.precision, s.software.libraries)
            for row, s in zip(self.rows, self.setups, strict=True)
        ]
        size = Counter(groups)
        self.weight = numpy.array([DOUBTFUL.get(group[:2], 1.0) * size[group] ** -0.5 for group in groups])

    def errors(self, kernel_s: Floats, table: Table) -> Floats:
        """Weighted logarithms of modelled over measured."""
        return self.weight * numpy.log(self.seconds(kernel_s, table) / self.measured_s)

    def seconds(self, kernel_s: Floats, table: Table) -> Floats:
        """Modelled times of all rows [s]."""
        factors, hosts, overlap = self._of_frameworks(table)
        count = 4 * len(self._columns)
        device = numpy.bincount(self._place, kernel_s * factors, count).reshape(-1, 4)
        host = numpy.bincount(self._place, hosts, count).reshape(-1, 4)
        device_s = (device[self._unit] * self._parts).sum(axis=1)
        host_s = (host[self._unit] * self._parts).sum(axis=1)
        power = overlap[self._unit]
        largest = numpy.maximum(device_s, host_s)
        return largest * ((device_s / largest) ** power + (host_s / largest) ** power) ** (1 / power)

    def _of_frameworks(self, table: Table) -> tuple[Floats, Floats, Floats]:
        """Factors on traffic and times of hosts of all kernels, and overlaps of all set-ups."""
        key = tuple(value for name, value in table.items() if name.startswith(_OF_FRAMEWORKS))
        if key not in self._known:
            pairs = list(zip(self._software, self._columns, strict=True))
            if len(self._known) > 50:
                self._known.clear()
            self._known[key] = (
                numpy.concatenate([traffic(columns, software, table) for software, columns in pairs]),
                numpy.concatenate([host_durations(columns, software, table) for software, columns in pairs]),
                numpy.array([framework_constant("overlap", software, table) for software, _ in pairs]),
            )
        return self._known[key]


def single_rows() -> list[Row]:
    """Published rows of one device that may be fitted on."""
    return [
        row
        for family in ("single_gpu_time", "dp_throughput")
        for row in published_rows(family)
        if row.fields.get("use") == "calibrate"
        and not row.flag
        and (family == "single_gpu_time" or row.fields.get("n_gpus") in ("1", "1.0"))
    ]


def _step(row: Row) -> tuple[Setup, Workload, tuple[float, ...], float] | None:
    try:
        setup = understand(row)
        if setup.network.startswith(SIZED) or row.measured <= 0:
            return None
        asked = row_workload(setup, recipe_of(row))
        seconds = step_of(row, setup, row.measured, devices=1) / setup.accumulation
    except TrimaranError:
        return None
    part = PARTS.get(row.fields.get("metric", "").lower(), (1, 1, 1, 1))
    return setup, asked, (*part[:3], part[3] / setup.accumulation), seconds


def _phase(work: Work) -> int:
    if work.phase is Phase.FORWARD:
        return 0
    if work.phase is Phase.UPDATE:
        return 3
    return 2 if work.gradient is Gradient.WEIGHT else 1
