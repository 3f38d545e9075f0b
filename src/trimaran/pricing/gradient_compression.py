"""Cost of compressed gradients: encoding and decoding on each rank, and the bytes that are still sent.

    backward  ██████▒ b0 ███▒ b1            ▒ a complete bucket is encoded, which delays the rest
    b0               ══════
    b1                      ═════
    decoding                ▒ b0   ▒ b1     in the order of the buckets, before the work that waits for them

Encoding is all work of a rank up to the first byte sent, decoding all work afterwards. Both were measured on this
machine with every rank busy, or follow from passes over memory for a device of the catalog.

PowerSGD sends P, and after its sum has arrived, Q: see `two_rounds`. Its times are kept by the size of one matrix,
because it encodes single matrices; those of the 16-bit methods by the size of a whole bucket.

Encoding inside a backward, and the two sums of PowerSGD's buckets, as the runtime runs them.

    backward  ██████▒ P0 ███│ wait, ▒ Q0, ▒ P1 ███│ wait, ▒ Q1, ▒ P2 │ wait, ▒ Q2 │ decode │ update
    b0               ═══════         ═══════
    b1                                       ═══════       ═══════
    b2                                                              ═══════      ═══════

A bucket is encoded as soon as it is complete, which delays the rest of the backward. The second sum of a bucket starts
when the next bucket is complete: the backward blocks there until the first sum has arrived, and then computes the input
of the second. The second sum of the last bucket starts before the update; the simulator adds it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trimaran.base.errors import InputError
from trimaran.graph.types import Graph
from trimaran.machine.types import Allocation, Device
from trimaran.pricing.curves import at_size
from trimaran.pricing.tables import CostTable, Curve, CurveKey
from trimaran.pricing.transfers import HOST, transfer_cost
from trimaran.pricing.types import Cost, SecondSum, Transfer
from trimaran.program.gradients import SMALLEST_BYTES, Bucket, Compression
from trimaran.program.lowering.rows import buckets_by_token
from trimaran.program.strategy import Strategy
from trimaran.program.types import Instruction, Kind, Program

_BYTES_16 = (7.0, 1.5)
"""Bytes that encoding and decoding a byte of gradients to 16 bits read and write.

Of a number of 4 bytes: the error of the last step is added (8 read, 4 written), the sum is rounded (4, 2), the
rounding error is the error of this step (6, 4). Back: 2 read, 4 written.
"""

_LAUNCHES_16 = (3, 1)
"""Kernels of a bucket."""

_BYTES_FACTORS = (4.0, 4.0)
"""The same with PowerSGD: the error is added (8 read, 4 written), P = M Q reads the matrix (4). Then Q = Mᵀ P reads it
(4), its difference from P Qᵀ is the error of this step (4 read, 4 written), and P Qᵀ of the sums is written (4)."""

_LAUNCHES_FACTORS = (2, 4)
"""Kernels of a matrix, besides those that make the columns of P orthogonal: two of each column."""

_BETWEEN = 0.75
"""Share of the work after the first sum that comes before the second: of the 16 bytes of a number 12 are read and
written before it, and P Qᵀ (4) after it."""

_LEAST, _MOST = 0.5, 2.0
"""Ends of the interval of such an estimate: operations fused into one kernel, and not fused; assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCoding:
    """Work of a rank for one bucket.

    Attributes:
        encode: until its first byte is sent
        decode: when the last sum is there
        between: from the first sum to the second; None: there is one
        second_bytes: of the second sum [bytes]
    """

    encode: Cost
    decode: Cost
    between: Cost | None = None
    second_bytes: int = 0


def coding_keys(compression: Compression) -> tuple[CurveKey, CurveKey]:
    """The curves of encoding and decoding, by encoded size.

    Example:
        >>> [key.kind for key in coding_keys(Compression(method="bf16"))]
        ['ENC bf16 host', 'DEC bf16 host']
    """
    return CurveKey(f"ENC {compression.name}{HOST}", 1), CurveKey(f"DEC {compression.name}{HOST}", 1)


def reduce_key(compression: Compression, ranks: int) -> CurveKey | None:
    """The curve of an all-reduce of numbers of 16 bits, by their bytes; None where 32 bits are sent.

    Args:
        compression: how gradients are sent
        ranks: in the group
    """
    return None if compression.method == "powersgd" else CurveKey(f"{Kind.ALL_REDUCE} {compression.method}", ranks)


def is_priced(compression: Compression, table: CostTable, cluster: Allocation) -> bool:
    """Whether the cost of a method is known: it was measured, or the devices are of the catalog."""
    return not cluster.machine.node.measured or all(key in table.curves for key in coding_keys(compression))


def code_program(
    program: Program, graph: Graph, strategy: Strategy, table: CostTable, cluster: Allocation
) -> dict[str, GradientCoding]:
    """Work of the ranks for each all-reduce of a compressed bucket, by the id of the all-reduce.

    Args:
        program: a training step of the strategy
        graph: the network
        strategy: how gradients are sent
        table: measured costs
        cluster: who sits where

    Raises:
        InputError: no measured cost for the method
    """
    if strategy.compression is None:
        return {}
    found: dict[str, GradientCoding] = {}
    known: dict[frozenset[int | None], dict[str, GradientCoding]] = {}
    shapes = {parameter.name: parameter.shape for parameter in graph.parameters}
    for instructions in program.ranks:
        segments = frozenset(item.segment for item in instructions)
        if segments not in known:
            buckets = buckets_by_token(graph, strategy, instructions)
            known[segments] = {
                token: _coding(bucket, shapes, strategy.compression, table, cluster)
                for token, bucket in buckets.items()
            }
        for item in instructions:
            if item.token in known[segments]:
                found[item.id] = known[segments][item.token]
    return found


def reducing_table(strategy: Strategy, table: CostTable) -> CostTable:
    """The table by which buckets are priced: with all-reduces of 16 bits where they were measured.

    Args:
        strategy: how gradients are sent
        table: measured costs
    """
    if strategy.compression is None:
        return table
    wanted = reduce_key(strategy.compression, 2)
    if wanted is None:
        return table
    curves: dict[CurveKey, Curve] = dict(table.curves)
    for key, curve in table.curves.items():
        if key.kind == wanted.kind:
            curves[CurveKey(str(Kind.ALL_REDUCE), key.ranks)] = curve
    return replace(table, curves=curves)


def _coding(
    bucket: Bucket,
    shapes: Mapping[str, tuple[int, ...]],
    compression: Compression,
    table: CostTable,
    cluster: Allocation,
) -> GradientCoding:
    numbers = sum(math.prod(shapes[name]) for name in bucket.parameters)
    itemsize = bucket.nbytes // numbers if numbers else 0
    sizes = [bucket.nbytes]
    factored: list[tuple[int, ...]] = []
    if itemsize < SMALLEST_BYTES:
        sizes = []  # gradients of 16 bits go as they are
    elif compression.method == "powersgd":
        factored = [shapes[name] for name in bucket.parameters if compression.factors(shapes[name])]
        sizes = [itemsize * math.prod(shape) for shape in factored]
    if cluster.machine.node.measured:
        encode, decode = (_along(_measured(key, compression, table), sizes) for key in coding_keys(compression))
    else:
        encode, decode = _on_device(sizes, compression, cluster.machine.node.device)
    if not factored:
        return GradientCoding(encode=encode, decode=decode)
    return GradientCoding(
        encode=encode,
        decode=decode.scaled(1.0 - _BETWEEN),
        between=decode.scaled(_BETWEEN),
        second_bytes=itemsize * sum(compression.second_numbers(shape) for shape in factored),
    )


def _measured(key: CurveKey, compression: Compression, table: CostTable) -> Curve:
    if key not in table.curves:
        raise InputError(
            f"no measured cost for compressing gradients by {compression.name} on {table.fingerprint.device}: "
            "plan with --allow compress, or --compression with the method, which measures it",
            code="cost-table.missing-compression",
            compression=compression.name,
        )
    return table.curves[key]


def _along(curve: Curve, sizes: list[int]) -> Cost:
    """The sum over sizes; errors of one curve are common to all."""
    costs = [at_size(curve, size) for size in sizes if size]
    return Cost(
        math.fsum(cost.seconds for cost in costs),
        math.fsum(cost.low for cost in costs),
        math.fsum(cost.high for cost in costs),
        costs[0].source if costs else "analytic: nothing to do",
    )


def _on_device(sizes: list[int], compression: Compression, device: Device) -> tuple[Cost, Cost]:
    factors = compression.method == "powersgd"
    nbytes = sum(sizes)
    rate = device.sustained_bytes_per_s
    found = []
    for read, launches in zip(
        _BYTES_FACTORS if factors else _BYTES_16, _LAUNCHES_FACTORS if factors else _LAUNCHES_16, strict=True
    ):
        columns = 2 * compression.rank if factors and launches == _LAUNCHES_FACTORS[1] else 0
        seconds = read * nbytes / rate + (launches + columns) * len(sizes) * device.launch.seconds
        found.append(Cost(seconds, _LEAST * seconds, _MOST * seconds, "analytic: passes over memory, launches"))
    return found[0], found[1]


def bucket_transfers(
    instruction: Instruction, coding: GradientCoding, reducing: CostTable, cluster: Allocation
) -> tuple[Transfer, Transfer | None]:
    """Cost of the sums of a compressed bucket when no other transfer runs: of the first, and of the second if any.

    Args:
        instruction: with the bytes that are sent
        coding: of the bucket
        reducing: made by `reducing_table`
        cluster: who sits where
    """
    if coding.between is None:
        return transfer_cost(instruction, reducing, cluster), None
    sizes = (instruction.nbytes - coding.second_bytes, coding.second_bytes)
    first, second = (transfer_cost(replace(instruction, nbytes=nbytes), reducing, cluster) for nbytes in sizes)
    return first, second


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Backwards that encode their buckets as they become complete.

    Attributes:
        compute: durations of all instructions
        marks: fractions of all marks, those of `second_sums` among them
        between: by id of the all-reduce, the work that is left before its second sum
        second_sums: as in `SecondRound`, by id of the all-reduce
    """

    compute: dict[str, Cost]
    marks: dict[tuple[str, str], float]
    between: dict[str, Cost]
    second_sums: dict[str, SecondSum]


def with_encoding(
    program: Program,
    compute: Mapping[str, Cost],
    marks: Mapping[tuple[str, str], float],
    codings: Mapping[str, GradientCoding],
) -> Encoded:
    """Backwards lengthened by encoding their buckets, with the mark of each bucket after its encoding.

    Args:
        program: one step
        compute: duration of each instruction, without encoding
        marks: the fraction of it after which each mark is reached
        codings: by id of the all-reduce (`code_program`)
    """
    between = {name: coding.between for name, coding in codings.items() if coding.between is not None}
    found = Encoded(compute=dict(compute), marks=dict(marks), between=between, second_sums={})
    if not codings:
        return found
    for instructions in program.ranks:
        handed = _handed_over([item for item in instructions if item.id in codings], codings, between)
        for item in instructions:
            if item.id in handed:
                _lengthen(item, handed[item.id], found)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hand:
    """Work of the hook of a complete bucket: it continues the bucket before, if that has two sums, and encodes its own.

    Attributes:
        encode: its own bucket
        before: the all-reduce of the bucket before, by id
        between: work between the two sums of that one; None: it has one, or there is no bucket before
    """

    encode: Cost
    before: str
    between: Cost | None

    @property
    def parts(self) -> tuple[Cost, ...]:
        return (self.encode,) if self.between is None else (self.between, self.encode)


def _handed_over(
    coded: Sequence[Instruction], codings: Mapping[str, GradientCoding], between: dict[str, Cost]
) -> dict[str, dict[str, _Hand]]:
    """Work of hooks, by the backward and its mark; it is taken out of `between`."""
    found: dict[str, dict[str, _Hand]] = {}
    before, going_on = "", None
    for item in coded:
        for backward, is_mark, mark in (name.partition("!") for name in item.after):
            if is_mark:
                hand = _Hand(encode=codings[item.id].encode, before=before, between=going_on)
                found.setdefault(f"r{item.rank}/{backward}", {})[mark] = hand
                if going_on is not None:
                    between[before] = going_on.scaled(0.0)
        before, going_on = item.id, codings[item.id].between
    return found


def _lengthen(backward: Instruction, handed: Mapping[str, _Hand], found: Encoded) -> None:
    cost = found.compute[backward.id]
    added = [part for hand in handed.values() for part in hand.parts]
    whole = Cost(
        cost.seconds + math.fsum(part.seconds for part in added),
        cost.low + math.fsum(part.low for part in added),
        cost.high + math.fsum(part.high for part in added),
        cost.source,
    )
    if whole.seconds <= 0.0:
        return
    places = {mark.name: found.marks[backward.id, mark.name] for mark in backward.marks}
    spent_s = 0.0

    def place(name: str) -> float:
        return min(1.0, (places[name] * cost.seconds + spent_s) / whole.seconds)

    for name in sorted(places, key=places.__getitem__):
        hand = handed.get(name)
        if hand is not None and hand.between is not None:
            second = SecondSum(instruction=backward.id, before=name, pause=f"{name} pause", start=f"{name} second")
            found.second_sums[hand.before] = second
            found.marks[backward.id, second.pause] = place(name)
            spent_s += hand.between.seconds
            found.marks[backward.id, second.start] = place(name)
        if hand is not None:
            spent_s += hand.encode.seconds
        found.marks[backward.id, name] = place(name)
    found.compute[backward.id] = whole
