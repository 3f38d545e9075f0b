"""What a member of a group holds after an operation, from what every member gave.

    all_reduce          [1, 2] [3, 4]  ─▶  [4, 6] on both
    all_gather          [1, 2] [3, 4]  ─▶  [1, 2, 3, 4] on both
    reduce_scatter      [1, 2] [3, 4]  ─▶  [4] on the first, [6] on the second
    all_to_all          [1, 2] [3, 4]  ─▶  [1, 3] on the first, [2, 4] on the second

Only small values come here; one that is not known makes what depends on it unknown.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

Value = torch.Tensor | None
"""Of a tensor; None: not known."""


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """What one member gives.

    Attributes:
        values: of its tensors, in order
        rows: for each member, where a tensor is sent in uneven parts; empty: even ones
    """

    values: tuple[Value, ...]
    rows: tuple[int, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether all values are."""
        return all(value is not None for value in self.values)


def results(
    operation: str,
    reduction: str,
    given: Sequence[Given],
    member: int,
    root: int,
    outputs: int,
) -> list[Value]:
    """What a member holds afterwards.

    Args:
        operation: as of a record
        reduction: "sum", "avg", …
        given: by each member, in the group's order; the same object where several give the same
        member: position of the one that is asked for
        root: position of the root; -1: the operation has none
        outputs: tensors that the member gets

    Returns:
        Of each of these, flat where its shape is not that of what was given.
    """
    unknown: list[Value] = [None] * outputs
    try:
        if operation in ("all_reduce", "reduce"):
            if operation == "reduce" and member != root:
                return list(given[member].values)
            return [_reduced(reduction, [one.values[place] for one in given]) for place in range(outputs)]
        if operation == "broadcast":
            return list(given[root].values) if root >= 0 else unknown
        if operation == "scatter":
            return [given[root].values[member]]
        if operation in ("all_gather", "gather"):
            return _gathered([one.values for one in given], outputs)
        if operation == "reduce_scatter":
            return _scattered(reduction, given, member, outputs)
        if operation == "all_to_all":
            return _exchanged(given, member, outputs)
    except (RuntimeError, IndexError, ValueError, TypeError):  # members do not agree: the comparison of ranks says so
        return unknown
    return unknown


def _gathered(values: Sequence[tuple[Value, ...]], outputs: int) -> list[Value]:
    count = len(values[0])
    if count == 1 and outputs == len(values):
        return [one[0] for one in values]
    if count == outputs:
        return [_joined([one[place] for one in values]) for place in range(outputs)]
    return [None] * outputs


def _scattered(reduction: str, given: Sequence[Given], member: int, outputs: int) -> list[Value]:
    size, count = len(given), len(given[0].values)
    if outputs == 1 and count == size and size > 1:
        return [_reduced(reduction, [one.values[member] for one in given])]
    found: list[Value] = []
    for place in range(outputs):
        whole = _reduced(reduction, [one.values[place] for one in given])
        found.append(None if whole is None else whole.flatten().chunk(size)[member])
    return found


def _exchanged(given: Sequence[Given], member: int, outputs: int) -> list[Value]:
    size = len(given)
    if outputs == size and len(given[0].values) == size and size > 1:
        return [one.values[member] for one in given]
    return [_joined([_part(one, member, size) for one in given])]


def _part(one: Given, member: int, size: int) -> Value:
    """What a member sends to another one of the only tensor that it gives."""
    value = one.values[0]
    if value is None:
        return None
    if one.rows:
        ends = [0, *accumulate(one.rows)]
        return value[ends[member] : ends[member + 1]]
    return value.flatten().chunk(size)[member]


def _joined(values: Sequence[Value]) -> Value:
    known = [value.flatten() for value in values if value is not None]
    return torch.cat(known) if len(known) == len(values) else None


_REDUCED: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


def _reduced(reduction: str, values: Sequence[Value]) -> Value:
    join = _REDUCED.get(reduction)
    counts: dict[int, list[torch.Tensor]] = {}
    for value in values:
        if value is None:
            return None
        counts.setdefault(id(value), []).append(value)
    if join is None:
        return None
    total: torch.Tensor | None = None
    for same in counts.values():
        one, times = same[0], len(same)
        if reduction in ("sum", "avg") and one.dtype != torch.bool:
            one = one * times
        elif reduction == "product":
            one = one**times
        elif reduction == "bxor" and times % 2 == 0:
            one = torch.zeros_like(one)
        total = one if total is None else join(total, one)
    if total is not None and reduction == "avg":
        total = total / len(values)
    return None if total is None else total.to(values[0].dtype)  # type: ignore[union-attr]
