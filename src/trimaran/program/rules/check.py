"""The rules of a legal program.

A program that keeps them can be simulated and run, and never deadlocks, even on a transport without buffers.

     1  Every instruction is in the list of its rank, and no token is there twice.
     2  The fields of an instruction fit its kind, and lie within the program's ranks, segments and microbatches.
     3  `after` names earlier instructions of the same rank, or marks that they have. What a mark waits for is earlier
        too, or started by a mark of the same instruction.
     4  Every segment is on as many ranks as every other (its replicas), and runs there for every microbatch: F then B,
        or F then I then W; in an evaluation EV, and nothing else.
     5  A receive is listed before the step that reads it, and a send after the step that makes it; the second of each
        pair names the first.
     6  Every microbatch of a segment is exchanged with the same segments, in the same sizes.
     7  A loaded microbatch is used by a step of that microbatch.
     8  The n-th send on a channel (source rank, destination rank) meets the n-th receive on it: of the same direction,
        segments, microbatch and bytes.
     9  The n-th collective of a group on one member meets the n-th on every other: of the same token, bytes and root.
    10  Exactly one instruction waits for each mark; none may, where the instruction of the mark waits at it.
    11  A collective of a segment is over exactly the ranks that hold the same of it: its replicas; or over those that
        share its tensors in one replica; or it is a level of a sum over the replicas: a reduce-scatter within a node,
        an all-reduce over one rank of each node, an all-gather within the node, of one label, each after the other.
    12  Every rank that trains updates once: after all its backwards, and waiting for all its reductions, and for the
        gathers of hierarchical ones.
    13  With both ends of a message, and all members of a collective, as one, and an instruction that waits at marks
        as a chain of pieces: nothing waits for itself.
    14  What is reduced to one rank comes back: a broadcast of the same label, bytes and root waits for the update.
    16  Where steps overlap (`behind`), each is one microbatch without marks; what an instruction names is as far behind
        as itself or less. The rules above hold for several steps written out one after the other (`overlap.unroll`),
        where each global batch has its own update on each rank.

Not seen from a program alone: whether the bytes are those of the tensors that cross, and whether every trained
parameter is in a bucket. `check_against_graph` has rule 15: a program moves, reduces and waits for what `lower` makes
it move, reduce and wait for in the same order of compute.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from trimaran.program.layout import is_hierarchical, is_last_level
from trimaran.program.lowering.schedules import BACKWARDS, COMPUTES
from trimaran.program.overlap import unroll
from trimaran.program.rules.deadlock import check_progress, match_collectives, match_messages
from trimaran.program.rules.positions import Index, Spot, fault, index_program, named_by
from trimaran.program.types import COLLECTIVES, RECEIVES, ROOTED, SENDS, Instruction, Kind, Mark, Program

# ---------------------------------------------------------------------------------------------------------------------
# Whether each instruction, taken alone, makes sense, and waits for what can come: rules 2 and 3


NAME = re.compile(r"[A-Za-z0-9_.-]+")
"""Form of the names of labels, streams and marks, so that tokens can be read back."""


def check_fields(index: Index) -> None:
    """The fields of an instruction fit its kind and the program; rule 2.

    Args:
        index: the program

    Raises:
        InputError: a field that is missing, out of range or out of place
    """
    for spot, instruction in index:
        for wrong in _wrong_fields(instruction, index.program):
            _refuse(index.program, spot, instruction, wrong)


def check_after(index: Index) -> None:
    """An instruction waits for earlier ones of its rank; rule 3.

    Args:
        index: the program

    Raises:
        InputError: a name in `after` that is no earlier instruction of the rank, or no mark of it
    """
    for spot, instruction in index:
        for name in instruction.after:
            token, has_mark, mark = name.partition("!")
            found = index.find(spot.rank, token)
            if found is None:
                what = f"{instruction.id} waits for {name}, and rank {spot.rank} has no {token}"
                raise fault(index.program, 3, what, [spot], "Name an earlier instruction of the same rank.")
            if found.position >= spot.position:
                what = f"{instruction.id} waits for {name}, which is not before it"
                raise fault(index.program, 3, what, [spot, found], "List it after what it waits for.")
            if has_mark and all(mark != known.name for known in index.at(found).marks):
                known = ", ".join(known.name for known in index.at(found).marks) or "none"
                what = f"{instruction.id} waits for {name}; the marks of {token} are: {known}"
                raise fault(index.program, 3, what, [spot, found], "Name a mark that the instruction has.")
        for waiting in instruction.marks:
            if waiting.waits_for:
                _check_waiting_mark(index, spot, instruction, waiting)


def _check_waiting_mark(index: Index, spot: Spot, instruction: Instruction, mark: Mark) -> None:
    """The instruction that a mark waits for is before that of the mark, or is started by it."""
    found = index.find(spot.rank, mark.waits_for)
    name = f"{instruction.id}!{mark.name}"
    if found is None:
        what = f"{name} waits for {mark.waits_for}, and rank {spot.rank} has no such instruction"
        raise fault(index.program, 3, what, [spot], "Name an instruction of the same rank, without a mark.")
    if found.position <= spot.position:
        if found.position == spot.position:
            what = f"{name} waits for the end of the instruction that it is in"
            raise fault(index.program, 3, what, [spot], "Let it wait for what a mark of the instruction starts.")
        return
    started = {name.partition("!")[0] for name in index.at(found).after if "!" in name}
    if instruction.token not in started:
        what = f"{name} waits for {mark.waits_for}, which is listed after it and which no mark of it starts"
        advice = "List it before the instruction, or let its `after` name a mark of the instruction."
        raise fault(index.program, 3, what, [spot, found], advice)


def _refuse(program: Program, spot: Spot, instruction: Instruction, wrong: str) -> None:
    raise fault(program, 2, f"{instruction.id}: {wrong}", [spot], "See the instruction schema for what each kind has.")


def _wrong_fields(instruction: Instruction, program: Program) -> Iterator[str]:
    ranks = len(program.ranks)
    kind = instruction.kind
    message = kind in SENDS or kind in RECEIVES
    for field, value, count in (
        ("segment", instruction.segment, program.segments),
        ("peer_segment", instruction.peer_segment, program.segments),
        ("microbatch", instruction.microbatch, program.microbatches),
        ("peer", instruction.peer, ranks),
    ):
        if value is not None and not 0 <= value < count:
            yield f"{field} is {value}, and there are {count}, counted from 0"
    if (message or kind in COMPUTES) and (instruction.segment is None or instruction.microbatch is None):
        yield "it needs a segment and a microbatch"
    if kind is Kind.LOAD and instruction.microbatch is None:
        yield "it needs a microbatch"
    if message != (instruction.peer is not None) or message != (instruction.peer_segment is not None):
        yield "a peer and a peer_segment are there exactly where something is sent or received"
    if instruction.peer == instruction.rank:
        yield "its peer is its own rank"
    if (kind in COLLECTIVES) != bool(instruction.group):
        yield "a group is there exactly where there is a collective"
    if instruction.group:
        yield from _wrong_group(instruction, ranks)
    if instruction.root is not None and (kind not in ROOTED or instruction.root not in instruction.group):
        yield f"its root is {instruction.root}: a broadcast or a reduce has one, which is of its group"
    if instruction.behind < 0:
        yield f"behind is {instruction.behind}, and it counts steps from 0"
    if instruction.nbytes < 0:
        yield f"nbytes is {instruction.nbytes}"
    names = [instruction.stream, *([instruction.label] if instruction.label else [])]
    names += [mark.name for mark in instruction.marks]
    for name in names:
        if not NAME.fullmatch(name):
            yield f"the name {name!r} may have letters, digits, '_', '.' and '-' only"
    if instruction.marks and kind not in COMPUTES:
        yield "only a step of compute has marks"
    if len({mark.name for mark in instruction.marks}) < len(instruction.marks):
        yield "two of its marks have the same name"


def _wrong_group(instruction: Instruction, ranks: int) -> Iterator[str]:
    group = instruction.group
    if len(group) < 2 or list(group) != sorted(set(group)) or group[0] < 0 or group[-1] >= ranks:
        yield f"its group {group} must be at least two different ranks below {ranks}, ascending"
    if instruction.rank not in group:
        yield f"its group {group} lacks its own rank"


# ---------------------------------------------------------------------------------------------------------------------
# Whether the steps of compute are complete and have their data: rules 4 to 7


Steps = Mapping[int, Mapping[int, Mapping[int, Mapping[Kind, Spot]]]]
"""Place of each kind of step, by segment, rank and microbatch."""


def check_steps(index: Index) -> Steps:
    """Every segment runs for every microbatch on every replica, forward before backward; rule 4.

    Args:
        index: the program

    Returns:
        The steps.

    Raises:
        InputError: a step that is missing, out of order or of the wrong kind
    """
    steps: dict[int, dict[int, dict[int, dict[Kind, Spot]]]] = {}
    for spot, instruction in index:
        if instruction.kind in COMPUTES and instruction.segment is not None and instruction.microbatch is not None:
            of_rank = steps.setdefault(instruction.segment, {}).setdefault(spot.rank, {})
            of_rank.setdefault(instruction.microbatch, {})[instruction.kind] = spot
    evaluation = any(instruction.kind is Kind.EVALUATE for _, instruction in index)
    replicas = max(map(len, steps.values()), default=0)
    for segment in range(index.program.segments):
        ranks = steps.get(segment, {})
        if not ranks or len(ranks) != replicas:
            what = f"segment {segment} runs on {len(ranks)} ranks, and another one on {replicas}"
            spots = [spot for kinds in ranks.values() for found in kinds.values() for spot in found.values()][:1]
            raise fault(index.program, 4, what, spots, "Every segment runs once in each replica.")
        for rank, by_microbatch in ranks.items():
            for microbatch in range(index.program.microbatches):
                found = by_microbatch.get(microbatch, {})
                _check_kinds(index, f"r{rank}: segment {segment}, microbatch {microbatch}", found, evaluation)
    return steps


def check_data(index: Index) -> None:
    """A step names what it receives, which is listed before it; a send names the step that makes it; rule 5.

    Args:
        index: the program

    Raises:
        InputError: a message whose step is missing, on the wrong side, or does not wait
    """
    for spot, instruction in index:
        if instruction.kind not in SENDS and instruction.kind not in RECEIVES:
            continue
        step = _step_of(index, spot, instruction)
        if step is None:
            what = f"{instruction.id} belongs to no step of compute on its rank"
            raise fault(index.program, 5, what, [spot], "Add the step, or remove the message.")
        first, second = (step, spot) if instruction.kind in SENDS else (spot, step)
        if first.position > second.position or index.at(first).token not in index.at(second).after:
            what = f"{index.at(second).id} needs {index.at(first).id}"
            advice = f"List {index.at(first).token} before it, and name it in its `after`."
            raise fault(index.program, 5, what, [second, first], advice)


def check_uniform(index: Index) -> None:
    """Every microbatch of a segment is exchanged with the same segments; rule 6.

    Args:
        index: the program

    Raises:
        InputError: a microbatch that lacks a message which others have
    """
    peers: dict[tuple[int, int, Kind], dict[int, dict[tuple[int, int, int], Spot]]] = {}
    for spot, instruction in index:
        if instruction.peer is None or instruction.peer_segment is None:
            continue
        if instruction.segment is None or instruction.microbatch is None:
            continue
        other = (instruction.peer, instruction.peer_segment, instruction.nbytes)
        found = peers.setdefault((spot.rank, instruction.segment, instruction.kind), {})
        found.setdefault(instruction.microbatch, {})[other] = spot
    for (rank, segment, kind), found in peers.items():
        first = next(iter(found.values()))
        for microbatch in range(index.program.microbatches):
            if found.get(microbatch, {}).keys() != first.keys():
                spots = [*found.get(microbatch, {}).values(), *first.values()]
                what = f"r{rank}: {segment}{kind}{microbatch} has other peers or bytes than other microbatches"
                advice = "Every microbatch of a segment sends to and receives from the same segments."
                raise fault(index.program, 6, what, spots, advice)


def check_loads(index: Index) -> None:
    """A loaded microbatch is used; rule 7.

    Args:
        index: the program

    Raises:
        InputError: a load that no step of its microbatch waits for
    """
    used = {
        (spot.rank, name)
        for spot, instruction in index
        if instruction.kind in COMPUTES
        for name in instruction.after
        if name == f"{Kind.LOAD}{instruction.microbatch}"
    }
    for spot, instruction in index:
        if instruction.kind is Kind.LOAD and (spot.rank, instruction.token) not in used:
            what = f"no step of microbatch {instruction.microbatch} waits for {instruction.id}"
            raise fault(index.program, 7, what, [spot], "Name it in the `after` of the forwards that read it.")


def _check_kinds(index: Index, where: str, found: Mapping[Kind, Spot], evaluation: bool) -> None:
    if evaluation:
        legal: list[tuple[Kind, ...]] = [(Kind.EVALUATE,)]
    else:
        legal = [(Kind.FORWARD, Kind.BACKWARD), (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)]
    for kinds in legal:
        if found.keys() == set(kinds):
            spots = [found[kind] for kind in kinds]
            if spots != sorted(spots, key=lambda spot: spot.position):
                what = f"{where}: the steps must come in the order {', '.join(kinds)}"
                raise fault(index.program, 4, what, spots, "Reorder them.")
            return
    wanted = " or ".join("+".join(kinds) for kinds in legal)
    has = "+".join(found) or "nothing"
    raise fault(index.program, 4, f"{where} has {has}, and needs {wanted}", [*found.values()], "Complete it.")


def _step_of(index: Index, spot: Spot, message: Instruction) -> Spot | None:
    """The step of compute that makes what is sent, or reads what is received."""
    forward = message.kind in (Kind.SEND_FORWARD, Kind.RECEIVE_FORWARD)
    for kind in (Kind.FORWARD, Kind.EVALUATE) if forward else (Kind.BACKWARD, Kind.BACKWARD_INPUT):
        found = index.find(spot.rank, f"{message.segment}{kind}{message.microbatch}")
        if found is not None:
            return found
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Whether gradients are reduced and applied: rules 10 to 12, and 14


REDUCTIONS = frozenset({Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.REDUCE})


def check_marks(index: Index) -> None:
    """One instruction waits for each mark; rule 10.

    A mark at which its own instruction waits may start nothing.

    Args:
        index: the program

    Raises:
        InputError: a mark that nothing waits for, or several things
    """
    waiting: dict[tuple[int, str], list[Spot]] = {}
    for spot, instruction in index:
        for name in instruction.after:
            if "!" in name:
                waiting.setdefault((spot.rank, name), []).append(spot)
    for spot, instruction in index:
        for mark in instruction.marks:
            found = waiting.get((spot.rank, f"{instruction.token}!{mark.name}"), [])
            if len(found) != 1 and (found or not mark.waits_for):
                what = f"{len(found)} instructions wait for the mark {instruction.id}!{mark.name}"
                advice = "Let exactly one instruction name it in `after`, such as the reduction of its bucket."
                raise fault(index.program, 10, what, [spot, *found], advice)


def check_groups(index: Index, steps: Steps) -> None:
    """A collective of a segment is over exactly the ranks that hold the same of it, or that share it; rule 11.

    Args:
        index: the program
        steps: its steps of compute

    Raises:
        InputError: a collective of a segment over other ranks
    """
    tp = index.program.tp
    for spot, instruction in index:
        if instruction.kind in COLLECTIVES and instruction.segment is not None:
            holders = sorted(steps[instruction.segment])
            replicas = tuple(rank for rank in holders if rank % tp == spot.rank % tp)
            shards = tuple(rank for rank in holders if rank // tp == spot.rank // tp)
            if instruction.group not in (replicas, shards) and not is_hierarchical(index, spot, replicas):
                held = f"segment {instruction.segment} is on {tuple(holders)}"
                if tp > 1:
                    held += f", in the same shard on {replicas}, in the same row on {shards}"
                what = f"{instruction.id} is over {instruction.group}; {held}"
                raise fault(index.program, 11, what, [spot], "Reduce over all replicas of the segment.")


def check_updates(index: Index, *, overlapping: bool = False) -> None:
    """Every rank that trains updates once, after all its gradients and all its reductions; rule 12.

    Args:
        index: the program
        overlapping: it is several steps that overlap, written out: each global batch has its own update

    Raises:
        InputError: no update or two, or one that does not wait for something
    """
    for rank, instructions in enumerate(index.program.ranks):
        backwards, reductions, updates = (
            [Spot(rank, position) for position, instruction in enumerate(instructions) if instruction.kind in kinds]
            for kinds in (BACKWARDS, REDUCTIONS, {Kind.UPDATE})
        )
        gathers = [Spot(rank, position) for position, one in enumerate(instructions) if is_last_level(one)]
        if overlapping:
            _check_own_updates(index, rank, updates, backwards, reductions)
            continue
        if len(updates) != (1 if backwards else 0):
            what = f"rank {rank} has {len(backwards)} backwards and {len(updates)} updates"
            advice = "A rank that trains updates its parameters once a step, any other never."
            raise fault(index.program, 12, what, updates or backwards[-1:], advice)
        for update in updates:
            awaited = _with_earlier(instructions, named_by(index, update) | _awaited_inside(index, rank))
            for spot in [*backwards, *reductions, *gathers]:
                early = spot.position > update.position
                if early or (index.at(spot).kind not in BACKWARDS and spot.position not in awaited):
                    what = f"{index.at(update).id} does not wait for {index.at(spot).id}"
                    advice = "List the update last, and let its `after` lead to every reduction of the rank."
                    raise fault(index.program, 12, what, [update, spot], advice)


def _check_own_updates(
    index: Index, rank: int, updates: Sequence[Spot], backwards: Sequence[Spot], reductions: Sequence[Spot]
) -> None:
    """Each global batch of steps that overlap is updated with once, between its backwards and the next batch's."""
    own = {index.at(update).microbatch: update for update in updates}
    if len(own) != len(updates) or set(own) != {index.at(spot).microbatch for spot in backwards}:
        what = f"rank {rank} has {len(updates)} updates for {len(backwards)} backwards of steps that overlap"
        advice = "A rank that trains updates its parameters once for each global batch."
        raise fault(index.program, 12, what, [*updates, *backwards][:2], advice)
    for spot in [*backwards, *reductions]:
        batch = index.at(spot).microbatch
        update = own.get(batch)
        if update is None:
            what = f"{index.at(spot).id} is of no global batch that rank {rank} updates with"
            raise fault(index.program, 12, what, [spot], "Give it the global batch whose update waits for it.")
        is_backward = index.at(spot).kind in BACKWARDS
        early = spot.position > update.position
        mixed = is_backward and any(
            spot.position < other.position < update.position for at, other in own.items() if at != batch
        )
        if early or mixed or not (is_backward or spot.position in named_by(index, update)):
            what = f"{index.at(update).id} does not wait for {index.at(spot).id}, or another update comes between them"
            advice = "List each update behind the backwards of its global batch, and let it wait for its reductions."
            raise fault(index.program, 12, what, [update, spot], advice)


def check_owners(index: Index) -> None:
    """A bucket that is reduced to one rank is broadcast from it after the update; rule 14.

    Args:
        index: the program

    Raises:
        InputError: a reduce without a broadcast of its label from its root, or one that does not wait for the update
    """
    for spot, instruction in index:
        if instruction.kind is not Kind.REDUCE:
            continue
        back = index.find(spot.rank, instruction.token.replace(Kind.REDUCE, Kind.BROADCAST, 1))
        if (
            back is None
            or index.at(back).root_rank != instruction.root_rank
            or index.at(back).nbytes != instruction.nbytes
        ):
            what = (
                f"{instruction.id} ends at rank {instruction.root_rank}, and nothing of its size comes back from there"
            )
            advice = "Broadcast what the root has updated, under the same label."
            raise fault(index.program, 14, what, [spot] if back is None else [spot, back], advice)
        if not any(index.program.ranks[spot.rank][at].kind is Kind.UPDATE for at in named_by(index, back)):
            what = f"{index.at(back).id} does not wait for the update of its rank"
            raise fault(index.program, 14, what, [back], "Let its `after` lead to the update.")


def _awaited_inside(index: Index, rank: int) -> set[int]:
    """Positions of what steps of a rank wait for inside; the update runs after them on the same stream."""
    marks = (mark for instruction in index.program.ranks[rank] for mark in instruction.marks)
    return {index.positions[rank][mark.waits_for] for mark in marks if mark.waits_for}


def _with_earlier(instructions: Sequence[Instruction], awaited: set[int]) -> set[int]:
    """Also what is inside earlier steps: the library that does it there waits for each before the next of its group."""
    last: dict[tuple[int, ...], int] = {}
    for position in awaited:
        item = instructions[position]
        if item.microbatch is not None:
            last[item.group] = max(position, last.get(item.group, position))
    return awaited | {
        position
        for position, item in enumerate(instructions)
        if item.microbatch is not None and item.kind in COLLECTIVES and position <= last.get(item.group, -1)
    }


STEPS_CHECKED = 3
"""Steps of a program whose steps overlap that are checked, beyond those that fill it."""


def check_overlap(index: Index) -> None:
    """Where steps overlap, instructions are behind by no fewer steps than what they name; rule 16.

    Args:
        index: the program

    Raises:
        InputError: several microbatches, marks, or something that is needed before it is there
    """
    if index.program.microbatches != 1:
        what = f"it has {index.program.microbatches} microbatches, and its steps overlap"
        raise fault(index.program, 16, what, [Spot(0, 0)], "Steps that overlap are of one microbatch.")
    for spot, instruction in index:
        if instruction.marks:
            what = f"{instruction.id} has marks, and its steps overlap"
            raise fault(index.program, 16, what, [spot], "Steps that overlap exchange nothing inside of compute.")
        for name in instruction.after:
            found = index.find(spot.rank, name)
            if found is None:
                what = f"{instruction.id} waits for {name}, and rank {spot.rank} has no such instruction"
                raise fault(index.program, 16, what, [spot], "Name an instruction of the same rank.")
            named = index.at(found)
            if (named.behind, found.position) > (instruction.behind, spot.position):
                what = f"{instruction.id} is {instruction.behind} steps behind and waits for {named.id}, {named.behind}"
                raise fault(index.program, 16, what, [spot, found], "What is waited for comes no later.")


def check_program(program: Program) -> None:
    """Refuse a program that breaks a rule.

    Args:
        program: the program

    Raises:
        InputError: with the number of the rule (`figures["rule"]`), and the program drawn with an arrow at the fault
    """
    index = index_program(program)  # 1
    check_fields(index)  # 2
    overlapping = program.behind > 0
    if overlapping:
        check_overlap(index)  # 16
        program = unroll(program, STEPS_CHECKED + program.behind)
        index = index_program(program)
    check_after(index)  # 3
    steps = check_steps(index)  # 4
    check_data(index)  # 5
    check_uniform(index)  # 6
    check_loads(index)  # 7
    channels = match_messages(program)  # 8
    groups = match_collectives(program)  # 9
    check_marks(index)  # 10
    check_groups(index, steps)  # 11
    check_updates(index, overlapping=overlapping)  # 12
    check_owners(index)  # 14
    check_progress(program, [*channels, *groups], index.positions)  # 13
