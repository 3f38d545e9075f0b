"""The strategies that are worth pricing, and why others are not.

First form of the search space: data-parallel replicas × pipeline stages × schedule × microbatches, on the given number
of devices or fewer. Stages are cut elsewhere (`planner/partition.py`); here a strategy has no boundaries yet.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from trimaran.program import Strategy
from trimaran.program.types import Schedule

SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b")
# A pipeline with K stages idles for (K - 1) / (M + K - 1) of the time: beyond M = 4 K little is left to gain.
MICROBATCHES_PER_STAGE = (1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A strategy that was not priced, or does not fit.

    Attributes:
        strategy: what was considered
        reason: what stands against it, with the figures
    """

    strategy: Strategy
    reason: str


def enumerate_strategies(*, devices: int, batch: int, can_cut: bool) -> tuple[list[Strategy], list[Rejection]]:
    """Every strategy on up to that many devices, simplest first.

    Args:
        devices: most ranks that may take part
        batch: samples of one update, over all ranks
        can_cut: the network may be cut into stages

    Returns:
        The strategies, and those rejected with the reason.

    Example:
        >>> [strategy.name for strategy in enumerate_strategies(devices=2, batch=8, can_cut=False)[0]]
        ['one device', 'dp2']
    """
    kept: list[Strategy] = []
    rejected: list[Rejection] = []
    for strategy in _all(devices):
        shares = strategy.dp * strategy.microbatches
        if strategy.pp > 1 and not can_cut:
            rejected.append(Rejection(strategy=strategy, reason="the network cannot be cut into stages"))
        elif batch % shares:
            reason = f"a global batch of {batch} does not divide into {strategy.dp} × {strategy.microbatches} shares"
            rejected.append(Rejection(strategy=strategy, reason=reason))
        else:
            kept.append(strategy)
    return kept, rejected


def _all(devices: int) -> Iterator[Strategy]:
    for used in range(1, devices + 1):
        for stages in (stages for stages in range(1, used + 1) if used % stages == 0):
            if stages == 1:
                yield Strategy(dp=used)
                continue
            for microbatches in (stages * ratio for ratio in MICROBATCHES_PER_STAGE):
                for schedule in SCHEDULES:
                    yield Strategy(dp=used // stages, pp=stages, schedule=schedule, microbatches=microbatches)


def simplicity(strategy: Strategy) -> tuple[int, ...]:
    """Sort key by which the simpler of two equally good strategies comes first.

    One process is simpler than replicas, replicas are simpler than a pipeline, a pipeline is simpler than a hybrid;
    then fewer devices, eager before compiled, fewer microbatches, GPipe before 1F1B.
    """
    shape = 2 * (strategy.pp > 1) + (strategy.dp > 1)
    return (
        shape,
        strategy.devices,
        strategy.execution != "eager",
        strategy.microbatches,
        SCHEDULES.index(strategy.schedule),
    )
