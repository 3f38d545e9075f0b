"""Encoding inside a backward, and the two sums of PowerSGD's buckets, as the wire of the runtime makes them.

    backward  ██████▒ P0 ███│ wait, ▒ Q0, ▒ P1 ███│ wait, ▒ Q1, ▒ P2 │ wait, ▒ Q2 │ decode │ update
    b0               ═══════         ═══════
    b1                                       ═══════       ═══════
    b2                                                              ═══════      ═══════

A bucket is encoded where it is complete, which puts the rest of the backward off. The second sum of a bucket is started
when the next bucket is complete: the backward stands still there until the first one has come, and then computes what
lies between them. That of the last bucket is started before the update, which the simulator sees to.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trimaran.cluster.types import Cluster
from trimaran.costs.tables import CostTable
from trimaran.costs.transfers import transfer_cost
from trimaran.costs.types import Cost, Transfer, Turn
from trimaran.costs.wire import Coding
from trimaran.program.types import Instruction, Program


def bucket_transfers(
    instruction: Instruction, coding: Coding, reducing: CostTable, cluster: Cluster
) -> tuple[Transfer, Transfer | None]:
    """What the sums of a compressed bucket take when nothing else is under way: the first, and the second where it is.

    Args:
        instruction: with the bytes on the wire
        coding: of the bucket
        reducing: made by `wire.reducing_table`
        cluster: who sits where
    """
    if coding.between is None:
        return transfer_cost(instruction, reducing, cluster), None
    sizes = (instruction.nbytes - coding.second_bytes, coding.second_bytes)
    first, second = (transfer_cost(replace(instruction, nbytes=nbytes), reducing, cluster) for nbytes in sizes)
    return first, second


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Backwards that encode their buckets on the way.

    Attributes:
        compute: durations of all instructions
        marks: fractions of all marks, those of the turns among them
        between: by id of the all-reduce, what is left to do before its second sum
        turns: as in `SecondRound`, by id of the all-reduce
    """

    compute: dict[str, Cost]
    marks: dict[tuple[str, str], float]
    between: dict[str, Cost]
    turns: dict[str, Turn]


def with_encoding(
    program: Program,
    compute: Mapping[str, Cost],
    marks: Mapping[tuple[str, str], float],
    codings: Mapping[str, Coding],
) -> Encoded:
    """Backwards that encode their buckets on the way: longer, and each mark of a bucket where that is encoded.

    Args:
        program: one step
        compute: duration of each instruction, without encoding
        marks: the fraction of it after which each mark is reached
        codings: by id of the all-reduce (`wire.code_program`)
    """
    between = {name: coding.between for name, coding in codings.items() if coding.between is not None}
    found = Encoded(compute=dict(compute), marks=dict(marks), between=between, turns={})
    for instructions in program.ranks:
        handed = _handed_over([item for item in instructions if item.id in codings], codings, between)
        for item in instructions:
            if item.id in handed:
                _lengthen(item, handed[item.id], found)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hand:
    """What the hook of a complete bucket does: it goes on with the bucket before, if that has two sums, and encodes.

    Attributes:
        encode: its own bucket
        before: the all-reduce of the bucket before, by id
        between: what lies between the two sums of that one; None: it has one, or there is no bucket before
    """

    encode: Cost
    before: str
    between: Cost | None

    @property
    def parts(self) -> tuple[Cost, ...]:
        return (self.encode,) if self.between is None else (self.between, self.encode)


def _handed_over(
    coded: Sequence[Instruction], codings: Mapping[str, Coding], between: dict[str, Cost]
) -> dict[str, dict[str, _Hand]]:
    """What hooks do, by the backward and its mark; what they go on with is no longer left to do."""
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
            turn = Turn(instruction=backward.id, before=name, pause=f"{name} pause", start=f"{name} second")
            found.turns[hand.before] = turn
            found.marks[backward.id, turn.pause] = place(name)
            spent_s += hand.between.seconds
            found.marks[backward.id, turn.start] = place(name)
        if hand is not None:
            spent_s += hand.encode.seconds
        found.marks[backward.id, name] = place(name)
    found.compute[backward.id] = whole
