"""Do the ranks of a script train one model? Rules on what they exchange; the first: that every parameter is.

Ranks hold one model together where collectives touch what they train, and where they give each other activations, as
under tensor, expert and pipeline parallelism. A parameter whose ranks do not all come together so is trained apart.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from trimaran.rehearsal.calls import MESSAGES
from trimaran.rehearsal.kinds import Axis, find_axes
from trimaran.rehearsal.record import Collective, Enter, Frame, Issue, Record, Run, Step, Update

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
    joined: dict[_Ranks, set[str] | None] = {}
    for record in records:
        for ranks, parameters in _joined(record, records):
            before = joined.get(ranks, set())
            joined[ranks] = None if parameters is None or before is None else before | parameters
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
            together = {ranks for ranks, of in joined.items() if of is None or update.parameter in of}
            own[frozenset(together | (exchanged if known is None else known))].append(update)
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


def _joined(record: Record, records: Sequence[Record]) -> Iterator[tuple[_Ranks, set[str] | None]]:
    """Ranks that hold one model together, as they give each other activations, and which parameters of it; None: all.

    Ranks with the same batch have parts of one model, and so have stages. Of others only what works on activations of
    all of them is one model, as experts are: not what makes the features that a loss compares, nor what is around a
    normalization by the statistics of all.
    """
    moved: defaultdict[str, list[int]] = defaultdict(list)
    for number in record.joined:
        one = record.collectives[number]
        if one.operation in MESSAGES:
            yield (min(record.rank, one.peer), max(record.rank, one.peer)), None
        else:
            moved[one.group].append(number)
    for group, numbers in moved.items():
        ranks = record.groups[group].ranks
        yield ranks, _shared(record, set(numbers)) if _differ(records, ranks) else None
    if any(one.operation in MESSAGES and one.part != "setup" for one in record.collectives):
        yield from ((axis.group_of(record.rank), None) for axis in find_axes([record]) if axis.staged)
    if len(record.modules) < 2:  # without modules nothing tells where a first forward begins
        several = (one for one in record.collectives if one.part == "setup" and one.operation != "broadcast")
        yield from ((record.groups[one.group].ranks, None) for one in several if _elements(one) > 1)


def _differ(records: Sequence[Record], ranks: _Ranks) -> bool:
    """Whether members of a group have other batches; where they may be given them by others, it is not known."""
    members = [record for record in records if record.rank in ranks]
    given = (one for record in members for one in record.collectives if one.operation.startswith(("broadcast", "scat")))
    if any(one.part == "forward" and not one.module and _elements(one) != 1 for one in given):
        return False
    batches = {record.batches for record in members}
    return len(batches) > 1 and len({batch.partition(" ")[0] for batch in batches}) == 1


def _shared(record: Record, numbers: set[int]) -> set[str] | None:
    """Parameters that work on activations of other ranks: after these are gathered, or between two all-to-alls.

    Both of these are of one module; where one has a single all-to-all, any may be before it (None), as tables of which
    each rank has some.
    """
    worked: set[int] = set()
    shared: set[int] = set()
    since: set[int] = set()
    counts: Counter[int] = Counter()
    before: Collective | None = None
    for event in record.events:
        if type(event) is Run and event.part == "forward":
            since.add(event.module)
            worked.add(event.module)
        elif type(event) is Issue and event.collective in numbers:
            one = record.collectives[event.collective]
            if before is not None and (before.operation == "all_gather" or before.module == one.module):
                shared |= since
            counts[one.module] += one.operation == "all_to_all"
            before, since = one if one.operation in ("all_gather", "all_to_all") else None, set()
        elif type(event) is Step or (type(event) is Enter and event.part != "forward"):
            if before is not None and before.operation == "all_gather":
                shared |= since
            if 1 in counts.values():
                return None
            before, since, counts = None, set(), Counter()
            if type(event) is Step:
                break
    names = {record.modules[number]: number in shared for number in worked}
    return {update.parameter for update in record.updates if names.get(_owner(update.parameter, names))}


def _owner(parameter: str, modules: Iterable[str]) -> str:
    """The innermost module around a parameter that does something by itself."""
    plain = {module.removeprefix("module.").replace("_fsdp_wrapped_module.", ""): module for module in modules}
    path = parameter
    while path:
        path = path.rpartition(".")[0]
        if path in plain:
            return plain[path]
    return ""


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
