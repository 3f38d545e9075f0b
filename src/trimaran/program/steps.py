"""Whether the steps of compute are complete and have their data: rules 4 to 7."""

from collections.abc import Iterator, Mapping

from trimaran.program.grid import Spot, fault
from trimaran.program.index import Index
from trimaran.program.orders import BACKWARDS, COMPUTES
from trimaran.program.types import RECEIVES, SENDS, Instruction, Kind

Steps = Mapping[int, Mapping[int, Mapping[int, Mapping[Kind, Spot]]]]
"""Where each kind of step stands, by segment, rank and microbatch."""


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
    for kind in _candidates(message.kind):
        found = index.find(spot.rank, f"{message.segment}{kind}{message.microbatch}")
        if found is not None:
            return found
    return None


def _candidates(kind: Kind) -> Iterator[Kind]:
    if kind in (Kind.SEND_FORWARD, Kind.RECEIVE_FORWARD):
        yield from (Kind.FORWARD, Kind.EVALUATE)
    else:
        yield from (kind for kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT) if kind in BACKWARDS)
