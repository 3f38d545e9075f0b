"""Cost tables as JSON files.

The same table gives the same bytes. A file carries a digest of its content, so that a truncated or edited one is
refused instead of believed.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator

import msgspec

from trimaran.base.decoding import decode_typed
from trimaran.base.errors import CorruptDataError, InputError
from trimaran.pricing.tables import (
    CostTable,
    CurveKey,
    Fingerprint,
    OperationKey,
    SampleCosts,
    StepCosts,
    TensorFit,
    WholeCost,
    WholeKey,
)
from trimaran.pricing.types import Between, Cost, Interference, OpCost

SCHEMA_VERSION = 2


class _Duration(msgspec.Struct, frozen=True, array_like=True):
    seconds: float
    low: float
    high: float
    source: str


class _Factors(msgspec.Struct, frozen=True):
    compute: float
    communication: float
    source: str
    latency: float | None = None


class _Operation(msgspec.Struct, frozen=True):
    content: str
    execution: str
    batch: int
    forward: _Duration
    backward: _Duration


class _Whole(msgspec.Struct, frozen=True):
    graph: str
    form: str
    execution: str
    batch: int
    forward: _Duration
    backward: _Duration
    evaluation: _Duration


class _StepCosts(msgspec.Struct, frozen=True):
    job: str
    update: TensorFit
    clip: TensorFit
    load: list[tuple[int, _Duration]]
    state_bytes_per_byte: float
    samples: SampleCosts | None = None


class _Curve(msgspec.Struct, frozen=True):
    kind: str
    ranks: int
    points: list[tuple[int, _Duration]]


class _Table(msgspec.Struct, frozen=True):
    fingerprint: Fingerprint
    operations: list[_Operation]
    wholes: list[_Whole]
    steps: list[_StepCosts]
    curves: list[_Curve]
    interference: list[tuple[str, _Factors]]
    between: tuple[_Duration, _Duration] | None = None
    straggling: float | None = None


class _TableFile(msgspec.Struct, frozen=True):
    schema_version: int
    digest: str
    table: msgspec.Raw


def encode_table(table: CostTable) -> bytes:
    """A table as JSON.

    Args:
        table: the table

    Returns:
        The same bytes for equal tables.
    """
    body = msgspec.json.encode(_rows(table))
    data = msgspec.json.encode(
        {"schema_version": SCHEMA_VERSION, "digest": _digest(body), "table": msgspec.Raw(body)},
    )
    return msgspec.json.format(data, indent=1) + b"\n"


def decode_table(data: bytes, *, origin: str = "cost table") -> CostTable:
    """The table in a JSON text that `encode_table` made.

    Args:
        data: the text
        origin: where it comes from, for messages

    Raises:
        CorruptDataError: truncated, edited, or with figures that no measurement gives
        InputError: written by another version of Trimaran
    """
    file = decode_typed(data, _TableFile, source=origin, advice="measure again")
    if file.schema_version != SCHEMA_VERSION:
        raise InputError(
            f"{origin}: schema version {file.schema_version}, this Trimaran reads {SCHEMA_VERSION}; measure again",
            code="cost-table.schema-version",
            found=file.schema_version,
            expected=SCHEMA_VERSION,
        )
    body = msgspec.json.format(bytes(file.table), indent=-1)
    if _digest(body) != file.digest:
        raise CorruptDataError(
            f"{origin}: the digest does not match the content, it was edited; measure again",
            code="cost-table.digest-mismatch",
        )
    table = _table(decode_typed(body, _Table, source=origin, advice="measure again"))
    _check(table, origin)
    return table


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _pack(cost: Cost) -> _Duration:
    return _Duration(cost.seconds, cost.low, cost.high, cost.source)


def _unpack(row: _Duration) -> Cost:
    return Cost(row.seconds, row.low, row.high, row.source)


def _rows(table: CostTable) -> _Table:
    return _Table(
        fingerprint=table.fingerprint,
        operations=[
            _Operation(key.content, key.execution, batch, _pack(cost.forward), _pack(cost.backward))
            for key, points in sorted(table.operations.items())
            for batch, cost in sorted(points.items())
        ],
        wholes=[
            _Whole(*key, batch, _pack(cost.forward), _pack(cost.backward), _pack(cost.evaluation))
            for key, points in sorted(table.wholes.items())
            for batch, cost in sorted(points.items())
        ],
        steps=[
            _StepCosts(
                job=job,
                update=step.update,
                clip=step.clip,
                load=[(batch, _pack(cost)) for batch, cost in sorted(step.load.items())],
                state_bytes_per_byte=step.state_bytes_per_byte,
                samples=step.samples,
            )
            for job, step in sorted(table.steps.items())
        ],
        curves=[
            _Curve(key.kind, key.ranks, [(size, _pack(cost)) for size, cost in curve])
            for key, curve in sorted(table.curves.items())
        ],
        interference=[
            (kind, _Factors(one.compute, one.communication, one.source, one.latency))
            for kind, one in sorted(table.interference.items())
        ],
        between=None if table.between is None else (_pack(table.between.step), _pack(table.between.instruction)),
        straggling=None if table.between is None else table.between.straggling,
    )


def _table(rows: _Table) -> CostTable:
    operations: dict[OperationKey, dict[int, OpCost]] = {}
    for row in rows.operations:
        points = operations.setdefault(OperationKey(row.content, row.execution), {})
        points[row.batch] = OpCost(forward=_unpack(row.forward), backward=_unpack(row.backward))
    wholes: dict[WholeKey, dict[int, WholeCost]] = {}
    for whole in rows.wholes:
        wholes.setdefault(WholeKey(whole.graph, whole.form, whole.execution), {})[whole.batch] = WholeCost(
            forward=_unpack(whole.forward), backward=_unpack(whole.backward), evaluation=_unpack(whole.evaluation)
        )
    return CostTable(
        fingerprint=rows.fingerprint,
        operations=operations,
        wholes=wholes,
        steps={
            row.job: StepCosts(
                update=row.update,
                clip=row.clip,
                load={batch: _unpack(cost) for batch, cost in row.load},
                state_bytes_per_byte=row.state_bytes_per_byte,
                samples=row.samples,
            )
            for row in rows.steps
        },
        curves={
            CurveKey(row.kind, row.ranks): tuple((size, _unpack(cost)) for size, cost in row.points)
            for row in rows.curves
        },
        # Without the latency's it was measured at one size, and is measured again.
        interference={
            kind: Interference(
                compute=one.compute, communication=one.communication, latency=one.latency, source=one.source
            )
            for kind, one in rows.interference
            if one.latency is not None
        },
        # Without the wait for the slowest rank it is measured again.
        between=None
        if rows.between is None or rows.straggling is None
        else Between(step=_unpack(rows.between[0]), instruction=_unpack(rows.between[1]), straggling=rows.straggling),
    )


def _check(table: CostTable, origin: str) -> None:
    for place, cost in _durations(table):
        ends = (cost.low, cost.seconds, cost.high)
        if not all(math.isfinite(value) and value >= 0 for value in ends) or list(ends) != sorted(ends):
            raise CorruptDataError(
                f"{origin}: {place}: a duration needs 0 <= low <= seconds <= high, got low {cost.low}, "
                f"seconds {cost.seconds}, high {cost.high}; measure again",
                code="cost-table.bad-duration",
            )
    for key, curve in table.curves.items():
        sizes = [size for size, _ in curve]
        if not sizes or sizes != sorted(set(sizes)) or sizes[0] < 1:
            raise CorruptDataError(
                f"{origin}: curve {key.kind} of {key.ranks} ranks: sizes must ascend from 1, got {sizes}",
                code="cost-table.sizes-not-ascending",
            )


def _durations(table: CostTable) -> Iterator[tuple[str, Cost]]:
    for key, points in table.operations.items():
        for batch, cost in points.items():
            yield from _named(f"operation {key.content} at batch {batch}", (cost.forward, cost.backward))
    for whole, costs in table.wholes.items():
        for batch, item in costs.items():
            yield from _named(f"graph {whole.graph} at batch {batch}", (item.forward, item.backward, item.evaluation))
    for job, step in table.steps.items():
        yield from _named(f"load of job {job}", step.load.values())
        yield from _named(f"samples of job {job}", () if step.samples is None else step.samples.durations)
    for curve_key, curve in table.curves.items():
        yield from _named(f"curve {curve_key.kind} of {curve_key.ranks} ranks", (cost for _, cost in curve))
    for kind, factors in table.interference.items():
        place = f"interference of {kind}"
        values = (factors.compute, factors.communication, factors.latency)
        yield from _named(place, (Cost(value, value, value, "") for value in values))
    if table.between is not None:
        share = table.between.straggling
        waits = Cost(share, share, share, "")
        yield from _named("between instructions", (table.between.step, table.between.instruction, waits))


def _named(place: str, costs: Iterable[Cost]) -> Iterator[tuple[str, Cost]]:
    return ((place, cost) for cost in costs)
