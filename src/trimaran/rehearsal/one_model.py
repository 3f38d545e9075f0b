"""Do the ranks of a script train one model? Rules on what they exchange; the first: that every parameter is.

Ranks hold one model together where collectives touch what they train, and where they give each other activations, as
under tensor, expert and pipeline parallelism. A parameter whose ranks do not all come together so is trained apart.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from trimaran.rehearsal.calls import MESSAGES
from trimaran.rehearsal.kinds import Axis, find_axes
from trimaran.rehearsal.record import Collective, Frame, Issue, Record, Run, Step, Update

_Ranks = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Apart:
    """Ranks that train parameters each for themselves.

    Attributes:
        rank: which one is told of
        other: a rank that it does not train them together with
        models: that all ranks together would train
        parameters: names of those that are apart, in the optimizer's order; none: all, of which nothing is known
        trained: parameters of this rank of which it is known
        lines: that update them, innermost first; empty where it is not known
        since: how many of the last steps do so, where those before did not; 0: all
    """

    rank: int
    other: int
    models: int
    parameters: tuple[str, ...]
    trained: int
    lines: tuple[Frame, ...]
    since: int = 0


def apart(records: Sequence[Record]) -> Apart | None:
    """Which ranks update models, or parameters, of which they exchange nothing; None: they do, or take no step.

    Where a gradient comes from may not be known; then any exchange of more than a number is taken to be of it. Neither
    numbers, as of a loss that is logged, nor objects nor barriers make one model of several, nor do broadcasts before
    the first step and in a forward, as DDP's of its buffers.

    Args:
        records: of ranks that were rehearsed
    """
    if not records or records[0].world < 2 or not all(any(type(one) is Step for one in it.events) for it in records):
        return None
    axes = find_axes(records)
    joined = {ranks for record in records for ranks in _joined(record)}
    exchanged = {ranks for record in records for ranks in _exchanging(record)}
    touched = defaultdict[str, set[_Ranks] | None](set)
    for record in records:
        for update in record.updates:
            known = touched[update.parameter]
            if update.groups is None:
                touched[update.parameter] = None
            elif known is not None:
                known.update(record.groups[name].ranks for name in update.groups)
    found: list[Apart] = []
    for record in records:
        own: dict[frozenset[_Ranks], list[Update]] = defaultdict(list)
        for update in record.updates or [Update("", None, -1)]:
            known = touched[update.parameter] if update.parameter else None
            own[frozenset(joined | (exchanged if known is None else known))].append(update)
        alone = [(groups, updates) for groups, updates in own.items() if _other(record, records, axes, groups) >= 0]
        if alone:
            groups, first = alone[0]
            updates = [update for _, several in alone for update in several]
            number = first[0].lines if first[0].lines >= 0 else _updating(record)
            found.append(
                Apart(
                    rank=record.rank,
                    other=_other(record, records, axes, groups),
                    models=len(set(_connected(record.world, axes, groups))),
                    parameters=tuple(update.parameter for update in updates if update.parameter),
                    trained=len(record.updates),
                    lines=record.lines[number] if number >= 0 else (),
                    since=min(update.apart for update in updates),
                )
            )
    return max(found, key=lambda one: len(one.parameters), default=None)


def _other(record: Record, records: Sequence[Record], axes: Sequence[Axis], groups: Iterable[_Ranks]) -> int:
    """A rank that one does not come together with through these groups; -1: none."""
    model = _connected(record.world, axes, groups)
    if len(records) > 1:
        return next((one.rank for one in records if model[one.rank] != model[record.rank]), -1)
    return -1 if model.count(model[record.rank]) > 1 else (record.rank + 1) % record.world


def _connected(world: int, axes: Sequence[Axis], groups: Iterable[_Ranks]) -> list[int]:
    """Of each rank the first one of those that it comes together with; other groups of an axis do what one does."""
    first = list(range(world))

    def root(rank: int) -> int:
        while first[rank] != rank:
            first[rank] = rank = first[first[rank]]
        return rank

    for ranks in groups:
        for members in next((axis.groups for axis in axes if ranks in axis.groups), (ranks,)):
            for rank in members[1:]:
                one, other = sorted((root(members[0]), root(rank)))
                first[other] = one
    return [root(rank) for rank in range(world)]


def _joined(record: Record) -> Iterator[_Ranks]:
    """Ranks that hold one model together, as they give each other activations."""
    yield from record.joined
    if any(one.operation in MESSAGES and one.part != "setup" for one in record.collectives):
        yield from (axis.group_of(record.rank) for axis in find_axes([record]) if axis.staged)
    if len(record.modules) < 2:  # without modules nothing tells where a first forward begins
        several = (one for one in record.collectives if one.part == "setup" and one.operation != "broadcast")
        yield from (record.groups[one.group].ranks for one in several if _elements(one) > 1)


def _exchanging(record: Record) -> Iterator[_Ranks]:
    """Groups in which a rank gives others more than a number once its training has begun."""
    for event in record.events:
        one = record.collectives[event.collective] if type(event) is Issue else None
        if one is None or one.part == "setup" or one.operation.endswith("_object") or one.operation == "barrier":
            continue
        in_a_forward = one.part == "forward" and bool(one.module)
        if (one.operation != "broadcast" or not in_a_forward) and _elements(one) > 1:
            yield record.groups[one.group].ranks


def _elements(one: Collective) -> int:
    return max((math.prod(form.shape) for form in (*one.inputs, *one.outputs)), default=0)


def _updating(record: Record) -> int:
    """Lines of the first kernel of an optimizer; -1: of none."""
    runs = (one.lines for one in record.events if type(one) is Run and one.part == "update" and one.lines > 0)
    return next(runs, -1)
