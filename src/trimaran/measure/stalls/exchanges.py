"""Why a rank stood still in an exchange: because of the exchange itself, or because another rank came late.

For what several ranks do together (all-reduces and their kin) the two are told apart as `observe` does: the shortest
wait over the ranks is the exchange, because the last one to come waits for nobody; what another one waits longer, it
waits for the slower ones. Waits between which a rank computes nothing are one wait, as there only their sum says when
the rank could go on:

    rank 0   F ██ B ████ b0 ▒▒▒▒▒▒ b1 ▒▒▒│ U      7 = 3 communication + 4 synchronization
    rank 1   F ██ B ████████ b0 ▒ b1 ▒▒  │ U      3 communication

A message has two ends. Before both have posted it, whoever waits does so for the other rank; from then on for the wire.
Packing and handing over, which come first, are communication.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trimaran.program.matching import match_messages
from trimaran.program.types import COLLECTIVES, Instruction, Program
from trimaran.timeline import COMMUNICATION, WAIT, Span


@dataclass(slots=True, kw_only=True)
class Waited:
    """How long one rank stood still in the exchanges of a step.

    Attributes:
        communication: because of the exchanges themselves [s]
        synchronization: because other ranks came later [s]
    """

    communication: float = 0.0
    synchronization: float = 0.0


@dataclass(slots=True)
class _Standing:
    """The waits of one rank in the collectives of one group, by the compute between which they lie."""

    tokens: dict[int, list[str]] = field(default_factory=dict)
    seconds: dict[int, list[float]] = field(default_factory=dict)

    def add(self, part: int, token: str, seconds: float) -> None:
        self.tokens.setdefault(part, []).append(token)
        self.seconds.setdefault(part, []).append(seconds)

    @property
    def order(self) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(tokens) for tokens in self.tokens.values())

    def by_part(self) -> dict[str, float]:
        return {str(number): sum(seconds) for number, seconds in enumerate(self.seconds.values())}

    def by_token(self) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for part, tokens in self.tokens.items():
            for token, seconds in zip(tokens, self.seconds[part], strict=True):
                found[token] += seconds
        return found


class Exchanges:
    """The exchanges of a program.

    Args:
        program: of a step
    """

    def __init__(self, program: Program) -> None:
        self._instructions = {instruction.id: instruction for instruction in program}
        self._other: dict[str, str] = {}
        for channel in match_messages(program):
            for send, receive in channel:
                one, two = (program.ranks[spot.rank][spot.position].id for spot in (send, receive))
                self._other |= {one: two, two: one}

    def find(self, name: str) -> Instruction | None:
        """The instruction of a span; None: the program has none of that name."""
        return self._instructions.get(name)

    def divide(self, spans: Iterable[Span]) -> dict[int, Waited]:
        """How long each rank stood still in one step, and why.

        Args:
            spans: of one step, all ranks

        Returns:
            By rank, for those that waited at all.
        """
        waits: list[Span] = []
        posted: dict[str, float] = {}
        busy: dict[int, list[float]] = defaultdict(list)
        for span in spans:
            if span.stream == WAIT:
                waits.append(span)
            elif span.stream == COMMUNICATION:
                posted[span.instruction] = span.start_s
            else:
                busy[span.rank].append(span.start_s)
        for starts in busy.values():
            starts.sort()
        found: dict[int, Waited] = defaultdict(Waited)
        groups: dict[tuple[int, ...], dict[int, _Standing]] = defaultdict(lambda: defaultdict(_Standing))
        for wait in waits:
            instruction = self._instructions.get(wait.instruction)
            if instruction is not None and instruction.kind in COLLECTIVES:
                part = bisect_right(busy[wait.rank], wait.start_s)
                groups[instruction.group][wait.rank].add(part, instruction.token, wait.seconds)
                continue
            wire_s = self._on_the_wire(wait, posted)
            found[wait.rank].communication += wire_s
            found[wait.rank].synchronization += wait.seconds - wire_s
        for group, standing in groups.items():
            _divide_group(group, standing, found)
        return dict(found)

    def _on_the_wire(self, wait: Span, posted: Mapping[str, float]) -> float:
        """How much of the wait for a message was because of the wire [s]."""
        own_s = posted.get(wait.instruction, wait.start_s)
        other_s = posted.get(self._other.get(wait.instruction, ""), own_s)
        if wait.start_s <= own_s:
            # Packing it, and handing it over.
            return wait.seconds
        return min(wait.seconds, max(0.0, wait.end_s - max(own_s, other_s)))


def _divide_group(group: Sequence[int], standing: Mapping[int, _Standing], found: dict[int, Waited]) -> None:
    alike = len({one.order for one in standing.values()}) == 1
    waited = {rank: one.by_part() if alike else one.by_token() for rank, one in standing.items()}
    for key in sorted({key for parts in waited.values() for key in parts}):
        shortest = min(waited.get(rank, {}).get(key, 0.0) for rank in group)
        for rank, parts in waited.items():
            own = parts.get(key, 0.0)
            found[rank].communication += min(own, shortest)
            found[rank].synchronization += own - min(own, shortest)
