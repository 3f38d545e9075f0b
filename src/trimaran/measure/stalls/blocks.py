"""Which steps are taken in which order: blocks of the three ways, which take turns.

    round 0    cold 1..8    cached 1..8    synthetic
    round 1    synthetic    cold 9..16     cached 9..16
    ...

What changes over seconds so falls on all ways alike. A cold block reads batches that nothing has read before, as far as
the epoch has them; the cached block after it reads the same. The first batch of an epoch has been read for the
synthetic steps, so that an epoch of one batch has no cold block. Each block begins with steps that do not count: ranks
meet there, workers start, and what was ready before is used up.
"""

from dataclasses import dataclass, replace

from trimaran.measure.stalls.steps import Way


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive steps of one way.

    Attributes:
        way: how they get their batches
        round: number of the round
        first: number of the global batch of the first step; synthetic steps have batch 0
        lead: steps at its start that do not count
        steps: those that count
    """

    way: Way
    round: int
    first: int = 0
    lead: int = 0
    steps: int

    @property
    def batches(self) -> int:
        """Steps that are taken."""
        return self.lead + self.steps


Round = tuple[Block, ...]


def plan_rounds(*, steps: int, batches: int, rounds: int, lead: int = 1, multiple: int = 1) -> tuple[Round, ...]:
    """The blocks of a measurement.

    Args:
        steps: of each way that count, at least
        batches: full global batches of an epoch, at least one; the first is that of the synthetic steps
        rounds: at most
        lead: steps at the start of a block that do not count
        multiple: a block has a multiple of so many steps that count, as batches of so many workers come together

    Returns:
        The rounds, without a cold block where the epoch has no further batches.

    Example:
        >>> (blocks,) = plan_rounds(steps=2, batches=9, rounds=1)
        >>> [(block.way, block.first, block.lead, block.steps) for block in blocks]
        [('cold', 1, 1, 2), ('cached', 1, 1, 2), ('synthetic', 0, 1, 2)]
    """
    rounds = max(1, min(rounds, -(-steps // multiple)))
    each = -(-steps // (rounds * multiple)) * multiple
    first = 1
    found: list[Round] = []
    for number in range(rounds):
        span = min(lead + each, batches - first)
        if span == lead + each or (span and not found):
            # In a short epoch half of it counts: what many workers load first must not be nearly all that is read.
            before = lead if span == lead + each else min(lead, span // 2)
            cold = Block(way="cold", round=number, first=first, lead=before, steps=span - before)
            reading = [cold, *_again(cold, each)]
            first += span
        else:
            # The first round is read first, and begins with what others read again.
            again = found[0][0] if found else Block(way="cached", round=number, steps=1)
            reading = _again(replace(again, round=number), each)
        synthetic = Block(way="synthetic", round=number, lead=min(lead, 1), steps=each)
        found.append((*reading, synthetic) if number % 2 == 0 else (synthetic, *reading))
    return tuple(found)


def _again(cold: Block, steps: int) -> list[Block]:
    """Blocks that read the batches of a cold one again, as often as it takes."""
    blocks: list[Block] = []
    while steps > 0:
        blocks.append(replace(cold, way="cached", steps=min(cold.steps, steps)))
        steps -= cold.steps
    return blocks
