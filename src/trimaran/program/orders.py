"""An order of compute: which forward or backward each row of a pipeline does next.

A row is what one rank of a replica does; it may have several segments. There is no communication in an order: that
follows from the graph.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.errors import InputError
from trimaran.program.types import Kind

BACKWARDS = frozenset({Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT})
COMPUTES = BACKWARDS | {Kind.FORWARD, Kind.EVALUATE}


@dataclass(frozen=True, slots=True)
class Compute:
    """One step of an order: what is computed, of which segment, for which microbatch.

    Example:
        >>> Compute(Kind.FORWARD, segment=0, microbatch=3).token
        '0F3'
    """

    kind: Kind
    segment: int
    microbatch: int

    @property
    def token(self) -> str:
        """Its name in torch's pipelining, which is also the token of the instruction."""
        return f"{self.segment}{self.kind}{self.microbatch}"


Order = tuple[tuple[Compute, ...], ...]


def check_order(order: Order) -> int:
    """Refuse an order of compute that is incomplete.

    Args:
        order: one row of steps a rank

    Returns:
        Its number of microbatches.

    Raises:
        InputError: an empty row, a segment on two rows, a step that is missing, there twice or out of order
    """
    if not order or not all(order):
        raise InputError("every row of an order of compute needs at least one step", code="order.empty-row")
    rows: dict[int, int] = {}
    place: dict[Compute, tuple[int, int]] = {}
    for row, steps in enumerate(order):
        for position, step in enumerate(steps):
            if rows.setdefault(step.segment, row) != row:
                raise InputError(
                    f"segment {step.segment} is on row {rows[step.segment]} and on row {row}",
                    code="order.segment-on-two-rows",
                    row=row,
                )
            if step in place:
                raise InputError(
                    f"row {row}: {step.token} is there twice", code="order.step-twice", row=row, position=position
                )
            place[step] = (row, position)
    segments, microbatches = 1 + max(rows), 1 + max(step.microbatch for step in place)
    training = any(step.kind is not Kind.EVALUATE for step in place)
    for segment in range(segments):
        for microbatch in range(microbatches):
            for first, second in _pairs(place, segment, microbatch, training):
                _check_pair(place, first, second)
    return microbatches


def _pairs(
    place: Mapping[Compute, object], segment: int, microbatch: int, training: bool
) -> list[tuple[Compute, Compute]]:
    """Steps that a segment must have for a microbatch, as pairs in which the first comes before the second."""

    def step(kind: Kind) -> Compute:
        return Compute(kind, segment, microbatch)

    if not training:
        return [(step(Kind.EVALUATE), step(Kind.EVALUATE))]
    split = [(Kind.FORWARD, Kind.BACKWARD_INPUT), (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)]
    if not any(step(kind) in place for kind in (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)):
        split = [(Kind.FORWARD, Kind.BACKWARD)]
    elif step(Kind.BACKWARD) in place:
        raise InputError(
            f"{step(Kind.BACKWARD).token} is the whole backward, and it is also split into I and W",
            code="order.backward-whole-and-split",
        )
    return [(step(first), step(second)) for first, second in split]


def _check_pair(place: Mapping[Compute, tuple[int, int]], first: Compute, second: Compute) -> None:
    for step in (first, second):
        if step not in place:
            raise InputError(f"the order of compute lacks {step.token}", code="order.missing-step", step=step.token)
    if place[first] > place[second]:
        row = place[first][0]
        raise InputError(
            f"row {row}: {second.token} comes before {first.token}, which it needs",
            code="order.backward-before-forward",
            row=row,
        )
