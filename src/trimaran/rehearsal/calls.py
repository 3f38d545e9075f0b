"""What each rank asks of each group, in order, so that ranks can be compared.

A rank gives its own names to groups. Ranks mean the same group when its members are the same and it is the same one in
order among those with these members.

    record of rank 0   "1" (0, 1)  "3" (0, 2)          Shared((0, 1), 0): all_gather, all_gather, reduce_scatter
    record of rank 1   "1" (0, 1)  "4" (1, 3)    ──▶   Shared((0, 2), 0): all_reduce
                                                       Shared((1, 3), 0): all_reduce

A rank that is not rehearsed is played by the representative of its kind: in a group of both it does what the
representative does there; otherwise what it does in the group that lies the same way around it. Where there is no such
group, nothing is known of it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trimaran.rehearsal.record import (
    Await,
    Collective,
    Ending,
    EventMark,
    Frame,
    Issue,
    Record,
    Step,
    Sync,
    TensorForm,
    Wait,
)

MESSAGES = {"send", "recv", "send_object", "recv_object"}
"""Operations between two ranks; all others are asked of a whole group."""

ASIDE = "@thread"
"""Ends the name of a group as a thread of the script asks it for exchanges of objects or of the host's tensors. What
backends of the host do for it is apart from what the main thread asks for: compared apart, and nobody else waits."""

OPEN: frozenset[Ending] = frozenset({"steps", "seconds", "killed", "invented"})
"""Ways to end after which the script would have gone on."""


@dataclass(frozen=True, slots=True, order=True)
class Shared:
    """A group as all of its members know it.

    Attributes:
        ranks: global, in the group's order
        which: among the groups with these ranks, by order of making
    """

    ranks: tuple[int, ...]
    which: int


@dataclass(frozen=True, slots=True)
class ElementFlow:
    """Elements that a member exchanges with each other one.

    Attributes:
        gives: elements for each member of the group
        gets: elements from each
        even: whether all members exchange the same number with each other
    """

    gives: tuple[int, ...]
    gets: tuple[int, ...]
    even: bool


@dataclass(slots=True, eq=False)
class CommunicationCall:
    """One collective or message of a rank.

    Attributes:
        rank: that asks for it
        number: in the record's list of collectives
        asked: as recorded
        group: that it is asked of
        peer: global rank of the other side or of the root; -1: none
        lines: user's code, innermost first
        module: path of the module whose forward or backward asked for it
        steps: optimizer steps that the rank had done by then
        label: see `label_of`
    """

    rank: int
    number: int
    asked: Collective
    group: Shared
    peer: int
    lines: tuple[Frame, ...]
    module: str
    steps: int
    label: tuple[object, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.label = label_of(self)

    @property
    def is_message(self) -> bool:
        """Whether it is between two ranks."""
        return self.asked.operation in MESSAGES

    @property
    def ends(self) -> tuple[int, int]:
        """Sender and receiver of a message."""
        return (self.rank, self.peer) if self.asked.operation.startswith("send") else (self.peer, self.rank)

    @property
    def types(self) -> tuple[str, ...]:
        """Types of its tensors, each once."""
        return tuple(sorted({tensor.dtype for tensor in (*self.asked.inputs, *self.asked.outputs)}))

    @property
    def elements(self) -> tuple[int, ...]:
        """Elements of each tensor, those that it gives or else those that it gets."""
        return counts(self.asked.inputs) or counts(self.asked.outputs)


def counts(tensors: Iterable[TensorForm]) -> tuple[int, ...]:
    """Elements of each tensor."""
    return tuple(math.prod(tensor.shape) for tensor in tensors)


def flow(call: CommunicationCall) -> ElementFlow | None:
    """What a member of a group exchanges with each other one.

    Returns:
        None for operations in which every member gives or gets the whole message, and for those without tensors.
    """
    ranks = call.group.ranks
    size = len(ranks)
    given, got = counts(call.asked.inputs), counts(call.asked.outputs)
    operation = call.asked.operation
    if operation == "all_gather":
        gives, (gets, even) = (sum(given),) * size, _parts(got if len(given) == 1 else (sum(got),), size)
    elif operation == "reduce_scatter":
        (gives, even), gets = _parts(given if len(got) == 1 else (sum(given),), size), (sum(got),) * size
    elif operation == "all_to_all":
        gives, one = _parts(given, size, call.asked.sizes[0] if call.asked.sizes else ())
        gets, other = _parts(got, size, call.asked.sizes[1] if len(call.asked.sizes) > 1 else ())
        even = one and other
    elif operation == "gather":
        root = tuple(rank == call.peer for rank in ranks)
        gives = tuple(sum(given) if is_root else 0 for is_root in root)
        gets, even = _parts(got, size) if call.rank == call.peer else ((0,) * size, True)
    elif operation == "scatter":
        root = tuple(rank == call.peer for rank in ranks)
        gives, even = _parts(given, size) if call.rank == call.peer else ((0,) * size, True)
        gets = tuple(sum(got) if is_root else 0 for is_root in root)
    else:
        return None
    return ElementFlow(gives=gives, gets=gets, even=even)


def _parts(elements: Sequence[int], size: int, rows: Sequence[int] = ()) -> tuple[tuple[int, ...], bool]:
    """Elements for each member, and whether they are all the same: by rows, by a list of a tensor each, or equal.

    -1 each where they cannot be equal.
    """
    total = sum(elements)
    all_rows = sum(rows)
    if len(rows) == size and all_rows:
        row = total // all_rows
        return tuple(row * number for number in rows), len(set(rows)) == 1
    if len(elements) == size:
        return tuple(elements), len(set(elements)) == 1
    return (total // size if total % size == 0 else -1,) * size, True


def label_of(call: CommunicationCall) -> tuple[object, ...]:
    """What NCCL needs to be equal on every member: operation, reduction, root, type, number of elements.

    Shapes may differ where their elements are as many; members that exchange uneven parts are compared pair by pair.
    Both ends of a message have one label.
    """
    asked = call.asked
    if call.is_message:
        return ("object",) if asked.operation.endswith("_object") else ("tensors", call.types, sum(call.elements))
    if asked.operation == "barrier":
        return ("barrier",)
    if asked.operation.endswith("_object"):
        return (asked.operation, call.peer)
    parts = flow(call)
    if parts is None:
        volume: object = call.elements
    elif asked.operation in ("gather", "scatter"):
        volume = max(parts.gives) if asked.operation == "gather" else max(parts.gets)
    elif parts.even:
        volume = (parts.gives[0], parts.gets[0])
    else:
        volume = "uneven"
    return (asked.operation, asked.reduction, call.peer, call.types, volume)


Difference = Literal["operation", "reduction", "root", "type", "shape", ""]
"""What differs between calls of one place; "": nothing that matters."""


def disagreement(calls: Sequence[CommunicationCall]) -> Difference:
    """How calls of one place in a group's order differ.

    Args:
        calls: of different members of one group, asked for at the same place, or the two ends of a message

    Returns:
        What differs first, in the order of `Difference`.
    """
    first = calls[0]
    if "uneven" not in first.label and all(call.label == first.label for call in calls):
        return ""
    if first.is_message:
        return "operation" if len({call.label[0] for call in calls}) > 1 else _form(calls)
    if len({call.asked.operation for call in calls}) > 1:
        return "operation"
    operation = first.asked.operation
    if operation == "barrier":
        return ""
    if len({call.asked.reduction for call in calls}) > 1:
        return "reduction"
    if len({call.peer for call in calls}) > 1:
        return "root"
    if operation.endswith("_object"):
        return ""
    flows = {call.rank: flow(call) for call in calls}
    if len({call.types for call in calls}) > 1 or any(parts is None for parts in flows.values()):
        return _form(calls)
    place = {rank: number for number, rank in enumerate(first.group.ranks)}
    for one, gives in flows.items():
        for other, gets in flows.items():
            if gives and gets and gives.gives[place[other]] != gets.gets[place[one]]:
                return "shape"
    return ""


def _form(calls: Sequence[CommunicationCall]) -> Difference:
    """How the tensors of calls differ."""
    if len({call.types for call in calls}) > 1:
        return "type"
    return "shape" if len({call.elements for call in calls}) > 1 else ""


# ---------------------------------------------------------------------------------------------------------------------
# Ranks that are compared


@dataclass(frozen=True, slots=True, eq=False)
class LaunchUnit:
    """Calls that are launched at once: one, or those of a batch.

    Attributes:
        calls: in order
    """

    calls: tuple[CommunicationCall, ...]

    @property
    def first(self) -> CommunicationCall:
        """The first of them."""
        return self.calls[0]

    @property
    def is_batch(self) -> bool:
        """Whether NCCL runs them as one."""
        return self.first.asked.coalesced >= 0


@dataclass(frozen=True, slots=True)
class Waits:
    """A stream waits for a unit."""

    unit: LaunchUnit
    stream: int


Order = LaunchUnit | Waits | EventMark | Await | Sync
"""What a rank asks for, as far as other ranks can feel it."""


@dataclass(slots=True)
class Member:
    """A rank that is compared with others.

    Attributes:
        rank: global
        record: of the rank that was rehearsed
        orders: in the order in which the host asked for them
        calls: of each group, in order, messages left out
        groups: that it is a member of, by name in the record
        steps: optimizer steps that it did
    """

    rank: int
    record: Record
    orders: list[Order] = field(default_factory=list)
    calls: dict[Shared, list[CommunicationCall]] = field(default_factory=dict)
    groups: dict[str, Shared] = field(default_factory=dict)
    steps: int = 0

    @property
    def is_rehearsed(self) -> bool:
        """Whether the rank itself was rehearsed, and no representative in its place."""
        return self.rank == self.record.rank

    @property
    def is_open(self) -> bool:
        """Whether the script would have gone on after the rehearsal's end."""
        return self.record.end.how in OPEN

    @property
    def is_cut_short(self) -> bool:
        """Whether it would have asked for more, had it not been stopped or failed."""
        return self.is_open or self.record.end.how == "error"

    def all_calls(self) -> Iterator[CommunicationCall]:
        """Every call in order, messages too."""
        for order in self.orders:
            if isinstance(order, LaunchUnit):
                yield from order.calls


def members_of(records: Sequence[Record], kinds: Mapping[int, int]) -> dict[int, Member]:
    """The rehearsed ranks, and those others that are played so that a group has two members to compare.

    Args:
        records: of ranks that differ
        kinds: rank → rank that stands for it

    Returns:
        By rank.
    """
    found = {record.rank: member_of(record, record.rank, records) for record in records}
    by_rank = {record.rank: record for record in records}
    most = 4 * len(records) + 16
    for member in list(found.values()):
        for group in member.groups.values():
            if len(group.ranks) < 2 or sum(rank in found for rank in group.ranks) > 1 or len(found) >= most:
                continue
            for rank in group.ranks:
                stands_for = by_rank.get(kinds.get(rank, -1))
                if rank in found or stands_for is None or stands_for.rank in group.ranks:
                    continue  # in a group of both it does what its representative does
                played = member_of(stands_for, rank, records)
                if played.calls.get(group):
                    found[rank] = played
                    break
    return found


def member_of(record: Record, rank: int, records: Sequence[Record]) -> Member:
    """A rank with its calls, read from its own record or from that of its representative.

    Args:
        record: to read
        rank: that it is read for
        records: of all rehearsed ranks, whose groups are the known ones

    Returns:
        The rank. Of a rank that was not rehearsed, messages are left out: to whom it sends is not known.
    """
    member = Member(rank=rank, record=record, groups=_shared_groups(record))
    if rank != record.rank:
        known = sorted({made for other in records for made, _ in other.made_groups} | {tuple(range(record.world))})
        moved = {name: _moved(group, record.rank, rank, known) for name, group in member.groups.items()}
        member.groups = {name: group for name, group in moved.items() if group is not None}
    own = _shared_groups(record)
    last_of_batch = {asked.coalesced: number for number, asked in enumerate(record.collectives) if asked.coalesced >= 0}
    batches: dict[int, list[CommunicationCall]] = {}
    unit_of: dict[int, LaunchUnit] = {}
    for event in record.events:
        if isinstance(event, Issue):
            asked = record.collectives[event.collective]
            group = member.groups.get(asked.group)
            batch = batches.setdefault(asked.coalesced, []) if asked.coalesced >= 0 else []
            if group is not None and (rank == record.rank or asked.operation not in MESSAGES):
                call = CommunicationCall(
                    rank=rank,
                    number=event.collective,
                    asked=asked,
                    group=group,
                    peer=_moved_peer(asked.peer, own[asked.group], group),
                    lines=record.lines[asked.lines],
                    module=record.modules[asked.module],
                    steps=member.steps,
                )
                if not asked.group.endswith(ASIDE):
                    batch.append(call)
                if not call.is_message:
                    member.calls.setdefault(group, []).append(call)
            if batch and (asked.coalesced < 0 or last_of_batch[asked.coalesced] == event.collective):
                unit = LaunchUnit(calls=tuple(batch))
                unit_of.update(dict.fromkeys((call.number for call in batch), unit))
                member.orders.append(unit)
        elif isinstance(event, Wait):
            if event.collective in unit_of:
                member.orders.append(Waits(unit=unit_of[event.collective], stream=event.stream))
        elif isinstance(event, (EventMark, Await, Sync)):
            member.orders.append(event)
        elif isinstance(event, Step):
            member.steps = event.number + 1
    return member


def _shared_groups(record: Record) -> dict[str, Shared]:
    """A record's groups as all of their members know them, by the record's name."""
    found: dict[str, Shared] = {}
    seen: dict[tuple[int, ...], int] = {}
    for group in sorted(record.groups.values(), key=lambda group: group.order):
        found[group.name] = Shared(ranks=group.ranks, which=seen.get(group.ranks, 0))
        seen[group.ranks] = seen.get(group.ranks, 0) + 1
    return found


def _moved(group: Shared, rank: int, to: int, known: Sequence[tuple[int, ...]]) -> Shared | None:
    """The group in which a rank is what another is in this one."""
    if to in group.ranks:
        return group
    spread = [other - group.ranks[0] for other in group.ranks]
    place = group.ranks.index(rank)
    for ranks in known:
        if len(ranks) == len(spread) and ranks[place] == to and [other - ranks[0] for other in ranks] == spread:
            return Shared(ranks=ranks, which=group.which)
    return None


def _moved_peer(peer: int, own: Shared, group: Shared) -> int:
    return peer if peer < 0 or own == group or peer not in own.ranks else group.ranks[own.ranks.index(peer)]
