"""Corrections of a machine's collectives by the user's nccl-tests run; they have priority over predictions.

The run's times over the predicted ones give a factor for each size. It holds for the operation and the number of
devices that were run; for others the nearest run lends its factor, since a link that is slower than expected is slow
for every operation, and the interval stays wider.

Reads the output of nccl-tests (or rccl-tests): `all_reduce_perf -b 8 -e 8G -f 2 -g 8 > run.log`.

Versions differ in their columns: "redop" and "root" may stand before the times, "error" or "#wrong" behind them, or
nothing. The table's own header says which, so any order of versions is read. Launchers put things before each line
("[1,0]<stdout>:", "0: "), which are passed over. Times are those of the out-of-place run.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trimaran.base.errors import InputError
from trimaran.base.files import read_bytes
from trimaran.machine.types import Machine
from trimaran.pricing.collectives.links import Timing, group_of
from trimaran.pricing.collectives.prediction import GRID, Sizes, as_measured, at_sizes, predicted_curve
from trimaran.pricing.types import Cost

_MOST_BYTES = 16 * 2**20
_LONGEST_LINE = 2000
"""Of a log [bytes], and of a line of it [characters]: longer lines are not of nccl-tests."""

_TYPES = r"(?:float|half|double|bfloat16|u?int(?:8|32|64)?|char|f8e\dm\d|fp8\w*|float8\w*|fp16|fp32|fp64)"
_ROW = re.compile(rf"(?:^|[\s:>])([0-9]{{1,18}})\s+([\d.e+]+)\s+{_TYPES}\s+(\S.*)$")
_RANK = re.compile(r"#\s*Rank\s+([0-9]{1,9})\b.*?\bon\s+(\S+)\s+device\s+\d+\s+(?:\[\S+\]\s*)?(.*)$")
_SETUP = re.compile(r"#\s*nThreads?:?\s+([0-9]{1,6})\s+nGpus:?\s+([0-9]{1,6})")
_STARTING = re.compile(r"#\s*Collective test starting:\s*(\S+)")
_OPERATIONS = {
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "sendrecv": "send_recv",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
"""Names as they stand in a line or in the name of a file; longer ones are looked for first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclLog:
    """One table of a log.

    Attributes:
        path: of the file
        op: the operation
        devices: ranks
        nodes: hosts that they sit on
        timing: how they were launched
        device: name of the first one, as the log has it; "" where it does not say
        points: size [bytes] and time [s], sizes of 0 left out
    """

    path: str
    op: str
    devices: int
    nodes: int
    timing: Timing
    device: str
    points: tuple[tuple[float, float], ...]


def read_logs(path: Path, *, op: str = "") -> tuple[NcclLog, ...]:
    """The tables of a log.

    Args:
        path: of the log
        op: the operation, where neither the log nor its name says it

    Returns:
        One for each table that has rows.

    Raises:
        InputError: no file, no table, a figure that is none, or an unknown operation
    """
    text = read_bytes(path, most_bytes=_MOST_BYTES).decode(errors="replace")
    reader = _Reader(path, op)
    for number, line in enumerate(text.splitlines(), start=1):
        reader.read(number, line)
    logs = reader.finish()
    if not logs:
        raise InputError(
            f"{path}: no table of nccl-tests in it; expected lines such as "
            '"1048576  262144  float  sum  -1  74.8  14.0  24.5  0" under a header with "size", "time" and "busbw"',
            code="nccl-log.no-table",
            path=str(path),
        )
    return logs


class _Reader:
    """Takes the lines of a log in order."""

    def __init__(self, path: Path, op: str) -> None:
        self.path, self.given = path, op
        self.logs: list[NcclLog] = []
        self._begin()

    def _begin(self) -> None:
        self.op, self.setup = "", (1, 1)
        self.ranks: set[int] = set()
        self.hosts: set[str] = set()
        self.device, self.columns = "", 0
        self.points: list[tuple[float, float]] = []

    def read(self, number: int, line: str) -> None:
        if len(line) > _LONGEST_LINE:
            return
        if starting := _STARTING.search(line):
            self._close()
            self.op = _operation(starting.group(1))
        elif setup := _SETUP.search(line):
            if self.points:
                self._close()
            self.setup = (int(setup.group(1)), int(setup.group(2)))
        elif rank := _RANK.search(line):
            self.ranks.add(int(rank.group(1)))
            self.hosts.add(rank.group(2))
            self.device = self.device or rank.group(3).strip()
        elif "busbw" in line and "size" in line:
            words = line.split("#", 1)[-1].split() if "#" in line.split("size")[0] else line.split()
            words = words[words.index("time") :] if "time" in words else []
            self.columns = len(words)
        elif self.columns and (row := _ROW.search(line)):
            self._row(number, line, row)

    def _row(self, number: int, line: str, row: re.Match[str]) -> None:
        words = row.group(3).split()
        if len(words) < self.columns:
            raise InputError(
                f'{self.path}:{number}: expected {self.columns} figures from "time" on, got "{line.strip()}"; '
                "was the line cut off?",
                code="nccl-log.too-few-columns",
                path=str(self.path),
                line=number,
            )
        text = words[len(words) - self.columns]
        try:
            time_us = float(text)
        except ValueError as error:
            raise InputError(
                f'{self.path}:{number}: time: expected microseconds, got "{text}"',
                code="nccl-log.not-a-number",
                path=str(self.path),
                line=number,
            ) from error
        if not time_us > 0 or time_us == float("inf"):
            raise InputError(
                f"{self.path}:{number}: time: expected microseconds above 0, got {text}",
                code="nccl-log.not-positive",
                path=str(self.path),
                line=number,
            )
        if int(row.group(1)) > 0:
            self.points.append((float(row.group(1)), time_us * 1e-6))

    def _close(self) -> None:
        if self.points:
            threads, each = self.setup
            devices = max(len(self.ranks), threads * each)
            op = self.op or self.given or _operation(self.path.name)
            if not op:
                raise InputError(
                    f"{self.path}: neither the log nor its name says which collective was run; "
                    'name the file after it, such as "all_reduce.log"',
                    code="nccl-log.unknown-collective",
                    path=str(self.path),
                )
            if devices < 2:
                raise InputError(
                    f"{self.path}: a run on {devices} device measures no exchange; run it on several",
                    code="nccl-log.one-device",
                    path=str(self.path),
                    devices=devices,
                )
            timing: Timing = "single" if each > 1 else "threads" if threads > 1 else "processes"
            self.logs.append(
                NcclLog(
                    path=str(self.path),
                    op=op,
                    devices=devices,
                    nodes=max(1, len(self.hosts)),
                    timing=timing,
                    device=self.device,
                    points=tuple(sorted(self.points)),
                )
            )
        self._begin()

    def finish(self) -> tuple[NcclLog, ...]:
        self._close()
        return tuple(self.logs)


def _operation(text: str) -> str:
    lowered = text.lower().replace("-", "_")
    return next((_OPERATIONS[name] for name in _OPERATIONS if name in lowered), "")


SAME_RUN, LENT = 0.05, 0.15
"""Half-width of the interval, in logarithms: of collectives that were run, and the addition for others."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Factor:
    """Measured over predicted, of one run.

    Attributes:
        op: the operation
        devices: ranks
        nodes: hosts
        sizes: [bytes]
        ratios: logarithm of measured over predicted
        path: of the log
    """

    op: str
    devices: int
    nodes: int
    sizes: Sizes
    ratios: Sizes
    path: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveCorrection:
    """Factors of a user's runs on a machine."""

    factors: tuple[Factor, ...]

    def apply(self, cost: Cost, op: str, nbytes: float, *, devices: int, nodes: int) -> Cost:
        """A predicted cost as the runs have it.

        Args:
            cost: predicted
            op: the operation
            nbytes: the whole buffer [bytes]
            devices: in the group
            nodes: in use
        """
        near = min(self.factors, key=lambda one: _distance(one, op, devices, nodes))
        ratio = math.exp(float(np.interp(math.log(max(nbytes, 1.0)), np.log(near.sizes), near.ratios)))
        seconds = cost.seconds * ratio
        if _distance(near, op, devices, nodes) == 0:
            width, how = SAME_RUN, "measured"
        else:
            width, how = min(LENT + SAME_RUN, math.log(cost.high / cost.seconds)), "calibrated"
        return Cost(
            seconds, seconds * math.exp(-width), seconds * math.exp(width), f"{how}: nccl-tests log {near.path}"
        )


def corrected_by(logs: Sequence[NcclLog], *, machine: Machine, year: float = 2024.0) -> CollectiveCorrection:
    """Corrections of a machine from the logs of runs on it.

    Args:
        logs: at least one
        machine: that they were taken on
        year: of the library

    Returns:
        For `collective_cost(..., correction=...)`.

    Raises:
        InputError: no log, or one of more devices than the machine has
    """
    if not logs:
        raise InputError("a correction needs at least one nccl-tests log, got none")
    return CollectiveCorrection(factors=tuple(_factor(log, machine, year) for log in logs))


def _factor(log: NcclLog, machine: Machine, year: float) -> Factor:
    try:
        group = as_measured(group_of(machine, log.devices, log.nodes))
    except InputError as error:
        raise InputError(
            f"{log.path}: {error.message}", code="nccl-log.other-machine", path=log.path, devices=log.devices
        ) from error
    sizes = np.array(sorted({max(size, GRID[0]) for size, _ in log.points}))
    measured = np.array([np.median([t for size, t in log.points if max(size, GRID[0]) == wanted]) for wanted in sizes])
    predicted = at_sizes(predicted_curve(log.op, group, log.timing, year), sizes)
    return Factor(
        op=log.op,
        devices=log.devices,
        nodes=log.nodes,
        sizes=sizes,
        ratios=np.log(measured / predicted),
        path=log.path,
    )


def _distance(factor: Factor, op: str, devices: int, nodes: int) -> float:
    """Distance of a run from the query."""
    spread = abs(math.log2(factor.devices / devices)) + 2 * abs(math.log2(factor.nodes / nodes))
    return spread + (0.0 if factor.op == op else 0.5)
