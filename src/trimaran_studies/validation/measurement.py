"""A published measurement, its set-up and its prediction."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

from trimaran.base.errors import InfeasibleError, InputError, TrimaranError
from trimaran.base.precision import Precision
from trimaran.base.units import MOST_LARGE
from trimaran.base.user_errors import summary
from trimaran.machine.types import Machine
from trimaran.pricing.exchange.step import Sync
from trimaran.pricing.kernels.software import Software

Anchor = Literal["single", "none"]
"""Whether the source's figure of one device, where it has one, may be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of a file of published measurements, unchanged.

    Attributes:
        row_id: its own, or the number of its line
        family: such as "dp_throughput"
        fields: every other column that is not empty, by name
        measured: the figure
        unit: of the figure, as published
        anchor: the same set-up on one device, in the same unit; None where the source has none
        flag: a known error of the source; "" where none is known
        fault: which of its cells cannot be read, and why; "" where all can. Such a row is skipped with this reason
    """

    row_id: str
    family: str
    fields: Mapping[str, str]
    measured: float
    unit: str
    anchor: float | None
    flag: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The set-up of a row, in Trimaran's terms.

    Attributes:
        network: name of a published job of Trimaran
        options: of that job, such as {"sequence": "128"}
        local_batch: samples
        accumulation: microbatches of a step, whose gradients are exchanged once
        precision: "fp32", "tf32", "fp16" or "bf16"
        machine: nodes and fabric; also for one device
        device: name in the catalog
        devices: in use
        nodes: in use
        software: framework and year
        sync: how gradients are exchanged
        real_data: whether the host reads and decodes data; None: not known
        items_per_sample: number of items that the figure counts in one sample
        assumed: assumptions about what the row does not say, in words
    """

    network: str
    options: Mapping[str, str]
    local_batch: int
    accumulation: int = 1
    precision: Precision
    machine: Machine
    device: str
    devices: int
    nodes: int
    software: Software
    sync: Sync
    real_data: bool | None
    items_per_sample: int = 1
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The prediction of a row.

    Attributes:
        row: the row
        predicted: in the row's unit; None where it was skipped
        low: lower end of the 90 % interval
        high: upper end
        skipped: why there is no prediction; "" where there is one
        baselines: predictions of simple rules, by name, such as "linear" and "log2", where there is an anchor
        setup: of the row; None where it is not known
        fits: whether the step fits the memory of the row's device; None where that does not apply or is not known
        basis: of the prediction, in words, where that is another row; "": another row is not used
        anchors: rows that it was predicted from
        several_nodes: whether it used devices of several nodes; None: see the set-up
    """

    row: Row
    predicted: float | None
    low: float | None = None
    high: float | None = None
    skipped: str = ""
    baselines: Mapping[str, float] | None = None
    setup: Setup | None = None
    fits: bool | None = None
    basis: str = ""
    anchors: tuple[str, ...] = ()
    several_nodes: bool | None = None

    @property
    def error(self) -> float | None:
        """`predicted / measured - 1`; None where there is no prediction."""
        return None if self.predicted is None else self.predicted / self.row.measured - 1


Found = TypeVar("Found")


def attempt(row: Row, predict: Callable[[], Found]) -> Found | str:
    """The prediction of a row, or the reason why it cannot be predicted.

    Args:
        row: that is predicted
        predict: makes the prediction, or a part of it; its result is not a string

    Returns:
        The prediction, or the reason.

    Raises:
        TrimaranError: a fault of the predictor: neither a wrong cell of the row nor a job that cannot run
    """
    try:
        return predict()
    except (InputError, InfeasibleError) as error:
        return error.message
    except TrimaranError:
        raise
    except Exception as error:
        raise TrimaranError(
            f"row {row.row_id}: the predictor failed: {summary(error)}; TRIMARAN_DEBUG=1 shows the whole traceback",
            code="validate.predictor-failed",
            row=row.row_id,
        ) from error


@contextmanager
def cells_read(row: Row) -> Iterator[None]:
    """Context in which a row's cells are read: a value error is reported as a wrong cell.

    Raises:
        InputError: a cell has not the type of its column
    """
    try:
        yield
    except TrimaranError:
        raise
    except ValueError as error:
        raise InputError(
            f"row {row.row_id}: a cell is not what its column holds ({error})", code="published.cell", row=row.row_id
        ) from error


# ---------------------------------------------------------------------------------------------------------------------
# Cells of a row that hold more than one figure: batches by precision, devices of a node, accumulated gradients


REDUCED = frozenset({"amp", "fp16", "bf16", "mixed", "float16", "bfloat16", "half", "fp8"})
"""Words for computing in 16 bits."""

FULL = frozenset({"fp32", "tf32", "float32", "single"})
"""Words for computing in 32 bits."""

_PAIR = re.compile(r"(\d+)\s*(?:@|\()\s*([A-Za-z0-9]+)")

_LARGEST = re.compile(r"max bsz=(\d+)")


def reduced(row: Row) -> bool:
    """Whether a row computes in 16 bits."""
    return bool(words(f"{row.fields.get('precision', '')} {row.unit}") & REDUCED)


def words(text: str) -> set[str]:
    """The words of a text, in small letters.

    Example:
        >>> sorted(words("FP16/AMP samples/s"))
        ['amp', 'fp16', 's', 'samples']
    """
    return set(re.findall(r"[a-z0-9]+", text.lower()))


def whole(row: Row, name: str) -> int | None:
    """A column as a whole number; of several, the one of the row's precision; None where there is none.

    "128 (TF) / 256 (AMP)" and "64@AMP, 32@FP32" name the precision; "24, 40" is full precision, then reduced.

    Raises:
        InputError: a number that counts nothing: below 0, not finite, or of more than 12 digits
    """
    cell = row.fields.get(name, "")
    try:
        counts = 0.0 <= float(cell) <= MOST_LARGE
    except ValueError:
        counts = True
    if not counts:
        raise InputError(
            f'row {row.row_id}: column {name}: expected a whole number of at most 12 digits, got "{cell}"',
            code="row.no-count",
            row=row.row_id,
        )
    if name == "batch_per_gpu" and (largest := _LARGEST.search(row.fields.get("metric", ""))):
        # A comparison at each framework's largest batch: the column has the batch of the other framework.
        return int(largest.group(1))
    named = [(int(number), word.lower()) for number, word in _PAIR.findall(cell)]
    if named:
        wanted = [number for number, word in named if (word in REDUCED) == reduced(row)]
        return wanted[0] if wanted else named[0][0]
    numbers = [int(float(text)) for text in re.findall(r"\d+(?:\.\d+)?", cell)]
    if not numbers:
        return None
    return numbers[-1] if reduced(row) else numbers[0]


def accumulation(row: Row) -> int:
    """Microbatches of a step; 1 where the row says nothing. Of two figures the first is of full precision.

    Example: "Accumulation steps (FP32 and FP16)=128 and 64", but "Gradient Accumulation: mixed precision, TF32=256 ,
    512" has them the other way round.
    """
    for part in row.fields.get("config", "").split(";"):
        name, _, text = part.partition("=")
        words = name.lower()
        if "accumulat" not in words or "batch" in words:
            continue
        numbers = [int(number) for number in re.findall(r"\d+", text)]
        if not numbers:
            continue
        first_reduced = "precision, tf32" in words
        return numbers[-1] if reduced(row) != first_reduced else numbers[0]
    return 1


def count(row: Row, name: str, default: int) -> int:
    """A column as a positive whole number, or a default where it is empty.

    Raises:
        InputError: the column holds no positive number
    """
    value = whole(row, name)
    if value is None:
        if row.fields.get(name):
            raise InputError(f'row {row.row_id}: column {name}: expected a whole number, got "{row.fields[name]}"')
        return default
    if value < 1:
        raise InputError(f"row {row.row_id}: column {name}: expected at least 1, got {value}", row=row.row_id)
    return value


# ---------------------------------------------------------------------------------------------------------------------
# Between the time of a step and the figure that a row publishes: rates of samples or steps, times in any unit


_TIMES_S = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "minutes": 60.0, "h": 3600.0}


def is_time(row: Row) -> bool:
    """Whether a row publishes a time, not a rate."""
    return row.unit.strip().lower() in _TIMES_S


def figure_of(row: Row, setup: Setup, step_s: float) -> float:
    """The figure of a row for a step time.

    Args:
        row: with the unit
        setup: its batch and devices
        step_s: a step, accumulated microbatches included [s]

    Returns:
        In the row's unit.
    """
    if is_time(row):
        return step_s / _TIMES_S[row.unit.strip().lower()]
    return _work(row, setup) / step_s


def step_of(row: Row, setup: Setup, figure: float, *, devices: int) -> float:
    """The time of a step from a published figure: the inverse of `figure_of` [s].

    Args:
        row: with the unit
        setup: its batch
        figure: in the row's unit
        devices: of the figure
    """
    if is_time(row):
        return figure * _TIMES_S[row.unit.strip().lower()]
    if figure <= 0:
        raise InputError(f"row {row.row_id}: a rate of {figure} says nothing of a step", row=row.row_id)
    return _work(row, setup) * devices / setup.devices / figure


def _work(row: Row, setup: Setup) -> float:
    """Amount of work of a step of all devices, in the row's unit.

    Raises:
        InputError: that is no rate
    """
    unit = row.unit.lower()
    if "/" not in unit and "throughput" not in unit:
        raise InputError(
            f'row {row.row_id}: column unit: expected a time such as "ms" or a rate such as "images/s", got '
            f'"{row.unit}"',
            code="row.no-unit",
            row=row.row_id,
        )
    per_device = 1.0
    if not re.search(r"\bsteps?\s*/", unit):
        per_device = float(setup.local_batch * setup.accumulation * setup.items_per_sample)
    if "/ms" in unit:
        per_device *= 1e-3
    if "/gpu" in unit or "per gpu" in unit:
        return per_device
    return per_device * setup.devices
