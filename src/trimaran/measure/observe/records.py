"""Records of observed processes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from statistics import median, stdev
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from trimaran.base.decoding import decode_object
from trimaran.base.errors import CorruptDataError
from trimaran.base.files import read_bytes
from trimaran.pricing.noise import student_95

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RECORD_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProcessRecord:
    """One process.

    Attributes:
        rank: in its group; 0 where there is none
        world: ranks of the group
        steps: how many it took
        facts: model, loader, optimizer, memory, versions, by name
        columns: position of each column of the rows
        rows: the latest steps, one row each; times in ns
        again: the model timed again after the script; None where it was not
    """

    rank: int
    world: int
    steps: int
    facts: Mapping[str, Any]
    columns: Mapping[str, int]
    rows: NDArray[np.int64]
    again: Mapping[str, Any] | None

    def column(self, name: str) -> NDArray[np.int64]:
        """A column of the rows."""
        return self.rows[:, self.columns[name]]


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Duration = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
_Durations = Annotated[list[Annotated[float, msgspec.Meta(ge=1e-12, le=1e9)]], msgspec.Meta(min_length=1)]
"""Quotients of them are finite [s]."""
"""Of what was run and timed, so that none is zero."""


class _Exchange(msgspec.Struct, frozen=True):
    comm_hook: str
    exchange_ns: _Count


class _Model(msgspec.Struct, frozen=True):
    name: str
    device: str
    parameter_nbytes: _Count
    gradient_nbytes: _Count
    gradient_dtypes: list[str]
    fsdp: bool
    ddp: _Exchange | None


class _Optimizer(msgspec.Struct, frozen=True):
    name: str
    state_nbytes: _Count


class _Loader(msgspec.Struct, frozen=True):
    workers: Annotated[int, msgspec.Meta(ge=0, le=10_000)]
    persistent_workers: bool


class _Memory(msgspec.Struct, frozen=True):
    peak_nbytes: _Count
    device_peak_nbytes: _Count | None
    total_nbytes: _Count | None = None


class _SourceLine(msgspec.Struct, frozen=True):
    kind: str
    line: str
    function: str
    library: bool
    calls: _Count
    ns: _Count


class _Again(msgspec.Struct, frozen=True):
    factors: list[Annotated[int, msgspec.Meta(ge=1, le=10_000)]] = []
    durations_s: list[_Durations] = []
    operators: _Count = 0
    pointwise: _Count = 0
    operator_s: _Duration = 0.0
    updates: dict[str, _Durations] = {}
    why_not: str = ""


class _Written(msgspec.Struct, frozen=True):
    """The part of a record's file that is worked with, as a process writes it."""

    schema_version: Literal[1]
    rank: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
    world: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
    steps: _Count
    columns: list[str]
    rows: list[list[Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]]]
    host: str
    cores: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    threads: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    batch_nbytes: _Count
    compiled: bool
    other_optimizers: bool
    model: _Model | None
    optimizer: _Optimizer | None
    loader: _Loader | None
    memory: _Memory
    again: _Again | None
    places: list[_SourceLine] = []


def parse_record(plain: Mapping[str, Any], *, source: str) -> ProcessRecord:
    """A record from its JSON object.

    Args:
        plain: the object
        source: where it came from, for messages

    Raises:
        CorruptDataError: it is of another version, or lacks something
    """
    try:
        version = plain["schema_version"]
        if version != RECORD_VERSION:
            raise CorruptDataError(
                f"{source}: a record of version {version}, expected {RECORD_VERSION}",
                code="observe.record-version",
                source=source,
            )
        columns = {name: number for number, name in enumerate(plain["columns"])}
        rows = np.asarray(plain["rows"], dtype=np.int64).reshape(-1, len(columns))
        return ProcessRecord(
            rank=plain["rank"],
            world=plain["world"],
            steps=plain["steps"],
            facts={name: value for name, value in plain.items() if name not in ("columns", "rows", "again")},
            columns=columns,
            rows=rows,
            again=plain["again"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(f"{source}: not a record of an observed process: {error!r}", source=source) from error


def read_records(folder: Path) -> Sequence[ProcessRecord]:
    """All records in a folder, by rank.

    Args:
        folder: that `watched_environment` named

    Raises:
        CorruptDataError: a file is not a record
    """
    records = []
    for path in sorted(folder.glob("*.json")):
        plain = decode_object(read_bytes(path), source=str(path))
        if plain.get("schema_version") == RECORD_VERSION:
            _check_written(plain, source=str(path))
        records.append(parse_record(plain, source=str(path)))
    return sorted(records, key=lambda record: (record.rank, -record.steps))


def _check_written(plain: Mapping[str, Any], *, source: str) -> None:
    """Refuse a record with values that no process writes.

    Raises:
        CorruptDataError: it has some, or lacks some
    """
    try:
        written = msgspec.convert(plain, _Written)
    except msgspec.ValidationError as error:
        raise CorruptDataError(
            f"{source}: not a record of an observed process: {error}", code="observe.damaged-record", source=source
        ) from None
    again = written.again or _Again()
    wrong = ""
    if not {"step", "cpu_ns", "evaluation_ns", *(f"{kind}_ns" for kind in KINDS), *COUNTS} <= set(written.columns):
        wrong = "columns are missing"
    elif len(set(written.columns)) < len(written.columns):
        wrong = "a column is there twice"
    elif any(len(row) != len(written.columns) for row in written.rows):
        wrong = "a row has another length than the columns"
    elif len({row[written.columns.index("step")] for row in written.rows}) < len(written.rows):
        wrong = "a step is there twice"
    elif len(again.factors) != len(again.durations_s) or (again.factors and again.factors[0] != 1):
        wrong = "the factors of larger batches do not fit their durations"
    elif again.updates and not {"now", "fused"} <= again.updates.keys():
        wrong = "the durations of updates are incomplete"
    if wrong:
        raise CorruptDataError(
            f"{source}: not a record of an observed process: {wrong}", code="observe.wrong-record", source=source
        )


KINDS = (
    *("load", "start", "copy", "forward", "loss", "backward", "exposed", "update", "sync", "collective", "other"),
    *("own", "evaluation"),
)
COUNTS = (
    *("forwards", "backwards", "samples", "batches_loaded", "load_cpu_ns", "syncs", "collectives"),
    *("collective_nbytes", "dry", "queued_ns", "load_asleep_ns"),
)
"""Kinds of time and counts that the analysis asks for; a record may have more."""


# ---------------------------------------------------------------------------------------------------------------------
# A step by what it was spent on: parts that do not overlap and sum to it


_Step = TypeVar("_Step")
_Parted = TypeVar("_Parted", bound="DataclassInstance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Time of a step [s], or of the mean of many.

    Attributes:
        load: waiting for the next batch, moving it to the device
        start: making the iterator of a loader, its workers included
        forward: forward and loss
        backward: as far as it computes
        exchange: DDP's exchange of gradients, the exposed part while all ranks are there
        wait: in DDP's exchange, waiting for slower ranks
        wait_in_collective: in collectives outside of DDP, waiting for slower ranks
        update: the optimizer, zeroing, clipping
        sync: reading values
        collective: blocked in collectives outside of DDP, once all ranks are there
        other: the rest
    """

    load: float
    start: float
    forward: float
    backward: float
    exchange: float
    wait: float
    wait_in_collective: float
    update: float
    sync: float
    collective: float
    other: float

    @property
    def step_s(self) -> float:
        """The whole step [s]."""
        return float(sum(astuple(self)))


def mean_step(steps: Sequence[_Parted]) -> _Parted:
    """The mean of steps, part by part; the parts still sum to the mean step.

    Args:
        steps: at least one; all fields are parts

    Example:
        >>> parts = dict.fromkeys([field.name for field in fields(Parts)], 0.0)
        >>> mean_step([Parts(**parts | {"load": 1.0}), Parts(**parts | {"update": 2.0})]).step_s
        1.5
    """
    first = steps[0]
    names = [field.name for field in fields(first)]
    return replace(first, **{name: sum(getattr(one, name) for one in steps) / len(steps) for name in names})


def figure_interval(
    figure: Callable[[_Step], float], mean: _Step, blocks: Sequence[_Step]
) -> tuple[float, float, float]:
    """A figure of the mean step with its 90 % interval from the spread between blocks of consecutive steps.

    A machine that others use too is slow for seconds at a time, so that neighbouring blocks are alike and their spread
    says too little. So the spread between pairs of blocks is taken where it says more, and the figures of both halves
    of the run are in the interval.

    Args:
        figure: of a step, or of what else sums up steps
        mean: of all steps
        blocks: means of blocks of consecutive steps

    Returns:
        The figure, and the ends of its interval.
    """
    value = figure(mean)
    return value, *interval(value, [figure(block) for block in blocks])


def duration_interval(
    duration: Callable[[_Step], float], mean: _Step, blocks: Sequence[_Step], *, wider: float = 0.0
) -> tuple[float, float]:
    """The ends of the interval of a time of the mean step; no time is below zero [s].

    Args:
        duration: of a step, or of what else sums up steps [s]
        mean: as of `figure_interval`
        blocks: likewise
        wider: on each side, as a share of the end
    """
    _, low, high = figure_interval(duration, mean, blocks)
    return max(0.0, low * (1 - min(wider, 1.0))), high * (1 + wider)


def interval(value: float, each: Sequence[float]) -> tuple[float, float]:
    """The 90 % interval of a mean of blocks that follow each other, wide enough for a drift between them.

    Args:
        value: of the whole
        each: of the blocks, in order

    Example:
        >>> [round(end, 2) for end in interval(2.0, [1, 1, 1, 1, 1, 3, 3, 3, 3, 3])]
        [1.0, 3.0]
        >>> [round(end, 2) for end in interval(2.0, [1, 3, 1, 3, 1, 3, 1, 3, 1, 3])]
        [1.39, 2.61]
    """
    if len(each) < 2:
        return value, value
    pairs = [sum(each[first : first + 2]) / 2 for first in range(0, len(each) - 1, 2)]
    half = max(_half_width(each), _half_width(pairs) if len(pairs) > 2 else 0.0)
    middle = len(each) // 2
    halves = [sum(part) / len(part) for part in (each[:middle], each[len(each) - middle :])]
    return min(value - half, *halves), max(value + half, *halves)


def _half_width(each: Sequence[float]) -> float:
    return float(student_95(len(each) - 1) * stdev(each) / len(each) ** 0.5)


# ---------------------------------------------------------------------------------------------------------------------
# How forward and backward grow with the batch, from the copies that were timed after the script


_BLOCKS = 5


def growth(records: Sequence[ProcessRecord], factor: int) -> float | None:
    """Time per sample with a larger batch over that with the batch in use; None where no copy was timed with it.

    Args:
        records: of the ranks, of which the mean is taken
        factor: of the batch
    """
    ratios = []
    for record in records:
        again = record.again or {}
        if factor in again.get("factors", []):
            one, many = (median(again["durations_s"][again["factors"].index(size)]) for size in (1, factor))
            ratios.append(many / one / factor)
    return sum(ratios) / len(ratios) if ratios else None


def growth_interval(records: Sequence[ProcessRecord], factor: int) -> tuple[float, float]:
    """90 % interval of the growth, from the spread between blocks of rounds; (1, 1) where no copy was timed.

    Args:
        records: of the ranks, of which the mean is taken
        factor: of the batch
    """
    ends = []
    for record in records:
        again = record.again or {}
        if factor in again.get("factors", []):
            one, many = (again["durations_s"][again["factors"].index(size)] for size in (1, factor))
            ends.append(ratio_interval(many, one))
    if not ends:
        return 1.0, 1.0
    return sum(low for low, _ in ends) / len(ends) / factor, sum(high for _, high in ends) / len(ends) / factor


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> tuple[float, float]:
    """90 % interval of a ratio of medians of durations that were taken in turns.

    Args:
        above: durations of the numerator, a round each
        below: durations of the denominator, in the same rounds

    Example:
        >>> ratio_interval([2.0] * 10, [1.0] * 10)
        (2.0, 2.0)
    """
    rounds = min(len(above), len(below))
    blocks = min(_BLOCKS, rounds)
    edges = [rounds * number // blocks for number in range(blocks + 1)] if blocks else []
    parts = [slice(edges[number], edges[number + 1]) for number in range(blocks)]
    return interval(median(above) / median(below), [median(above[part]) / median(below[part]) for part in parts])


def fixed_share(records: Sequence[ProcessRecord]) -> float | None:
    """Share of forward and backward that does not depend on the batch; None where no copy was timed.

    From the batch in use and twice the batch, continued in a straight line to no batch at all.

    Args:
        records: of the ranks
    """
    ratio = growth(records, 2)
    return None if ratio is None else max(0.0, min(1.0, 2 - 2 * ratio))
