"""Do the ranks of a job ask for the same collectives, or hang?

    records ──▶ members, played ranks ─┬─ groups made in the same order
                                       ├─ calls of each group: operation, reduction, root, type, shape, number
                                       ├─ messages of each pair of ranks
                                       ├─ results that are never waited for; ranks that end early
                                       └─ the calls played: who waits for whom for ever

NCCL does not compare calls: it hangs, or reads what was meant for another call. The first call at which two ranks part
is rarely the first that differs, as the same call comes again in each step. Two lists of calls are therefore aligned
with the least number of calls added, left out and changed, lines of the user's code included.

    rank 0   reduce @12   sum @30   sum @35   reduce @12   …      sum @30 has no other side;
    rank 1   reduce @12             sum @35   reduce @12   …      by position alone the second reduce would be blamed
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from trimaran.base.errors import InputError
from trimaran.rehearsal.calls import (
    ASIDE,
    CommunicationCall,
    LaunchUnit,
    Member,
    Shared,
    Waits,
    disagreement,
    members_of,
)
from trimaran.rehearsal.deadlock import Blocked, Game
from trimaran.rehearsal.record import Frame, Record, Sync, TensorForm

FindingKind = Literal[
    "alone", "order", "operation", "reduction", "root", "type", "shape", "steps", "ended", "groups", "wait", "deadlock"
]
"""What is wrong. alone: some members of a group ask for a call and others do not; order: both ask for the same calls in
another order; steps: a rank has done all its steps, fewer than others; ended: a rank left or failed while others went
on; groups: groups are made in another order or with other members; wait: a result is never waited for; the others name
what differs in one call."""

UnsureKind = Literal["single", "stopped", "failed", "branch", "launch_order", "any_source"]
"""What the records do not tell. single: one member of a group was rehearsed; stopped: a rank was stopped before its
script's end; failed: all ranks failed in the same way; branch: the script asked for a value that depends on data;
launch_order: ranks ask for calls of several groups in an order that NCCL does not promise to run; any_source: a message
is received from any rank."""

WINDOW = 300
"""Calls of a group that are aligned around the first difference."""

NEAR = 50
"""Calls within which the same ones in another order are called an order."""


class GroupView(msgspec.Struct, frozen=True):
    """A group as a reader knows it.

    Attributes:
        ranks: global, in the group's order
        description: the script's
        dimension: of the device mesh that it belongs to; "": none
    """

    ranks: tuple[int, ...]
    description: str
    dimension: str


class CallSide(msgspec.Struct, frozen=True):
    """What some ranks do at one place.

    Attributes:
        ranks: global
        text: what they do, such as "ranks 0–3 call all_reduce (sum) of float32[1] at train.py:30"
        lines: of the user's code, innermost first; where they ended, if they ask for nothing any more
        module: path of the module whose forward or backward asked for it
    """

    ranks: tuple[int, ...]
    text: str
    lines: tuple[Frame, ...]
    module: str = ""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong.

    Attributes:
        kind: see `FindingKind`
        group: that it is about; None: of groups made in another order, or of a rank as a whole
        position: of the call in the order of its group, of the message in that of its two ranks, of the group among
            those made; from 0
        sides: what each part of the ranks does there
        text: what is wrong, one sentence
        remedy: what to do
    """

    kind: FindingKind
    group: GroupView | None
    position: int
    sides: tuple[CallSide, ...]
    text: str
    remedy: str


class Unsure(msgspec.Struct, frozen=True):
    """Something that the records do not tell.

    Attributes:
        kind: see `UnsureKind`
        text: one sentence
        lines: of the user's code, innermost first
    """

    kind: UnsureKind
    text: str
    lines: tuple[Frame, ...] = ()


class AgreementReport(msgspec.Struct, frozen=True):
    """Whether ranks agree.

    Attributes:
        ok: nothing wrong was found
        findings: what is wrong, the earliest first
        unsure: what the records do not tell
        waits: ranks that wait for ever, and where; empty where every call ends
        ranks: that were compared, played ones included
        groups: of which at least two members were compared
        calls: collectives and messages that were compared, of all these ranks
    """

    ok: bool
    findings: tuple[Finding, ...]
    unsure: tuple[Unsure, ...]
    waits: tuple[Blocked, ...]
    ranks: tuple[int, ...]
    groups: int
    calls: int


def agree(records: Sequence[Record], kinds: Mapping[int, int] | None = None) -> AgreementReport:
    """Compare what rehearsed ranks asked of each other.

    Args:
        records: of different ranks of one job
        kinds: rank → the rehearsed rank that stands for it; a rank that was not rehearsed is played by it where two
            members of a group would not be there otherwise

    Returns:
        What is wrong and what is not known.

    Raises:
        InputError: no records, two of one rank, or of jobs of different sizes
    """
    _check(records)
    members = members_of(records, kinds or {})
    comparison = _MembersCompared(records, members)
    comparison.compare_made_groups()
    comparison.compare_groups()
    comparison.compare_messages()
    comparison.look_for_lost_results()
    comparison.look_at_ends()
    comparison.play()
    comparison.look_for_branches()
    return comparison.result()


def _check(records: Sequence[Record]) -> None:
    if not records:
        raise InputError("No rehearsed rank to compare; rehearse two or more.", code="rehearse.no-records")
    counted = Counter(record.rank for record in records)
    doubled = [rank for rank, number in counted.items() if number > 1]
    if doubled:
        message = f"Rank {doubled[0]} has {counted[doubled[0]]} records; give one for each rank."
        raise InputError(message, code="rehearse.rank-twice", rank=doubled[0])
    worlds = sorted({record.world for record in records})
    if len(worlds) > 1:
        message = f"Records of jobs of {worlds[0]} and of {worlds[1]} ranks; give those of one job."
        raise InputError(message, code="rehearse.worlds-differ", worlds=worlds)


# ---------------------------------------------------------------------------------------------------------------------
# Words


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks in words, such as "rank 3", "ranks 0–3" or "ranks 0, 8, …, 56 (8)"."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]}–{ranks[-1]}"
    if len(ranks) > 6:
        return f"ranks {ranks[0]}, {ranks[1]}, …, {ranks[-1]} ({len(ranks)} of them)"
    return "ranks " + ", ".join(map(str, ranks[:-1])) + f" and {ranks[-1]}"


def line_text(lines: Sequence[Frame]) -> str:
    """The innermost line of the user's own code, such as "train.py:30"; of an installed package where there is none."""
    if not lines:
        return "a line that is not known"
    frame = next((frame for frame in lines if frame.own), lines[0])
    return f"{frame.file}:{frame.line}"


def group_text(group: GroupView) -> str:
    """A group in words."""
    if group.description == "default_pg":
        return f"the group of all {len(group.ranks)} ranks"
    name = f'the group "{group.dimension or group.description}"' if group.description else "the group"
    return f"{name} of {ranks_text(group.ranks)}"


def tensors_text(tensors: Sequence[TensorForm]) -> str:
    """Tensors in words, such as "float32[4, 8]"."""
    shown = ", ".join(f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]" for tensor in tensors[:2])
    return shown + (f" and {len(tensors) - 2} more" if len(tensors) > 2 else "")


def _asking_text(ranks: Sequence[int], call: CommunicationCall) -> str:
    """What ranks ask for, such as "ranks 0–3 call all_reduce (sum) of float32[1] at train.py:30"."""
    asked = call.asked
    tensors = tensors_text(asked.inputs or asked.outputs)
    to = asked.operation.startswith(("send", "reduce"))
    return (
        f"{ranks_text(ranks)} {'calls' if len(ranks) == 1 else 'call'} {asked.operation}"
        + (f" ({asked.reduction})" if asked.reduction else "")
        + (f" of {tensors}" if tensors else "")
        + (f" {'to' if to else 'from'} rank {call.peer}" if call.peer >= 0 else "")
        + f" at {line_text(call.lines)}"
        + (f" in {call.module}" if call.module else "")
    )


def _steps_text(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


_DIFFERS: dict[str, tuple[str, str]] = {
    "operation": (
        "The ranks ask for different operations",
        "Let every member of the group reach the same call; look at the condition before these lines.",
    ),
    "reduction": ("The ranks reduce by different operations", "Give the same `op` on every rank."),
    "root": (
        "The ranks name different roots",
        "Give the same `src` or `dst` on every rank: a global rank of one member.",
    ),
    "type": ("The ranks give tensors of different types", "Convert to one type on every rank before the call."),
    "shape": (
        "The ranks give tensors of different sizes",
        "Make the sizes equal: pad, or exchange the sizes first and use a form that takes uneven ones.",
    ),
    "order": (
        "The ranks ask for the same calls in different order",
        "Run the same modules and calls in one order on every rank.",
    ),
    "alone": (
        "Not every rank comes to this call",
        "Move the call out of the condition, or let every member reach it.",
    ),
    "steps": (
        "The ranks do different numbers of steps",
        "Give every rank the same number of batches (drop the last, or `Join`), and skip a batch on all ranks or none.",
    ),
    "ended": ("A rank ends while others go on", "Let every rank leave at the same call, or none."),
}

_DIFFERS_OF_MESSAGES: dict[str, tuple[str, str]] = {
    "order": (
        "Messages are received in another order than they are sent",
        "Receive in the order of sending, or put each message in its own pair of calls.",
    ),
    "alone": (
        "A message has no other side",
        "Give every send a receive on the other rank; stages of a pipeline take one number of microbatches.",
    ),
    "steps": ("Ranks that exchange messages do different numbers of steps", _DIFFERS["steps"][1]),
    "ended": ("A rank ends while another waits for its message", _DIFFERS["ended"][1]),
    "type": (
        "A message has another type than what is received",
        "Receive into a tensor of the type and size that is sent.",
    ),
    "shape": (
        "A message has another size than what is received",
        "Receive into a tensor of the type and size that is sent.",
    ),
    "operation": ("A message of an object meets one of a tensor", "Receive an object where one is sent."),
}


# ---------------------------------------------------------------------------------------------------------------------
# Alignment


def _cost(one: CommunicationCall, other: CommunicationCall) -> float:
    """Of taking two calls for each other. Leaving a call out costs 1."""
    same_line = one.lines == other.lines
    difference = disagreement((one, other))
    if not difference:
        return 0.0 if same_line else 0.3
    if difference == "operation":
        return 1.9
    return 0.8 if same_line else 1.2


class Edit(msgspec.Struct, frozen=True):
    """One place at which two aligned lists of calls differ.

    Attributes:
        ours: place in the first list
        theirs: place in the second
        is_ours: the first list's call has no other side, or goes with one that it does not agree with
        is_theirs: so has the second's
    """

    ours: int
    theirs: int
    is_ours: bool
    is_theirs: bool


def edits(
    ours: Sequence[CommunicationCall],
    theirs: Sequence[CommunicationCall],
    differs_at: int,
    *,
    we_stop: bool = False,
    they_stop: bool = False,
) -> list[Edit]:
    """Where two lists of calls part, if as few calls as possible are left out, added or changed.

    Args:
        ours: calls of one rank in a group
        theirs: of another
        differs_at: first place at which they do not go together, or the length of the shorter
        we_stop: whether the first rank would have gone on after its last call
        they_stop: whether the second would

    Returns:
        The first place and those near it; the end of a list counts as one where the other goes on.
    """
    start = next((at for at in range(differs_at) if ours[at].lines != theirs[at].lines), differs_at)
    start = max(start, differs_at - WINDOW // 2)
    left, right = ours[start : start + WINDOW], theirs[start : start + WINDOW]
    is_whole = start + WINDOW >= max(len(ours), len(theirs))
    our_rest, their_rest = float(is_whole and not they_stop), float(is_whole and not we_stop)
    rows, columns = len(left), len(right)
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    costs = [[_cost(one, other) for other in right] for one in left]
    for i in range(rows, -1, -1):
        for j in range(columns, -1, -1):
            if i == rows or j == columns:
                best[i][j] = our_rest * (rows - i) + their_rest * (columns - j)
            else:
                best[i][j] = min(costs[i][j] + best[i + 1][j + 1], 1 + best[i + 1][j], 1 + best[i][j + 1])
    found: list[Edit] = []
    i = j = 0
    while i < rows and j < columns and (not found or i + start - found[0].ours < NEAR):
        if costs[i][j] + best[i + 1][j + 1] > best[i][j] + 1e-9:
            is_ours = 1 + best[i + 1][j] <= best[i][j] + 1e-9
            found.append(Edit(start + i, start + j, is_ours, not is_ours))
            i, j = i + is_ours, j + (not is_ours)
            continue
        if costs[i][j] >= 0.5:
            found.append(Edit(start + i, start + j, is_ours=True, is_theirs=True))
        i, j = i + 1, j + 1
    if i == rows or j == columns:
        found += [Edit(start + at, start + j, is_ours=True, is_theirs=False) for at in range(i, rows)]
        found += [Edit(start + i, start + at, is_ours=False, is_theirs=True) for at in range(j, columns)]
    return found


def _are_reordered(
    ours: Sequence[CommunicationCall], theirs: Sequence[CommunicationCall], found: Sequence[Edit]
) -> bool:
    """Whether the calls at the first edits are the same ones of the same step in another order."""
    missing: Counter[object] = Counter()
    for number, edit in enumerate(found):
        if edit.is_ours:
            missing[ours[edit.ours].label, ours[edit.ours].steps] += 1
        if edit.is_theirs:
            missing[theirs[edit.theirs].label, theirs[edit.theirs].steps] -= 1
        if number and not any(missing.values()):
            return True
    return False


# ---------------------------------------------------------------------------------------------------------------------
# Comparison


class _MembersCompared:
    """What is gathered while members are compared."""

    def __init__(self, records: Sequence[Record], members: Mapping[int, Member]) -> None:
        self.records = sorted(records, key=lambda record: record.rank)
        self.members = members
        self.found: list[tuple[float, Finding]] = []
        self.unsure: list[Unsure] = []
        self.blocked: tuple[Blocked, ...] = ()
        self.told: set[int] = set()
        self.at_fault: set[object] = set()
        self.groups = 0
        self.calls = 0
        self.views: dict[Shared, GroupView] = {}
        for member in members.values():
            for name, group in member.groups.items():
                description = member.record.groups[name].description
                dimension = description.removeprefix("mesh_") if description.startswith("mesh_") else ""
                self.views.setdefault(group, GroupView(group.ranks, description, dimension))

    def result(self) -> AgreementReport:
        """All that was found."""
        findings = tuple(finding for _, finding in sorted(self.found, key=lambda pair: pair[0]))
        return AgreementReport(
            ok=not findings,
            findings=findings,
            unsure=tuple(self.unsure),
            waits=tuple(self.blocked),
            ranks=tuple(sorted(self.members)),
            groups=self.groups,
            calls=self.calls,
        )

    # -----------------------------------------------------------------------------------------------------------------
    # Sides

    def side(self, ranks: Sequence[int], call: CommunicationCall | None) -> CallSide:
        """What ranks ask for; None: nothing any more."""
        ranks = tuple(sorted(ranks))
        if call is not None:
            return CallSide(ranks, _asking_text(ranks, call), call.lines, call.module)
        member = self.members[ranks[0]]
        lines = member.record.end_lines
        does = "asks for nothing more and ends" if len(ranks) == 1 else "ask for nothing more and end"
        where = f" at {line_text(lines)}" if lines else ""
        return CallSide(ranks, f"{ranks_text(ranks)} {does}{where} after {_steps_text(member.steps)}", lines)

    def _played_text(self, ranks: Sequence[int]) -> str:
        played = [rank for rank in ranks if rank in self.members and not self.members[rank].is_rehearsed]
        if not played:
            return ""
        stand_for = sorted({self.members[rank].record.rank for rank in played})
        return f" ({ranks_text(played)}: taken to do what {ranks_text(stand_for)} does)"

    def _when(self, *calls: CommunicationCall | None) -> float:
        """When the earliest of some calls is asked for, as a part of its rank's calls."""
        parts = [
            call.number / max(1, len(self.members[call.rank].record.collectives)) for call in calls if call is not None
        ]
        return min(parts, default=1.0)

    def add(
        self,
        kind: FindingKind,
        group: Shared | None,
        position: int,
        sides: Sequence[CallSide],
        when: float,
        why: str = "",
        is_message: bool = False,
    ) -> None:
        """A finding that is told by what each side does."""
        said, remedy = (_DIFFERS_OF_MESSAGES if is_message else _DIFFERS)[kind]
        place = f" in {group_text(self.views[group])}" if group is not None else ""
        what = "; ".join(side.text + self._played_text(side.ranks) for side in sides)
        text = f"{said}{place} ({'message' if is_message else 'call'} {position + 1}): {what}{why}."
        view = self.views[group] if group is not None else None
        self.found.append((when, Finding(kind, view, position, tuple(sides), text, remedy)))

    # -----------------------------------------------------------------------------------------------------------------
    # Groups

    def compare_made_groups(self) -> None:
        """Every rank makes the same groups in the same order."""
        for number in range(max((len(record.made_groups) for record in self.records), default=0)):
            at: dict[tuple[int, ...] | None, list[int]] = {}
            for record in self.records:
                if number < len(record.made_groups):
                    at.setdefault(record.made_groups[number][0], []).append(record.rank)
                elif not self.members[record.rank].is_open or record.end.how == "steps":
                    at.setdefault(None, []).append(record.rank)
            if len(at) < 2:
                continue
            sides = tuple(self._made_side(ranks, number, made) for made, ranks in at.items())
            what = "; ".join(side.text for side in sides)
            text = f"The ranks make different groups as their {_ordinal(number + 1)}: {what}."
            remedy = (
                "Let every rank of the job make all groups in one order, with the same ranks, those that it is no "
                "member of included."
            )
            self.found.append((-1.0, Finding("groups", None, number, sides, text, remedy)))
            self.told.update(rank for ranks in at.values() for rank in ranks)
            return

    def _made_side(self, ranks: Sequence[int], number: int, made: tuple[int, ...] | None) -> CallSide:
        record = self.members[ranks[0]].record
        lines = record.lines[record.made_groups[number][1]] if made is not None else ()
        that = f"that of {ranks_text(made)} at {line_text(lines)}" if made is not None else "no further one"
        return CallSide(tuple(ranks), f"{ranks_text(ranks)} {'makes' if len(ranks) == 1 else 'make'} {that}", lines)

    def compare_groups(self) -> None:
        """Calls of each group, one by one."""
        single: dict[tuple[str, int], list[Shared]] = {}
        for group in self.views:
            there = [
                member
                for rank in group.ranks
                if (member := self.members.get(rank)) is not None and (member.is_rehearsed or group in member.calls)
            ]
            if not any(member.calls.get(group) for member in there) or len(group.ranks) < 2:
                continue
            if len(there) < 2:
                single.setdefault((self.views[group].description, len(group.ranks)), []).append(group)
                continue
            self.groups += 1
            self._compare_calls(group, {member.rank: member.calls.get(group, []) for member in there})
        for (description, size), alone in single.items():
            name = f' "{description}"' if description else ""
            text = (
                f"Of {len(alone)} group{'s' if len(alone) > 1 else ''}{name} of {size} ranks, such as "
                f"{ranks_text(alone[0].ranks)}, only one member was rehearsed: whether its members agree is not known."
            )
            self.unsure.append(Unsure("single", text))

    def _compare_calls(self, group: Shared, lists: Mapping[int, list[CommunicationCall]]) -> None:
        """Calls that members ask of a group, or messages one way between two of them."""
        self.calls += sum(map(len, lists.values()))
        for position in range(max(map(len, lists.values()))):
            calls = [calls[position] for calls in lists.values() if position < len(calls)]
            over = [rank for rank, calls in lists.items() if position >= len(calls)]
            if over and not self._is_firm(over, calls):
                self._note_stopped(group, over, calls[0])
                return
            if over or disagreement(calls):
                self._explain(group, lists, position)
                return
        if any(call.is_message for calls in lists.values() for call in calls):
            return
        # Where the main thread is while another one asks is by chance.
        if not any(call.asked.group.endswith(ASIDE) for calls in lists.values() for call in calls):
            self._compare_places(group, lists)
        self._note_one_more_step(group, lists)

    def _is_firm(self, over: Sequence[int], calls: Sequence[CommunicationCall]) -> bool:
        """Whether ranks that ask for nothing more really would not.

        A script that was stopped would have gone on; but where all were stopped after the same step, each one's calls
        of that step are there.
        """
        for rank in over:
            member = self.members[rank]
            if not member.is_open:
                continue
            same = member.record.end.how == "steps" and all(
                call.steps < member.steps and self.members[call.rank].record.end.how in ("steps", "finished", "exit")
                for call in calls
            )
            if not same:
                return False
        return True

    def _note_stopped(self, group: Shared, over: Sequence[int], call: CommunicationCall) -> None:
        alike: dict[tuple[str, str], list[int]] = {}
        for rank in over:
            if rank not in self.told:
                record = self.members[rank].record
                alike.setdefault((record.end.how, line_text(record.end_lines)), []).append(rank)
        self.told.update(over)
        for (how, where), ranks in alike.items():
            were, their, they = ("was", "its", "it") if len(ranks) == 1 else ("were", "their", "they")
            text = (
                f"{ranks_text(ranks).capitalize()} {were} stopped ({how}) at {where}; {their} calls are compared up to "
                f"there, and what {they} would ask {group_text(self.views[group])} after that is not known."
            )
            self.unsure.append(Unsure("stopped", text, call.lines))

    def _note_one_more_step(self, group: Shared, lists: Mapping[int, list[CommunicationCall]]) -> None:
        """A rank that was stopped as it began a step, when another had done all of its steps."""
        for rank, calls in lists.items():
            member = self.members[rank]
            if member.record.end.how != "steps" or not calls or calls[-1].steps + 1 < member.steps:
                continue
            over = [
                other
                for other in lists
                if self.members[other].record.end.how in ("finished", "exit")
                and self.members[other].steps <= member.steps
            ]
            if over and rank not in self.told:
                self.told.add(rank)
                where = line_text(calls[-1].lines)
                text = (
                    f"{ranks_text([rank]).capitalize()} was stopped as it began another step, where {ranks_text(over)} "
                    f"had done all: if it asks {group_text(self.views[group])} again, as at {where}, it waits for "
                    f"ever. Rehearse more than {_steps_text(member.steps)} to know."
                )
                self.unsure.append(Unsure("stopped", text, calls[-1].lines))

    def _explain(self, group: Shared, lists: Mapping[int, list[CommunicationCall]], position: int) -> None:
        """Tell where members part: each part of them against the largest."""
        self.at_fault.add(group)
        parts: dict[object, list[int]] = {}
        for rank, calls in lists.items():
            parts.setdefault(_fate(calls, position, self.members[rank]), []).append(rank)
        order = sorted(parts.values(), key=lambda ranks: (-len(ranks), ranks[0]))
        if len(order) == 1:  # each pair of sizes differs although all look the same
            calls = [calls[position] for calls in lists.values()]
            pair = next((one, other) for one, other in pairwise([*calls, calls[0]]) if disagreement((one, other)))
            sides = [self.side([call.rank], call) for call in pair]
            self.add("shape", group, position, sides, self._when(*pair), is_message=pair[0].is_message)
            return
        for ranks in order[1:]:
            self._explain_pair(group, position, (order[0], lists[order[0][0]]), (ranks, lists[ranks[0]]))

    def _explain_pair(
        self,
        group: Shared,
        position: int,
        ours: tuple[list[int], list[CommunicationCall]],
        theirs: tuple[list[int], list[CommunicationCall]],
    ) -> None:
        mine, others = ours[1], theirs[1]
        differs_at = min(position, len(mine), len(others))
        we_stop, they_stop = (self.members[ranks[0]].is_cut_short for ranks in (ours[0], theirs[0]))
        found = edits(mine, others, differs_at, we_stop=we_stop, they_stop=they_stop)
        i, j = found[0].ours, found[0].theirs
        ours_alone, theirs_alone = not found[0].is_theirs, not found[0].is_ours
        one = mine[i] if i < len(mine) else None
        other = others[j] if j < len(others) else None
        sides = [self.side(ours[0], one), self.side(theirs[0], other)]
        if theirs_alone or (len(theirs[0]) < len(ours[0]) and not ours_alone):
            sides.reverse()
        is_message = (one or other or mine[0]).is_message
        why = ""
        kind: FindingKind
        if one is not None and other is not None:
            if _are_reordered(mine, others, found):
                kind = "order"
                if one.asked.part == "backward" and one.lines == other.lines:
                    why = ": gradients are ready in another order"
            elif ours_alone or theirs_alone:
                kind = "alone"
                why = f", without coming to that of {ranks_text(sides[0].ranks)}"
            else:
                kind = disagreement((one, other)) or "shape"
        else:
            ended = theirs[0] if other is None else ours[0]
            kind, why = self._missing_kind(ended, ours[0] if other is None else theirs[0])
            if is_message:
                why += f"; {len(mine)} on rank {ours[0][0]} and {len(others)} on rank {theirs[0][0]}"
            self.told.update(ended)
        self.add(kind, group, i, sides, self._when(one, other), why, is_message)

    def _missing_kind(self, ended: Sequence[int], others: Sequence[int]) -> tuple[FindingKind, str]:
        """What it means that ranks have no call left in a group, and how they ended."""
        member = self.members[ended[0]]
        end = member.record.end
        if end.how == "error":
            return "ended", f" with {end.text}"
        if end.how == "exit":
            return "ended", f" with status {end.status}"
        most = max(self.members[rank].steps for rank in others)
        if end.how == "finished" and member.steps != most:
            return "steps", f", {ranks_text(others)} did {_steps_text(most)}"
        return "alone", ""

    def _compare_places(self, group: Shared, lists: Mapping[int, list[CommunicationCall]]) -> None:
        """Calls that go together but come from swapped places: NCCL runs them, with each other's values."""
        first, *others = lists.values()
        for calls in others:
            for one, other in zip(_by_part(first), _by_part(calls), strict=False):
                places, theirs = [_place(call) for call in one], [_place(call) for call in other]
                if places == theirs or Counter(places) != Counter(theirs):
                    continue
                at = next(number for number, pair in enumerate(zip(places, theirs, strict=True)) if pair[0] != pair[1])
                mine, yours = one[at], other[at]
                sides = [self.side([mine.rank], mine), self.side([yours.rank], yours)]
                why = ": their sizes are equal, so the job does not stop, and values of different tensors are mixed"
                self.at_fault.add(group)
                self.add("order", group, first.index(mine), sides, self._when(mine, yours), why)
                return

    # -----------------------------------------------------------------------------------------------------------------
    # Messages

    def compare_messages(self) -> None:
        """Messages of each ordered pair of ranks, one by one."""
        ways: dict[tuple[Shared, int, int], dict[int, list[CommunicationCall]]] = {}
        apart: list[tuple[int, int]] = []
        for member in self.members.values():
            for call in member.all_calls():
                if not call.is_message:
                    continue
                if call.peer < 0:
                    text = f"{ranks_text([call.rank]).capitalize()} receives from any rank at {line_text(call.lines)}."
                    self.unsure.append(Unsure("any_source", text, call.lines))
                elif call.peer not in self.members or not self.members[call.peer].is_rehearsed:
                    apart.append((call.rank, call.peer))
                else:
                    ways.setdefault((call.group, *call.ends), {end: [] for end in call.ends})[call.rank].append(call)
        for (group, _, _), lists in sorted(ways.items()):
            self._compare_calls(group, lists)
        if apart:
            rank, peer = apart[0]
            text = (
                f"{len(apart)} messages go to or come from ranks that were not rehearsed, such as those of rank {rank} "
                f"with rank {peer}: whether the other side agrees is not known."
            )
            self.unsure.append(Unsure("single", text))

    # -----------------------------------------------------------------------------------------------------------------
    # Single ranks

    def look_for_lost_results(self) -> None:
        """Asynchronous calls whose result nothing waits for."""
        lost: dict[tuple[Shared, tuple[Frame, ...]], list[CommunicationCall]] = {}
        for member in self.members.values():
            if not member.is_rehearsed:
                continue
            waited = {id(order.unit) for order in member.orders if isinstance(order, Waits)}
            for order in member.orders:
                if isinstance(order, Sync) and order.stream < 0:
                    lost = {key: calls for key, calls in lost.items() if calls[0].rank != member.rank}
                if not isinstance(order, LaunchUnit) or not order.first.asked.asynchronous or id(order) in waited:
                    continue
                call = order.first
                if call.asked.waits_when_used:
                    continue
                is_late = member.is_open and call.steps + 2 > member.steps
                if is_late or not call.lines or all(part.asked.operation.startswith("send") for part in order.calls):
                    continue
                lost.setdefault((call.group, call.lines), []).append(call)
        for (group, lines), calls in lost.items():
            ranks = sorted({call.rank for call in calls})
            side = self.side(ranks, calls[0])
            text = (
                f"The result of {calls[0].asked.operation} at {line_text(lines)} is never waited for on "
                f"{ranks_text(ranks)} ({len(calls)} times): what reads it may read what was there before."
            )
            remedy = "Call `wait()` on the returned work before the tensor is read, or leave out `async_op=True`."
            finding = Finding("wait", self.views[group], self._position(calls[0]), (side,), text, remedy)
            self.found.append((self._when(calls[0]), finding))

    def _position(self, call: CommunicationCall) -> int:
        same = self.members[call.rank].calls.get(call.group, [])
        return same.index(call) if call in same else 0

    def look_at_ends(self) -> None:
        """Ranks that failed or left while others went on."""
        failed = [record for record in self.records if record.end.how in ("error", "invented")]
        if failed and len(failed) == len(self.records) and not self.found:
            lines, story = failed[0].end_lines, failed[0].end.text
            text = f"Every rank ended at {line_text(lines)} with {story}; their calls up to there agree."
            self.unsure.append(Unsure("failed", text, lines))
            return
        for record in self.records:
            end = record.end
            left = end.how == "exit" and end.status != 0
            sides = (side for _, finding in self.found for side in finding.sides)
            if (left or end.how == "error") and record.rank not in self.told.union(*(side.ranks for side in sides)):
                side = self.side([record.rank], None)
                what = f"with {end.text}" if end.how == "error" else f"with status {end.status}"
                text = f"{side.text.capitalize()} {what}, while other ranks go on."
                self.found.append((1.0, Finding("ended", None, 0, (side,), text, _DIFFERS["ended"][1])))

    def look_for_branches(self) -> None:
        """Values that depend on data and that the script looked at."""
        seen: set[tuple[Frame, ...]] = set()
        for record in self.records:
            for invented in record.invented:
                lines = record.lines[invented.lines]
                if not lines or lines in seen or invented.asked not in ("bool", "is_nonzero", "nonzero"):
                    continue
                seen.add(lines)
                text = (
                    f"{line_text(lines)} decides by a value that depends on data ({invented.what}); it was taken as "
                    f"{invented.value}. Where ranks see different values, they may part there."
                )
                self.unsure.append(Unsure("branch", text, lines))

    # -----------------------------------------------------------------------------------------------------------------
    # Deadlocks

    def play(self) -> None:
        """Play the calls; circles of waiting that no other finding explains are findings."""
        self.blocked = Game(self.members).play()
        waiting = {blocked.call.rank: blocked for blocked in self.blocked}
        told: set[int] = set()
        for rank in waiting:
            circle = _circle(waiting, rank)
            if not circle or told & set(circle):
                continue
            told.update(circle)
            if any(waiting[one].call.group in self.at_fault for one in circle):
                continue
            self._add_circle([waiting[one] for one in circle])
        if self.blocked and not self.found:
            self._add_circle(self.blocked[:4])
        if not self.blocked and not self.found:
            self._note_launch_order()

    def _add_circle(self, circle: Sequence[Blocked]) -> None:
        sides = [self.side([blocked.call.rank], blocked.call) for blocked in circle]
        said = [
            f"rank {blocked.call.rank} waits in {blocked.call.asked.operation} of "
            f"{group_text(self.views[blocked.call.group])} at {line_text(blocked.call.lines)}"
            + (f" for {ranks_text(blocked.waits_for)}" if blocked.waits_for else "")
            for blocked in circle
        ]
        messages = all(blocked.call.is_message for blocked in circle)
        remedy = (
            "Exchange messages by `batch_isend_irecv`, or let one rank send first and the other receive first."
            if messages
            else "Ask for the calls of these groups in one order on every rank."
        )
        group = self.views[circle[0].call.group]
        text = "The ranks wait for each other for ever: " + ", ".join(said) + "."
        when = self._when(*(blocked.call for blocked in circle))
        self.found.append((when, Finding("deadlock", group, circle[0].position, tuple(sides), text, remedy)))

    def _note_launch_order(self) -> None:
        blocked = Game(self.members, one_at_a_time=True).play()
        if not blocked:
            return
        said = ", ".join(
            f"rank {one.call.rank} at {line_text(one.call.lines)} ({one.call.asked.operation} of "
            f"{group_text(self.views[one.call.group])})"
            for one in blocked[:3]
        )
        text = (
            "Ranks ask for calls of several groups in different order; this works only while kernels of all of them "
            f"run at the same time, which NCCL does not promise: {said}."
        )
        self.unsure.append(Unsure("launch_order", text, blocked[0].call.lines))


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _fate(calls: Sequence[CommunicationCall], position: int, member: Member) -> object:
    """What makes members one part: the call at a place and its lines, or their end."""
    if position < len(calls):
        return (calls[position].label, calls[position].lines)
    return (member.record.end.how, member.steps)


def _place(call: CommunicationCall) -> tuple[object, ...]:
    return (call.label, call.module, call.lines)


def _by_part(calls: Sequence[CommunicationCall]) -> list[list[CommunicationCall]]:
    """Calls of each part of each step."""
    found: dict[tuple[int, str], list[CommunicationCall]] = {}
    for call in calls:
        found.setdefault((call.steps, call.asked.part), []).append(call)
    return list(found.values())


def _circle(waiting: Mapping[int, Blocked], rank: int) -> list[int]:
    """Ranks that wait for each other, the last for the first, as seen from one; empty: none."""
    path: list[int] = []
    while rank in waiting and rank not in path:
        path.append(rank)
        following = [other for other in waiting[rank].waits_for if other in waiting]
        if not following:
            return []
        rank = following[0]
    return path[path.index(rank) :] if rank in path else []
