"""Which ranks are rehearsed, and which rehearsed rank stands for each of the others.

Ranks of one script differ by where they stand in its process groups: the first of a group logs, the last one has the
short shard, each pipeline stage has other layers. The groups are known only once the script runs, so rank 0 is
rehearsed first; a rank notes every group that it asks for, those of other ranks included.

Groups of one size that were made one after another and have no rank in common are an *axis*, such as one dimension of a
device mesh. On an axis a rank is the first, the last, or one between; an axis on which messages are sent, or that is
called so, is one of pipeline stages, and each position on it counts.

    rehearsed:  rank 0 and the last rank
                every stage: the members of rank 0's group on an axis of stages
                on every axis, both ends of the groups of rank 0 and of the last rank; where neither is in one, both
                ends of the axis' first group; the same at one stage after another, as many ranks as are affordable

So every kind of group has two members among the rehearsed, at least in the first and the last stage, and a mesh of one
or two dimensions all its corners. What is affordable follows from how much rank 0 did (`affordable`). With 1,024 ranks
of FSDP these are 2 ranks, with 4 stages × 8 shards × 8 replicas 14, with 16 stages 50, or 22 of a model so large that
more would take hours.

A rank that is not rehearsed is taken to do what the nearest rehearsed one does: of the same stage, in groups of the
same axes, and first or last where it is; ranks between count as first ones, whose shards are full.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from trimaran.base.errors import InputError
from trimaran.rehearsal.record import Record

_STAGES = re.compile(r"(^|[^a-z])(pp|pipe|pipeline|stage)s?([^a-z]|$)")
_MESSAGES = frozenset({"send", "recv", "send_object", "recv_object"})
_RANGE = re.compile(r"([0-9]{1,9})(?:\s*(?:-|\.\.)\s*([0-9]{1,9}))?")

MOST_RANKS = 16
"""Up to which every stage has two members of each of its groups rehearsed, whatever a rank costs."""

MOST_CHEAP_RANKS = 64
"""The same where ranks are cheap."""

MOST_EVENTS = 3_000_000
"""Of all ranks together, beyond `MOST_RANKS`: about seven minutes of a core."""

EVENTS_OF_START = 40_000
"""Events that take as long as it takes a process to import torch."""

MOST_STAGES = 64
"""That messages in the group of all ranks are taken to make."""

_OTHER_STAGE, _OTHER_AXES, _OTHER_END, _LAST_FOR_BETWEEN, _FIRST_FOR_BETWEEN = 1000, 100, 3, 2, 1
"""How far two ranks are from each other, on one axis."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Groups of one size that have no rank in common, made one after another.

    Attributes:
        name: the script's, such as "mesh_tp"; "" where it gave none
        groups: global ranks of each, in the group's order
        staged: whether its members are pipeline stages
    """

    name: str
    groups: tuple[tuple[int, ...], ...]
    staged: bool = False
    places: dict[int, tuple[int, int]] = field(init=False, repr=False, compare=False)
    """Of each member, number of its group and position in it."""

    def __post_init__(self) -> None:
        places = {
            rank: (number, position) for number, group in enumerate(self.groups) for position, rank in enumerate(group)
        }
        object.__setattr__(self, "places", places)

    @property
    def size(self) -> int:
        """Ranks of one group."""
        return len(self.groups[0])

    def group_of(self, rank: int) -> tuple[int, ...]:
        """The group of a rank; empty where it is in none."""
        place = self.places.get(rank)
        return () if place is None else self.groups[place[0]]

    def position(self, rank: int) -> int | None:
        """Position of a rank in its group; None: it is in none."""
        place = self.places.get(rank)
        return None if place is None else place[1]


def find_axes(records: Sequence[Record]) -> tuple[Axis, ...]:
    """The axes of a script, the world included where it has several ranks.

    Args:
        records: of rank 0, and of others where there are; all groups that they made are taken together

    Example:
        >>> one = Record(rank=0, world=8, per_node=8, device="h100", memory_bytes=0, script=[],
        ...              made_groups=[((0, 1), 0), ((2, 3), 0), ((4, 5), 0), ((6, 7), 0)])
        >>> [(axis.size, len(axis.groups)) for axis in find_axes([one])]
        [(8, 1), (2, 4)]
    """
    if not records:
        return ()
    world = records[0].world
    names: dict[tuple[int, ...], str] = {}
    staged: set[tuple[int, ...]] = set()
    everyone = tuple(range(world))
    for record in records:
        ranks_of = {name: group.ranks for name, group in record.groups.items()}
        names |= {group.ranks: group.description for group in record.groups.values()}
        staged |= {
            ranks_of[one.group]
            for one in record.collectives
            if one.operation in _MESSAGES and len(ranks_of.get(one.group, ())) > 1
        }
    staged |= {ranks for ranks, name in names.items() if _STAGES.search(name.lower())}
    found: dict[frozenset[tuple[int, ...]], Axis] = {}
    families = [[everyone]] if world > 1 else []
    for record in records:
        families += _families(record, world)
    if everyone in staged and not any(one in staged for family in families[1:] for one in family):
        column = _column(records)
        # All ranks may send in one group without each being a stage.
        staged = staged - {everyone} | ({column} if len(column) <= MOST_STAGES else set())
        families += [_translated(column, world)] if 1 < len(column) < world else []
    for family in families:
        key = frozenset(family)
        if key not in found:
            name = next((names[one] for one in family if names.get(one)), "")
            found[key] = Axis(name, tuple(family), any(one in staged for one in family))
    return tuple(found.values())


def _column(records: Sequence[Record]) -> tuple[int, ...]:
    """The ranks that messages in the group of all ranks lead to from rank 0, as from each stage to the next one."""
    world = records[0].world
    strides = {
        abs(one.peer - record.rank)
        for record in records
        for one in record.collectives
        if one.operation in _MESSAGES and one.peer >= 0 and one.peer != record.rank
    }
    stride = min(strides, default=world)
    return tuple(range(0, world, stride)) if not world % stride else ()


def _families(record: Record, world: int) -> Iterator[list[tuple[int, ...]]]:
    """The groups that a rank has asked for, in order, those of one axis together."""
    made = [ranks for ranks, _ in record.made_groups] + [group.ranks for group in record.groups.values()]
    families: list[list[tuple[int, ...]]] = []
    seen: set[tuple[int, ...]] = set()
    # By size: some frameworks make a group of stages and one of its ends in turn.
    growing: dict[int, tuple[list[tuple[int, ...]], set[int]]] = {}
    for ranks in made:
        size = len(ranks)
        if size < 2 or size == world or ranks in seen:
            continue
        seen.add(ranks)
        if size not in growing or not growing[size][1].isdisjoint(ranks):
            growing[size] = [], set()
            families.append(growing[size][0])
        growing[size][0].append(ranks)
        growing[size][1].update(ranks)
    for family in families:
        yield _translated(family[0], world) if len(family) == 1 else family


def _translated(group: tuple[int, ...], world: int) -> list[tuple[int, ...]]:
    """A group whose like on other ranks were not seen: those that a row-major mesh has.

    A rank may know only the groups that it is in (`use_local_synchronization`).
    """
    stride, size = group[1] - group[0], len(group)
    regular = stride > 0 and all(after - before == stride for before, after in pairwise(group))
    if not regular or world % (stride * size):
        return [group]
    return [
        tuple(block + start + stride * position for position in range(size))
        for block in range(0, world, stride * size)
        for start in range(stride)
    ]


def affordable(records: Sequence[Record]) -> int:
    """Ranks up to which one stage after another has two members of each of its groups rehearsed.

    Args:
        records: of ranks that were rehearsed first; those that exchange objects all run at once, so they are few
    """
    if any(one.operation.endswith("_object") for record in records for one in record.collectives):
        return MOST_RANKS
    events = max((len(record.events) for record in records), default=0) + EVENTS_OF_START
    return max(MOST_RANKS, min(MOST_CHEAP_RANKS, MOST_EVENTS // events))


def choose_ranks(world: int, axes: Sequence[Axis], most: int = MOST_RANKS) -> tuple[int, ...]:
    """The ranks that are rehearsed by default, ascending.

    Args:
        world: ranks in all
        axes: of `find_axes`
        most: ranks up to which stages have both ends of their groups rehearsed, the first stages first

    Example:
        >>> rows = Axis("dp", tuple(tuple(range(first, 64, 8)) for first in range(8)))
        >>> columns = Axis("tp", tuple(tuple(range(first, first + 8)) for first in range(0, 64, 8)))
        >>> choose_ranks(64, [rows, columns])
        (0, 7, 56, 63)
    """
    chosen = {0, world - 1}
    for axis in axes:
        met = False
        for end in (0, world - 1):
            group = axis.group_of(end)
            if group:
                met = True
                chosen |= {group[0], group[-1]}
            if end == 0 and axis.staged:
                chosen |= set(group)
        if not met:
            group = axis.groups[0]
            chosen |= set(group) if axis.staged else {group[0], group[-1]}
    for stage in sorted({rank for axis in axes if axis.staged for rank in axis.group_of(0)}):
        groups = [axis.group_of(stage) for axis in axes if not axis.staged and axis.size < world]
        more = chosen | {rank for group in groups if group for rank in (group[0], group[-1])}
        if len(more) > most:
            break
        chosen = more
    return tuple(sorted(chosen))


def stand_ins(rank: int, axes: Sequence[Axis], ranks: Collection[int]) -> dict[int, tuple[int, int]]:
    """For a rank whose neighbours in a pipeline are not rehearsed: whose messages it takes for theirs.

    Args:
        rank: rehearsed
        axes: of `find_axes`
        ranks: that are rehearsed

    Returns:
        Of each neighbour, the ranks at its stage and at that of `rank` in a group that is rehearsed as a whole.

    Example:
        >>> stages = Axis("pp", ((0, 2, 4), (1, 3, 5)), staged=True)
        >>> stand_ins(5, [stages], [0, 2, 4, 5])
        {1: (0, 4), 3: (2, 4)}
    """
    found: dict[int, tuple[int, int]] = {}
    for axis in axes:
        whole = next((group for group in axis.groups if axis.staged and set(group) <= set(ranks)), ())
        position = axis.position(rank)
        if whole and position is not None:
            for other, peer in enumerate(axis.group_of(rank)):
                if peer not in ranks:
                    found[peer] = whole[other], whole[position]
    return found


def represent(world: int, axes: Sequence[Axis], ranks: Collection[int]) -> dict[int, int]:
    """Of every rank, the rehearsed one that stands for it.

    Args:
        world: ranks in all
        axes: of `find_axes`
        ranks: that are rehearsed, at least one

    Example:
        >>> columns = Axis("tp", ((0, 1, 2, 3), (4, 5, 6, 7)))
        >>> represent(8, [columns], [0, 3, 4, 7])
        {0: 0, 1: 0, 2: 0, 3: 3, 4: 4, 5: 0, 6: 0, 7: 7}
    """
    rehearsed = sorted(ranks)
    places = {rank: _places(rank, axes) for rank in rehearsed}
    known: dict[tuple[tuple[int, str], ...], int] = {}
    found = {}
    for rank in range(world):
        here = _places(rank, axes)
        if here not in known:
            known[here] = min(rehearsed, key=lambda other: (_distance(here, places[other]), other))
        found[rank] = known[here]
    return found | {rank: rank for rank in rehearsed}


def _places(rank: int, axes: Sequence[Axis]) -> tuple[tuple[int, str], ...]:
    """On each axis the stage, -1 without stages, and whether the rank is "first", "between", "last" or "none"."""
    places = []
    for axis in axes:
        position = axis.position(rank)
        if position is None:
            places.append((-1, "none"))
            continue
        end = "first" if position == 0 else "last" if position == axis.size - 1 else "between"
        places.append((position if axis.staged else -1, end))
    return tuple(places)


def _distance(here: tuple[tuple[int, str], ...], there: tuple[tuple[int, str], ...]) -> int:
    total = 0
    for (stage, end), (other_stage, other_end) in zip(here, there, strict=True):
        if stage != other_stage:
            total += _OTHER_STAGE
        elif stage >= 0 or end == other_end:
            continue
        elif "none" in (end, other_end):
            total += _OTHER_AXES
        elif end == "between":
            total += _FIRST_FOR_BETWEEN if other_end == "first" else _LAST_FOR_BETWEEN
        else:
            total += _OTHER_END
    return total


def describe_place(rank: int, axes: Sequence[Axis]) -> str:
    """Where a rank stands, for people; "" where the script made no groups.

    Args:
        rank: global
        axes: of `find_axes`

    Example:
        >>> describe_place(5, [Axis("mesh_tp", ((0, 1, 2, 3), (4, 5, 6, 7)))])
        'tp 1 of 4'
    """
    world = max((max(group) for axis in axes for group in axis.groups), default=0) + 1
    words = []
    for axis in axes:
        position = axis.position(rank)
        if position is not None and axis.size < world:
            name = axis.name.removeprefix("mesh_") or ("stage" if axis.staged else "group")
            words.append(f"{name} {position} of {axis.size}")
    return ", ".join(words)


def parse_ranks(text: str, world: int) -> tuple[int, ...] | None:
    """Ranks as people write them.

    Args:
        text: "all", "kinds", or numbers and ranges such as "0,8,16-23"
        world: ranks in all

    Returns:
        The ranks, ascending; None: those that `choose_ranks` takes.

    Raises:
        InputError: a text that means nothing, or a rank that the world has not

    Example:
        >>> parse_ranks("0,8,12-14", 64)
        (0, 8, 12, 13, 14)
    """
    word = text.strip().lower()
    if word == "kinds":
        return None
    if word == "all":
        return tuple(range(world))
    chosen: set[int] = set()
    for part in word.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None:
            raise InputError(
                f'--ranks {text}: expected "kinds", "all", or ranks such as "0,8,16-23", got "{part.strip()}"',
                code="rehearse.bad-ranks",
                ranks=text,
            )
        first, last = int(found[1]), int(found[2] or found[1])
        if last >= world or first > last:
            raise InputError(
                f"--ranks {text}: a world of {world} has ranks 0 to {world - 1}, got {part.strip()}",
                code="rehearse.no-such-rank",
                ranks=text,
                world=world,
            )
        chosen |= set(range(first, last + 1))
    return tuple(sorted(chosen))
